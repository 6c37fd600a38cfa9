"""How ``punctual advise`` prints its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advisor.advise_demand import Demand
    from advisor.advise_facts import Advice, Facts, Remedy
    from cli.advise_source import Sources

_SURE = {1: "estimated", 2: "shown", 3: "proved"}


def show(advice: Advice, facts: Facts, console: Any) -> None:
    """The page, for people."""
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
    extra = "nobody knows how many more results" if remedy.extra is None else f"{_round(remedy.extra)} more"
    extra += " an hour" if remedy.cause == "serving" else ""
    if remedy.cost == 0:
        return f"{extra}, no more hardware"
    if remedy.cost is None:
        return f"{extra}, at a price that is not known"
    each = "" if remedy.each is None else f", {_round(remedy.each)} for each"
    if remedy.each_verified:
        each += f", {_round(remedy.each_verified)} for each that will be good ({remedy.good:.0%} of those judged were)"
    return f"{extra}, for {_round(remedy.cost)} {currency}".rstrip() + each


def _round(number: float) -> str:
    """To three or four digits that mean something, never as a power of ten."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}" if abs(number) >= 0.001 else f"{number:.6f}"


def to_json(advice: Advice, facts: Facts, sources: Sources, remarks: Sequence[str]) -> dict[str, Any]:
    """The page, for machines."""
    from advisor.capacity import to_json as capacity_object

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
                "costPerExtraVerifiedResult": remedy.each_verified,
                "gpuHours": remedy.gpu_hours,
                "confidence": _SURE[remedy.sure],
                "evidence": remedy.evidence,
            }
            for remedy in advice.remedies
        ],
        "unknown": list(advice.unknown),
        "currency": facts.currency or None,
        "capacity": [
            {**capacity_object(answer, price), "pricePerHour": price}
            for answer, price in zip(facts.capacity, facts.prices, strict=True)
        ],
        "demand": [_demand(each) for each in facts.demands],
        "spent": _spent(facts),
        "sources": sources.told,
        "remarks": list(remarks),
    }


def _demand(each: Demand) -> dict[str, Any]:
    return {
        "service": each.measured.service,
        "requestsPerSecond": each.rate,
        "servers": each.servers,
        "growthPerWeek": each.growth,
        "weeksLeft": each.weeks,
        "sustainablePerServer": each.measured.sustainable,
        "tooMuchPerServer": each.measured.too_much,
        "short": each.short,
        "evidence": list(each.evidence),
        "unknown": each.why or None,
    }


def _spent(facts: Facts) -> dict[str, Any] | None:
    spent = facts.fit.spent if facts.fit else None
    if spent is None:
        return None
    return {
        "source": spent.source,
        "currency": spent.currency or None,
        "total": spent.total,
        "perResult": spent.each,
        "perGpuHour": dict(spent.rates),
        "complete": spent.complete,
    }
