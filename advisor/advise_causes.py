"""What the facts say about each cause, and what could be done about it."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.advise_facts import Cause, Facts, Finding, Remedy, Standing, Sure
from advisor.advise_fit import IN_VAIN
from advisor.capacity import Capacity, unit_of
from advisor.cost import Use

MUCH = 0.05
"""GPU time that brings nothing is worth a remedy from this part of what was granted on."""


def timing_finding(facts: Facts) -> Finding:
    """Whether start times are in the way."""
    timing = facts.timing
    if timing is None or not timing.due:
        why = "no work with a deadline that could be met was found" if timing else "nothing was said about work"
        return Finding(Cause.TIMING, Standing.UNKNOWN, f"{why[0].upper()}{why[1:]}.")
    total, without, planned = len(timing.due), len(timing.without), len(timing.planned)
    as_it_is = (
        f"{'was' if without == 1 else 'were'} missed in fact" if facts.past else "would be missed in Kueue's order"
    )
    told = f"{without} of {_deadlines(total)} {as_it_is}; started at the right time, on the same quota, {planned}"
    if timing.surprised and timing.replayed is not None:
        told += f" with hindsight, {len(timing.replayed)} without"
    evidence = [f"a plan that the verifier has checked{', with hindsight' if facts.past else ''}: {planned} missed"]
    if timing.replayed is not None:
        evidence.append(f"the past replayed without hindsight, by quick plans: {len(timing.replayed)} missed")
    if timing.least:
        evidence.append(f"proved: no plan on today's quota misses fewer than {timing.least}")
    if timing.hopeless:
        words = (
            "has too little time, or never fits" if len(timing.hopeless) == 1 else "have too little time, or never fit"
        )
        evidence.append(f"{len(timing.hopeless)} more {words} today's quota")
    for answer in facts.capacity:
        found = answer.least
        proof = f"proved: not fewer than {found.at_least}"
        if answer.deadlines:
            evidence.append(
                f"{answer.where}: of {_count(answer, answer.pool.now)} {found.needed} "
                f"{'is' if found.needed == 1 else 'are'} needed, {proof}; {answer.at_once} to run all at once"
            )
    if not without and not timing.rescued:
        return Finding(Cause.TIMING, Standing.NO, f"{told}: start times are not in the way.", tuple(evidence))
    standing = Standing.YES if timing.rescued else Standing.NO
    told += f": start times cost {_deadlines(len(timing.rescued))}." if timing.rescued else ": start times cost none."
    return Finding(Cause.TIMING, standing, told, tuple(evidence))


def timing_remedies(facts: Facts) -> list[Remedy]:
    """Other start times."""
    timing = facts.timing
    if timing is None or not timing.rescued:
        return []
    extra = len(timing.rescued)
    evidence = f"{len(timing.without)} missed without, {len(timing.without) - extra} of them with planning"
    if timing.replayed is not None:
        evidence += ", replayed without hindsight"
    if facts.confirmed is not None:
        known = f"{facts.confirmed} of the {extra} results are verified"
        one = "its result is verified" if facts.confirmed else "whether its result is good is not known"
        evidence += f"; {one if extra == 1 else known}"
    return [Remedy("start work at the right time (mode: enforce)", Cause.TIMING, extra, 0.0, Sure.SHOWN, evidence)]


def capacity_remedies(facts: Facts) -> list[Remedy]:
    """More quota, beside planning."""
    remedies = []
    priced = facts.priced or [""] * len(facts.prices)
    for answer, price, source in zip(facts.capacity, facts.prices, priced, strict=True):
        found, pool = answer.least, answer.pool
        more = found.needed - pool.now
        extra = found.required - answer.now
        if more <= 0 or extra <= 0:
            continue
        hours = more * answer.span / 3_600_000
        proved = found.at_least > pool.now
        word = f"proved: {pool.now} cannot do" if proved else f"no plan was found that does with {pool.now}"
        remedies.append(
            Remedy(
                f"{more} more {unit_of(pool.resource_name, more)} in {answer.where}",
                Cause.TIMING,
                extra=extra,
                cost=None if price is None else price * hours,
                sure=(Sure.PROVED if found.proven else Sure.SHOWN) if proved else Sure.ESTIMATED,
                evidence=f"with planning; {word}, a plan does with {found.needed}"
                + ("" if price is None or not source else f"; {price:,.4g} an hour each, by {source}"),
                buying=True,
                gpu_hours=hours,
                good=facts.fit.good if facts.fit else None,
            )
        )
    return remedies


# --- serving -----------------------------------------------------------------------------------------------------


def serving_finding(facts: Facts) -> Finding:
    """Whether more is asked of services than they can take."""
    if not facts.demands:
        missing = "what services can take: punctual advise serving -o json > FILE, and --serving FILE --demand RATE"
        return Finding(Cause.SERVING, Standing.UNKNOWN, "No service was measured.", unknown=(missing,))
    lines, unknown = [], []
    for demand in facts.demands:
        found = demand.measured
        low = "nothing" if found.sustainable is None else f"{found.sustainable:g}/s"
        high = "" if found.too_much is None else f", {found.too_much:g}/s is too much"
        asked = "how much is asked is not known" if demand.rate is None else (
            f"{demand.rate:.4g}/s are asked of {_servers(demand.servers)}"
        )  # fmt: skip
        lines.append(f"{found.service}: {asked}; one takes {low}{high}")
        lines += [f"{found.service}: {line}" for line in demand.evidence]
        if demand.rate is None:
            unknown.append(f"how much is asked of {found.service}: {demand.why}")
        elif demand.short is None:
            unknown.append(
                f"whether {found.service} takes {demand.rate:.4g}/s: measure again with a narrower --width"
                if found.sustainable is not None
                else f"what {found.service} takes: it kept its goals at no rate that was tried"
            )
        if demand.weeks is not None and not demand.short:
            lines.append(
                f"{found.service}: grows by {demand.growth:.3g}/s a week; "
                f"if that goes on, it is more than passed in {_weeks(demand.weeks)}"
            )
    short = [demand.measured.service for demand in facts.demands if demand.short]
    if short:
        told = f"{_list(short)} {'is' if len(short) == 1 else 'are'} asked for more than the servers can take."
        return Finding(Cause.SERVING, Standing.YES, told, tuple(lines), tuple(unknown))
    if unknown:
        told = "What is asked lies between what passed and what failed."
        if any(demand.rate is None for demand in facts.demands):
            told = "How much is asked is not known."
        elif any(demand.measured.sustainable is None for demand in facts.demands):
            told = "No rate passed."
        return Finding(Cause.SERVING, Standing.UNKNOWN, told, tuple(lines), tuple(unknown))
    return Finding(
        Cause.SERVING, Standing.NO, f"The servers can take what is asked of them{_until(facts)}.", tuple(lines)
    )


def _until(facts: Facts) -> str:
    """For how long, if what is asked of a service grows."""
    weeks = [demand.weeks for demand in facts.demands if demand.weeks is not None]
    return f", for {_weeks(min(weeks))} more if it goes on growing as it did" if weeks else ""


def can_take(facts: Facts) -> str:
    """That the servers can take what is asked of them, in words."""
    return f"the servers can take what is asked of them{_until(facts)}"


def serving_remedies(facts: Facts) -> list[Remedy]:
    """More servers."""
    remedies = []
    for demand in facts.demands:
        found = demand.measured
        if not demand.short or demand.needed is None or found.sustainable is None or demand.rate is None:
            continue
        more = demand.needed - demand.servers
        extra = max(0.0, demand.rate - demand.servers * found.sustainable) * 3600
        seconds = found.gpu_seconds
        gpus = None if seconds is None else seconds * found.sustainable * more
        spare = max(facts.capacity, key=lambda answer: answer.pool.now - answer.least.needed, default=None)
        if spare is not None and gpus is not None and 0 < gpus <= spare.pool.now - spare.least.needed:
            left = spare.pool.now - spare.least.needed
            remedies.append(
                Remedy(
                    f"use {gpus:.3g} of the {left} {spare.unit} in {spare.where} that deadlines do not need",
                    Cause.SERVING, extra, 0.0, Sure.ESTIMATED,
                    "a plan meets the deadlines without them; whether the server runs there, you know",
                )
            )  # fmt: skip
        taken = f"measured: one takes {found.sustainable:g}/s with all goals kept; "
        taken += f"counted for an hour at {demand.rate:.4g}/s"
        cost = None if found.cost is None else found.cost * found.sustainable * 3600 * more
        if gpus is not None:
            taken += f"; {gpus:.3g} GPUs"
        if cost is not None and facts.currency and found.currency and found.currency != facts.currency:
            taken += f"; {cost:,.4g} {found.currency}, which is not compared with {facts.currency}"
            cost = None
        remedies.append(
            Remedy(
                f"{more} more {'server' if more == 1 else 'servers'} like the one measured for {found.service}",
                Cause.SERVING,
                extra=extra,
                cost=cost,
                sure=Sure.SHOWN,
                evidence=taken,
                buying=True,
            )
        )
    return remedies


# --- fit ---------------------------------------------------------------------------------------------------------


def fit_finding(facts: Facts) -> Finding:
    """Whether GPU time goes for what brings nothing."""
    fit = facts.fit
    if fit is None:
        missing = "what happened in the past, and what GPU time went for: --ledger PATH (docs/ledger.md)"
        return Finding(Cause.FIT, Standing.UNKNOWN, "What GPUs are used for is not known.", unknown=(missing,))
    unknown = []
    evidence = [f"{use}: {hours:,.1f} GPU-hours" for use, hours in sorted(fit.uses.items(), key=lambda each: -each[1])]
    if fit.there:
        evidence.insert(
            0, f"granted: {fit.granted:,.1f} of {fit.there:,.1f} GPU-hours of quota ({_share(fit.granted, fit.there)})"
        )
    if fit.busy is None or fit.measured is None:
        if "Prometheus" not in facts.silent:  # else why it says nothing is told already
            unknown.append("how busy GPUs are: --prometheus URL (docs/usage.md)")
    else:
        evidence.append(f"busy: {fit.busy:,.1f} of {fit.measured:,.1f} measured GPU-hours")
    if (spent := fit.spent) is not None:
        money = f"{spent.currency} ".lstrip()
        each = "no result counts" if spent.each is None else f"{money}{spent.each:,.2f} for each result that counts"
        part = "" if spent.complete else "; not for all of the time"
        evidence.append(f"spent: {money}{spent.total:,.2f}, {each} ({spent.source}{part})")
    if fit.unjudged:
        unknown.append(f"whether {fit.unjudged} results are good: punctual outcome, or a judge in success.yaml")
    evidence += [
        f"{one.work}: {one.cost:.2f} {facts.currency} a result in {one.flavor}, {one.other_cost:.2f} in {one.other}"
        for one in fit.cheaper
    ]
    if not fit.granted:
        return Finding(Cause.FIT, Standing.UNKNOWN, "No GPU time was granted in that time.", unknown=tuple(unknown))
    losses = [
        f"{_share(fit.in_vain, fit.granted)} of it brought nothing" if fit.in_vain >= MUCH * fit.granted else "",
        f"{_share(fit.asleep, fit.measured or 1)} of what was measured was not busy"
        if fit.measured and fit.asleep >= MUCH * fit.measured
        else "",
        "some of it would have been cheaper in another flavor" if fit.cheaper else "",
    ]
    told = f"{fit.granted:,.1f} GPU-hours were granted"
    if any(losses):
        return Finding(
            Cause.FIT, Standing.YES, f"{told}; {', '.join(filter(None, losses))}.", tuple(evidence), tuple(unknown)
        )
    if fit.busy is None:
        told += "; little of it went for work that brought nothing, but how busy GPUs were is not known"
        return Finding(Cause.FIT, Standing.UNKNOWN, f"{told}.", tuple(evidence), tuple(unknown))
    return Finding(Cause.FIT, Standing.NO, f"{told}, nearly all for results.", tuple(evidence), tuple(unknown))


def fit_remedies(facts: Facts) -> list[Remedy]:
    """Less in vain, less asleep, another flavor."""
    fit = facts.fit
    if fit is None or not fit.granted:
        return []
    remedies = []

    def results(hours: float) -> float | None:
        return hours / fit.hours_each if fit.hours_each else None

    if fit.in_vain >= MUCH * fit.granted:
        worst = sorted(((hours, use) for use, hours in fit.uses.items() if use in IN_VAIN), reverse=True)
        told = ", ".join(f"{use} {hours:,.1f}" for hours, use in worst if hours > 0)
        remedies.append(
            Remedy(
                "find out why work fails, is rejected or interrupted", Cause.FIT,
                results(fit.in_vain - fit.uses.get(Use.MISSED, 0.0)), 0.0,
                Sure.ESTIMATED, f"GPU-hours that brought nothing: {told}; extra if all of it brought results",
                gpu_hours=fit.in_vain,
            )
        )  # fmt: skip
    if fit.measured and fit.asleep >= MUCH * fit.measured:
        remedies.append(
            Remedy(
                "give work that leaves GPUs waiting fewer of them, or slices", Cause.FIT, results(fit.asleep), 0.0,
                Sure.ESTIMATED, f"{fit.asleep:,.1f} of {fit.measured:,.1f} measured GPU-hours were not busy; extra if "
                "all of them were", gpu_hours=fit.asleep,
            )
        )  # fmt: skip
    for one in fit.cheaper:
        saved = (one.other_cost - one.cost) * one.results
        remedies.append(
            Remedy(
                f"run {one.work} in flavor {one.flavor} rather than {one.other}", Cause.FIT,
                saved / one.cost if one.cost else None, 0.0, Sure.ESTIMATED,
                f"{one.cost:.2f} {facts.currency} a result instead of {one.other_cost:.2f}; extra for the money saved",
            )
        )  # fmt: skip
    return remedies


def _count(answer: Capacity, count: int) -> str:
    return f"{count} {unit_of(answer.pool.resource_name, count)}"


def _deadlines(count: int) -> str:
    return f"{count} deadline" if count == 1 else f"{count} deadlines"


def _weeks(count: float) -> str:
    return "less than a week" if count < 1 else "a week" if count < 2 else f"{int(count)} weeks"


def _servers(count: int) -> str:
    return "one server" if count == 1 else f"{count} servers"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
