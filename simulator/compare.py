"""Two runs of the same jobs side by side: what changed, in numbers and in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from scheduler.annotations import format_duration
from simulator.timeline import Record, Timeline

HOUR = 3600.0


@dataclass(frozen=True)
class Figures:
    """What a run comes to."""

    late: tuple[str, ...]
    """Names of the jobs that missed their deadlines."""
    hours_late: float
    """Sum over them."""
    peak: int
    """Most GPUs reserved at once."""
    idle: float
    """GPU-hours that nothing ran on while some job was waiting."""
    wait: float | None
    """Median wait of best-effort jobs, in hours; None when there are none."""
    makespan: float
    """Hours until all was complete."""

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "late": list(self.late),
            "hoursLate": round(self.hours_late, 3),
            "peakGpus": self.peak,
            "idleGpuHours": round(self.idle, 2),
            "bestEffortMedianWaitHours": None if self.wait is None else round(self.wait, 2),
            "makespanHours": round(self.makespan, 2),
        }


def figures(run: Timeline, gpus: int) -> Figures:
    """What a run on so many GPUs comes to."""
    late = run.late()
    waits = [r.started - r.created for r in run.records.values() if r.due is None and r.started is not None]
    return Figures(
        late=tuple(record.name for record in late),
        hours_late=sum((r.completed - r.due) / HOUR / 1000 for r in late if r.completed and r.due),
        peak=run.peak(),
        idle=run.idle(gpus) / HOUR,
        wait=median(waits) / HOUR / 1000 if waits else None,
        makespan=run.makespan() / HOUR,
    )


def in_words(before: Timeline, after: Timeline) -> list[str]:
    """What the second run does differently, in sentences; empty when nothing matters.

    Parameters
    ----------
    before, after
        Runs of the same jobs.
    """
    pairs = [(before.records[key], record) for key, record in after.records.items()]
    rescued = [(old, new) for old, new in pairs if old.on_time is False and new.on_time]
    lost = [new for old, new in pairs if old.on_time and new.on_time is False]
    moved = [(old, new) for old, new in pairs if old.on_time and new.on_time and _start(new) - _start(old) >= 60_000]
    free = [(old, new) for old, new in pairs if old.due is None and _start(new) - _start(old) >= 60_000]
    sentences = []
    if rescued:
        worst = max(rescued, key=lambda pair: _lateness(pair[0]))
        sentences.append(
            f"On time now: {_names(new for _, new in rescued)} "
            f"(before, {worst[0].name} ended {_rounded(_lateness(worst[0]))} late)."
        )
    if lost:
        sentences.append(f"Late now, on time before: {_names(lost)}.")
    if moved:
        most = max(_start(new) - _start(old) for old, new in moved)
        verb = "starts" if len(moved) == 1 else "start"
        sentences.append(
            f"To make room, {_names(new for _, new in moved)} {verb} up to {_rounded(most)} later, and still on time."
        )
    if free:
        most = max(_start(new) - _start(old) for old, new in free)
        verb = "starts" if len(free) == 1 else "start"
        sentences.append(f"Without a deadline, {_names(new for _, new in free)} {verb} up to {_rounded(most)} later.")
    return sentences


def _start(record: Record) -> int:
    return record.started or 0


def _lateness(record: Record) -> int:
    return (record.completed or 0) - (record.due or 0)


def _rounded(milliseconds: int) -> str:
    """A length of time to the minute."""
    return format_duration(max(1, round(milliseconds / 60_000)) * 60_000)


def _names(records: Any) -> str:
    names = [record.name for record in records]
    if len(names) > 6:
        return f"{', '.join(names[:5])} and {len(names) - 5} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
