"""What happened to each job of a run, and what that says about the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

GPU = "nvidia.com/gpu"
"""The resource that is counted unless another is asked for."""


class Lost(NamedTuple):
    """A run that was interrupted."""

    admitted: int
    started: int | None
    freed: int
    """Its quota was free again."""


@dataclass
class Record:
    """Life of one job. Instants are milliseconds since the Unix epoch; None for what has not happened."""

    namespace: str
    name: str
    queue: str
    created: int
    due: int | None
    """The instant it must be complete by; None for best effort."""
    amounts: dict[str, int]
    """What it asks for in total, by resource."""
    released: int | None = None
    """When our gate came off; None when it never had one."""
    admitted: int | None = None
    started: int | None = None
    """Its pods run."""
    ended: int | None = None
    """Its pods have ended."""
    completed: int | None = None
    """The Job is Complete: what counts against the due date."""
    finished: int | None = None
    """The Workload is Finished: its quota is free again."""
    starts: int = 0
    """How often its pods were started."""
    lost: list[Lost] = field(default_factory=list)
    """Runs that came to nothing, in order; the instants above are those of the last one."""

    def interrupt(self, instant: int) -> None:
        """What was begun comes to nothing; it waits again."""
        if self.admitted is not None:
            self.lost.append(Lost(self.admitted, self.started, instant))
        self.admitted = self.started = None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def on_time(self) -> bool | None:
        """Whether it was complete by its due date; None for best effort. Work that never completed is late."""
        if self.due is None:
            return None
        return self.completed is not None and self.completed <= self.due


@dataclass
class Timeline:
    """All records of a run, in order of creation."""

    records: dict[str, Record] = field(default_factory=dict)
    """By ``namespace/name``."""

    def late(self) -> list[Record]:
        """The jobs that missed their due date."""
        return [record for record in self.records.values() if record.on_time is False]

    def peak(self, resource: str = GPU) -> int:
        """Most quota of a resource that was held at once, from admission to Finished."""
        held = [(r.admitted, r.finished, r.amounts.get(resource, 0)) for r in self.records.values()]
        held += [(x.admitted, x.freed, r.amounts.get(resource, 0)) for r in self.records.values() for x in r.lost]
        return max((used for _, used in _steps(held)), default=0)

    def idle(self, capacity: int, resource: str = GPU) -> float:
        """Resource-seconds that nothing ran on while some job was waiting to start (created, its pods not started).

        Parameters
        ----------
        capacity
            How much of the resource there is.
        """
        runs = [(r.started, r.ended, r.amounts.get(resource, 0)) for r in self.records.values()]
        runs += [(x.started, x.freed, r.amounts.get(resource, 0)) for r in self.records.values() for x in r.lost]
        running = _steps(runs)
        waiting = _steps(span for r in self.records.values() for span in _waits(r))
        changes = sorted([(at, 0, value) for at, value in running] + [(at, 1, value) for at, value in waiting])
        total, used, waits, since = 0.0, 0, 0, 0
        for at, which, value in changes:
            if waits:
                total += max(0, capacity - used) * (at - since) / 1000
            since = at
            used, waits = (value, waits) if which == 0 else (used, value)
        return total

    def makespan(self) -> float:
        """Seconds from the first creation to the last completion; 0 when nothing completed."""
        ends = [r.completed for r in self.records.values() if r.completed is not None]
        return (max(ends) - min(r.created for r in self.records.values())) / 1000 if ends else 0.0


def _waits(record: Record) -> list[tuple[int, int | None, int]]:
    """When a job waited for its pods to start: until the first run, and between runs."""
    since = [record.created, *(lost.freed for lost in record.lost)]
    until = [*(lost.started for lost in record.lost), record.started]
    return [(begun, over, 1) for begun, over in zip(since, until, strict=True)]


def _steps(spans: Iterable[tuple[int | None, int | None, int]]) -> list[tuple[int, int]]:
    """Sum of spans ``(from, to, amount)`` over time, as ``(instant, new value)``; an open end lasts."""
    changes: dict[int, int] = {}
    for start, end, amount in spans:
        if start is None:
            continue
        changes[start] = changes.get(start, 0) + amount
        if end is not None:
            changes[end] = changes.get(end, 0) - amount
    steps, value = [], 0
    for at in sorted(changes):
        value += changes[at]
        steps.append((at, value))
    return steps
