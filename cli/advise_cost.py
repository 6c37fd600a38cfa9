"""``punctual advise cost``: what a result costs, and where the rest of the money went."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_bill import Currency, OpenCostUrl, PriceList, bill_of, check_currency, price_list_of
from cli.advise_cost_view import budget_object, print_costs, report, thousand
from cli.advise_print import print_json, remarks
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
    Shares,
    Since,
    Sources,
    Token,
    Until,
    fail,
    judge_of,
    look,
    measure_busy,
    servers_of,
    shares_of,
    span,
    span_object,
    success_of,
)

if TYPE_CHECKING:
    from advisor.cost import Bill
    from advisor.cost_budget import Spent
    from advisor.outcomes import Judge
    from advisor.success import Success
    from advisor.usage_services import Answers


class By(StrEnum):
    """What to show it by."""

    QUEUE = "queue"
    TEAM = "team"
    WORKLOAD = "workload"
    TASK = "task"
    FLAVOR = "flavor"


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
    from advisor.cost import all_costs, overhead, per_result
    from advisor.outcomes import tally, together
    from advisor.usage import allocate

    if prices is None and opencost is None:
        raise fail("say what GPUs cost: --opencost URL, or a price list (--prices FILE; docs/cost.md)", USAGE)
    check_currency(currency, opencost)
    said, servers = shares_of(gpu_share), servers_of(prometheus, token_file, timeout)
    goals = success_of(success)
    listed = price_list_of(prices) if prices else None
    seen = look(ledger, file, since, until, queue)
    if queue and listed and listed.owned:
        listed = listed.model_copy(update={"owned": {}})  # what is idle is idle for all queues
    used = allocate(seen.entries, seen.window, seen.now, said)
    sources = Sources()
    sources.add("ledger", str(file or ledger))
    if success is None:
        sources.missing("success.yaml", "only verdicts and deadlines of the work itself count (--success FILE)")
    measure_busy(used, seen, servers, sources)
    judge, answers = judge_of(goals, seen, servers, sources)
    bill = bill_of(used, seen, judge, listed, opencost, currency or "", servers, sources)
    if prices and not opencost:
        sources.add("price list", str(prices), ok=bill.complete, why="" if bill.complete else "not for all flavors")
    elif prices:
        sources.add("price list", str(prices))
    whole = all_costs(bill)
    done = together(tally(seen.entries, judge, "queue", seen.now))
    budgets, services = _by_goals(goals, bill, judge, seen, answers)
    notes = [*sources.lines(), *seen.remarks, *used.remarks, *(answers.remarks if answers else ()), *bill.remarks]
    if output is Output.JSON:
        told = report(bill, judge, seen.entries, seen.now)
        told |= {"services": services, "budgets": [budget_object(each) for each in budgets]}
        print_json({"window": span_object(seen.window), "sources": sources.told, **told, "remarks": notes})
    else:
        print_costs(
            bill,
            judge,
            seen.entries,
            seen.now,
            by,
            output,
            limit,
            span(seen.window),
            per_result(whole, done, overhead(whole)),
        )
        if output is Output.TABLE:
            lines = [thousand(each, bill.currency) for each in services] + [str(each) for each in budgets]
            typer.echo("\n".join(["", *lines]) if lines else "", nl=bool(lines))
        remarks(notes)
    if sources.partial:
        raise typer.Exit(PARTIAL)


def _by_goals(
    goals: Success | None, bill: Bill, judge: Judge, seen: Seen, answers: Answers | None
) -> tuple[list[Spent], list[dict[str, Any]]]:
    """Budgets, and what a thousand good answers of each service cost."""
    from advisor.cost import all_costs, costs, overhead
    from advisor.cost_budget import budgets
    from advisor.outcomes import tally

    if goals is None:
        return [], []
    by_task = {row.key: row for row in costs(bill, "task", judge)}
    results: dict[str, float] = {each.key: each.results for each in tally(seen.entries, judge, "task", seen.now)}
    services: list[dict[str, Any]] = []
    factor = overhead(all_costs(bill))
    for name in goals.services:
        if answers is None or name not in by_task:
            continue
        good, total = answers.good.get(name, 0.0), by_task[name].total
        results[name] = good
        services.append(
            {
                "name": name,
                "answered": round(answers.answered.get(name, 0.0)),
                "good": round(good),
                "total": round(total, 6),
                "per1000Good": total * factor / good * 1000 if good else None,
            }
        )
    return budgets(goals, by_task, results, seen.window, bill.currency), services
