"""What ``punctual advise`` finds out, from what the options name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from cli.advise_bill import bill_of
from cli.advise_capacity_question import Prices, Question, Source
from cli.advise_page_demand import Services, demands_of
from cli.advise_source import Seen, Servers, Sources, fail, judge_of, measure_busy
from cli.source import BAD_INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from advisor.advise_facts import Facts
    from advisor.advise_fit import Fit, Spent
    from advisor.advise_timing import Timing
    from advisor.capacity import Capacity
    from advisor.outcomes import Judge
    from advisor.success import Success
    from advisor.usage import Window
    from scheduler.ledger_entry import Entry
    from solver.api import planner_pb2 as pb


@dataclass
class Asked:
    """What the options say, and what was heard on the way."""

    source: Source
    window: Window
    share: Fraction
    prices: Prices
    success: Success | None
    servers: Servers
    services: Services
    opencost: str | None
    currency: str
    effort: int
    seed: int
    told: Callable[[str], None] = lambda text: None
    sources: Sources = field(default_factory=Sources)
    remarks: list[str] = field(default_factory=list)
    mistakes: bool = False
    """Whether something is wrong with the files."""


def facts_of(asked: Asked, seen: Seen | None) -> Facts:
    """Find out what there is to know.

    Raises
    ------
    scheduler.apiserver.NoCluster, scheduler.apiserver.ApiError, scheduler.policy.BadPolicy
        See :func:`cli.source.errors_told`.
    advisor.capacity_trials.BadPlan
        If a plan does not pass the verifier.
    typer.Exit
        If something cannot be read, which has been told then.
    """
    from advisor.advise_facts import Facts
    from advisor.outcomes import Judge

    demands = demands_of(asked.services, asked.success, seen, asked.window, asked.servers, asked.sources)
    question, answers, found, unknown = _work(asked, seen)
    judge: Judge = Judge(asked.success)
    fit = None
    if seen is None:
        asked.sources.missing("ledger", "what happened in the past, and what GPU time went for (--ledger PATH)")
        unknown += _of_the_past(asked)
    else:
        asked.sources.add("ledger", str(asked.source.export or asked.source.ledger))
        asked.remarks += seen.remarks
        fit, judge = _fit(asked, seen, question, answers)
        if found is not None and question is not None:
            found = _replayed(found, question, seen, asked)
    if asked.success is None:
        unknown.append("what counts as a result: --success FILE (docs/success.md)")
    spent = fit.spent if fit else None
    priced = [_price(asked, answer, spent) for answer in answers]
    unknown += _unpriced(asked, answers, [price for price, _ in priced])
    if seen is not None and question is not None and not question.known:
        unknown.append("what quota there is: -f FILE, or a cluster (the most that was in use counts as quota)")
    silent = {name: each for name, each in asked.sources.told.items() if each["place"] and not each["complete"]}
    told = {each.why for each in demands}
    unknown += Sources({name: each for name, each in silent.items() if each.get("why") not in told}).lines()
    return Facts(
        timing=found,
        past=seen is not None,
        capacity=answers,
        confirmed=None
        if found is None or seen is None or question is None
        else _confirmed(found, question.request, seen, judge),
        fit=fit,
        demands=demands,
        prices=[price for price, _ in priced],
        priced=[source for _, source in priced],
        currency=_currency(asked, spent) or next((each.measured.currency for each in demands), ""),
        unknown=unknown,
        silent=frozenset(silent),
    )


def _work(asked: Asked, seen: Seen | None) -> tuple[Question | None, list[Capacity], Timing | None, list[str]]:
    """What work with deadlines needs: the question, how many GPUs, what timing brings, and what is not known."""
    from advisor.advise_timing import timing
    from advisor.capacity import Effort, capacity
    from advisor.capacity_pools import NoPool
    from scheduler.apiserver import NoCluster

    source = asked.source
    try:
        question = source.question(None if seen is None else (seen.entries, seen.hide or str))
    except NoCluster as error:
        if not asked.services.measured or source.kubeconfig or source.context:
            raise
        return None, [], None, [f"deadlines: {error}, or files: -f"]
    asked.remarks += [str(remark) for remark in question.remarks]
    asked.mistakes = any(remark.mistake for remark in question.remarks)
    try:
        answers = capacity(
            question.request, question.names, share=asked.share, effort=Effort(asked.effort, asked.seed),
            told=asked.told,
        )  # fmt: skip
        found = timing(question.request, question.missed, effort=asked.effort * 2, seed=asked.seed, told=asked.told)
    except NoPool as error:
        if seen is None and not asked.services.measured:  # there is nothing else that could be said
            for remark in asked.remarks:
                typer.echo(remark, err=True)
            raise fail(str(error), BAD_INPUT) from None
        return question, [], None, [f"deadlines: {error}"]
    return question, answers, found, []


def _of_the_past(asked: Asked) -> list[str]:
    """Sources that were named, and tell of the past only, when nobody asks about it."""
    wanted = []
    if asked.opencost is not None:
        wanted.append("what GPUs cost, by OpenCost: it is asked about the past, with --ledger PATH, or --export")
    if asked.servers.prometheus is not None and not asked.services.measured:
        wanted.append("how busy GPUs were, by Prometheus: it is asked about the past, with --ledger PATH, or --export")
    return wanted


def _fit(asked: Asked, seen: Seen, question: Question | None, answers: Sequence[Capacity]) -> tuple[Fit, Judge]:
    """What GPU time went for, and what it cost."""
    from advisor.advise_fit import fit
    from advisor.usage import allocate
    from scheduler.settings import HOUR

    usage = allocate(seen.entries, seen.window, seen.now, {})
    measure_busy(usage, seen, asked.servers, asked.sources)
    judge, told = judge_of(asked.success, seen, asked.servers, asked.sources)
    asked.remarks += [*usage.remarks, *(told.remarks if told else ())]
    bill = None
    if asked.opencost is not None or asked.prices.listed is not None:
        bill = bill_of(
            usage, seen, judge, asked.prices.listed, asked.opencost, asked.currency, asked.servers, asked.sources
        )
        asked.remarks += bill.remarks
    hours = (asked.source.instant - seen.window.start) / HOUR
    known = question is not None and question.known
    there = sum(answer.pool.now for answer in answers) * hours if known and answers else None
    return fit(usage, seen.entries, judge, there, bill, seen.now), judge


def _price(asked: Asked, answer: Capacity, spent: Spent | None) -> tuple[float | None, str]:
    """What one costs for an hour, and who says it: the user, OpenCost, or the price list."""
    from advisor.usage_gpus import share_of

    prices, flavor = asked.prices, answer.pool.flavor_name
    said = prices.said.get(flavor, prices.others)
    if said is not None:
        return said, "--price"
    whole = share_of(answer.pool.resource_name, {}).gpus == 1
    measured = spent if asked.opencost is not None else None
    if measured is not None and whole and (rate := measured.rates.get(flavor)) is not None:
        return rate, f"{measured.source}, as work there was charged"
    if measured is not None and prices.listed is not None and measured.currency != prices.listed.currency:
        return None, ""  # money of two currencies is not put side by side
    price = prices.of(answer)
    return price, "" if price is None else "the price list"


def _unpriced(asked: Asked, answers: Sequence[Capacity], prices: Sequence[float | None]) -> list[str]:
    """Which prices are missing, and what would tell."""
    missing = sorted({answer.pool.flavor_name for answer, price in zip(answers, prices, strict=True) if price is None})
    if not missing:
        return []
    if asked.prices.listed is None and asked.opencost is None and not any(price is not None for price in prices):
        return ["what a GPU-hour costs: --price 2.50, --prices FILE, or --opencost URL (docs/cost.md)"]
    return [f"what a GPU-hour in flavor {', '.join(missing)} costs: --price {missing[0]}=2.50, or in the price list"]


def _currency(asked: Asked, spent: Spent | None) -> str:
    """Of all amounts; empty if nobody says."""
    if asked.opencost is not None and spent is not None:
        return spent.currency
    return asked.prices.listed.currency if asked.prices.listed else asked.currency


def _replayed(found: Timing, question: Question, seen: Seen, asked: Asked) -> Timing:
    """With what plans would have done without hindsight."""
    from dataclasses import replace

    from advisor.advise_timing import past_work, replayed

    assert question.settings is not None
    if not found.without:
        return found
    hide = (seen.hide or str) if question.known else str
    work = past_work(question.request, seen.entries, hide)
    until = max([seen.now, *question.request.workloads.due_ms]) + 1
    late = replayed(question.request, work, until, question.settings, asked.told)
    return found if late is None else replace(found, replayed=late & found.due)


def _confirmed(found: Timing, request: pb.PlanRequest, seen: Seen, judge: Judge) -> int:
    """Of the deadlines that timing rescues, those of results that are known to be good."""
    from scheduler.ledger_entry import Verdict

    by_uid: dict[str, Entry] = {entry.uid: entry for entry in seen.entries}
    rescued = [by_uid[request.workloads.id[row]] for row in found.rescued]
    return sum(
        entry.verdict is Verdict.VERIFIED
        or (entry.verdict is None and (task := judge.task(entry)[1]) is not None and task.quality is None)
        for entry in rescued
    )
