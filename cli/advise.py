"""``punctual advise``: is more hardware needed? One file per question beside this one, `advise_*.py`."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Is more hardware needed? Facts first: deadlines, outcomes, costs, serving capacity.",
)
