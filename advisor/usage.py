"""The states of a GPU, side by side: allocated to a Workload, busy, and busy for a result that counts.

What is allocated is exact: Kueue's own instants of admission and end, from the ledger. The other two are put beside it
by :mod:`advisor.usage_busy` and :mod:`advisor.outcomes`, and may be unknown. Instants and lengths of time are
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from advisor.usage_gpus import grants
from scheduler.annotations import format_instant
from scheduler.ledger_entry import Entry, Outcome, Run
from scheduler.settings import DAY, HOUR

LONGEST_BY_HOUR = 31 * DAY
"""Of a longer window there is a slot a day, not an hour."""


class Window(NamedTuple):
    """From an instant on, until before another."""

    start: int
    end: int

    @property
    def bucket(self) -> int:
        """Length of its slots: an hour, or a day where those would be too many."""
        return HOUR if self.end - self.start <= LONGEST_BY_HOUR else DAY

    def overlap(self, start: int, end: int) -> int:
        """How much of another stretch of time lies in it."""
        return max(0, min(end, self.end) - max(start, self.start))

    def slots(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Begin of each of its whole hours (or days, UTC) that a stretch of time touches, and how long."""
        start, end = max(start, self.start), min(end, self.end)
        while start < end:
            begin = start - start % self.bucket
            until = min(end, begin + self.bucket)
            yield begin, until - start
            start = until


@dataclass(slots=True)
class Slot:
    """GPU time that one run of a Workload was granted in one hour. All but ``allocated`` is filled in by others.

    Attributes
    ----------
    entry, run, last
        Whose, and whether that was its last run.
    hour
        When the hour (day) begins.
    allocated
        GPUs × milliseconds; of slices, as much of whole GPUs as they are.
    alone
        Whether nobody else has the same GPU (or slice) at the same time.
    seen
        How much of that was measured.
    busy
        How much of what was measured the GPUs were busy.
    """

    entry: Entry
    run: Run
    last: bool
    hour: int
    flavor: str
    resource: str
    allocated: float
    alone: bool = True
    seen: float = 0.0
    busy: float = 0.0


@dataclass
class Usage:
    """All slots of a window, and what is to be known about them.

    Attributes
    ----------
    remarks
        What is not as it should be, in words.
    measured
        Whether anything is known about how busy GPUs were.
    elsewhere
        Busy GPU time of no Workload: of pods that the ledger does not know.
    shared
        Busy time of GPUs that several pods share: whose it is, is unknown.
    """

    window: Window
    slots: list[Slot]
    remarks: list[str] = field(default_factory=list)
    measured: bool = False
    elsewhere: float = 0.0
    shared: float = 0.0


def allocate(entries: Iterable[Entry], window: Window, now: int, said: Mapping[str, Fraction] | None = None) -> Usage:
    """What was allocated in a window.

    Parameters
    ----------
    entries
        With their runs.
    now
        Until when a run that has not ended is known to hold its GPUs.
    said
        What one unit of a resource is of a GPU, as users say (:func:`advisor.usage_gpus.share_of`).
    """
    usage = Usage(window, [])
    unsure: dict[str, bool] = {}
    unseen, unknown_flavor = 0.0, 0
    for entry in entries:
        held = grants(entry, said or {})
        if not held:
            continue
        in_window = False
        for run in entry.runs:
            ended = now if run.ended is None else run.ended
            for hour, length in window.slots(run.started, ended):
                in_window = True
                for grant in held:
                    last, held_for = run is entry.runs[-1], length * grant.gpus
                    slot = Slot(entry, run, last, hour, grant.flavor, grant.resource, held_for, grant.share.alone)
                    usage.slots.append(slot)
                    if run.ending == Outcome.UNKNOWN:
                        unseen += held_for
        if in_window:
            unsure |= {grant.resource: grant.share.known for grant in held if not grant.share.known}
            unknown_flavor += any(not grant.flavor for grant in held)
    for resource in sorted(unsure):
        usage.remarks.append(
            f"{resource}: what part of a GPU one is, is not known; counted as the most it can be "
            f"(say it with --gpu-share {resource}=1/4)"
        )
    if unseen:
        usage.remarks.append(
            f"up to {unseen / HOUR:.1f} of the allocated GPU-hours may be too many: of work that was gone before the "
            "controller looked again (Unknown)"
        )
    if unknown_flavor:
        usage.remarks.append(f"the flavor of {unknown_flavor} workloads was not seen")
    return usage


