"""What became of work, counted as it is seen: met and missed deadlines, forecasts and estimates against what happened.

Only what this process saw unfinished is counted when it finishes, so that nothing is counted twice after a restart.
What finishes while no controller runs is not counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.items import Item
from scheduler.metrics import Metrics
from scheduler.plans import PlanInForce
from scheduler.settings import SECOND, Settings
from scheduler.snapshot import Snapshot
from solver.problem import State


@dataclass
class _Seen:
    """A workload that has not finished. Instants are milliseconds since the Unix epoch."""

    item: Item
    forecast: int | None = None
    """The finish that was forecast last before it was released."""
    in_flight: int | None = None
    """Since when it is in flight."""
    overran: bool = False


class Outcomes:
    """Follows work from snapshot to snapshot and counts what became of it.

    Parameters
    ----------
    finished
        When a Workload (by uid) finished, in milliseconds since the Unix epoch; None if it has not, or is gone.
    """

    def __init__(self, metrics: Metrics, settings: Settings, finished: Callable[[str], int | None]) -> None:
        self._metrics = metrics
        self.settings = settings
        self._finished = finished
        self._seen: dict[str, _Seen] = {}

    def look(self, snapshot: Snapshot, plan: PlanInForce | None) -> None:
        """Count what is new in a snapshot."""
        before = self._seen
        self._seen = {}
        overdue: Counter[str] = Counter()
        stuck: Counter[str] = Counter()
        overrunning: Counter[str] = Counter()
        for item in snapshot.items:
            queue = item.cluster_queue
            seen = self._seen[item.uid] = before.pop(item.uid) if item.uid in before else self._new(item)
            seen.item = item
            if item.deadline is not None and item.deadline < snapshot.now:
                overdue[queue] += 1
            placement = plan.placements.get(item.uid) if plan is not None else None
            if item.state == State.PENDING and placement is not None:
                seen.forecast = placement.finish
            elif item.state == State.IN_FLIGHT and seen.forecast is None:
                seen.forecast = snapshot.now + item.estimate  # there was room at once: no plan was needed
            if item.state != State.IN_FLIGHT:
                seen.in_flight = None
            elif seen.in_flight is None:
                seen.in_flight = snapshot.now
            elif snapshot.now - seen.in_flight >= self.settings.in_flight_warning_ms:
                stuck[queue] += 1
            if item.admitted is not None and snapshot.now - item.admitted > item.estimate:
                overrunning[queue] += 1
                if not seen.overran:
                    self._metrics.overran(queue)
                seen.overran = True
            else:
                seen.overran = False
        for seen in before.values():
            self._left(seen)
        self._metrics.queues(overdue=overdue, stuck=stuck, overrunning=overrunning)

    def _new(self, item: Item) -> _Seen:
        if item.deadline is not None:
            self._metrics.expect(item.cluster_queue, item.priority_class)
        return _Seen(item)

    def _left(self, seen: _Seen) -> None:
        item, at = seen.item, self._finished(seen.item.uid)
        if at is None:
            return  # deleted, or not ours to plan any more
        ran = None if item.admitted is None else max(0, at - item.admitted)
        self._metrics.finished(
            item.cluster_queue,
            item.priority_class,
            lateness=None if item.deadline is None else (at - item.deadline) / SECOND,
            forecast_error=None if seen.forecast is None else (at - seen.forecast) / SECOND,
            estimate_ratio=None if ran is None else ran / item.estimate,
            estimate_source=item.estimate_source,
        )
