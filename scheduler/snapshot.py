"""From Kubernetes objects to a planning request: what waits, what runs, and who has to be told that something is wrong.

The cluster's objects are the only state: a controller that starts anew sees what one that ran for weeks sees.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from scheduler.annotations import DURATION, format_instant, read_wishes
from scheduler.cluster import GATE, Reference, View
from scheduler.facts import Admission, JobFacts, Reader, Unreadable, WorkloadFacts, read_job, read_workload
from scheduler.plans import PlanInForce
from scheduler.queues import NoQueue, QueueReader, Queues, Shape
from scheduler.settings import SECOND, Settings
from solver.api import planner_pb2 as pb
from solver.problem import State

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One workload of a snapshot; row ``k`` of the request's workloads is item ``k``.

    Instants are milliseconds since the Unix epoch.
    """

    workload: Reference
    """The Workload; its uid is the row's id in the request."""
    root: Reference
    """The object on which the gate sits and whose owner is told things: the Job, or the ownerless Workload itself."""
    queue: str
    """Name of the LocalQueue."""
    cluster_queue: str
    state: State
    gated: bool
    """Whether our gate is on the root object."""
    other_gates: tuple[str, ...]
    """Gates of somebody else. Work that has some is planned but not released: it would only sit."""
    created: int
    deadline: int | None
    earliest_start: int | None
    estimate: int
    """Estimated run time in milliseconds (as a whole, also for running work)."""
    estimate_source: str
    """Where the estimate comes from: an annotation, a field of Kueue or of the Job, or ``default``."""
    weight: float
    hard: bool
    priority: int
    """Kueue's."""
    admitted: int | None
    """Since when it runs."""
    message: str
    """Kueue's own words on why it has no quota, empty when it has."""

    @property
    def uid(self) -> str:
        """Uid of the Workload: the row's id in the request."""
        return self.workload.uid

    @property
    def releasable(self) -> bool:
        """Whether taking our gate off lets it start."""
        return self.state == State.PENDING and self.gated and not self.other_gates


@dataclass(frozen=True)
class Complaint:
    """Something that an object's owner should hear about."""

    target: Reference
    reason: str
    """One word in CamelCase, the reason of an Event."""
    message: str


@dataclass(frozen=True)
class Stranded:
    """Gated work whose queue is missing or stopped: not planned."""

    item: Item
    message: str
    confirmed: bool
    """Whether the cluster itself says so (a stopped ClusterQueue, Kueue's own condition), not only our view of it."""


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant."""

    now: int
    request: pb.PlanRequest
    """Columns parallel to ``items``; must not be changed."""
    items: tuple[Item, ...]
    complaints: tuple[Complaint, ...]
    stranded: tuple[Stranded, ...]
    signature: int
    """Equal for two snapshots when nothing that matters to a plan has changed, but for the passing of time."""


class Snapshotter:
    """Takes snapshots, and remembers what it parsed by (uid, resourceVersion), so that the next one is cheap."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._queues = QueueReader()
        self._workloads = Reader("Workload", read_workload)
        self._jobs = Reader("Job", read_job)
        self._known: dict[str, _Work] = {}

    def take(
        self, cluster: View, plan: PlanInForce | None = None, released: Collection[str] = frozenset()
    ) -> Snapshot:
        """The cluster as it is now.

        Parameters
        ----------
        plan
            The plan in force, to be repaired rather than thrown over.
        released
            Uids of Workloads that were released, whatever a watch that lags behind says.
        """
        now = cluster.now()
        queues = self._queues.read(cluster)
        jobs = self._jobs.read(cluster.objects("Job"))
        by_uid = {job.reference.uid: job for job in jobs.values() if isinstance(job, JobFacts)}
        rows = _Rows(now, queues, self.settings)
        for unreadable in (*queues.objects.unreadable, *(job for job in jobs.values() if isinstance(job, Unreadable))):
            rows.complain(unreadable.target, "Unreadable", unreadable.message)
        known, self._known = self._known, {}
        for _, facts in sorted(self._workloads.read(cluster.objects("Workload")).items()):
            if isinstance(facts, Unreadable):
                rows.complain(facts.target, "Unreadable", facts.message)
                continue
            if facts.finished:
                continue
            job = by_uid.get(facts.owner.uid) if facts.owner else None
            work = known.get(facts.reference.uid)
            if work is None or work.facts is not facts or work.job is not job:
                work = _Work(facts, job, self.settings)
            self._known[facts.reference.uid] = work
            try:
                rows.add(work, facts.reference.uid in released)
            except Exception as error:
                log.exception("a workload could not be looked at", extra={"workload": str(facts.reference)})
                rows.complain(facts.reference, "Unreadable", f"{facts.reference} cannot be planned: {error}")
        return rows.snapshot(plan)


def snapshot(cluster: View, settings: Settings | None = None, plan: PlanInForce | None = None) -> Snapshot:
    """One snapshot, of a cluster that is looked at only once."""
    return Snapshotter(settings or Settings()).take(cluster, plan)


