"""How ``advise usage``, ``outcomes`` and ``cost`` print figures."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def print_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """A table: the first column to the left, numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for line in lines:
        table.add_row(*line)
    # A pipe has no width: nothing is cut there.
    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=200)).print(table)


def print_csv(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """The same for spreadsheets."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)


def print_json(value: Any) -> None:
    """For machines; a number that is none is null."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def remarks(lines: Iterable[str]) -> None:
    """What is missing or odd, to the standard error."""
    for line in lines:
        typer.echo(f"note: {line}", err=True)


def number(value: float | None, digits: int = 1) -> str:
    """For people; a dash where nothing is known."""
    return "-" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share, for people."""
    return "-" if share is None else f"{share:.0%}"
