"""The third cause: fit. Of the GPU time that there is, how much was granted, busy, and went for results that count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.cost import Use, use_of
from advisor.cost_prices import Prices
from advisor.outcomes import Judge, Result
from advisor.usage import Usage, total
from scheduler.ledger_entry import Entry
from scheduler.settings import HOUR

IN_VAIN = (Use.FAILED, Use.DELETED, Use.REJECTED, Use.INTERRUPTED, Use.MISSED)
"""GPU time that brought nothing. (Late work is the matter of timing.)"""

ENOUGH_RESULTS = 3
"""Results in each of two flavors from which on they are compared."""

CHEAPER = 0.8
"""A flavor is called cheaper below this part of the other's cost of a result."""


@dataclass(frozen=True)
class Cheaper:
    """Work whose results cost less in one flavor than in another; amounts for one result, in the price list's money."""

    work: str
    flavor: str
    cost: float
    other: str
    other_cost: float
    results: int
    """In the other flavor."""


@dataclass(frozen=True)
class Fit:
    """GPU-hours of a window.

    Attributes
    ----------
    there
        Quota × time; None: the quota is not known.
    uses
        What was granted, by what became of it.
    measured, busy
        How much of that was measured, and busy; None: nobody was asked.
    verified
        Results that count.
    hours_each
        GPU-hours granted by results that count, all work counted; None without any.
    """

    there: float | None
    granted: float
    uses: Mapping[Use, float]
    measured: float | None
    busy: float | None
    verified: int
    unjudged: int
    cheaper: tuple[Cheaper, ...]

    @property
    def in_vain(self) -> float:
        """GPU-hours that brought nothing."""
        return sum(self.uses.get(use, 0.0) for use in IN_VAIN)

    @property
    def asleep(self) -> float:
        """GPU-hours that were granted and measured, and not busy."""
        return 0.0 if self.measured is None or self.busy is None else self.measured - self.busy

    @property
    def hours_each(self) -> float | None:
        """GPU-hours granted by results that count, all work counted; None without any."""
        return self.granted / self.verified if self.verified else None


def fit(usage: Usage, entries: Iterable[Entry], judge: Judge, there: float | None, prices: Prices | None) -> Fit:
    """What became of the GPU time of a window.

    Parameters
    ----------
    usage
        Of these entries; measured or not.
    there
        GPU-hours that the quota of today would have been.
    """
    uses: dict[Use, float] = defaultdict(float)
    for slot in usage.slots:
        uses[use_of(slot.entry, slot.run, slot.hour, judge)] += slot.allocated / HOUR
    whole = total(usage, judge.worth)
    entries = list(entries)
    results = [judge.result(entry) for entry in entries if judge.service(entry)[1] is None]
    return Fit(
        there=there,
        granted=whole.allocated,
        uses=dict(uses),
        measured=whole.seen if usage.measured else None,
        busy=whole.busy if usage.measured else None,
        verified=sum(result is Result.VERIFIED for result in results),
        unjudged=sum(result is Result.UNJUDGED for result in results),
        cheaper=_cheaper(usage, judge, prices) if prices else (),
    )


def _cheaper(usage: Usage, judge: Judge, prices: Prices) -> tuple[Cheaper, ...]:
    """Work that has results in two flavors, in one of them for much less; all its runs are counted."""
    money: dict[tuple[str, str], float] = defaultdict(float)
    results: dict[tuple[str, str], set[str]] = defaultdict(set)
    for slot in usage.slots:
        entry, price = slot.entry, prices.of(slot.flavor)
        if price is None or judge.service(entry)[1] is not None:
            continue
        key = judge.name(entry) or str(entry.family), slot.flavor
        money[key] += price * slot.allocated / HOUR
        if judge.result(entry) is Result.VERIFIED:
            results[key].add(entry.uid)
    each = {key: money[key] / len(uids) for key, uids in results.items() if len(uids) >= ENOUGH_RESULTS}
    found = [
        Cheaper(work, flavor, cost, other, other_cost, len(results[work, other]))
        for (work, flavor), cost in each.items()
        for (same, other), other_cost in each.items()
        if same == work and cost < CHEAPER * other_cost
    ]
    return tuple(sorted(found, key=lambda one: (one.work, one.cost, one.other)))
