"""``punctual advise usage``: GPUs allocated, busy, and busy for results that count."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_print import number, percent, print_csv, print_json, print_table, remarks
from cli.advise_source import (
    PARTIAL,
    Address,
    Export,
    Format,
    Goals,
    Output,
    Patience,
    PrometheusUrl,
    Queue,
    Shares,
    Since,
    Sources,
    Token,
    Until,
    judge_of,
    look,
    measure_busy,
    servers_of,
    shares_of,
    span,
    span_object,
    success_of,
)
from scheduler.settings import HOUR

if TYPE_CHECKING:
    from advisor.usage import Row, Usage


class By(StrEnum):
    """What to show it by."""

    QUEUE = "queue"
    TEAM = "team"
    WORKLOAD = "workload"
    FLAVOR = "flavor"
    HOUR = "hour"


def usage(
    ledger: Address = None,
    file: Export = None,
    by: Annotated[By, typer.Option(help="What to show it by. A team is a namespace.")] = By.QUEUE,
    queue: Queue = None,
    since: Since = "7d",
    until: Until = None,
    success: Goals = None,
    prometheus: PrometheusUrl = None,
    token_file: Token = None,
    timeout: Patience = "30s",
    gpu_share: Shares = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many rows at most.")] = 30,
    output: Format = Output.TABLE,
) -> None:
    """Show the states of GPUs side by side, in GPU-hours.

    ALLOCATED is exact: what Kueue granted, from admission to end, by the ledger.
    BUSY is what the DCGM exporter saw of it, of so much as it saw (MEASURED).
    PRODUCTIVE is busy for results that count (punctual advise outcomes), UNJUDGED
    busy for work of which that is not known yet. What was not measured is not
    idle: it is not known.

    \b
    punctual advise usage --ledger ledger.db --since 30d --by team
    punctual advise usage --prometheus http://prometheus:9090 --success success.yaml

    Exit codes: 0 done; 1 a file or the ledger cannot be read; 2 wrong usage;
    3 a source did not answer for all of the window: what is known is printed.
    """
    from advisor.usage import BY, allocate, peak, rows, total

    said, servers = shares_of(gpu_share), servers_of(prometheus, token_file, timeout)
    goals = success_of(success)
    seen = look(ledger, file, since, until, queue)
    found = allocate(seen.entries, seen.window, seen.now, said)
    sources = Sources()
    sources.add("ledger", str(file or ledger))
    measure_busy(found, seen, servers, sources)
    judge, answers = judge_of(goals, seen, servers, sources)
    notes = [*seen.remarks, *found.remarks, *(answers.remarks if answers else ())]
    worth = judge.worth
    whole = total(found, worth)
    most = peak(found, seen.entries, seen.now, said)
    if output is Output.JSON:
        print_json(
            {
                "window": span_object(seen.window),
                "sources": sources.told,
                "total": {**_object(whole), "peakGpus": most, **_others(found)},
                "by": {key: [_object(row) for row in rows(found, key, worth)] for key in BY},
                "remarks": notes,
            }
        )
    else:
        shown = rows(found, by, worth)
        columns = [by.upper(), "ALLOCATED", "MEASURED", "BUSY", "PRODUCTIVE", "UNJUDGED", "BUSY/MEASURED"]
        if output is Output.CSV:
            print_csv(list(_object(whole)), [list(_object(row).values()) for row in shown])
        else:
            typer.echo(_sentence(whole, most, span(seen.window)))
            if shown:
                typer.echo("")
                print_table(columns, [_line(row) for row in shown[:limit]])
            if len(shown) > limit:
                typer.echo(f"and {len(shown) - limit} more (--limit)")
        remarks([*sources.lines(), *notes])
    if sources.partial:
        raise typer.Exit(PARTIAL)


def _sentence(whole: Row, most: float, window: str) -> str:
    if not whole.allocated:
        return f"No GPU was allocated from {window}."
    told = f"{whole.allocated:,.1f} GPU-hours were allocated from {window}, at most {most:g} GPUs at once"
    if whole.busy is None:
        return f"{told}."
    told += f"; of {whole.seen:,.1f} that were measured, {whole.busy:,.1f} were busy"
    counts, open_ = number(whole.productive), number(whole.unjudged)
    return f"{told}, {counts} of them for results that count ({open_} not judged)."


def _line(row: Row) -> list[str]:
    share = row.busy / row.seen if row.busy is not None and row.seen else None
    measured = row.seen if row.busy is not None else None
    return [
        row.key,
        *(number(value) for value in (row.allocated, measured, row.busy, row.productive, row.unjudged)),
        percent(share),
    ]


def _object(row: Row) -> dict[str, Any]:
    measured = row.busy is not None
    return {
        "key": row.key,
        "allocatedGpuHours": round(row.allocated, 6),
        "measuredGpuHours": round(row.seen, 6) if measured else None,
        "busyGpuHours": _rounded(row.busy),
        "productiveGpuHours": _rounded(row.productive),
        "unjudgedGpuHours": _rounded(row.unjudged),
    }


def _others(found: Usage) -> dict[str, float | None]:
    """Busy time that belongs to no row."""
    return {
        "busySharedGpuHours": round(found.shared / HOUR, 6) if found.measured else None,
        "busyElsewhereGpuHours": round(found.elsewhere / HOUR, 6) if found.measured else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
