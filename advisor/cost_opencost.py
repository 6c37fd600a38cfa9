"""A bill from OpenCost: each of its allocations given to the run of the work whose pod it was, all of them added up.

Where it has nothing, a price list may stand in, if both count in one currency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from advisor.cost import PRICE_LIST, Bill, Charge, Use, charge_by_prices, use_of
from advisor.cost_prices import Prices
from advisor.opencost import Allocation, OpenCost
from advisor.outcomes import Judge
from advisor.prometheus import SourceError, skew_told
from advisor.usage import Slot, Usage, Window
from advisor.usage_pods import Part, Pods
from scheduler.annotations import format_instant
from scheduler.ledger_entry import Entry
from scheduler.settings import DAY, HOUR, SECOND

DIFFERS = 0.1
"""By this share requested and granted GPU-hours may differ before it is said."""


def charge_by_opencost(
    usage: Usage,
    pods: Pods,
    opencost: OpenCost,
    judge: Judge,
    entries: Iterable[Entry],
    *,
    currency: str = "",
    prices: Prices | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Bill:
    """What OpenCost says that the window cost, day by day.

    Parameters
    ----------
    entries
        Whose costs are told; those of all other work are ``elsewhere``.
    currency
        In which it counts: it does not say.
    prices
        What stands in for days that it knows nothing of; None: those are left out. In another currency: left out too.
    progress
        Told what is asked for.
    """
    bill = Bill("OpenCost", currency)
    charging = _Charging(usage, pods, judge, bill, {entry.uid for entry in entries})
    missing: list[tuple[int, int]] = []
    failures: list[str] = []
    down = False
    for start, end in _days(usage.window):
        if down:
            missing.append((start, end))
            continue
        progress(f"asking OpenCost for {format_instant(start)[:10]}")
        try:
            answered = opencost.compute(start, end)
        except SourceError as error:
            failures.append(str(error))
            down = error.down or len(failures) > 1
            missing.append((start, end))
            continue
        if not answered.allocations:
            missing.append((start, end))
        bill.total += answered.total
        charging.other_window = charging.other_window or answered.other_window
        for allocation in answered.allocations:
            charging.give(allocation)
    charging.remark(opencost)
    bill.remarks += failures[:1]
    if missing:
        _stand_in(usage, judge, bill, missing, prices)
    return bill


def _days(window: Window) -> list[tuple[int, int]]:
    """Cut at midnights (UTC), at whole seconds."""
    start, end = window.start - window.start % SECOND, window.end - window.end % SECOND
    days = []
    while start < end:
        until = min(end, start - start % DAY + DAY)
        days.append((start, until))
        start = until
    return days


class _Charging:
    """Gives allocations to work."""

    def __init__(self, usage: Usage, pods: Pods, judge: Judge, bill: Bill, ours: set[str]) -> None:
        self._window, self._pods, self._judge, self._bill = usage.window, pods, judge, bill
        self._ours = ours
        self._busy = _busy_shares(usage.slots) if usage.measured else None
        self._granted = sum(slot.allocated for slot in usage.slots) / HOUR
        self._requested = 0.0
        self._flawed = self._ambiguous = 0
        self.other_window = False

    def give(self, allocation: Allocation) -> None:
        """Charge one: to the runs that its pod was of, in parts of its time, or to nobody."""
        self._flawed += allocation.flawed
        hour = allocation.start - allocation.start % self._window.bucket
        own, charges = allocation.cost - allocation.shared, self._bill.charges
        if allocation.idle or allocation.common:
            use = Use.IDLE if allocation.idle else Use.SHARED
            charges.append(Charge(use, hour, allocation.cost, allocation.gpu_hours))
            return
        parts = None
        if allocation.pod:
            parts = self._pods.parts(
                allocation.namespace,
                allocation.pod,
                allocation.start,
                allocation.end,
                allocation.labels,
                allocation.owner,
            )
            self._ambiguous += parts is None
        parts = [part for part in parts or () if part.entry.uid in self._ours]
        pieces = [(part, at, length) for part in parts for at, length in self._window.slots(part.start, part.end)]
        whole = sum(length for _, _, length in pieces)
        if not whole:
            charges.append(Charge(Use.ELSEWHERE, hour, allocation.cost, allocation.gpu_hours))
            return
        self._requested += allocation.gpu_hours
        for part, at, length in pieces:
            share = length / whole
            charges.append(self._charge(part, at, own * share, allocation.gpu_hours * share))
            if allocation.shared:
                charges.append(Charge(Use.SHARED, at, allocation.shared * share, 0.0, part.entry.flavor, part.entry))

    def _charge(self, part: Part, hour: int, amount: float, gpu_hours: float) -> Charge:
        use = use_of(part.entry, part.run, hour, self._judge)
        productive: float | None = None
        if self._busy is not None:
            busy = self._busy.get((part.entry.uid, part.run.started))
            productive = 0.0 if use is not Use.VERIFIED else None if busy is None else amount * busy
        serving = self._judge.service(part.entry)[1] is not None
        return Charge(use, hour, amount, gpu_hours, part.entry.flavor, part.entry, productive, serving)

    def remark(self, opencost: OpenCost) -> None:
        """Say what is odd."""
        remarks = self._bill.remarks
        if self._flawed:
            remarks.append(f"{self._flawed} allocations of OpenCost have figures that are no numbers: they count as 0")
        if self._ambiguous:
            remarks.append(f"{self._ambiguous} pods could be of two jobs by their name: their cost is of neither")
        if self.other_window:
            self._bill.complete = False
            remarks.append("OpenCost answered for another stretch of time than it was asked for: sums may be too high")
        if self._requested and abs(self._requested - self._granted) > DIFFERS * max(self._granted, self._requested):
            remarks.append(
                f"OpenCost counts {self._requested:,.1f} GPU-hours that pods asked for, "
                f"Kueue granted {self._granted:,.1f}: pods start later than they are admitted, or it missed some"
            )
        if not self._bill.currency:
            remarks.append("OpenCost does not say in which currency it counts (say it with --currency)")
        if told := skew_told("OpenCost", opencost.skew):
            remarks.append(told)


def _busy_shares(slots: Sequence[Slot]) -> dict[tuple[str, int], float]:
    """Of each run that was measured, what part of that time its GPUs were busy."""
    seen: dict[tuple[str, int], float] = defaultdict(float)
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for slot in slots:
        key = slot.entry.uid, slot.run.started
        seen[key] += slot.seen
        busy[key] += slot.busy
    return {key: busy[key] / seen[key] for key in seen if seen[key]}


def _stand_in(
    usage: Usage, judge: Judge, bill: Bill, missing: Sequence[tuple[int, int]], prices: Prices | None
) -> None:
    """Charge by the price list where OpenCost has nothing."""
    times = f"{format_instant(missing[0][0])} to {format_instant(missing[-1][1])}"
    days = f"{len(missing)} of {len(_days(usage.window))} days ({times})"
    if prices is None:
        bill.complete = False
        bill.remarks.append(f"OpenCost has nothing for {days}: they are left out (--prices stands in)")
        return
    if prices.currency != bill.currency:
        bill.complete = False
        what = f"OpenCost counts in {bill.currency}" if bill.currency else "OpenCost's currency is not known"
        bill.remarks.append(
            f"OpenCost has nothing for {days}: they are left out, as the price list is in {prices.currency} and {what}"
        )
        return
    for start, end in missing:
        window = Window(max(start, usage.window.start), end)
        slots = [slot for slot in usage.slots if any(length for _, length in window.slots(slot.hour, slot.hour + 1))]
        part = charge_by_prices(Usage(window, slots, measured=usage.measured), prices, judge, end)
        bill.charges += part.charges
        bill.total += part.total
        bill.complete = bill.complete and part.complete
        bill.remarks += [remark for remark in part.remarks if remark not in bill.remarks]
    bill.source = "OpenCost and price list" if len(missing) < len(_days(usage.window)) else PRICE_LIST
    bill.remarks.append(f"OpenCost has nothing for {days}: the price list stands in")
