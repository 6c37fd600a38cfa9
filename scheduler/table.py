"""The rows of a planning request: one for each Workload that waits or runs, as columns.

What only time changes (how much longer something runs, whose instant has come) is filled in for each request; the rest
is made once, and serves until something changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from scheduler.cluster import Reference
from scheduler.estimates import LEDGER
from scheduler.items import Complaint, Item, Verdict, Work
from scheduler.queues import Queues, Shape
from scheduler.settings import Settings
from solver.api import planner_pb2 as pb

log = logging.getLogger(__name__)

Usage = tuple[tuple[str, str, int, int], ...]
"""What is held: flavor, resource, amount, and of how many pods."""


class Line(NamedTuple):
    """A Workload, the verdict on it, and the verdict's signature."""

    work: Work
    verdict: Verdict
    signature: int


class _Run(NamedTuple):
    """A row that holds quota."""

    row: int
    item: Item
    work: Work
    lead: int
    """How long after its admission it begins, in milliseconds."""


def beyond_words(target: Reference, error: Exception) -> Complaint:
    """About a Workload that something unforeseen is wrong with. Logs it."""
    log.error("a workload could not be looked at", extra={"workload": str(target)}, exc_info=error)
    return Complaint(target, "Unreadable", f"{target} cannot be planned: {error}")


