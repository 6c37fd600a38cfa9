"""What our plans would have brought, in figures and in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from scheduler.annotations import format_duration, format_instant
from scheduler.settings import DAY, HOUR, MINUTE, Settings
from scheduler.shadow import Course, Idle, PastWork, Replay, gpu_seconds, sustained
from scheduler.shadow_history import Past

WINDOW = 7 * DAY
"""How far back a report looks."""

STEADY = MINUTE
"""GPUs that lie idle for less are between two workloads (milliseconds)."""

MOST = 5_000
"""Workloads replayed at most: with more, the report looks back less far."""


@dataclass(frozen=True)
class Schedule:
    """Figures of one schedule."""

    missed: int
    """Deadlines."""
    idle_gpus: float
    """That lay idle for a minute or longer, at the worst time, though work waited that could have used some."""
    idle_gpu_seconds: float
    """GPUs × seconds that lay idle though work waited, however short."""


@dataclass(frozen=True)
class Fate:
    """What became of one deadline. Instants are milliseconds since the Unix epoch; None: not yet at the end."""

    name: str
    """Of the root object: ``namespace/name``."""
    cluster_queue: str
    deadline: int
    ended: int | None
    planned_end: int | None

    @property
    def missed(self) -> bool:
        """Whether it really was missed."""
        return self.ended is None or self.ended > self.deadline

    @property
    def missed_by_plan(self) -> bool:
        """Whether it would have been."""
        return self.planned_end is None or self.planned_end > self.deadline

    def as_data(self) -> dict[str, Any]:
        """For machines; instants in RFC 3339, UTC."""
        return {
            "name": self.name,
            "clusterQueue": self.cluster_queue,
            "deadline": format_instant(self.deadline),
            "ended": None if self.ended is None else format_instant(self.ended),
            "endedByPlan": None if self.planned_end is None else format_instant(self.planned_end),
            "missed": self.missed,
            "missedByPlan": self.missed_by_plan,
        }


@dataclass(frozen=True)
class Report:
    """What was and what would have been, from ``since`` to ``until`` (milliseconds since the Unix epoch).

    Attributes
    ----------
    workloads
        That were replayed.
    deadlines
        That fell into that time and count.
    real, planned, kueue
        What happened; what our plans would have brought; what Kueue's own order brings when it is replayed the same
        way: the farther it is from what happened, the less is a replay worth.
    fates
        Of each deadline, in their order.
    """

    since: int
    until: int
    workloads: int
    deadlines: int
    real: Schedule
    planned: Schedule
    kueue: Schedule
    fates: tuple[Fate, ...]
    remarks: tuple[str, ...]

    @property
    def queues(self) -> dict[str, tuple[int, int, int]]:
        """By ClusterQueue: deadlines, missed, missed by plan."""
        found: dict[str, tuple[int, int, int]] = {}
        for fate in sorted(self.fates, key=lambda fate: fate.cluster_queue):
            deadlines, missed, planned = found.get(fate.cluster_queue, (0, 0, 0))
            found[fate.cluster_queue] = deadlines + 1, missed + fate.missed, planned + fate.missed_by_plan
        return found

    @property
    def line(self) -> str:
        """In one line."""
        span = _span(self.until - self.since)
        idle = f"{self.real.idle_gpus:g} GPUs idle at the worst time"
        if not self.workloads:
            return f"last {span}: no work that could have been planned"
        if not self.deadlines:
            return f"last {span}: no job had a deadline (annotations, or defaults.deadline in the policy); {idle}"
        missed = f"{self.real.missed} deadline{'' if self.real.missed == 1 else 's'} missed"
        return f"last {span}: {missed}, {self.planned.missed} would have been; {idle}"

    def as_data(self) -> dict[str, Any]:
        """For machines; instants in RFC 3339, UTC."""
        return {
            "line": self.line,
            "since": format_instant(self.since),
            "until": format_instant(self.until),
            "workloads": self.workloads,
            "deadlines": self.deadlines,
            **{name: _camel(asdict(getattr(self, name))) for name in ("real", "planned", "kueue")},
            "clusterQueues": {
                name: {"deadlines": deadlines, "missed": missed, "missedByPlan": planned}
                for name, (deadlines, missed, planned) in self.queues.items()
            },
            "remarks": list(self.remarks),
        }


def report(past: Past, settings: Settings, window: int = WINDOW, breath: Callable[[], None] = lambda: None) -> Report:
    """Replay the last ``window`` milliseconds.

    Parameters
    ----------
    breath
        See :class:`scheduler.shadow.Replay`.
    """
    remarks = list(past.remarks)
    until, since = past.now, past.now - window
    known = [work for work in past.work if work.ours]
    if known:
        since = max(since, min(work.submitted for work in known))
    within = sorted(work.submitted for work in known if work.submitted >= since)
    if len(within) > MOST:
        since = within[-MOST]
        remarks.append(f"looks back no farther than the last {MOST} workloads")
    work = [each for each in past.work if _touches(each, since, until)]
    ours = [each for each in work if each.ours]
    replay = Replay(past.quota, work, settings, since, until, breath)
    real, planned, kueue = replay.real(), replay.planned(), replay.by_kueue()
    due = [each for each in ours if each.counts and each.deadline is not None and since < each.deadline <= until]
    return Report(
        since=since,
        until=until,
        workloads=len(ours),
        deadlines=len(due),
        real=_schedule(due, real, until),
        planned=_schedule(due, planned, until),
        kueue=_schedule(due, kueue, until),
        fates=tuple(
            Fate(each.name, each.cluster_queue, each.deadline or 0, _by(until, real, each), _by(until, planned, each))
            for each in sorted(due, key=lambda each: (each.deadline or 0, each.uid))
        ),
        remarks=tuple(remarks),
    )


def _touches(work: PastWork, since: int, until: int) -> bool:
    """Whether it held or wanted quota in that time."""
    over = work.ended if work.ended is not None else work.gone
    return work.submitted < until and (over is None or over > since)


def _schedule(due: list[PastWork], course: Course, until: int) -> Schedule:
    steps: list[Idle] = course.idle
    return Schedule(_missed(due, course), sustained(steps, until, STEADY), round(gpu_seconds(steps, until), 1))


def _by(until: int, course: Course, work: PastWork) -> int | None:
    end = course.end.get(work.uid)
    return None if end is None or end > until else end


def _missed(due: list[PastWork], course: Course) -> int:
    ends = (course.end.get(work.uid) for work in due)
    return sum(end is None or end > (work.deadline or 0) for work, end in zip(due, ends, strict=True))


def _span(length: int) -> str:
    """A length of time for a sentence: ``7 days``, ``3 hours``, else ``25m``."""
    for unit, size in (("day", DAY), ("hour", HOUR)):
        if length >= 2 * size or length == size:
            count = round(length / size)
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return format_duration(max(MINUTE, length) // MINUTE * MINUTE)


def _camel(data: dict[str, Any]) -> dict[str, Any]:
    return {"missed": data["missed"], "idleGpus": data["idle_gpus"], "idleGpuSeconds": data["idle_gpu_seconds"]}
