"""The third cause: fit. Of the GPU time that there is, how much was granted, busy, and went for results that count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from advisor.cost import Bill, Use, all_costs, overhead, per_result, use_of
from advisor.outcomes import Judge, Result, tally, together
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
    """Work whose results cost less in one flavor than in another; amounts of money for one result."""

    work: str
    flavor: str
    cost: float
    other: str
    other_cost: float
    results: int
    """In the other flavor."""


@dataclass(frozen=True)
class Spent:
    """Money of a window.

    Attributes
    ----------
    source
        Who says what was spent, in words.
    currency
        Empty if nobody says.
    each
        For each result that counts, all that was spent counted; None: there is none.
    rates
        For an hour of one GPU, by flavor: all that its work was charged, CPUs and memory too if the source knows them.
    complete
        Whether the source answered for all of the window.
    """

    source: str
    currency: str
    total: float
    each: float | None
    rates: Mapping[str, float]
    complete: bool


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
    spent
        What it cost; None: nobody was asked.
    rejected
        Results that are not good.
    served
        Of what was granted, services', which give answers and no results.
    """

    there: float | None
    granted: float
    uses: Mapping[Use, float]
    measured: float | None
    busy: float | None
    verified: int
    unjudged: int
    cheaper: tuple[Cheaper, ...]
    spent: Spent | None = None
    served: float = 0.0
    rejected: int = 0

    @property
    def good(self) -> float | None:
        """Of results that somebody judged, the share that is verified; None if there is none."""
        return self.verified / (self.verified + self.rejected) if self.verified + self.rejected else None

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
        """GPU-hours granted by results that count, all work but services counted; None without any."""
        return (self.granted - self.served) / self.verified if self.verified else None


def fit(usage: Usage, entries: Iterable[Entry], judge: Judge, there: float | None, bill: Bill | None, now: int) -> Fit:
    """What became of the GPU time of a window.

    Parameters
    ----------
    usage
        Of these entries; measured or not.
    there
        GPU-hours that the quota of today would have been.
    bill
        What it cost; None: nobody was asked.
    now
        Milliseconds since the Unix epoch.
    """
    uses: dict[Use, float] = defaultdict(float)
    served = 0.0
    for slot in usage.slots:
        uses[use_of(slot.entry, slot.run, slot.hour, judge)] += slot.allocated / HOUR
        served += slot.allocated / HOUR if judge.service(slot.entry)[1] is not None else 0.0
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
        cheaper=_cheaper(bill, judge) if bill and bill.comparable else (),
        spent=_spent(bill, entries, judge, now) if bill and bill.charges else None,
        served=served,
        rejected=sum(result is Result.REJECTED for result in results),
    )


def _spent(bill: Bill, entries: Sequence[Entry], judge: Judge, now: int) -> Spent:
    """A bill, by results and by GPU-hours."""
    whole = all_costs(bill)
    each = per_result(whole, together(tally(entries, judge, "queue", now)), overhead(whole)).verified
    money: dict[str, float] = defaultdict(float)
    hours: dict[str, float] = defaultdict(float)
    for charge in bill.charges:
        if charge.entry is not None and charge.flavor:
            money[charge.flavor] += charge.amount
            hours[charge.flavor] += charge.gpu_hours
    rates = {flavor: money[flavor] / hours[flavor] for flavor in money if hours[flavor] > 0}
    return Spent(bill.source, bill.currency, whole.total, each, rates, bill.complete)


def _cheaper(bill: Bill, judge: Judge) -> tuple[Cheaper, ...]:
    """Work that has results in two flavors, in one of them for much less; all its runs are counted."""
    money: dict[tuple[str, str], float] = defaultdict(float)
    results: dict[tuple[str, str], set[str]] = defaultdict(set)
    for charge in bill.charges:
        if charge.entry is None or charge.serving or not charge.flavor:
            continue
        key = judge.name(charge.entry) or str(charge.entry.family), charge.flavor
        money[key] += charge.amount
        if judge.result(charge.entry) is Result.VERIFIED:
            results[key].add(charge.entry.uid)
    each = {key: money[key] / len(uids) for key, uids in results.items() if len(uids) >= ENOUGH_RESULTS}
    found = [
        Cheaper(work, flavor, cost, other, other_cost, len(results[work, other]))
        for (work, flavor), cost in each.items()
        for (same, other), other_cost in each.items()
        if same == work and cost < CHEAPER * other_cost
    ]
    return tuple(sorted(found, key=lambda one: (one.work, one.cost, one.other)))
