"""``punctual bench``: what things cost, measured here and now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

FAILED, BELOW_BAR = 1, 3
"""Exit codes."""

app = typer.Typer(
    no_args_is_help=True,
    help="""Measure what things cost on this machine.

    Each bench prints its figures, what we want them to be, and the bars that
    must hold wherever it runs. Exit codes: 0 all bars hold; 1 the bench failed;
    2 wrong options; 3 a bar does not hold.""",
)


class Output(StrEnum):
    """Ways to print figures."""

    TABLE = "table"
    JSON = "json"


@app.callback()
def benches() -> None:
    """Makes each bench a sub-command, even while there is only one."""


@app.command()
def rpc(
    sizes: Annotated[
        list[int] | None,
        typer.Option(
            "-n", min=1, metavar="N", help="Pending workloads; several times for several.", show_default="10000"
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Calls of which the median counts; one more goes before them.")] = 5,
    seed: Annotated[int, typer.Option(help="Which random instance.")] = 0,
    solver: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ask this planner.", show_default="one that is started for the purpose"),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """The first plan of a whole Plan call, with its parts.

    A tree of 20 ClusterQueues, 3 levels of cohorts and 4 flavors, a third of it
    busy; greedy engine. The round trip goes from columns in the client's memory
    to the plan's columns there.
    """
    import grpc
    from rich.console import Console

    from benchmarks.rpc import measure
    from solver.sidecar import SidecarFailed, sidecar

    console = Console(stderr=True)
    try:
        with _status(console) as say:
            if solver is None:
                say("starting a solver")
                with sidecar("--max-message-mib", "1024") as address:
                    result = measure(address, sizes or [10_000], runs, seed, say)
            else:
                result = measure(solver, sizes or [10_000], runs, seed, say)
    except SidecarFailed as error:
        raise _failed(str(error)) from None
    except grpc.RpcError as error:
        raise _failed(f"{solver or 'the solver'}: {error.code().name}: {error.details()}") from None
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        _print_rpc(result)
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


def _print_rpc(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from benchmarks.rpc import PARTS

    table = Table(title=f"One Plan call, milliseconds, median of {result['runs']}", title_justify="left")
    table.add_column("pending workloads")
    for n in result["figures"]:
        table.add_column(f"{int(n):,}", justify="right")
    wanted = result["reference"]["round trip"]
    for part in ("round trip", *PARTS):
        table.add_row(part, *(f"{figures[part]:,.1f}" for figures in result["figures"].values()))
    table.add_row("wanted round trip", *(str(wanted.get(n, "")) for n in result["figures"]), style="dim")
    ((bar, state),) = result["bars"].items()
    signs = ((ratio, "≤" if ratio <= state["most"] else ">") for ratio in state["is"].values())
    table.add_row(f"bar: {bar}", *(f"{ratio:.2f} {sign} {state['most']:g}" for ratio, sign in signs))
    Console().print(table, "" if result["holds"] else "[red]The bar does not hold.[/red]")


@app.command()
def backlog(
    sizes: Annotated[
        list[int] | None,
        typer.Option("-n", min=2, metavar="N", help="Workloads; several times for several.", show_default="50 200 500"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first of the random instances.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many, for each size and load.")] = 5,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Late weight of whole backlogs: Punctual beside 13 priority rules.

    One flavor, 10 queues with caps, half of the pool busy, loads of 0.9, 1.1 and 1.3. All rules use Punctual's own
    fast schedules. Punctual has 1 second, above 2,000 workloads 5. Takes about 5 seconds an instance; sizes × seeds ×
    3 of them.
    """
    from rich.console import Console

    from benchmarks.backlog import measure

    with _status(Console(stderr=True)) as say:
        result = measure(sizes or [50, 200, 500], range(seed, seed + seeds), say)
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        _print_backlog(result)
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