@dataclass(slots=True)
class Row:
    """GPU-hours of one queue, team, workload or hour.

    Attributes
    ----------
    allocated
        Granted by Kueue.
    seen
        Of those, measured.
    busy
        Of what was measured. None: nothing was.
    productive
        Busy for a result that counts; None as ``busy``.
    unjudged
        Busy for work that has ended and of which nobody has said whether its result counts; or that runs.
    """

    key: str
    allocated: float = 0.0
    seen: float = 0.0
    busy: float | None = None
    productive: float | None = None
    unjudged: float | None = None

    @property
    def gap(self) -> float:
        """Measured, and not busy."""
        return self.seen - (self.busy or 0.0)


BY: Mapping[str, Callable[[Slot], str]] = {
    "queue": lambda slot: slot.entry.family.cluster_queue or "(unknown)",
    "team": lambda slot: slot.entry.family.namespace,
    "workload": lambda slot: f"{slot.entry.family.namespace}/{slot.entry.name}",
    "flavor": lambda slot: slot.flavor or "(unknown)",
    "hour": lambda slot: format_instant(slot.hour),
}
"""What usage is shown by. A team is a namespace."""


class Worth(NamedTuple):
    """What part of the busy time of a slot counts, and of what part that is not known (yet); 0 to 1."""

    productive: float
    unjudged: float


def rows(usage: Usage, by: str, worth: Callable[[Slot], Worth] | None = None) -> list[Row]:
    """Usage by queue, team, workload, flavor or hour: the largest first, hours in their order.

    Parameters
    ----------
    by
        A key of :data:`BY`.
    worth
        Of each slot (see :func:`advisor.outcomes.worth`); None: productive time is not told.
    """
    found: dict[str, Row] = {}
    for slot in usage.slots:
        key = BY[by](slot)
        row = found.setdefault(key, Row(key))
        _add(row, slot, usage.measured, worth)
    return sorted(found.values(), key=lambda row: (row.key,) if by == "hour" else (-row.allocated, row.key))


def total(usage: Usage, worth: Callable[[Slot], Worth] | None = None) -> Row:
    """All of it."""
    row = Row("all")
    for slot in usage.slots:
        _add(row, slot, usage.measured, worth)
    if usage.measured and row.busy is None:
        row.busy = 0.0
    return row


def _add(row: Row, slot: Slot, measured: bool, worth: Callable[[Slot], Worth] | None) -> None:
    row.allocated += slot.allocated / HOUR
    if not measured:
        return
    row.seen += slot.seen / HOUR
    row.busy = (row.busy or 0.0) + slot.busy / HOUR
    if worth is not None:
        productive, unjudged = worth(slot)
        row.productive = (row.productive or 0.0) + productive * slot.busy / HOUR
        row.unjudged = (row.unjudged or 0.0) + unjudged * slot.busy / HOUR


def peak(usage: Usage, entries: Sequence[Entry], now: int, said: Mapping[str, Fraction] | None = None) -> float:
    """Most GPUs that were allocated at once in the window."""
    window, changes = usage.window, []
    for entry in entries:
        gpus = sum(grant.gpus for grant in grants(entry, said or {}))
        for run in entry.runs:
            start, end = max(window.start, run.started), min(window.end, now if run.ended is None else run.ended)
            if gpus and start < end:
                changes += [(start, gpus), (end, -gpus)]
    held = most = 0.0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
