"""``punctual ledger``: what became of work, from the ledger that a controller keeps."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scheduler.calibration import Calibration
    from scheduler.ledger import Ledger
    from scheduler.ledger_entry import Entry

FAILED, USAGE = 1, 2
"""Exit codes."""

app = typer.Typer(
    no_args_is_help=True,
    help="What became of work: when it was submitted, planned, started and done.\n\n"
    "Reads what a controller with --ledger has written. In the cluster:\n\n"
    "kubectl exec -n punctual-system deploy/punctual -- punctual ledger show",
)


class Output(StrEnum):
    """Ways to print entries."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Rows(StrEnum):
    """Ways to export entries."""

    JSON = "json"
    CSV = "csv"


class Report(StrEnum):
    """Ways to print figures."""

    TABLE = "table"
    JSON = "json"


Address = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="PUNCTUAL_LEDGER",
        metavar="PATH|postgresql://…",
        help="Where the ledger is: the path of a SQLite file, or a PostgreSQL.",
    ),
]
Queue = Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this ClusterQueue.")]
Since = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Only what was there in this time until now: 7d, 12h.")
]


@app.command()
def show(
    ledger: Address = None,
    queue: Queue = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only of this.")] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only work of this name (without what is generated) or label.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many at most.")] = 20,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show what happened last, the newest first.

    \b
    punctual ledger show --ledger /var/lib/punctual/ledger.db
    punctual ledger show -q research --since 7d -o csv

    Exit codes: 0 done; 1 the ledger cannot be read; 2 wrong usage.
    """
    with reading(ledger) as book:
        entries = book.recent(
            limit, cluster_queue=queue, namespace=namespace, family=family, since=instant_since(since),
            details=output is not Output.CSV,
        )  # fmt: skip
        if output is Output.CSV:
            _csv(entries, sys.stdout)
        elif output is Output.JSON:
            typer.echo(json.dumps([object_of(entry) for entry in entries], indent=2))
        else:
            _table(list(entries))


@app.command()
def export(
    ledger: Address = None,
    queue: Queue = None,
    since: Since = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Where to.", show_default="standard output")
    ] = None,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Names as hashes: the same name, the same hash. For sharing.")
    ] = False,
    output: Annotated[Rows, typer.Option("--output", "-o", help="csv, or one JSON object a line.")] = Rows.CSV,
) -> None:
    """Write out all entries, the newest first, a line each.

    Times are RFC 3339 in UTC, lengths of time are seconds. JSON has all runs and all deadlines
    of each, CSV the last ones.

    \b
    punctual ledger export --ledger ledger.db -f ledger.csv
    punctual ledger export --anonymise -o json > for-the-vendor.jsonl

    Exit codes: 0 done; 1 the ledger cannot be read, or the file not written; 2 wrong usage.
    """
    with reading(ledger) as book:
        entries = book.recent(cluster_queue=queue, since=instant_since(since), details=output is Rows.JSON)
        if anonymise and not book.anonymous:
            entries = (book.hidden(entry) for entry in entries)
        try:
            with file.open("w", encoding="utf-8", newline="") if file else _standard_output() as target:
                count = _csv(entries, target) if output is Rows.CSV else _lines(entries, target)
        except OSError as error:
            raise fail(f"cannot write {file}: {error.strerror}", FAILED) from None
    if file:
        typer.echo(f"{count} workloads written to {file}", err=True)


@app.command()
def prune(
    older_than: Annotated[str, typer.Option(metavar="DURATION", help="Forget what ended longer ago than this: 90d.")],
    ledger: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many those are.")] = False,
) -> None:
    """Forget what ended long ago. What waits or runs stays. It cannot be taken back.

    The controller does it by itself after --ledger-keep (a year).

    Exit codes: 0 done; 1 the ledger cannot be written; 2 wrong usage.
    """
    before = instant_since(older_than)
    assert before is not None
    with reading(ledger) as book:
        count = book.ended_before(before) if dry_run else book.prune(before)
    typer.echo(f"{count} workloads {'would be' if dry_run else 'are'} forgotten")


@app.command()
def calibration(
    ledger: Address = None,
    queue: Queue = None,
    since: Since = "90d",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many families at most.")] = 20,
    output: Annotated[Report, typer.Option("--output", "-o", help="How to print it.")] = Report.TABLE,
) -> None:
    """Show how far estimates can be believed, of all work and by family.

    ACTUAL/ESTIMATE is the median of run time by the estimate that plans
    reckoned with, ACTUAL/USER'S by what users had said: 1 is right, 0.5 is
    twice too long. WITHIN is how many ended within their estimate. The last
    columns try the ledger's own estimates on the past: of the runs whose
    family was known, how many ended within the 10 %, 50 % and 90 % quantile.

    Exit codes: 0 done; 1 the ledger cannot be read; 2 wrong usage.
    """
    from scheduler.calibration import calibrate

    with reading(ledger) as book:
        figures = calibrate(_watched(book.finished_since(instant_since(since) or 0, cluster_queue=queue)))
    total, *families = figures
    if output is Report.JSON:
        typer.echo(json.dumps({"all": _figures(total), "families": [_figures(each) for each in families]}, indent=2))
    elif not total.runs:
        typer.echo("nothing has run to its end in this time")
    else:
        _calibration_table(total, families[:limit])
        if len(families) > limit:
            typer.echo(f"and {len(families) - limit} more families (--limit)")


# --- reading -----------------------------------------------------------------------------------------------------


@contextmanager
def reading(address: str | None) -> Iterator[Ledger]:
    """A ledger, open for reading; what is wrong with it is said, without a traceback."""
    from sqlalchemy.exc import SQLAlchemyError

    from scheduler.ledger import Ledger, LedgerError

    if address is None:
        raise fail("say where the ledger is: --ledger PATH (or postgresql://…), or $PUNCTUAL_LEDGER", USAGE)
    try:
        with Ledger(address) as book:
            book.open_for_reading()
            yield book
    except ValueError as error:
        raise fail(f"--ledger: {error}", USAGE) from None
    except LedgerError as error:
        raise fail(str(error), FAILED) from None
    except SQLAlchemyError as error:
        reason, *_ = str(getattr(error, "orig", None) or error).strip().splitlines()
        raise fail(f"the ledger cannot be used: {reason}", FAILED) from None


def instant_since(text: str | None) -> int | None:
    """When a length of time that ends now has begun (milliseconds); None for None."""
    from scheduler.annotations import parse_duration

    if text is None:
        return None
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise fail(str(error), USAGE) from None
    if duration < 0:
        raise fail(f"{text} lies in the future", USAGE)
    return time.time_ns() // 1_000_000 - duration


def _watched(entries: Iterable[Entry]) -> Iterable[Entry]:
    """Show how far it has come, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.completed} runs"), console=Console(stderr=True), transient=True
    ) as p:
        yield from p.track(entries, total=None)


