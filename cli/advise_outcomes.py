"""``punctual advise outcomes``: how many results count, and why others do not."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_print import percent, print_csv, print_json, print_table, remarks
from cli.advise_source import (
    Address,
    Export,
    Format,
    Goals,
    Output,
    Queue,
    Since,
    Sources,
    Until,
    look,
    span,
    span_object,
    success_of,
)

if TYPE_CHECKING:
    from advisor.outcomes import Judge, Tally
    from scheduler.ledger_entry import Entry

NAMED = 5
"""Work that waits for a verdict is named, so much of it."""


class By(StrEnum):
    """What to show it by."""

    QUEUE = "queue"
    TEAM = "team"
    TASK = "task"
    FAMILY = "family"


def outcomes(
    ledger: Address = None,
    file: Export = None,
    by: Annotated[By | None, typer.Option(help="What to show it by.", show_default="task with --success")] = None,
    queue: Queue = None,
    since: Since = "7d",
    until: Until = None,
    success: Goals = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many rows at most.")] = 30,
    output: Format = Output.TABLE,
) -> None:
    """Show how many results count: complete, verified, and in time.

    VERIFIED: somebody who may has said that it is good (punctual outcome), or
    success.yaml asks for no judge; and it was in time, if it had a time. LATE:
    complete, but not in time. REJECTED: not good. UNJUDGED: complete and in
    time, but nobody has said whether it is good; it is not taken for good.

    \b
    punctual advise outcomes --ledger ledger.db --since 30d --success success.yaml

    Exit codes: 0 done; 1 a file or the ledger cannot be read; 2 wrong usage.
    """
    from advisor.outcomes import BY, Judge, tally, together

    goals = success_of(success)
    judge = Judge(goals)
    seen = look(ledger, file, since, until, queue)
    sources = Sources()
    sources.add("ledger", str(file or ledger))
    if success is None:
        sources.missing("success.yaml", "only verdicts and deadlines of the work itself count (--success FILE)")
    else:
        sources.add("success.yaml", str(success))
    chosen = by or (By.TASK if success else By.QUEUE)
    shown = tally(seen.entries, judge, chosen, seen.now)
    whole = together(shown)
    unjudged = _unjudged(seen.entries, judge)
    if output is Output.JSON:
        print_json(
            {
                "window": span_object(seen.window),
                "sources": sources.told,
                "total": _object(whole),
                "by": {key: [_object(each) for each in tally(seen.entries, judge, key, seen.now)] for key in BY},
                "unjudged": unjudged,
                "remarks": list(seen.remarks),
            }
        )
        return
    if output is Output.CSV:
        print_csv(list(_object(whole)), [list(_object(each).values()) for each in shown])
    else:
        typer.echo(_sentence(whole, span(seen.window)))
        if shown:
            typer.echo("")
            _table(chosen, shown[:limit])
        if len(shown) > limit:
            typer.echo(f"and {len(shown) - limit} more (--limit)")
    notes = [*sources.lines(), *seen.remarks]
    if unjudged:
        names = ", ".join(unjudged[:NAMED]) + (" …" if len(unjudged) > NAMED else "")
        notes.append(f"nobody has judged {names}: punctual outcome NAME verified|rejected --reason …")
    remarks(notes)


def _unjudged(entries: list[Entry], judge: Judge) -> list[str]:
    from advisor.outcomes import Result

    waiting = [each for each in entries if not judge.service(each)[0] and judge.result(each) is Result.UNJUDGED]
    waiting.sort(key=lambda each: each.ended or 0, reverse=True)
    return [f"{each.family.namespace}/{each.name}" for each in waiting]


def _sentence(whole: Tally, window: str) -> str:
    from advisor.outcomes import Result

    if not whole.ended:
        return f"Nothing ended from {window}."
    told = f"{whole.counts[Result.VERIFIED]} of {whole.ended} pieces of work that ended from {window} count"
    rest = [f"{whole.counts[each]} {each}" for each in Result if whole.counts[each] and each in _WHY_NOT]
    if rest:
        told += f"; the others: {', '.join(rest)}"
    if whole.deadlines:
        told += f". {whole.met} of {whole.deadlines} deadlines were met"
    if whole.overdue:
        told += (
            f"; {whole.overdue} more, still waiting or running, {'is' if whole.overdue == 1 else 'are'} late already"
        )
    return f"{told}."


_WHY_NOT = ("late", "rejected", "unjudged", "failed", "deleted", "unknown")


def _table(by: str, tallies: list[Tally]) -> None:
    from advisor.outcomes import Result

    columns = [by.upper(), "ENDED", "VERIFIED", "LATE", "REJECTED", "UNJUDGED", "FAILED", "GONE", "DEADLINES MET"]
    lines = []
    for each in tallies:
        gone = each.counts[Result.DELETED] + each.counts[Result.UNKNOWN]
        shown = [Result.VERIFIED, Result.LATE, Result.REJECTED, Result.UNJUDGED, Result.FAILED]
        wanted = f" (wanted: {each.task.on_time:.0%})" if each.task else ""
        met = f"{percent(each.on_time)} of {each.deadlines}{wanted}" if each.deadlines else "-"
        lines.append([each.key, str(each.ended), *(str(each.counts[result]) for result in shown), str(gone), met])
    print_table(columns, lines)


def _object(each: Tally) -> dict[str, Any]:
    from advisor.outcomes import Result

    return {
        "key": each.key,
        "ended": each.ended,
        **{str(result): each.counts[result] for result in Result},
        "results": each.results,
        "deadlines": each.deadlines,
        "deadlinesMet": each.met,
        "overdue": each.overdue,
        "onTimeWanted": each.task.on_time if each.task else None,
        "onTimeKept": each.on_time >= each.task.on_time if each.task and each.on_time is not None else None,
    }
