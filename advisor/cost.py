"""What results cost: who was charged what, what became of it, and what one result comes to.

Charges come from a price list (:func:`charge_by_prices`: allocated GPU-hours × price) or from OpenCost
(:mod:`advisor.opencost`). Each says what its money went for; together they are the source's total, nothing is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from advisor.cost_prices import Prices
from advisor.outcomes import Judge, Result, Tally
from advisor.usage import Slot, Usage
from scheduler.ledger_entry import Entry, Run
from scheduler.settings import HOUR

PRICE_LIST = "price list"
"""A source of money."""


class Use(StrEnum):
    """What money went for."""

    VERIFIED = "verified"
    """Work whose result counts, in time; hours in which a service was within its goals."""
    LATE = "late"
    REJECTED = "rejected"
    UNJUDGED = "unjudged"
    """Work, or hours of a service, of which nobody knows whether they count."""
    MISSED = "missed"
    """Hours in which a service was not within its goals."""
    FAILED = "failed"
    DELETED = "deleted"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"
    """Runs that ended with an eviction."""
    RUNNING = "running"
    IDLE = "idle"
    """Paid for, and granted to nobody."""
    SHARED = "shared"
    """Of all together: what the source shares out, or cannot give to anybody."""
    ELSEWHERE = "elsewhere"
    """Work that the ledger does not know."""


_BY_RESULT = {
    Result.VERIFIED: Use.VERIFIED,
    Result.LATE: Use.LATE,
    Result.REJECTED: Use.REJECTED,
    Result.UNJUDGED: Use.UNJUDGED,
    Result.FAILED: Use.FAILED,
    Result.DELETED: Use.DELETED,
    Result.UNKNOWN: Use.UNKNOWN,
    Result.RUNNING: Use.RUNNING,
    Result.WAITING: Use.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class Charge:
    """An amount of money, and for what.

    Attributes
    ----------
    hour
        Begin of the hour (day) that it is for, in milliseconds since the Unix epoch.
    gpu_hours
        That it is for; of OpenCost those requested.
    entry
        Whose; None: nobody's in the ledger.
    productive
        What part of it GPUs were busy for a result that counts. None: how busy they were is not known.
    serving
        Whether it is of a service, which gives answers and no results.
    """

    use: Use
    hour: int
    amount: float
    gpu_hours: float
    flavor: str = ""
    entry: Entry | None = None
    productive: float | None = None
    serving: bool = False


@dataclass
class Bill:
    """All charges of a window.

    Attributes
    ----------
    source
        Where they are from, in words.
    currency
        Of all amounts; empty if the source does not say.
    total
        What the source itself says that all is together.
    remarks
        What is missing or odd, in words.
    complete
        Whether the source answered for all of the window.
    """

    source: str
    currency: str
    charges: list[Charge] = field(default_factory=list)
    total: float = 0.0
    remarks: list[str] = field(default_factory=list)
    complete: bool = True

    @property
    def comparable(self) -> bool:
        """Whether costs of work may be compared. Of flavors that a price list does not know nothing is said at all."""
        return self.complete or self.source == PRICE_LIST


def use_of(entry: Entry, run: Run, hour: int, judge: Judge) -> Use:
    """What the money for an hour of a run went for."""
    name, service = judge.service(entry)
    if service is not None:
        good = judge.good_hours.get((name, hour))
        return Use.UNJUDGED if good is None else Use.VERIFIED if good else Use.MISSED
    if run is not entry.runs[-1] or (run.ended is not None and run.ended != entry.ended):
        return Use.INTERRUPTED
    return _BY_RESULT[judge.result(entry)]


def charge_by_prices(usage: Usage, prices: Prices, judge: Judge, now: int) -> Bill:
    """Allocated GPU-hours × price, and GPUs that are owned and were granted to nobody.

    Parameters
    ----------
    now
        What is owned is paid for until then.
    """
    bill = Bill(PRICE_LIST, prices.currency)
    unpriced: dict[str, float] = defaultdict(float)
    granted: dict[str, float] = defaultdict(float)
    for slot in usage.slots:
        hours = slot.allocated / HOUR
        granted[slot.flavor] += hours
        price = prices.of(slot.flavor)
        if price is None:
            unpriced[slot.flavor or "(unknown)"] += hours
            continue
        amount = price * hours
        use = use_of(slot.entry, slot.run, slot.hour, judge)
        productive = _productive(slot, use, amount) if usage.measured else None
        serving = judge.service(slot.entry)[1] is not None
        bill.charges.append(Charge(use, slot.hour, amount, hours, slot.flavor, slot.entry, productive, serving))
    window = usage.window
    length = max(0, min(now, window.end) - window.start) / HOUR
    for flavor, gpus in sorted(prices.owned.items()):
        idle = gpus * length - granted[flavor]
        if idle < -1e-6:
            bill.remarks.append(
                f"{flavor}: more GPU-hours were granted ({granted[flavor]:.1f}) than are owned ({gpus * length:.1f})"
            )
        price = prices.of(flavor)
        assert price is not None
        if idle > 0:
            bill.charges.append(Charge(Use.IDLE, window.start, idle * price, idle, flavor))
    for flavor, hours in sorted(unpriced.items()):
        bill.complete = False
        bill.remarks.append(f"{flavor} has no price: {hours:.1f} GPU-hours are left out (add gpuHour.{flavor})")
    if not prices.owned:
        bill.remarks.append("idle GPUs are left out: it takes `owned` in the price list, and all queues")
    bill.total = sum(charge.amount for charge in bill.charges)
    return bill


def _productive(slot: Slot, use: Use, amount: float) -> float | None:
    if use is not Use.VERIFIED:
        return 0.0
    return amount * slot.busy / slot.seen if slot.seen else None


@dataclass
class Cost:
    """What a queue, a team, a task … came to.

    Attributes
    ----------
    direct
        Of the total, what is of some work, whether the ledger knows it or not: all but idle and shared costs.
    serving
        Of that, services'.
    results
        Of the direct costs, the runs that brought results that count; services' left out.
    """

    key: str
    total: float = 0.0
    gpu_hours: float = 0.0
    direct: float = 0.0
    serving: float = 0.0
    results: float = 0.0
    uses: dict[Use, float] = field(default_factory=lambda: defaultdict(float))
    productive: float = 0.0
    unmeasured: float = 0.0
    """Of what went for results that count: how busy GPUs were is not known."""

    @property
    def efficiency(self) -> float | None:
        """Productive by total, at least; None if nothing was spent."""
        return self.productive / self.total if self.total else None

    @property
    def efficiency_at_most(self) -> float | None:
        """The same if GPUs were busy all the time where nobody looked."""
        return (self.productive + self.unmeasured) / self.total if self.total else None


BY: Mapping[str, Callable[[Charge, Judge], str]] = {
    "queue": lambda charge, judge: _of(charge, lambda entry: entry.family.cluster_queue or "(unknown)"),
    "team": lambda charge, judge: _of(charge, lambda entry: entry.family.namespace),
    "workload": lambda charge, judge: _of(charge, lambda entry: f"{entry.family.namespace}/{entry.name}"),
    "task": lambda charge, judge: _of(charge, lambda entry: judge.name(entry) or "(no task)"),
    "flavor": lambda charge, judge: charge.flavor or _of(charge, lambda entry: entry.flavor or "(unknown)"),
}
"""What costs are shown by. What belongs to nobody is a row of its own: ``(idle)``, ``(shared)``, ``(elsewhere)``."""


def _of(charge: Charge, key: Callable[[Entry], str]) -> str:
    return f"({charge.use})" if charge.entry is None else key(charge.entry)


def costs(bill: Bill, by: str, judge: Judge) -> list[Cost]:
    """Costs by queue, team, workload, task or flavor: the largest first. They add up to the bill."""
    found: dict[str, Cost] = {}
    for charge in bill.charges:
        key = BY[by](charge, judge)
        _add(found.setdefault(key, Cost(key)), charge)
    return sorted(found.values(), key=lambda cost: (-cost.total, cost.key))


def all_costs(bill: Bill) -> Cost:
    """All of it."""
    total = Cost("all")
    for charge in bill.charges:
        _add(total, charge)
    return total


def _add(cost: Cost, charge: Charge) -> None:
    cost.total += charge.amount
    cost.gpu_hours += charge.gpu_hours
    cost.uses[charge.use] += charge.amount
    if charge.use not in (Use.IDLE, Use.SHARED):
        cost.direct += charge.amount
        cost.serving += charge.amount if charge.serving else 0.0
        cost.results += charge.amount if charge.use is Use.VERIFIED and not charge.serving else 0.0
    if charge.productive is not None:
        cost.productive += charge.productive
    elif charge.use is Use.VERIFIED:
        cost.unmeasured += charge.amount


@dataclass(frozen=True)
class PerResult:
    """What one result comes to, all that was spent counted: late, rejected and interrupted work too, and its part of
    idle and shared costs.

    Attributes
    ----------
    verified
        Per result that counts; None: there is none.
    deadline
        Per deadline that was met.
    own
        Per result that counts, only the runs that brought it.
    """

    verified: float | None
    deadline: float | None
    own: float | None


def overhead(whole: Cost) -> float:
    """By what direct costs are multiplied, so that idle and shared costs are shared out in proportion."""
    return whole.total / whole.direct if whole.direct else 1.0


def per_result(cost: Cost, tally: Tally, factor: float) -> PerResult:
    """What one result of some work comes to; services are left out, they give answers.

    Parameters
    ----------
    cost, tally
        Of the same work.
    factor
        See :func:`overhead`.
    """
    spent = (cost.direct - cost.serving) * factor

    def each(amount: float, count: int) -> float | None:
        return amount / count if count else None

    return PerResult(
        verified=each(spent, tally.results),
        deadline=each(spent, tally.met),
        own=each(cost.results, tally.results),
    )


def reconcile(bill: Bill) -> float:
    """By how much the charges miss the source's own total."""
    return sum(charge.amount for charge in bill.charges) - bill.total