# --- printing ----------------------------------------------------------------------------------------------------

_COLUMNS = (
    "uid",
    "namespace",
    "name",
    "kind",
    "cluster_queue",
    "local_queue",
    "family",
    "image",
    "shape",
    "managed",
    "priority_class",
    "bypassed_by",
    "weight",
    "hard",
    "gpus",
    "flavor",
    "submitted",
    "deadline",
    "earliest_start",
    "planned_start",
    "started",
    "ended",
    "duration",
    "interruptions",
    "estimate",
    "estimate_source",
    "user_estimate",
    "outcome",
    "reason",
    "late",
)


def _row(entry: Entry) -> dict[str, Any]:
    family = entry.family
    return {
        "uid": entry.uid,
        "namespace": family.namespace,
        "name": entry.name,
        "kind": family.kind,
        "cluster_queue": family.cluster_queue,
        "local_queue": family.local_queue,
        "family": family.label or family.stem,
        "image": family.image,
        "shape": family.shape,
        "managed": entry.managed,
        "priority_class": entry.priority_class,
        "bypassed_by": entry.bypassed_by,
        "weight": entry.weight,
        "hard": entry.hard,
        "gpus": entry.gpus,
        "flavor": entry.flavor,
        "submitted": _time(entry.submitted),
        "deadline": _time(entry.deadline),
        "earliest_start": _time(entry.earliest_start),
        "planned_start": _time(entry.planned_start),
        "started": _time(entry.started),
        "ended": _time(entry.ended),
        "duration": _seconds(entry.duration),
        "interruptions": entry.interruptions,
        "estimate": _seconds(entry.estimate),
        "estimate_source": entry.estimate_source,
        "user_estimate": _seconds(entry.user_estimate),
        "outcome": entry.outcome,
        "reason": entry.reason,
        "late": entry.late,
    }