class _Work:
    """What is known of one Workload as long as neither it nor its Job changes."""

    __slots__ = ("annotations", "estimate", "facts", "gates", "items", "job", "root", "shape", "source", "wishes")

    def __init__(self, facts: WorkloadFacts, job: JobFacts | None, settings: Settings) -> None:
        self.facts = facts
        self.job = job
        self.root = job.reference if job else facts.reference
        self.gates = job.gates if job else facts.gates
        self.annotations = job.annotations if job else facts.annotations
        self.wishes = read_wishes(dict(self.annotations), job.created if job else facts.created)
        if self.wishes.duration is not None:
            self.estimate, self.source = self.wishes.duration, DURATION
        elif facts.max_execution is not None:
            self.estimate, self.source = facts.max_execution, "maximumExecutionTimeSeconds"
        elif job and job.active_deadline is not None:
            self.estimate, self.source = max(SECOND, job.active_deadline), "activeDeadlineSeconds"
        else:
            self.estimate, self.source = settings.default_duration_ms, "default"
        self.items: dict[tuple[State, str], Item] = {}
        self.shape: tuple[Queues, str, Shape] | None = None

    def item(self, state: State, cluster_queue: str) -> Item:
        """Its item in a snapshot."""
        key = state, cluster_queue
        if key not in self.items:
            facts, wishes = self.facts, self.wishes
            self.items[key] = Item(
                workload=facts.reference,
                root=self.root,
                queue=facts.queue,
                cluster_queue=cluster_queue,
                state=state,
                gated=GATE in self.gates and state == State.PENDING,
                other_gates=tuple(gate for gate in self.gates if gate != GATE),
                created=facts.created,
                deadline=wishes.deadline,
                earliest_start=wishes.earliest_start,
                estimate=self.estimate,
                estimate_source=self.source,
                weight=1.0 if wishes.weight is None else wishes.weight,
                hard=bool(wishes.hard),
                priority=facts.priority,
                admitted=facts.admitted,
                message=facts.message,
            )
        return self.items[key]

    def shape_in(self, queues: Queues, cluster_queue: str) -> Shape:
        """What it asks of a ClusterQueue."""
        if self.shape is None or self.shape[0] is not queues or self.shape[1] != cluster_queue:
            self.shape = queues, cluster_queue, queues.shape(self.facts.pod_sets, cluster_queue)
        return self.shape[2]


