"""``punctual advise``: is more hardware needed? The page by itself, and one file per question beside this one."""

from __future__ import annotations

import typer

from cli import (
    advise_capacity,
    advise_cost,
    advise_outcomes,
    advise_page,
    advise_serving,
    advise_success,
    advise_usage,
)

app = typer.Typer()
app.callback(invoke_without_command=True)(advise_page.page)
app.add_typer(advise_success.app, name="success")
app.command()(advise_usage.usage)
app.command()(advise_outcomes.outcomes)
app.command()(advise_cost.cost)
app.command()(advise_serving.serving)
app.command()(advise_capacity.capacity)
