"""What the owners of work are told, and when: planned starts, lateness, and what is wrong with what they wrote.

Each Event costs the apiserver as much as a release, and people stop reading what repeats. So a planned start is news
only when it is the first or has moved noticeably, and nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scheduler.annotations import PLANNED_START, format_duration, format_instant
from scheduler.cluster import Cluster
from scheduler.plans import Placement, PlanInForce
from scheduler.settings import SECOND, Settings
from scheduler.snapshot import Complaint, Item, Snapshot, Stranded
from solver.api import planner_pb2 as pb
from solver.problem import State

_WHY_LATE = {
    int(pb.LATE_ALREADY): "it could not be on time even if it started at once",
    int(pb.LATE_NO_ROOM): "work that weighs more or is due sooner needs the quota",
}


@dataclass
class _Told:
    """What an owner was told last about a planned start, and when."""

    start: int
    late: bool
    at: int


class News:
    """Remembers what was said, and says what is new.

    Parameters
    ----------
    cluster
        Where Events and annotations go.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self.settings = settings
        self._said: dict[str, set[tuple[str, str]]] = {}
        self._starts: dict[str, _Told] = {}
        self._in_flight: dict[str, int] = {}

    def tell(
        self,
        snapshot: Snapshot,
        plan: PlanInForce | None,
        more: Iterable[Complaint] = (),
        released: Collection[str] = frozenset(),
        leaving: Collection[str] = frozenset(),
    ) -> None:
        """Say what is new in a snapshot, by the plan in force.

        Parameters
        ----------
        more
            Complaints beside those of the snapshot.
        released
            Uids of Workloads that the snapshot may still show as waiting.
        leaving
            Uids of stranded Workloads that are let go soon: their owners hear then what is wrong with the queue.
        """
        gone = {lost.item.root for lost in snapshot.stranded if lost.item.uid in leaving or lost.item.uid in released}
        complaints = [*(c for c in snapshot.complaints if c.target not in gone), *more]
        self._forget(snapshot, complaints)
        for complaint in complaints:
            self.once(complaint)
        self._in_flight_too_long(snapshot)
        if plan is not None:
            self._planned(snapshot, plan, released)

    def once(self, complaint: Complaint) -> None:
        """Warn an owner, unless the same was said before."""
        said = self._said.setdefault(complaint.target.uid, set())
        if (complaint.reason, complaint.message) not in said:
            said.add((complaint.reason, complaint.message))
            self._cluster.event(complaint.target, "Warning", complaint.reason, complaint.message)

    def _planned(self, snapshot: Snapshot, plan: PlanInForce, released: Collection[str]) -> None:
        left = self.settings.notices_per_step
        for item in snapshot.items:
            waits = item.state == State.PENDING and item.uid not in released
            placement = plan.placements.get(item.uid) if waits else None
            if placement is None or not self._is_news(item, placement, snapshot.now):
                continue
            if left == 0:
                return
            left -= 1
            self._starts[item.uid] = _Told(placement.start, _late(item, placement), snapshot.now)
            kind, reason, message = forecast(item, placement)
            self._cluster.event(item.root, kind, reason, message)
            if self.settings.annotate:
                self._cluster.annotate(item.root, {PLANNED_START: _clock(placement.start)})

    def _is_news(self, item: Item, placement: Placement, now: int) -> bool:
        told = self._starts.get(item.uid)
        if told is None:  # a start that is due at once speaks for itself
            return placement.start > now or _late(item, placement)
        if now - told.at < self.settings.notice_interval_ms:
            return False
        moved = abs(placement.start - told.start)
        noticeable = moved >= self.settings.moved_ms and moved >= abs(told.start - now) // 10
        return noticeable or told.late != _late(item, placement)

    def _in_flight_too_long(self, snapshot: Snapshot) -> None:
        for item in snapshot.items:
            if item.state != State.IN_FLIGHT:
                continue
            waited = snapshot.now - self._in_flight.setdefault(item.uid, snapshot.now)
            if waited >= self.settings.in_flight_warning_ms:
                why = item.message or "no reason given"
                self.once(Complaint(item.root, "NotAdmitted", f"released, but Kueue has not admitted it yet: {why}"))

    def _forget(self, snapshot: Snapshot, complaints: Iterable[Complaint]) -> None:
        """Drop what was said to objects that are gone, so that memory does not grow for ever."""
        if self._starts:
            waiting = {item.uid for item in snapshot.items if item.state == State.PENDING}
            self._starts = {uid: told for uid, told in self._starts.items() if uid in waiting}
        if self._in_flight:
            in_flight = {item.uid for item in snapshot.items if item.state == State.IN_FLIGHT}
            self._in_flight = {uid: since for uid, since in self._in_flight.items() if uid in in_flight}
        if self._said:
            there = {complaint.target.uid for complaint in complaints}
            there.update(item.uid for item in snapshot.items)
            there.update(item.root.uid for item in snapshot.items)
            self._said = {uid: said for uid, said in self._said.items() if uid in there}


def forecast(item: Item, placement: Placement) -> tuple[str, str, str]:
    """Kind, reason and message of the Event that tells a planned start."""
    plan = f"planned to start at {_clock(placement.start)} and to finish by {_clock(placement.finish)}"
    if item.deadline is None:
        return "Normal", "Planned", plan
    apart = format_duration(abs(item.deadline - placement.finish) // SECOND * SECOND)
    deadline = f"its deadline {_clock(item.deadline)}"
    if not _late(item, placement):
        return "Normal", "Planned", f"{plan}, {apart} before {deadline}"
    why = _WHY_LATE.get(placement.reason)
    return "Warning", "WillBeLate", f"{plan}, {apart} after {deadline}" + (f": {why}" if why else "")


def let_go(lost: Stranded) -> Complaint:
    """What is said when gated work is let go because of its queue."""
    then = (
        "Kueue alone decides"
        if lost.reason in ("QueueUnsupported", "QueueObserved")
        else "Kueue admits it as soon as its queue takes work"
    )
    return Complaint(lost.item.root, "LetGo", f"{lost.message}; no longer planned: {then}")


def _late(item: Item, placement: Placement) -> bool:
    return item.deadline is not None and placement.finish > item.deadline


def _clock(instant: int) -> str:
    return format_instant(instant // SECOND * SECOND)
