"""Buy, or not, and why: the causes put side by side, and what could be done, ranked by what one more result costs.

Three causes are told apart. *Timing*: the work would be done in time on the same quota, had it started at other times.
*Serving*: more is asked of a service than it can take. *Fit*: GPU time goes for what brings nothing. Buying is advised
only when a bound proves, or a measurement shows, that what is there cannot do, and nothing cheaper is known to help.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.advise_causes import (
    can_take,
    capacity_remedies,
    fit_finding,
    fit_remedies,
    serving_finding,
    serving_remedies,
    timing_finding,
    timing_remedies,
)
from advisor.advise_facts import Advice, Cause, Facts, Finding, Remedy, Standing, Sure, Verdict


def advise(facts: Facts) -> Advice:
    """Weigh the facts."""
    findings = (timing_finding(facts), serving_finding(facts), fit_finding(facts))
    remedies = sorted(
        [*timing_remedies(facts), *capacity_remedies(facts), *serving_remedies(facts), *fit_remedies(facts)],
        key=_rank,
    )
    verdict, told = _verdict(facts, findings, remedies)
    unknown = dict.fromkeys([*facts.unknown, *(each for finding in findings for each in finding.unknown)])
    return Advice(verdict, told, findings, tuple(remedies), tuple(unknown))


def _rank(remedy: Remedy) -> tuple[bool, float, bool, int, float]:
    each = remedy.each
    return (each is None, each or 0.0, remedy.buying, -remedy.sure, -(remedy.extra or 0.0))


def _verdict(facts: Facts, findings: Sequence[Finding], remedies: Sequence[Remedy]) -> tuple[Verdict, str]:
    """The answer, and the sentence that says it."""
    buying = [remedy for remedy in remedies if remedy.buying]
    reasons = [_too_early(facts, remedy, remedies) for remedy in buying]
    for remedy, reason in zip(buying, reasons, strict=True):
        if not reason:
            extra = (
                f" for {remedy.extra:g} more {'deadline' if remedy.extra == 1 else 'deadlines'} met"
                if remedy.extra and remedy.cause is Cause.TIMING
                else ""
            )
            return Verdict.YES, f"Buy: {remedy.name}{extra}; {remedy.evidence}, and nothing cheaper is known to help."
    if reasons:
        return Verdict.NOT_YET, f"Do not buy yet: {reasons[0]}."
    return _no_need(facts, findings)


def _too_early(facts: Facts, buying: Remedy, remedies: Sequence[Remedy]) -> str:
    """Why it would be too early to buy; empty if it is not."""
    for remedy in remedies:
        if not remedy.buying and _goes_first(remedy, buying):
            return f"first {remedy.name} ({remedy.evidence}); what is left then would take {buying.name}"
    if buying.sure is Sure.ESTIMATED:
        return f"{buying.name} would help ({buying.evidence}), but it is not proved that fewer do not"
    if buying.cause is Cause.TIMING and facts.fit is None:
        unknown = "what the GPUs that are there are used for is not known (--ledger)"
        return f"{buying.name} would help ({buying.evidence}), but {unknown}, and that may be cheaper to mend"
    return ""


def _goes_first(remedy: Remedy, buying: Remedy) -> bool:
    """Whether a remedy without hardware makes it too early to buy for a cause.

    One that is shown to help always does. One that is only estimated does if it is about as much GPU time as would be
    bought.
    """
    if buying.cause is Cause.SERVING:
        return remedy.cause is Cause.SERVING
    if remedy.cause is Cause.SERVING:
        return False
    if remedy.sure >= Sure.SHOWN and remedy.extra:
        return True
    return bool(remedy.gpu_hours and buying.gpu_hours and remedy.gpu_hours >= buying.gpu_hours)


def _no_need(facts: Facts, findings: Sequence[Finding]) -> tuple[Verdict, str]:
    """Nothing asks for hardware, as far as is known."""
    timing, (_, serving, _) = facts.timing, findings
    if serving.standing is Standing.YES:
        told = "at no rate were all goals of the service kept, so more of the same servers would not help"
        return Verdict.NOT_YET, f"Do not buy yet: {told}."
    known = []
    if timing is not None and timing.due:
        total, missed = len(timing.due), len(timing.planned)
        met = f"all {total} deadlines" if total > 1 else "the one deadline"
        if missed:
            met = f"{total - missed} of {total} deadlines (more GPUs do not help the others)"
        hindsight = "with hindsight, " if timing.surprised else ""
        known.append(f"{hindsight}started at the right time, work on today's quota meets {met}")
        if timing.rescued:
            without = len(timing.without)
            was = (
                f"{'was' if without == 1 else 'were'} missed in fact" if facts.past else "would be missed without that"
            )
            known[-1] += f"; {without} {was}"
            if timing.surprised:
                known[-1] += f", and {without - len(timing.rescued)} of them would be by plans that know estimates only"
    if serving.standing is Standing.NO:
        known.append(can_take(facts))
    if not known:
        return Verdict.UNKNOWN, "It cannot be said: no deadlines, and no measured service, are known here."
    return Verdict.NO, f"Do not buy: {', and '.join(known)}."