class _Rows:
    """The columns of a request as they fill."""

    def __init__(self, now: int, queues: Queues, settings: Settings) -> None:
        self.now, self.queues, self.settings = now, queues, settings
        self.items: list[Item] = []
        self.complaints: list[Complaint] = []
        self.stranded: list[Stranded] = []
        self.shapes: dict[Shape, int] = {}
        self.shape: list[int] = []
        self.assignments: dict[tuple[tuple[str, str, int], ...], int] = {}
        self.assignment: list[int] = []
        self.cluster_queue: list[int] = []
        self.release: list[int] = []
        self.duration: list[int] = []
        self.signature: list[tuple[object, ...]] = []

    def complain(self, target: Reference, reason: str, message: str) -> None:
        self.complaints.append(Complaint(target, reason, message))

    def add(self, work: _Work, released: bool) -> None:
        """Find out what a Workload is, and give it a row if the plan has to know of it."""
        facts = work.facts
        if facts.admission is not None:
            self._running(work, facts.admission)
            return
        if not facts.active or facts.deleting or (work.job and work.job.deleting):
            return
        gated = GATE in work.gates and not released
        if not gated and any(gate != GATE for gate in work.gates):
            return  # somebody else's to let go
        if gated and not self._owned_well(work):
            return
        try:
            cluster_queue = self.queues.find(facts.reference.namespace, facts.queue)
        except NoQueue as problem:
            if gated:  # of others' work Kueue says it itself
                self.complain(work.root, problem.reason, str(problem))
                confirmed = problem.confirmed or facts.inadmissible
                self.stranded.append(Stranded(work.item(State.PENDING, ""), str(problem), confirmed))
            return
        if gated:
            state = State.PENDING
            self._hear(work)
        elif released or (self._finite(facts) and self._managed(facts)):
            state = State.IN_FLIGHT
        else:
            state = State.FOREIGN
        shape = work.shape_in(self.queues, cluster_queue)
        start = max(work.wishes.earliest_start or 0 if gated else 0, facts.requeue_at or 0)
        self._row(
            work.item(state, cluster_queue),
            shape=self.shapes.setdefault(shape, len(self.shapes)),
            release=start if start > self.now else 0,
            duration=work.estimate,
            signature=(work.wishes, shape, start),
        )

    def _running(self, work: _Work, admission: Admission) -> None:
        if self.queues.position(admission.cluster_queue) is None:
            return  # a queue that is not there has no quota to count it against
        elapsed = self.now - work.facts.admitted if work.facts.admitted is not None else 0
        remaining = work.estimate - max(0, elapsed)
        if remaining <= 0:  # it outlives its estimate: how long is anybody's guess, but it is not gone
            remaining = max(self.settings.minimum_remaining_ms, work.estimate // 10)
        self._row(
            work.item(State.RUNNING, admission.cluster_queue),
            assignment=self.assignments.setdefault(admission.usage, len(self.assignments)),
            duration=remaining,
            signature=(admission.usage, work.facts.admitted),
        )

    def _row(
        self,
        item: Item,
        *,
        duration: int,
        signature: tuple[object, ...],
        shape: int = 0,
        assignment: int = 0,
        release: int = 0,
    ) -> None:
        position = self.queues.position(item.cluster_queue)
        assert position is not None
        self.items.append(item)
        self.cluster_queue.append(position)
        self.shape.append(shape)
        self.assignment.append(assignment)
        self.release.append(release)
        self.duration.append(duration)
        self.signature.append((item.uid, item.state, item.cluster_queue, item.estimate, *signature))

    def _owned_well(self, work: _Work) -> bool:
        """Whether the gate of a gated workload can be taken off where it must be; else its owner is told."""
        facts = work.facts
        if facts.owner is None or work.job is not None:
            return True
        if facts.owner.kind != "Job":
            self.complain(
                facts.reference,
                "UnknownOwner",
                f"its owner {facts.owner.name} is a {facts.owner.kind}, which is not planned yet: it waits until the "
                f"gate {GATE} is taken off the {facts.owner.kind}",
            )
        elif self.now - facts.created > self.settings.owner_grace_ms:
            self.complain(
                facts.reference,
                "OwnerGone",
                f"its owner Job {facts.reference.namespace}/{facts.owner.name} is gone or cannot be read, so it is "
                "not planned",
            )
        return False

    def _hear(self, work: _Work) -> None:
        """What is odd about a workload that is planned all the same."""
        for wish in work.wishes.complaints:
            self.complain(work.root, "InvalidAnnotation", wish.message)
        if work.wishes.deadline is not None and work.wishes.deadline <= self.now:
            self.complain(
                work.root,
                "DeadlinePassed",
                f"its deadline {format_instant(work.wishes.deadline)} has passed: it starts when that makes no other "
                "work late",
            )
        others = [gate for gate in work.gates if gate != GATE]
        if others:
            self.complain(work.root, "GatedByOthers", f"also waits for {', '.join(others)}; starts after that is off")

    def _managed(self, facts: WorkloadFacts) -> bool:
        return self.queues.managed(facts.reference.namespace, self.settings.managed_label)

    @staticmethod
    def _finite(facts: WorkloadFacts) -> bool:
        """Whether it is of a kind that gets our gate; without one, it was released (or evicted after that)."""
        return facts.owner is None or facts.owner.kind == "Job"

    def snapshot(self, plan: PlanInForce | None) -> Snapshot:
        """The finished snapshot."""
        settings, items = self.settings, self.items
        # First: running work may hold flavors and resources that no queue has, and naming them extends the tables.
        assignments = [self._assignment(usage) for usage in self.assignments]
        request = pb.PlanRequest(
            schema=1,
            now_ms=self.now,
            horizon_ms=settings.horizon_ms,
            budget=pb.Budget(wall_ms=settings.budget_ms, work_limit=settings.work_limit),
            seed=settings.seed,
            policy=pb.Policy(engine=pb.Engine.Name(cast(pb.Engine, settings.engine)), ageing_ms=settings.ageing_ms),
            quota=self.queues.quota,
            shapes=[shape.message for shape in self.shapes],
            assignments=assignments,
            workloads=pb.Workloads(
                id=[item.workload.uid for item in items],
                cluster_queue=self.cluster_queue,
                shape=self.shape,
                state=cast(list[pb.WorkloadState], [item.state for item in items]),
                created_ms=[item.created for item in items],
                release_ms=self.release,
                duration_ms=self.duration,
                due_ms=[item.deadline or 0 for item in items],
                hard=[item.hard for item in items],
                weight=[item.weight for item in items],
                priority=[item.priority for item in items],
                assignment=self.assignment,
            ),
        )
        if plan:
            placed = [(row, plan.placements[item.uid]) for row, item in enumerate(items) if item.uid in plan.placements]
            request.previous.workload.extend(row for row, _ in placed)
            request.previous.start_ms.extend(placement.start for _, placement in placed)
        return Snapshot(
            now=self.now,
            request=request,
            items=tuple(items),
            complaints=tuple(self.complaints),
            stranded=tuple(self.stranded),
            signature=hash((self.queues.version, frozenset(self.signature))),
        )

    def _assignment(self, usage: tuple[tuple[str, str, int], ...]) -> pb.Assignment:
        return pb.Assignment(
            flavors=[self.queues.flavor(flavor) for flavor, _, _ in usage],
            resources=[self.queues.resource(resource) for _, resource, _ in usage],
            amounts=[held for _, _, held in usage],
        )