def _print_backlog(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    figures, reference = result["figures"], result["reference"]
    instances = len(result["loads"]) * len(result["seeds"])
    table = Table(title=f"Late weight in % of all weight, mean of {instances} instances", title_justify="left")
    table.add_column("workloads")
    for n in figures:
        table.add_column(f"{int(n):,}", justify="right")
    for rule in next(iter(reference.values())):
        table.add_row(rule, *(f"{reference[n][rule]:.2f}" for n in figures))
    table.add_section()
    table.add_row("Punctual", *(f"{f['punctual']:.2f}" for f in figures.values()), style="bold")
    table.add_row("proved: no plan below", *(f"{f['bound']:.2f}" for f in figures.values()))
    table.add_row("seconds", *(f"{f['seconds']:.2f}" for f in figures.values()), style="dim")
    ((bar, state),) = result["bars"].items()
    cells = []
    for n in figures:
        ratio, most = state["is"].get(n), state["most"].get(n)
        cells.append("" if ratio is None else f"{ratio:.2f} {'≤' if ratio <= most else '>'} {most:g}")
    table.add_row(f"bar: {bar}", *cells)
    Console().print(table, "" if result["holds"] else "[red]The bar does not hold.[/red]")


@app.command()
def kernel(
    cases: Annotated[
        list[str] | None,
        typer.Option("-c", metavar="CASE", help="'100k tree', '1M flat' or '1M tree'; several times for several."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Which random instance.")] = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Schedule generation for up to a million workloads, beside a plain scan.

    Both find the same starts in time buckets, in this process; how many times as
    fast the planner's kernel is has a bar, and so has the memory. About five
    minutes with the defaults, nearly all of it the plain scan's.
    """
    from rich.console import Console
    from rich.table import Table

    from benchmarks.kernel import CASES, measure

    names = cases or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        raise typer.BadParameter(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}", param_hint="-c")
    with _status(Console(stderr=True)) as say:
        result = measure(names, runs, seed, say)
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        table = Table(title=f"Schedule generation, median of {runs}", title_justify="left")
        for column in ("case", "seconds", "wanted", "plain scan", "times as fast", "bar", "same starts"):
            table.add_column(column, justify="left" if column == "case" else "right")
        for name, told in result["figures"].items():
            reference, least = result["reference"][name], result["bars"]["times as fast"]["least"][name]
            seconds = f"{told['seconds']:.2f}", f"{reference['wanted']:g}", f"{reference['plain scan']:.2f}"
            same = "yes" if told["same starts"] else "no"
            table.add_row(name, *seconds, f"{told['times']:.1f}", f"≥ {least:g}", same)
        memory = result["bars"]["peak MiB"]
        Console().print(table, f"memory at its peak: {memory['is']:.0f} MiB (bar: ≤ {memory['most']})")
        Console().print("" if result["holds"] else "[red]Not all bars hold.[/red]")
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


@app.command()
def online(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            exists=True,
            file_okay=False,
            help="Folder of public traces; benchmarks/README.md says which files.",
        ),
    ],
    traces: Annotated[
        list[str] | None,
        typer.Option("-t", metavar="NAME", help="A trace; several times for several.", show_default="all with bars"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed of the noise on estimates.")] = 0,
    seeds: Annotated[int, typer.Option(min=0, help="How many seeds; 0 leaves the noise out.")] = 5,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Real traces replayed: protection levels beside FIFO, EASY, EDF and others.

    Levels are learned on the first half of a trace and scored on the second, with
    true durations (of logs the users' estimates) and with estimates of which 23 %
    are wrong by 2 x or more. About ten minutes with the defaults.
    """
    from rich.console import Console

    from benchmarks.online import BARRED, SOURCES, measure
    from simulator.traces.table import TraceError

    names = traces or list(BARRED)
    if unknown := [name for name in names if name not in SOURCES]:
        raise typer.BadParameter(f"no trace {', '.join(unknown)}; there are {', '.join(SOURCES)}", param_hint="-t")
    try:
        with _status(Console(stderr=True)) as say:
            result = measure(data, names, range(seed, seed + seeds), say)
    except TraceError as error:
        raise _failed(str(error)) from None
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        _print_online(result)
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


def _print_online(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Jobs with due dates, and best effort", title_justify="left")
    for column in ("trace, policy", "missed", "GPU-hours", "together", "wait min, median", "p95", "longest wait h"):
        table.add_column(column, justify="left" if column.startswith("trace") else "right")
    for name, figures in result["figures"].items():
        for kind, also in (("exact", ""), ("noise", ", noise")):
            rows = [*result["reference"][name].get(kind, {}).items()]
            for policy, told in [*rows, *([("Punctual", figures[kind])] if kind in figures else [])]:
                waits = (told["best-effort wait, median min"], told["best-effort wait, p95 min"])
                table.add_row(
                    f"{name}{also} {policy}",
                    *(f"{told[key]:.3f}" for key in ("missed", "missed GPU-hours", "lost")),
                    *(f"{wait:,.0f}" if any(waits) else "" for wait in waits),
                    f"{told['longest wait, h']:,.0f}",
                    style="bold" if policy == "Punctual" else None,
                )
        table.add_section()
    console = Console()
    console.print(table)
    for bar, state in result["bars"].items():
        for name, value in state["is"].items():
            most = state["most"][name]
            console.print(f"{bar}, {name}: {value:.2f} {'≤' if value <= most else '[red]>[/red]'} {most:g}")
    if not result["holds"]:
        console.print("[red]Not all bars hold.[/red]")


@app.command()
def wt(
    data: Annotated[
        Path,
        typer.Option(
            "--data", exists=True, file_okay=False, help="Folder of public data; benchmarks/README.md says which files."
        ),
    ],
    count: Annotated[int, typer.Option("-n", min=1, metavar="N", help="Instances of each set, spread over it.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Source of the search's random choices.")] = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Weighted tardiness on one machine: instances with known optima.

    The OR-Library's wt40, wt50 and wt100 by Punctual's own search, with 2, 5 and 10
    seconds each. About three minutes with the defaults.
    """
    from rich.console import Console
    from rich.table import Table

    from benchmarks.wt import measure
    from simulator.traces.table import TraceError

    try:
        with _status(Console(stderr=True)) as say:
            result = measure(data, count, seed, say)
    except TraceError as error:
        raise _failed(str(error)) from None
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        table = Table(title="Weighted tardiness, one machine", title_justify="left")
        for column in ("set", "instances", "best known found", "bar", "mean gap %", "largest gap %", "seconds"):
            table.add_column(column, justify="left" if column == "set" else "right")
        least = result["bars"]["found the best known"]["least"]
        for name, told in result["figures"].items():
            shown = f"{told['mean gap']:.3f}", f"{told['most gap']:.3f}", f"{told['seconds']:.1f}"
            table.add_row(
                name, str(told["instances"]), f"{told['best known']:.0%}", f"≥ {least[name]:.0%}", *shown
            )  # fmt: skip
        Console().print(table, "" if result["holds"] else "[red]Not all bars hold.[/red]")
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


@app.command()
def repair(
    pending: Annotated[int, typer.Option("-n", min=20, metavar="N", help="Pending workloads.")] = 10_000,
    events: Annotated[int, typer.Option(min=1, help="How many of each kind, on each of the two instances.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Which random instances and events.")] = 0,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """A plan repaired when work ends early, runs over or arrives, or quota is cut.

    The repair, and what the planner has made of it a second later, beside plans
    that are made anew in that second: how late work is, and how many planned
    starts move. Every plan is verified. About two minutes with the defaults.
    """
    from rich.console import Console

    from benchmarks.repair import measure

    with _status(Console(stderr=True)) as say:
        result = measure(pending, seed, events, say)
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        _print_repair(result)
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


def _print_repair(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    wanted = result["reference"]["repair p95 ms wanted"]
    title = f"{result['pending']:,} pending; milliseconds are p50 / p95 (wanted: a repair in {wanted}, p95)"
    table = Table(title=title, title_justify="left")
    weighed = Table(title="Late weight, all events together", title_justify="left")
    moves = Table(title="Planned starts that move, mean", title_justify="left")
    for one, columns in (
        (table, ("event", "repair ms", "first answer ms")),
        (weighed, ("event", "repaired", "1 s after", "planned anew", "ratio of the last two")),
        (moves, ("event", "repaired", "1 s after", "planned anew")),
    ):
        for column in columns:
            one.add_column(column, justify="left" if column == "event" else "right")
    bars = result["bars"]
    over, late = bars["plans over capacity"], bars["late weight a second after / planned anew"]
    for kind, told in result["figures"].items():
        anew = result["reference"]["planned anew"][kind]
        spreads = (f"{told[key]['p50']:.1f} / {told[key]['p95']:.1f}" for key in ("repair ms", "first answer ms"))
        weights = (told["late weight"]["repaired"], told["late weight"]["a second after"], anew["late weight"])
        moved = (told["moved"]["repaired"], told["moved"]["a second after"], anew["moved"])
        ratio = f"{late['is'][kind]:.2f}" if kind in late["is"] else ""
        table.add_row(kind, *spreads)
        weighed.add_row(kind, *(f"{weight:,.0f}" for weight in weights), ratio)
        moves.add_row(kind, *(f"{m:,.0f}" for m in moved))
    console = Console()
    console.print(table, weighed, moves)
    worst = max(late["is"].values())
    console.print(f"bar: late weight a second after / planned anew {worst:.2f} at worst, ≤ {late['most']:g}")
    console.print(f"bar: plans over capacity {over['is']}, ≤ {over['most']}")
    if not result["holds"]:
        console.print("[red]Not all bars hold.[/red]")


@app.command()
def cluster(
    jobs: Annotated[int, typer.Option("-n", min=1, metavar="N", help="Jobs of the stream.")] = 300,
    gated: Annotated[
        int, typer.Option(min=0, metavar="N", help="More jobs that wait behind the gate meanwhile (until tomorrow).")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Which random stream.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the logs in this (new) folder.", show_default="a folder that is removed"),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """The same jobs through plain Kueue and through Punctual, on a real local cluster.

    Starts a cluster of its own (punctual cluster --help says what that is), sends
    a seeded stream of jobs of seconds through a queue of 64 GPUs of plain Kueue,
    then the same through Punctual. About eight minutes with the defaults; a busy
    machine disturbs it.
    """
    from rich.console import Console

    from benchmarks.cluster import BenchFailed, measure
    from localcluster.errors import LocalClusterError

    try:
        with _status(Console(stderr=True)) as say:
            result = measure(jobs, gated, seed, say, folder)
    except (BenchFailed, LocalClusterError, OSError) as error:
        raise _failed(str(error)) from None
    if output is Output.JSON:
        typer.echo(json.dumps(result))
    else:
        _print_cluster(result)
    if not result["holds"]:
        raise typer.Exit(BELOW_BAR)


def _print_cluster(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    kueue, punctual = result["figures"]["kueue"], result["figures"]["punctual"]
    title = f"{result['jobs']} jobs, {kueue['due']} with a deadline; {result['gated']:,} more behind the gate"
    table = Table(title=title, title_justify="left")
    for column in ("", "plain Kueue", "Punctual", "wanted at most"):
        table.add_column(column, justify="right" if column else "left")
    bars, wanted = result["bars"], result["reference"]
    half = bars["misses by plain Kueue's"]["most"] * kueue["missed"]
    limits = {"missed": f"{half:g}", "interrupted": "0", "idle GPU-seconds": f"{kueue['idle GPU-seconds']:,.0f}"}
    memory = ("controller peak MiB", "solver peak MiB")
    limits |= {name: f"{most:,.0f}" for name, most in wanted.items()}
    limits |= {name: f"{bars[name]['most']:,.0f}" for name in memory}
    for name in ("missed", "interrupted", "idle GPU-seconds", "refill ms", "seconds", *wanted, *memory):
        cells = (f"{side[name]:,.0f}" if name in side else "" for side in (kueue, punctual))
        table.add_row(name, *cells, limits.get(name, ""))
    table.add_section()
    for size, waited in kueue["waits"].items():
        pairs = (f"{each['p50']:.1f} / {each['p95']:.1f}" for each in (waited, punctual["waits"][size]))
        table.add_row(f"seconds that {size} GPUs waited, p50 / p95", *pairs, "")
    Console().print(table)
    for bar, state in bars.items():
        holds = state["is"] <= state["most"]
        line = f"bar: {bar} {state['is']:.2f} {'≤' if holds else '>'} {state['most']:g}"
        Console().print(line if holds else f"[red]{line}[/red]")


@contextmanager
def _status(console: Console) -> Iterator[Any]:
    with console.status("...") as status:
        yield lambda text: status.update(f"{text} ...")


def _failed(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(FAILED)
