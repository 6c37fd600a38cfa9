"""``punctual``: the command line. Each command is a file of its own beside this one."""

from __future__ import annotations

import typer

from cli import (
    advise,
    bench,
    check,
    cluster,
    compile,
    controller,
    demo,
    explain,
    ledger,
    observe,
    outcome,
    outcome_server,
    plan,
    policy,
    release,
    solver,
    sweep,
)

app = typer.Typer(no_args_is_help=True, help="Deadline-aware admission for Kueue.")
app.command()(plan.plan)
app.command()(explain.explain)
app.command()(demo.demo)
app.command()(observe.observe)
app.command()(outcome.outcome)
app.command("outcome-server")(outcome_server.outcome_server)
app.command()(controller.controller)
app.command()(release.release)
app.command()(check.check)
app.command()(solver.solver)
app.command()(sweep.sweep)
app.command()(compile.compile)
app.add_typer(advise.app, name="advise")
app.add_typer(bench.app, name="bench")
app.add_typer(cluster.app, name="cluster")
app.add_typer(ledger.app, name="ledger")
app.add_typer(policy.app, name="policy")


def main() -> None:
    """Entry point of ``punctual`` and ``kubectl punctual``."""
    app()
