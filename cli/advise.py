"""``punctual advise``: is more hardware needed? One file per question beside this one, `advise_*.py`."""

from __future__ import annotations

import typer

from cli import advise_capacity, advise_cost, advise_outcomes, advise_serving, advise_success, advise_usage

app = typer.Typer(
    no_args_is_help=True,
    help="Is more hardware needed? Facts first: deadlines, outcomes, costs, serving capacity.",
)
app.add_typer(advise_success.app, name="success")
app.command()(advise_usage.usage)
app.command()(advise_outcomes.outcomes)
app.command()(advise_cost.cost)
app.command()(advise_serving.serving)
app.command()(advise_capacity.capacity)
