"""From Kubernetes objects to a planning request: what waits, what runs, and who has to be told that something is wrong.

The cluster's objects are the only state: a controller that starts anew sees what one that ran for weeks sees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from scheduler.cluster import Reference, View
from scheduler.estimates import LEDGER, Estimates
from scheduler.facts import Reader, RootFacts, Unreadable, read_root, read_workload
from scheduler.items import Complaint, Item, Stranded, Verdict, Work
from scheduler.kinds import ROOT_KINDS
from scheduler.leads import StartLeads
from scheduler.plans import PlanInForce
from scheduler.previous import add_previous
from scheduler.queues import QueueReader, Queues, Shape
from scheduler.settings import Settings
from scheduler.unsupported import Cause
from solver.api import planner_pb2 as pb

__all__ = ["Complaint", "Item", "Snapshot", "Snapshotter", "Stranded", "snapshot"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant."""

    now: int
    request: pb.PlanRequest
    """Columns parallel to ``items``; must not be changed."""
    items: tuple[Item, ...]
    complaints: tuple[Complaint, ...]
    stranded: tuple[Stranded, ...]
    unsupported: Mapping[str, tuple[Cause, ...]]
    """By name: ClusterQueues of ours that are left to Kueue."""
    signature: int
    """Equal for two snapshots when nothing that matters to a plan has changed, but for the passing of time."""
    leads: Mapping[str, int] = field(default_factory=dict)
    """By flavor: how long after its admission work begins, in milliseconds."""


class Snapshotter:
    """Takes snapshots, and remembers what it parsed by (uid, resourceVersion), so that the next one is cheap."""

    def __init__(self, settings: Settings, estimates: Estimates | None = None) -> None:
        self.settings = settings
        self._estimates = estimates
        self._queues = QueueReader()
        self._workloads = Reader("Workload", read_workload)
        self._roots = {kind: Reader(kind, partial(read_root, kind)) for kind in ROOT_KINDS}
        self._known: dict[str, Work] = {}
        self._leads = StartLeads()

    def take(self, cluster: View, plan: PlanInForce | None = None, released: Collection[str] = frozenset()) -> Snapshot:
        """The cluster as it is now.

        Parameters
        ----------
        plan
            The plan in force, to be repaired rather than thrown over.
        released
            Uids of Workloads that were released, whatever a watch that lags behind says.
        """
        queues = self._queues.read(cluster)
        rows = _Rows(cluster.now(), queues, self.settings, self._leads.of(queues.objects.flavors))
        roots: dict[str, RootFacts] = {}
        for kind, reader in self._roots.items():
            for root in reader.read(cluster.objects(kind)).values():
                if isinstance(root, Unreadable):
                    rows.cannot_read(root.target, root.message)
                else:
                    roots[root.reference.uid] = root
        known, self._known = self._known, {}
        for _, facts in sorted(self._workloads.read(cluster.objects("Workload")).items()):
            if isinstance(facts, Unreadable):
                rows.cannot_read(facts.target, facts.message)
                continue
            uid = facts.reference.uid
            owner = roots.get(facts.owner.uid) if facts.owner else None
            work = known.get(uid)
            if work is None or work.facts is not facts or work.owner is not owner or work.settings is not self.settings:
                work = Work(facts, owner, self.settings, self._estimates)
            self._known[uid] = work
            try:
                rows.add(*work.verdict(rows.queues, uid in released), work.remaining)
            except Exception as error:  # one that we have no words for must not stop the others
                log.exception("a workload could not be looked at", extra={"workload": str(facts.reference)})
                rows.cannot_read(facts.reference, f"{facts.reference} cannot be planned: {error}")
        self._leads.look(work.facts for work in self._known.values())
        return rows.snapshot(plan)

    @property
    def works(self) -> Mapping[str, Work]:
        """All Workloads of the last snapshot's cluster that could be read, finished ones too, by uid."""
        return self._known

    def finished(self, uid: str) -> int | None:
        """When a Workload of the last snapshot's cluster finished; None if it has not, or is not there."""
        work = self._known.get(uid)
        return work.facts.finished if work else None


def snapshot(cluster: View, settings: Settings | None = None, plan: PlanInForce | None = None) -> Snapshot:
    """One snapshot, of a cluster that is looked at only once."""
    return Snapshotter(settings or Settings()).take(cluster, plan)


