"""How ``punctual advise cost`` prints its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cli.advise_print import number, percent, print_csv, print_table
from cli.advise_source import (
    Output,
)

if TYPE_CHECKING:
    from advisor.cost import Bill, Cost, PerResult
    from advisor.cost_budget import Spent
    from advisor.outcomes import Judge, Tally
    from scheduler.ledger_entry import Entry


def _tallies(judge: Judge, entries: list[Entry], by: str, now: int) -> dict[str, Tally]:
    """What work came to, by the same keys as its costs; there is none by flavor."""
    from advisor.outcomes import BY, tally

    if by in BY:
        return {each.key: each for each in tally(entries, judge, by, now)}
    if by != "workload":
        return {}
    found: dict[str, Tally] = {}
    for entry in entries:
        for each in tally([entry], judge, "team", now):
            found[f"{entry.family.namespace}/{entry.name}"] = each
    return found


def print_costs(
    bill: Bill,
    judge: Judge,
    entries: list[Entry],
    now: int,
    by: str,
    output: Output,
    limit: int,
    window: str,
    each: PerResult,
) -> None:
    """A sentence and a table, or CSV."""
    from advisor.cost import Use, all_costs, costs, overhead, per_result
    from advisor.outcomes import Tally

    shown, tallies = costs(bill, by, judge), _tallies(judge, entries, by, now)
    factor = overhead(all_costs(bill))
    if output is Output.CSV:
        lines = [_object(row, tallies.get(row.key), factor) for row in shown]
        uses = [str(use) for use in Use]
        columns = [key for key in _object(all_costs(bill), None, factor) if key != "uses"]
        print_csv(
            [*columns, *uses], [[*(row[key] for key in columns), *(row["uses"][u] for u in uses)] for row in lines]
        )
        return
    typer.echo(_sentence(bill, all_costs(bill), each, window))
    if not shown:
        return
    typer.echo("")
    columns = [by.upper(), f"TOTAL {bill.currency}".strip(), "VERIFIED", "LATE", "REJECTED", "UNJUDGED", "INTERRUPTED"]
    named = (Use.VERIFIED, Use.LATE, Use.REJECTED, Use.UNJUDGED, Use.INTERRUPTED)
    rows = []
    for row in shown[:limit]:
        other = row.total - sum(row.uses[use] for use in named)
        per = per_result(row, tallies.get(row.key) or Tally(row.key), factor).verified
        money = [number(value, 2) for value in (row.total, *(row.uses[use] for use in named), other, per)]
        rows.append([row.key, *money, _productive(row)])
    print_table([*columns, "OTHER", "PER RESULT", "PRODUCTIVE"], rows)
    if len(shown) > limit:
        typer.echo(f"and {len(shown) - limit} more (--limit)")


def _sentence(bill: Bill, whole: Cost, each: PerResult, window: str) -> str:
    from advisor.cost import PRICE_LIST

    if not whole.total:
        who = f"the {bill.source}" if bill.source == PRICE_LIST else bill.source
        if not bill.charges and not bill.complete:
            return f"What was spent from {window} is not known: {who} does not say it."
        return f"Nothing was spent from {window}, as far as {who} knows."
    money = f"{bill.currency} ".lstrip()
    told = f"{money}{number(whole.total, 2)} was spent from {window} ({bill.source})"
    if each.verified is None:
        return f"{told}, and no result counts."
    told += f": {money}{number(each.verified, 2)} for each result that counts"
    if each.own is not None:
        told += f" ({number(each.own, 2)} for the runs that brought it)"
    if each.deadline is not None:
        told += f", {money}{number(each.deadline, 2)} for each deadline that was met"
    return f"{told}. Productive: {_productive(whole)}."


def _productive(row: Cost) -> str:
    if row.efficiency is None:
        return "-"
    if row.unmeasured < 0.005 * row.total:
        return percent(row.efficiency)
    if not row.productive:
        return f"at most {percent(row.efficiency_at_most)}"
    return f"{percent(row.efficiency)} to {percent(row.efficiency_at_most)}"


def thousand(service: dict[str, Any], currency: str) -> str:
    """What a thousand good answers of a service cost."""
    told = f"{service['name']}: {service['good']:,} of {service['answered']:,} answers came in hours within its goals"
    if service["per1000Good"] is None:
        return told
    return f"{told}; a thousand of them cost {currency} {number(service['per1000Good'], 4)}".replace("  ", " ")


def budget_object(each: Spent) -> dict[str, Any]:
    """A figure of a budget, for machines."""
    return {
        "name": each.name,
        "what": each.what,
        "budget": each.budget,
        "spent": each.spent,
        "unit": each.unit,
        "over": each.over,
        "why": each.why or None,
    }


def report(bill: Bill, judge: Judge, entries: list[Entry], now: int) -> dict[str, Any]:
    """All of it, for machines."""
    from advisor.cost import BY, all_costs, costs, overhead, reconcile
    from advisor.outcomes import tally, together

    by, factor = {}, overhead(all_costs(bill))
    for key in BY:
        tallies = _tallies(judge, entries, key, now)
        by[key] = [_object(row, tallies.get(row.key), factor) for row in costs(bill, key, judge)]
    done = together(tally(entries, judge, "queue", now))
    return {
        "source": bill.source,
        "currency": bill.currency or None,
        "complete": bill.complete,
        "sourceTotal": round(bill.total, 6),
        "difference": round(reconcile(bill), 6),
        "total": _object(all_costs(bill), done, factor),
        "by": by,
    }


def _object(row: Cost, done: Tally | None, factor: float) -> dict[str, Any]:
    from advisor.cost import Use, per_result
    from advisor.outcomes import Tally

    each = per_result(row, done or Tally(row.key), factor)
    return {
        "key": row.key,
        "total": round(row.total, 6),
        "gpuHours": round(row.gpu_hours, 6),
        "uses": {str(use): round(row.uses[use], 6) for use in Use},
        "results": done.results if done else None,
        "deadlinesMet": done.met if done else None,
        "perResult": each.verified,
        "perResultOwnRuns": each.own,
        "perDeadlineMet": each.deadline,
        "efficiency": row.efficiency,
        "efficiencyAtMost": row.efficiency_at_most,
    }