class Table:
    """The rows of one state of a cluster.

    Parameters
    ----------
    leads
        By flavor: how long after its admission work begins, in milliseconds.
    lines
        In the order of the rows.

    Attributes
    ----------
    items
        Of the rows.
    row
        Their places, by uid of the Workload.
    releasable
        ``[n]``: whose release lets them start.
    stranded, unsupported, signature
        As in :class:`scheduler.snapshot.Snapshot`.
    about_queues
        Complaints about ClusterQueues.
    """

    def __init__(self, queues: Queues, settings: Settings, leads: Mapping[str, int], lines: Sequence[Line]) -> None:
        self.queues, self.leads = queues, leads
        self._settings = settings
        self.unsupported = queues.left_to_kueue(settings.managed_label)
        self.about_queues = [
            Complaint(queues.objects.cluster_queues[name].reference, "QueueUnsupported", queues.why_unsupported(name))
            for name in self.unsupported
        ]
        self.stranded = tuple(line.verdict.stranded for line in lines if line.verdict.stranded is not None)
        self._complaints = [complaint for line in lines for complaint in line.verdict.complaints]
        rows = [line for line in lines if line.verdict.item is not None]
        self.items = tuple(cast(Item, line.verdict.item) for line in rows)
        self.row = {item.uid: row for row, item in enumerate(self.items)}
        self.releasable = np.array([item.releasable for item in self.items], dtype=np.bool_)
        self.signature = hash(
            (queues.version, frozenset(line.signature for line in rows), tuple(sorted(leads.items())))
        )
        self._starts = [line.verdict.start for line in rows]
        self._starts_later = any(self._starts)
        self._durations = self._estimates()
        self._runs = [
            _Run(row, item, line.work, max((leads.get(flavor, 0) for flavor, *_ in line.verdict.usage), default=0))
            for row, (line, item) in enumerate(zip(rows, self.items, strict=True))
            if line.verdict.shape is None
        ]
        self._request = self._lasting(rows)

    def serves(self, queues: Queues, settings: Settings, leads: Mapping[str, int]) -> bool:
        """Whether it is still right, as long as no line has changed."""
        return queues is self.queues and settings is self._settings and leads == self.leads

    def request(self, now: int) -> tuple[pb.PlanRequest, list[Complaint]]:
        """The request at an instant; and about whom nobody can say how much longer they run."""
        amiss = []
        durations = self._durations.copy()
        for run in self._runs:
            try:
                durations[run.row] = _remaining(run, now)
            except Exception as error:
                amiss.append(beyond_words(run.item.workload, error))
        request = pb.PlanRequest()
        request.CopyFrom(self._request)
        request.now_ms = now
        request.reservations.extend(kept for kept in self._reservations if kept.end_ms > now)
        starts = self._starts
        request.workloads.release_ms.extend(
            [start if start > now else 0 for start in starts] if self._starts_later else starts
        )
        request.workloads.duration_ms.extend(durations)
        return request, amiss

    def complaints(self, now: int) -> list[Complaint]:
        """What owners should hear at an instant."""
        return [complaint for since, complaint in self._complaints if since <= now]

    def _estimates(self) -> list[int]:
        """Run times as they are estimated."""
        if not any(self.leads.values()):
            return [item.estimate for item in self.items]
        quickest = {
            name: min((self.leads.get(flavor, 0) for group in queue.groups for flavor, _ in group.flavors), default=0)
            for name, queue in self.queues.objects.cluster_queues.items()
        }
        # What was learned was learned from admission to end.
        return [
            max(1, item.estimate - quickest[item.cluster_queue]) if item.estimate_source == LEDGER else item.estimate
            for item in self.items
        ]

    def _lasting(self, rows: Sequence[Line]) -> pb.PlanRequest:
        """All of the request that does not change with time."""
        settings, queues = self._settings, self.queues
        usages: dict[Usage, int] = {}
        assignment = [
            0 if line.verdict.shape is not None else usages.setdefault(line.verdict.usage, len(usages)) for line in rows
        ]
        shapes: dict[Shape, int] = {}
        shape = [0 if (asked := line.verdict.shape) is None else shapes.setdefault(asked, len(shapes)) for line in rows]
        # First: what is held or kept free may be of flavors that no queue has, and naming them extends the tables.
        assignments = [self._held(usage) for usage in usages]
        self._reservations = self._kept()
        columns = zip(*(item.columns for item in self.items), strict=True) if rows else iter([()] * 9)
        uid, state, created, due, hard, weight, priority, reserved, evicted = columns
        request = pb.PlanRequest(
            schema=1,
            horizon_ms=settings.horizon_ms,
            budget=pb.Budget(wall_ms=settings.budget_ms, work_limit=settings.work_limit),
            seed=settings.seed,
            policy=pb.Policy(
                objective=cast(list[pb.ObjectiveLevel], settings.objective),
                stability_threshold=settings.stability_threshold,
                engine=cast(pb.Engine, settings.engine),
                ageing_ms=settings.ageing_ms,
                preemption=cast(pb.Entitlement, settings.preemption),
            ),
            quota=queues.quota,
            shapes=[shape.message for shape in shapes],
            assignments=assignments,
            workloads=pb.Workloads(
                id=uid,
                cluster_queue=[line.verdict.position for line in rows],
                shape=shape,
                state=cast(list[pb.WorkloadState], state),
                created_ms=created,
                due_ms=due,
                hard=hard,
                weight=weight,
                priority=priority,
                assignment=assignment,
                reserved_ms=reserved,
                evicted=evicted,
            ),
        )
        for flavor in request.quota.flavors:
            flavor.lead_ms = self.leads.get(flavor.name, 0)
        return request

    def _kept(self) -> list[pb.Reservation]:
        """What the policy keeps free, where that is a node of the tree."""
        return [
            pb.Reservation(
                node=kept.node,
                flavor=self.queues.flavor(kept.flavor),
                resource=self.queues.resource(kept.resource),
                amount=kept.amount,
                start_ms=kept.start,
                end_ms=kept.end,
            )
            for kept in self._settings.reservations
            if self.queues.has_node(kept.node)
        ]

    def _held(self, usage: Usage) -> pb.Assignment:
        return pb.Assignment(
            flavors=[self.queues.flavor(flavor) for flavor, *_ in usage],
            resources=[self.queues.resource(resource) for _, resource, *_ in usage],
            amounts=[held for _, _, held, _ in usage],
            pods=[pods for *_, pods in usage],
        )


def _remaining(run: _Run, now: int) -> int:
    """How much longer running work will hold its quota, in milliseconds."""
    item, work = run.item, run.work
    elapsed = 0 if item.admitted is None else max(0, now - item.admitted)
    if item.estimate_source == LEDGER:
        return work.remaining(elapsed)
    return work.remaining(max(0, elapsed - run.lead)) + max(0, run.lead - elapsed)