class _Rows:
    """The columns of a request as they fill."""

    def __init__(self, now: int, queues: Queues, settings: Settings, leads: Mapping[str, int]) -> None:
        self.queues = queues
        self._now, self._settings, self._leads = now, settings, leads
        self._quickest_of: dict[str, int] = {}
        self._items: list[Item] = []
        self._complaints: list[Complaint] = []
        self._stranded: list[Stranded] = []
        self._shapes: dict[Shape, int] = {}
        self._shape: list[int] = []
        self._assignments: dict[tuple[tuple[str, str, int, int], ...], int] = {}
        self._assignment: list[int] = []
        self._cluster_queue: list[int] = []
        self._release: list[int] = []
        self._duration: list[int] = []
        self._signatures: list[int] = []
        for unreadable in queues.objects.unreadable:
            self.cannot_read(unreadable.target, unreadable.message)
        self._unsupported = queues.left_to_kueue(settings.managed_label)
        for name in self._unsupported:
            target = queues.objects.cluster_queues[name].reference
            self._complaints.append(Complaint(target, "QueueUnsupported", queues.why_unsupported(name)))

    def cannot_read(self, target: Reference, message: str) -> None:
        """Tell of an object that is broken."""
        self._complaints.append(Complaint(target, "Unreadable", message))

    def add(self, verdict: Verdict, signature: int, remaining: Callable[[int], int]) -> None:
        """Give a Workload a row, if the plan has to know of it.

        Parameters
        ----------
        remaining
            How much longer it will hold its quota when it has held it for so many milliseconds.
        """
        for since, complaint in verdict.complaints:
            if since <= self._now:
                self._complaints.append(complaint)
        if verdict.stranded is not None:
            self._stranded.append(verdict.stranded)
        item = verdict.item
        if item is None:
            return
        shape, assignment, duration = 0, 0, item.estimate
        if verdict.shape is None:
            assignment = self._assignments.setdefault(verdict.usage, len(self._assignments))
            duration = self._remaining(item, verdict, remaining)
        else:
            if item.estimate_source == LEDGER:  # it was learned from admission to end
                duration = max(1, duration - self._quickest(item.cluster_queue))
            shape = self._shapes.setdefault(verdict.shape, len(self._shapes))
        self._items.append(item)
        self._cluster_queue.append(verdict.position)
        self._shape.append(shape)
        self._assignment.append(assignment)
        self._release.append(verdict.start if verdict.start > self._now else 0)
        self._duration.append(duration)
        self._signatures.append(signature)

    def _remaining(self, item: Item, verdict: Verdict, remaining: Callable[[int], int]) -> int:
        """How much longer running work will hold its quota."""
        elapsed = 0 if item.admitted is None else max(0, self._now - item.admitted)
        if item.estimate_source == LEDGER:
            return remaining(elapsed)
        lead = max((self._leads.get(flavor, 0) for flavor, *_ in verdict.usage), default=0)
        return remaining(max(0, elapsed - lead)) + max(0, lead - elapsed)

    def _quickest(self, cluster_queue: str) -> int:
        """Least lead time of a ClusterQueue's flavors."""
        if cluster_queue not in self._quickest_of:
            groups = self.queues.objects.cluster_queues[cluster_queue].groups
            leads = (self._leads.get(name, 0) for group in groups for name, _ in group.flavors)
            self._quickest_of[cluster_queue] = min(leads, default=0)
        return self._quickest_of[cluster_queue]

    def snapshot(self, plan: PlanInForce | None) -> Snapshot:
        """The finished snapshot."""
        settings, items = self._settings, self._items
        # First: running work may hold flavors and resources that no queue has, and naming them extends the tables.
        assignments = [self._held(usage) for usage in self._assignments]
        columns = zip(*(item.columns for item in items), strict=True) if items else iter([()] * 9)
        uid, state, created, due, hard, weight, priority, reserved, evicted = columns
        request = pb.PlanRequest(
            schema=1,
            now_ms=self._now,
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
            quota=self.queues.quota,
            shapes=[shape.message for shape in self._shapes],
            assignments=assignments,
            reservations=self._reservations(),
            workloads=pb.Workloads(
                id=uid,
                cluster_queue=self._cluster_queue,
                shape=self._shape,
                state=cast(list[pb.WorkloadState], state),
                created_ms=created,
                release_ms=self._release,
                duration_ms=self._duration,
                due_ms=due,
                hard=hard,
                weight=weight,
                priority=priority,
                assignment=self._assignment,
                reserved_ms=reserved,
                evicted=evicted,
            ),
        )
        for flavor in request.quota.flavors:
            flavor.lead_ms = self._leads.get(flavor.name, 0)
        if plan:
            add_previous(request, items, plan)
        return Snapshot(
            now=self._now,
            request=request,
            items=tuple(items),
            complaints=tuple(self._complaints),
            stranded=tuple(self._stranded),
            unsupported=self._unsupported,
            signature=hash((self.queues.version, frozenset(self._signatures), tuple(sorted(self._leads.items())))),
            leads=self._leads,
        )

    def _reservations(self) -> list[pb.Reservation]:
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
            if kept.end > self._now and self.queues.has_node(kept.node)
        ]

    def _held(self, usage: tuple[tuple[str, str, int, int], ...]) -> pb.Assignment:
        return pb.Assignment(
            flavors=[self.queues.flavor(flavor) for flavor, *_ in usage],
            resources=[self.queues.resource(resource) for _, resource, *_ in usage],
            amounts=[held for _, _, held, _ in usage],
            pods=[pods for *_, pods in usage],
        )