def object_of(entry: Entry) -> dict[str, Any]:
    """An entry as JSON has it: times in RFC 3339, lengths of time in seconds."""
    usage = [{"flavor": flavor, "resource": resource, "amount": held} for flavor, resource, held in entry.usage]
    runs = [
        {
            "started": _time(run.started),
            "planned_start": _time(run.planned_start),
            "ended": _time(run.ended),
            "ending": run.ending,
        }
        for run in entry.runs
    ]
    edits = [{"since": _time(edit.noticed), "deadline": _time(edit.deadline)} for edit in entry.deadlines]
    judgements = [
        {"noticed": _time(each.noticed), "verdict": each.verdict, "by": each.by, "reason": each.reason}
        for each in entry.judgements
    ]
    return {**_row(entry), "usage": usage, "runs": runs, "deadlines": edits, "judgements": judgements}


def _csv(entries: Iterable[Entry], target: IO[str]) -> int:
    writer = csv.DictWriter(target, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    count = 0
    for count, entry in enumerate(entries, 1):  # noqa: B007
        writer.writerow(_row(entry))
    return count


def _lines(entries: Iterable[Entry], target: IO[str]) -> int:
    count = 0
    for count, entry in enumerate(entries, 1):  # noqa: B007
        target.write(json.dumps(object_of(entry)) + "\n")
    return count


@contextmanager
def _standard_output() -> Iterator[IO[str]]:
    yield sys.stdout


def _table(entries: list[Entry]) -> None:
    from rich.table import Table

    if not entries:
        typer.echo("nothing of that is in the ledger")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("WORK", "QUEUE", "GPUS", "SUBMITTED", "STARTED", "TOOK", "ESTIMATE", "STATE"):
        table.add_column(
            name, justify="right" if name in ("GPUS", "TOOK", "ESTIMATE") else "left", no_wrap=name != "WORK"
        )
    for entry in entries:
        table.add_row(
            f"{entry.family.namespace}/{entry.name}",
            entry.family.cluster_queue,
            str(entry.gpus),
            _short(entry.submitted),
            _short(entry.started),
            _length(entry.duration),
            _length(entry.estimate),
            _state(entry),
        )
    _print(table)


def _state(entry: Entry) -> str:
    if entry.outcome is None:
        running = entry.runs[-1].ended is None if entry.runs else entry.started is not None
        return "running" if running else "waiting"
    late = {True: ", late", False: ", on time", None: ""}[entry.late]
    return entry.outcome.lower() + late + (f", {entry.verdict}" if entry.verdict else "")


def _calibration_table(total: Calibration, families: list[Calibration]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("FAMILY")
    for name in ("RUNS", "ACTUAL/ESTIMATE", "WITHIN", "ACTUAL/USER'S", "10 %", "50 %", "90 %"):
        table.add_column(name, justify="right")
    for each in (total, *families):
        table.add_row(
            each.family or "all",
            str(each.runs),
            _number(each.ratio),
            _percent(each.within),
            _number(each.user_ratio),
            *(_percent(share) for share in each.coverage.values()),
        )
    _print(table)


def _figures(each: Calibration) -> dict[str, Any]:
    return {
        **({"family": each.family} if each.family else {}),
        "runs": each.runs,
        "medianActualByEstimate": each.ratio,
        "withinEstimate": each.within,
        "medianActualByUserEstimate": each.user_ratio,
        "coverage": {f"{quantile:g}": share for quantile, share in each.coverage.items()},
    }


def _print(table: Any) -> None:
    from rich.console import Console

    # A pipe has no width: nothing is cut there.
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=200)).print(table)


def _time(instant: int | None) -> str | None:
    from scheduler.annotations import format_instant

    return None if instant is None else format_instant(instant)


def _short(instant: int | None) -> str:
    return "-" if instant is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(instant / 1000))


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / 1000


def _length(duration: int | None) -> str:
    from scheduler.annotations import format_duration

    return "-" if duration is None else format_duration(duration // 1000 * 1000)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def fail(message: str, code: int) -> typer.Exit:
    """Say what is wrong; the exit to raise."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)
