"""``punctual advise``: buy, or not, and why, on one page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.advise_capacity_question import Prices, Source, length_of, prices_of, share_of
from cli.advise_source import (
    Goals,
    Patience,
    PrometheusUrl,
    Seen,
    Servers,
    Sources,
    Token,
    judge_of,
    look,
    measure_busy,
    servers_of,
    success_of,
    text_of,
)
from cli.ledger import USAGE, Address, fail
from cli.source import BAD_INPUT, errors_told, instant_of, tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from advisor.advise_demand import Demand
    from advisor.advise_facts import Advice, Facts, Remedy
    from advisor.advise_fit import Fit
    from advisor.advise_timing import Timing
    from advisor.capacity import Capacity
    from advisor.outcomes import Judge
    from advisor.success import Success
    from cli.advise_capacity_question import Question
    from scheduler.ledger_entry import Entry
    from solver.api import planner_pb2 as pb

DAYS = "7d"
"""How far to look back, if nobody says."""


class Output(StrEnum):
    """Ways to print the page."""

    TEXT = "text"
    JSON = "json"


@dataclass
class _Asked:
    """What the options say, and what was heard on the way."""

    source: Source
    share: Fraction
    prices: Prices
    success: Success | None
    servers: Servers
    effort: int
    seed: int
    told: Callable[[str], None] = lambda text: None
    sources: Sources = field(default_factory=Sources)
    remarks: list[str] = field(default_factory=list)


def page(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE|DIR", help="Read Jobs, queues, flavors from there, no cluster."),
    ] = None,
    ledger: Address = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A copy of a ledger instead: punctual ledger export -o json.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With a ledger: how far to look back.", show_default=DAYS)
    ] = None,
    now: Annotated[
        str | None,
        typer.Option("--now", "--until", metavar="TIME", help="As if it were this time (RFC 3339), and no later."),
    ] = None,
    success: Goals = None,
    serving: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What punctual advise serving -o json has measured. Repeatable."),
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVICE=]RATE[xSERVERS]",
            help="Requests a second that it gets at its busiest: chat=40, chat=40x2.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="[FLAVOR=]PRICE", help="Of one GPU for an hour. Repeatable.")
    ] = None,
    price_list: Annotated[
        Path | None,
        typer.Option("--prices", envvar="PUNCTUAL_PRICES", metavar="FILE", help="A price list (docs/cost.md)."),
    ] = None,
    prometheus: PrometheusUrl = None,
    token_file: Token = None,
    timeout: Patience = "30s",
    on_time: Annotated[
        str, typer.Option(metavar="PERCENT", help="How many of the deadlines have to be met, of those that can be.")
    ] = "100",
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Go by this policy.")] = None,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each plan.")] = 25,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
) -> None:
    """Say whether more hardware is needed, and why: one page from facts.

    Puts the causes side by side: timing (the same work on the same GPUs, with
    planning), serving (what is asked of a service beside what it can take), fit
    (what GPU time went for). Ranks what could be done by what one more result
    costs. Never says buy while something cheaper is shown to help, and says
    what is not known. With a ledger it asks about the past, without about what
    waits now, as if Punctual were in charge. Each question has a command too, below.

    \b
    punctual advise -f examples/01-four-jobs
    punctual advise --ledger ledger.db --since 30d --prices prices.yaml
    punctual advise --serving chat.json --demand chat=40

    Exit codes: 0 advised, whatever the advice; 1 something could not be read or
    planned; 2 wrong usage, or no cluster configured.
    """
    from rich.console import Console

    from advisor.advise import advise
    from advisor.capacity_trials import BadPlan
    from scheduler.settings import Settings

    if context.invoked_subcommand is not None:
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    said = context.get_parameter_source("ledger")
    if files and since is None and said is not None and said.name == "ENVIRONMENT":
        ledger = None  # files are what is asked about, whatever ledger there is
    past = ledger is not None or export is not None
    if since is not None and not past:
        raise typer.BadParameter("needs to know where the past is: --ledger PATH, or --export", param_hint="--since")
    source = Source(
        paths=files or (),
        instant=instant_of(now),
        tune=partial(tuned, 1, None, None, seed),
        length=length_of("--since", since or DAYS) if past else None,
        ledger=ledger,
        export=export,
        gate_all=not past,  # what would planning bring?
        policy=policy,
        kubeconfig=kubeconfig,
        context=kube_context,
    )
    source.tune(Settings())
    asked = _Asked(
        source, share_of(on_time), prices_of(price or (), price_list), success_of(success),
        servers_of(prometheus, token_file, timeout), effort, seed,
    )  # fmt: skip
    demands = _demands(serving or (), demand or ())
    seen = look(ledger, export, since or DAYS, now, None) if past else None
    with errors_told(console):
        try:
            with console.status("reading ...") as status:
                asked.told = status.update
                facts = _facts(asked, seen, demands)
        except BadPlan as error:
            console.print(f"error: a plan did not pass the verifier, please report this: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
    for remark in asked.remarks:
        console.print(remark, markup=False)
    advice = advise(facts)
    if output is Output.JSON:
        typer.echo(json.dumps(_to_json(advice, facts, asked), indent=2, ensure_ascii=False))
    else:
        _show(advice, facts, Console(highlight=False, soft_wrap=True))


# --- facts -------------------------------------------------------------------------------------------------------


def _facts(asked: _Asked, seen: Seen | None, demands: Sequence[Demand]) -> Facts:
    from advisor.advise_facts import Facts
    from advisor.advise_timing import timing
    from advisor.capacity import Effort, capacity
    from advisor.capacity_pools import NoPool
    from advisor.outcomes import Judge

    known = None if seen is None else (seen.entries, seen.hide or str)
    question = asked.source.question(known)
    asked.remarks += [str(remark) for remark in question.remarks]
    answers: list[Capacity] = []
    found: Timing | None = None
    unknown = []
    try:
        answers = capacity(
            question.request,
            question.names,
            share=asked.share,
            effort=Effort(asked.effort, asked.seed),
            told=asked.told,
        )
        found = timing(question.request, question.missed, effort=asked.effort * 2, seed=asked.seed, told=asked.told)
    except NoPool as error:
        unknown.append(f"deadlines: {error}")
    judge: Judge = Judge(asked.success)
    fit = None
    if seen is None:
        asked.sources.missing("ledger", "what happened in the past, and what GPU time went for (--ledger PATH)")
    else:
        asked.sources.add("ledger", str(asked.source.export or asked.source.ledger))
        fit, judge = _fit(asked, seen, question, answers)
        if found is not None:
            found = _replayed(found, question, seen, asked)
    if asked.success is None:
        unknown.append("what counts as a result: --success FILE (docs/success.md)")
    prices = [asked.prices.of(answer) for answer in answers]
    if any(each is None for each in prices):
        unknown.append("what a GPU-hour costs: --price 2.50, or --prices FILE")
    if seen is not None and not question.known:
        unknown.append("what quota there is: -f FILE, or a cluster (the most that was in use counts as quota)")
    return Facts(
        timing=found,
        past=seen is not None,
        capacity=answers,
        confirmed=None if found is None or seen is None else _confirmed(found, question.request, seen, judge),
        fit=fit,
        demands=demands,
        prices=prices,
        currency=asked.prices.currency.strip(),
        unknown=unknown,
    )


def _fit(asked: _Asked, seen: Seen, question: Question, answers: Sequence[Capacity]) -> tuple[Fit, Judge]:
    """What GPU time went for."""
    from advisor.advise_fit import fit
    from advisor.usage import allocate
    from scheduler.settings import HOUR

    usage = allocate(seen.entries, seen.window, seen.now, {})
    measure_busy(usage, seen, asked.servers, asked.sources)
    judge, told = judge_of(asked.success, seen, asked.servers, asked.sources)
    asked.remarks += [*usage.remarks, *(told.remarks if told else ())]
    hours = (asked.source.instant - seen.window.start) / HOUR
    there = sum(answer.pool.now for answer in answers) * hours if question.known and answers else None
    return fit(usage, seen.entries, judge, there, asked.prices.listed), judge


def _replayed(found: Timing, question: Question, seen: Seen, asked: _Asked) -> Timing:
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


def _demands(files: Sequence[Path], texts: Sequence[str]) -> list[Demand]:
    """What was measured of services, and what is asked of them."""
    from advisor.advise_demand import BadReport, Demand, read_report

    measured = []
    for file in files:
        try:
            measured.append(read_report(text_of(file)))
        except BadReport as error:
            raise fail(f"{file}: {error}", BAD_INPUT) from None
    rates: dict[str, tuple[float, int]] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        rate, _, servers = number.partition("x")
        try:
            rates[name] = float(rate), int(servers or 1)
        except ValueError:
            rates[name] = -1.0, 0
        if not 0 <= rates[name][0] < float("inf") or rates[name][1] < 1:
            raise fail(f"--demand: {text} is no rate; write 40, chat=40, or chat=40x2 for two servers", USAGE)
    if rates and not measured:
        raise fail("--demand: say what the service can take: --serving FILE (punctual advise serving -o json)", USAGE)
    if "" in rates and len(measured) > 1:
        raise fail("--demand: there are several services; say which: chat=40", USAGE)
    services = {each.service for each in measured}
    if wrong := sorted(rates.keys() - services - {""}):
        raise fail(f"--demand: {wrong[0]} was not measured; there are: {', '.join(sorted(services))}", USAGE)
    found = []
    for each in measured:
        asked = rates.get(each.service, rates.get(""))
        if asked is None:
            raise fail(f"--serving: say how much is asked of {each.service}: --demand {each.service}=RATE", USAGE)
        found.append(Demand(each, *asked))
    return found


# --- the page ----------------------------------------------------------------------------------------------------

_SURE = {1: "estimated", 2: "shown", 3: "proved"}


def _show(advice: Advice, facts: Facts, console: Any) -> None:
    console.print(advice.told, style="bold", markup=False)
    console.print()
    for finding in advice.findings:
        console.print(f"{finding.cause.upper()}: {finding.standing}. {finding.told}", markup=False)
        for line in finding.evidence:
            console.print(f"  - {line}", markup=False)
    if advice.remedies:
        console.print()
        console.print("WHAT COULD BE DONE, the cheapest for one more result first")
        for number, remedy in enumerate(advice.remedies, 1):
            console.print(f"{number}. {remedy.name}: {_gain(remedy, facts.currency)}", markup=False)
            console.print(f"   {_SURE[remedy.sure]}: {remedy.evidence}", markup=False)
    if advice.unknown:
        console.print()
        console.print("NOT KNOWN")
        for line in advice.unknown:
            console.print(f"  - {line}", markup=False)


def _gain(remedy: Remedy, currency: str) -> str:
    """What it brings, and costs."""
    extra = "nobody knows how many more results" if remedy.extra is None else f"{remedy.extra:,.3g} more"
    if remedy.cost == 0:
        return f"{extra}, no more hardware"
    if remedy.cost is None:
        return f"{extra}, at a price that is not known"
    each = "" if remedy.each is None else f", {remedy.each:,.4g} for each".rstrip()
    return f"{extra}, for {remedy.cost:,.4g} {currency}".rstrip() + each


def _to_json(advice: Advice, facts: Facts, asked: _Asked) -> dict[str, Any]:
    from advisor.capacity import to_json

    return {
        "verdict": advice.verdict.value,
        "sentence": advice.told,
        "causes": [
            {
                "cause": finding.cause.value,
                "standing": finding.standing.value,
                "sentence": finding.told,
                "evidence": list(finding.evidence),
                "unknown": list(finding.unknown),
            }
            for finding in advice.findings
        ],
        "remedies": [
            {
                "name": remedy.name,
                "cause": remedy.cause.value,
                "buying": remedy.buying,
                "extraResults": remedy.extra,
                "cost": remedy.cost,
                "costPerExtraResult": remedy.each,
                "gpuHours": remedy.gpu_hours,
                "confidence": _SURE[remedy.sure],
                "evidence": remedy.evidence,
            }
            for remedy in advice.remedies
        ],
        "unknown": list(advice.unknown),
        "currency": facts.currency or None,
        "capacity": [to_json(answer, price) for answer, price in zip(facts.capacity, facts.prices, strict=True)],
        "sources": asked.sources.told,
        "remarks": asked.remarks,
    }
