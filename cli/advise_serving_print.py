"""How the outcome of a load test is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from advisor.serving_report import Point, Report
    from advisor.serving_store import Store


def as_data(found: Report, store: Store, name: str, why: str, *, void: bool) -> dict[str, Any]:
    """A run as plain data: rates per second, times in milliseconds where the name says so, else in seconds."""
    price = found.price
    return {
        "service": name,
        "found": found.found and not void,
        "void": void,
        "why": why,
        "bracket": {
            "highestPassing": found.bracket.low,
            "lowestFailing": found.bracket.high,
            "width": found.bracket.width,
        },
        "broke": found.broke,
        "perGoodAnswer": None
        if price is None
        else {
            "gpuSeconds": price.gpu_seconds,
            "cost": price.cost,
            "currency": price.currency if price.cost is not None else None,
            "budget": price.allowed,
        },
        "curve": [point.as_data() for point in found.curve],
        "trials": [trial.as_data() for trial in store.trials],
        "fingerprint": store.fingerprint,
        "dir": str(store.folder),
    }


def show(found: Report, store: Store, why: str, *, void: bool) -> None:
    """A run for people: goodput by rate, then what it means; why it ended well, if it did."""
    from rich.console import Console

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=200)
    if found.curve:
        console.print(_table(found))
        typer.echo("")
    if void:
        typer.echo(f"void: {len(store.trials)} trials are kept in {store.folder}, but say nothing about one server")
        return
    typer.echo(_bracket(found))
    if found.broke:
        typer.echo(f"How it broke at {found.bracket.high:g}/s: {found.broke}.")
    for line in _cost(found):
        typer.echo(line)
    count = len(store.trials)
    spoilt = f", {found.void} of them void" if found.void else ""
    ended = f" Ended: {why}." if why else ""
    typer.echo(f"{count} trial{'' if count == 1 else 's'}{spoilt}, kept in {store.folder}.{ended}")


def _bracket(found: Report) -> str:
    low, high, width = found.bracket.low, found.bracket.high, found.bracket.width
    if low is not None and high is not None and width is not None:
        return f"Sustainable: at least {low:g} requests a second, less than {high:g} (bracket {width:.1%} wide)."
    if low is not None:
        return f"Sustainable: at least {low:g} requests a second; no higher rate has failed twice."
    if high is not None:
        return f"Not sustainable: {high:g} requests a second; no lower rate has passed twice."
    return "Nothing is certain yet: no rate has passed or failed twice."


def _cost(found: Report) -> list[str]:
    price = found.price
    if price is None:
        return []
    told = f"A good answer takes {price.gpu_seconds:.4g} GPU-seconds at {found.bracket.low:g}/s"
    if price.cost is not None:
        told += f" and costs {price.cost:.4g} {price.currency}"
        if price.allowed is not None:
            told += f" ({'within' if price.cost <= price.allowed else 'over'} the budget of {price.allowed:g})"
    return [told + "."]


def _table(found: Report) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    first = found.curve[0]
    named = [(goal, name) for goal, limits in first.times.items() for name in limits]
    judged = any(point.quality is not None for point in found.curve)
    for title in ("RATE/S", "PASSED", "GOODPUT/S", "ANSWERED", *(["QUALITY"] if judged else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for goal, name in named:
        table.add_column(f"{goal} {name}", justify="right", no_wrap=True)
    table.add_column("")
    best = max(point.goodput for point in found.curve) or 1.0
    for point in found.curve:
        table.add_row(
            f"{point.rate:g}",
            f"{point.passed} of {point.passed + point.failed}",
            f"{point.goodput:.1f}",
            f"{point.answered:.1%}",
            *([f"{point.quality:.3f}" if point.quality is not None else "-"] if judged else []),
            *(_time(point.times[goal][name]) for goal, name in named),
            "█" * round(12 * point.goodput / best) + _mark(found, point),
        )
    return table


def _mark(found: Report, point: Point) -> str:
    if point.rate == found.bracket.low:
        return " highest passing"
    return " lowest failing" if point.rate == found.bracket.high else ""


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "never"
    return f"{milliseconds / 1000:.2f}s" if milliseconds >= 1000 else f"{milliseconds:.0f}ms"
