"""``punctual advise cost``: what a result costs, and where the rest of the money went."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_source import (
    PARTIAL,
    USAGE,
    Address,
    Export,
    Format,
    Goals,
    Output,
    Patience,
    PrometheusUrl,
    Queue,
    Seen,
    Servers,
    Shares,
    Since,
    Sources,
    Token,
    Until,
    bad_file,
    fail,
    look,
    measure_busy,
    number,
    percent,
    print_csv,
    print_json,
    print_table,
    remarks,
    servers_of,
    shares_of,
    span,
    span_object,
    success_of,
    text_of,
    waiting,
)

if TYPE_CHECKING:
    from advisor.cost import Bill, Cost, PerResult
    from advisor.cost_prices import Prices
    from advisor.outcomes import Judge, Tally
    from advisor.usage import Usage


class By(StrEnum):
    """What to show it by."""

    QUEUE = "queue"
    TEAM = "team"
    WORKLOAD = "workload"
    TASK = "task"
    FLAVOR = "flavor"


OpenCostUrl = Annotated[
    str | None,
    typer.Option("--opencost", envvar="PUNCTUAL_OPENCOST", metavar="URL", help="An OpenCost: what pods cost."),
]
Currency = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="In which OpenCost counts, EUR or USD: it does not say so itself."),
]
PriceList = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        envvar="PUNCTUAL_PRICES",
        metavar="FILE",
        help="A price list (docs/cost.md); beside OpenCost: for days that it has nothing of.",
    ),
]


def cost(
    ledger: Address = None,
    file: Export = None,
    prices: PriceList = None,
    opencost: OpenCostUrl = None,
    currency: Currency = None,
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
    """Show what a result costs: all money, by results that count.

    Late, rejected, interrupted and idle GPU time is paid for too, so it counts
    into the cost of a result. PRODUCTIVE is the share of the money that went
    for GPUs that were busy for results that count.

    \b
    punctual advise cost --ledger ledger.db --prices prices.yaml --since 30d
    punctual advise cost --opencost http://opencost.opencost:9003 --currency USD

    Exit codes: 0 done; 1 a file or the ledger cannot be read; 2 wrong usage;
    3 a source did not answer for all of the window: what is known is printed.
    """
    from advisor.cost import all_costs, per_result
    from advisor.outcomes import Judge, tally, together
    from advisor.usage import allocate

    if prices is None and opencost is None:
        raise fail("say what GPUs cost: --opencost URL, or a price list (--prices FILE; docs/cost.md)", USAGE)
    if currency is not None and not (len(currency) == 3 and currency.isalpha() and currency.isupper()):
        raise fail(f"--currency: {currency} is no code of a currency; write EUR, USD …", USAGE)
    said, servers = shares_of(gpu_share), servers_of(prometheus, token_file, timeout)
    judge = Judge(success_of(success))
    listed = _prices(prices) if prices else None
    seen = look(ledger, file, since, until, queue)
    used = allocate(seen.entries, seen.window, seen.now, said)
    sources = Sources()
    sources.add("ledger", str(file or ledger))
    measure_busy(used, seen, servers, sources)
    bill = _bill(used, seen, judge, listed, opencost, currency or "", servers, sources)
    if prices and not opencost:
        sources.add("price list", str(prices), ok=bill.complete, why="" if bill.complete else "not for all flavors")
    elif prices:
        sources.add("price list", str(prices))
    whole = all_costs(bill)
    done = together(tally(seen.entries, judge, "queue", seen.now))
    notes = [*sources.lines(), *used.remarks, *bill.remarks]
    if output is Output.JSON:
        told = _report(bill, judge, seen.entries, seen.now)
        print_json({"window": span_object(seen.window), "sources": sources.told, **told, "remarks": notes})
    else:
        _print(bill, judge, seen.entries, seen.now, by, output, limit, span(seen.window), per_result(whole, done))
        remarks(notes)
    if sources.partial:
        raise typer.Exit(PARTIAL)


def _bill(
    used: Usage,
    seen: Seen,
    judge: Judge,
    prices: Prices | None,
    opencost: str | None,
    currency: str,
    servers: Servers,
    sources: Sources,
) -> Bill:
    """From OpenCost if there is one, else from the price list."""
    from advisor.cost import charge_by_prices
    from advisor.cost_opencost import charge_by_opencost
    from advisor.opencost import OpenCost
    from advisor.usage_pods import Pods

    if opencost is None:
        assert prices is not None
        sources.missing("OpenCost", "GPUs alone are counted, by the price list (--opencost URL)")
        return charge_by_prices(used, prices, judge, seen.now)
    try:
        server = OpenCost(opencost, servers.token, servers.timeout)
    except ValueError as error:
        raise fail(f"--opencost: {error}", USAGE) from None
    pods = Pods(seen.everybody, seen.now, seen.hide)
    with waiting("asking OpenCost") as told:
        bill = charge_by_opencost(
            used, pods, server, judge, seen.entries, currency=currency, prices=prices, progress=told
        )
    why = next((remark for remark in bill.remarks if server.url in remark), "") if not bill.complete else ""
    sources.add("OpenCost", server.url, ok=bill.complete, why=why)
    return bill


def _prices(file: Path) -> Prices:
    from advisor.cost_prices import BadPrices, read_prices

    try:
        return read_prices(text_of(file))
    except BadPrices as error:
        raise bad_file(file, error) from None


def _tallies(judge: Judge, entries: list[Any], by: str, now: int) -> dict[str, Tally]:
    """What work came to, by the same keys as its costs; there is none by flavor."""
    from advisor.outcomes import BY, tally

    if by in BY:
        return {each.key: each for each in tally(entries, judge, by, now)}
    if by != By.WORKLOAD:
        return {}
    found: dict[str, Tally] = {}
    for entry in entries:
        for each in tally([entry], judge, "team", now):
            found[f"{entry.family.namespace}/{entry.name}"] = each
    return found


def _print(
    bill: Bill,
    judge: Judge,
    entries: list[Any],
    now: int,
    by: By,
    output: Output,
    limit: int,
    window: str,
    each: PerResult,
) -> None:
    from advisor.cost import Use, all_costs, costs, per_result
    from advisor.outcomes import Tally

    shown, tallies = costs(bill, by, judge), _tallies(judge, entries, by, now)
    if output is Output.CSV:
        lines = [_object(row, tallies.get(row.key)) for row in shown]
        uses = [str(use) for use in Use]
        columns = [key for key in _object(all_costs(bill), None) if key != "uses"]
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
        per = per_result(row, tallies.get(row.key) or Tally(row.key)).verified
        money = [number(value, 2) for value in (row.total, *(row.uses[use] for use in named), other, per)]
        rows.append([row.key, *money, _productive(row)])
    print_table([*columns, "OTHER", "PER RESULT", "PRODUCTIVE"], rows)
    if len(shown) > limit:
        typer.echo(f"and {len(shown) - limit} more (--limit)")


def _sentence(bill: Bill, whole: Cost, each: PerResult, window: str) -> str:
    if not whole.total:
        return f"Nothing was spent from {window}, as far as the {bill.source} knows."
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


def _report(bill: Bill, judge: Judge, entries: list[Any], now: int) -> dict[str, Any]:
    from advisor.cost import BY, all_costs, costs, reconcile
    from advisor.outcomes import tally, together

    by = {}
    for key in BY:
        tallies = _tallies(judge, entries, key, now)
        by[key] = [_object(row, tallies.get(row.key)) for row in costs(bill, key, judge)]
    done = together(tally(entries, judge, "queue", now))
    return {
        "source": bill.source,
        "currency": bill.currency or None,
        "complete": bill.complete,
        "sourceTotal": round(bill.total, 6),
        "difference": round(reconcile(bill), 6),
        "total": _object(all_costs(bill), done),
        "by": by,
    }


def _object(row: Cost, done: Tally | None) -> dict[str, Any]:
    from advisor.cost import Use, per_result
    from advisor.outcomes import Tally

    each = per_result(row, done or Tally(row.key))
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
