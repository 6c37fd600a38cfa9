"""One Workload as the scheduler sees it: what it is to us, what it asks for, and what its owner should hear.

Told apart by the *annotation* of the root object, never by Kueue's conditions: those flip, and lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scheduler.annotations import BYPASS, BYPASSED_BY, WEIGHT, format_instant, read_wishes
from scheduler.cluster import GATE, Reference
from scheduler.estimates import Estimate, Estimates, Kin, Said, said_alone
from scheduler.facts import RootFacts, WorkloadFacts
from scheduler.family import Family, stem
from scheduler.kinds import ROOT_KINDS
from scheduler.queues import NoQueue, Queues, Shape
from scheduler.settings import QueueSettings, Settings
from solver.problem import State


@dataclass(frozen=True)
class Item:
    """One workload of a snapshot; row ``k`` of the request's workloads is item ``k``.

    Instants are milliseconds since the Unix epoch.
    """

    workload: Reference
    """The Workload; its uid is the row's id in the request."""
    root: Reference
    """The object on which the gate sits and whose owner is told things: Job, JobSet …, or the ownerless Workload."""
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
    """Where it comes from: an annotation, a field of Kueue or of the root object, ``ledger``, or ``default``."""
    estimate_basis: str
    """What it rests on, in words."""
    weight: float
    hard: bool
    priority: int
    """Kueue's."""
    priority_class: str
    """Name of the class that the priority comes from; empty without one."""
    admitted: int | None
    """Since when it runs."""
    reserved: int | None
    """Since when it holds its quota."""
    evicted: bool
    """Whether it only holds its quota until its pods are gone."""
    message: str
    """Kueue's own words on why it has no quota, empty when it has."""
    bypassed_by: str = ""
    """Who let it pass by the plan; empty for all other work."""
    refused: str = ""
    """Why Kueue never admits it, however much is free; empty if it may."""

    @cached_property
    def uid(self) -> str:
        """Uid of the Workload: the row's id in the request."""
        return self.workload.uid

    @cached_property
    def columns(self) -> tuple[str, int, int, int, bool, float, int, int, bool]:
        """What the request says of it as it is: id, state, created, due, hard, weight, priority, reserved, evicted."""
        due, reserved = self.deadline or 0, self.reserved or 0
        return (
            self.uid, self.state, self.created, due, self.hard, self.weight, self.priority, reserved, self.evicted
        )  # fmt: skip

    @cached_property
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
    """Gated work whose queue is missing, stopped, not supported or only observed: not planned."""

    item: Item
    reason: str
    """``UnknownQueue``, ``QueueStopped``, ``QueueUnsupported``, ``QueueObserved`` or ``NamespaceRefused``."""
    message: str
    confirmed: bool
    """Whether the cluster itself says so (a stopped ClusterQueue, Kueue's own condition), not only our view of it."""


class Verdict(NamedTuple):
    """What a Workload is to us, as long as neither it, its owner nor the queues change."""

    item: Item | None
    """None: nothing that a plan has to know of."""
    position: int = 0
    """Of its ClusterQueue in the request."""
    shape: Shape | None = None
    usage: tuple[tuple[str, str, int, int], ...] = ()
    """What it holds if it runs: flavor, resource, amount."""
    start: int = 0
    """Not before this instant; 0: at once."""
    complaints: tuple[tuple[int, Complaint], ...] = ()
    """Each with the instant from which on it holds."""
    stranded: Stranded | None = None

    @property
    def signature(self) -> int:
        """Equal when the plan need not care."""
        item = self.item
        assert item is not None
        plain = (
            item.uid,
            item.state,
            item.deadline,
            item.estimate,
            item.weight,
            item.hard,
            item.priority,
            item.admitted,
        )
        return hash((*plain, self.position, self.shape, self.usage, self.start))


NOTHING = Verdict(None)


class Work:
    """A Workload and the root object that owns it, read; makes the verdict on them, and remembers it."""

    def __init__(
        self, facts: WorkloadFacts, owner: RootFacts | None, settings: Settings, estimates: Estimates | None = None
    ) -> None:
        self.facts = facts
        self.owner = owner
        self.settings = settings
        self._root = owner.reference if owner else facts.reference
        self._gates = owner.gates if owner else facts.gates
        self._others = tuple(gate for gate in self._gates if gate != GATE)
        self._annotations = dict(owner.annotations if owner else facts.annotations)
        self.wishes = read_wishes(self._annotations, (owner or facts).created)
        self._verdict: tuple[Queues, bool, Verdict, int] | None = None
        self._estimates = estimates
        self._family: Family | None = None
        self._kin: tuple[tuple[int, int], Family, Kin] | None = None
        self._heard = self._stamp = -1
        """Version of all estimates, and stamp of its own, when its estimate was made."""

    def verdict(self, queues: Queues, released: bool) -> tuple[Verdict, int]:
        """What it is to us, and the verdict's signature. ``released``: we have taken our gate off, whatever we see."""
        known = self._verdict
        if known is None or known[0] is not queues or known[1] != released or self._estimate_moved(known[2].item):
            verdict = self._judge(queues, released)
            known = self._verdict = queues, released, verdict, verdict.signature if verdict.item else 0
        return known[2], known[3]

    def _judge(self, queues: Queues, released: bool) -> Verdict:
        facts = self.facts
        if facts.finished:
            return NOTHING
        ours = self._finite() and queues.managed(facts.reference.namespace, self.settings.managed_label)
        if facts.admission is not None:
            position = queues.position(facts.admission.cluster_queue)
            if position is None:
                return NOTHING  # a queue that is not there has no quota to count it against
            return Verdict(
                self._item(State.RUNNING, facts.admission.cluster_queue, ours),
                position,
                None,
                facts.admission.usage,
                complaints=self._bypass(),
            )
        if facts.deleting or (self.owner and self.owner.deleting):
            return NOTHING
        gated = GATE in self._gates and not released
        if not gated and self._others:
            return NOTHING  # somebody else's to let go
        if gated and facts.owner is not None and self.owner is None:
            return Verdict(None, complaints=(self._owner_amiss(facts.owner.kind, facts.owner.name),))
        try:
            cluster_queue = queues.find(facts.reference.namespace, facts.queue, gated)
            observed = self.settings.queue(cluster_queue).observed
            if gated and observed:
                message = f"ClusterQueue {cluster_queue} is only observed (mode: observe in the policy)"
                raise NoQueue("QueueObserved", message, True, cluster_queue)
        except NoQueue as problem:
            if not gated:
                return NOTHING  # its owner hears it from Kueue
            item = self._item(State.PENDING, problem.cluster_queue, True)
            confirmed = problem.confirmed or facts.inadmissible
            return Verdict(
                None,
                complaints=((0, Complaint(self._root, problem.reason, str(problem))),),
                stranded=Stranded(item, problem.reason, str(problem), confirmed),
            )
        if not facts.active:
            return NOTHING
        if gated:
            state = State.PENDING
        elif observed or cluster_queue in queues.unsupported:
            state = State.FOREIGN  # let go or never ours: Kueue's own order is all that counts there
        elif released or ours:
            state = State.IN_FLIGHT
        else:
            state = State.FOREIGN
        position = queues.position(cluster_queue)
        assert position is not None
        shape = queues.shape(facts.pod_sets, facts.reference.namespace, cluster_queue)
        item = self._item(state, cluster_queue, gated or ours, shape.refused)
        return Verdict(
            item,
            position,
            shape,
            start=max(self.wishes.earliest_start or 0 if gated else 0, facts.requeue_at or 0),
            complaints=self._oddities(item) if gated else self._bypass(),
        )

    def _item(self, state: State, cluster_queue: str, ours: bool, refused: str = "") -> Item:
        """``ours``: whether defaults of the policy are meant for it."""
        facts, wishes, queue = self.facts, self.wishes, self.settings.queue(cluster_queue)
        estimate = self._estimate(cluster_queue)
        return Item(
            workload=facts.reference,
            root=self._root,
            queue=facts.queue,
            cluster_queue=cluster_queue,
            state=state,
            gated=GATE in self._gates and state == State.PENDING,
            other_gates=self._others,
            created=facts.created,
            deadline=self._deadline(queue) if ours else wishes.deadline,
            earliest_start=wishes.earliest_start,
            estimate=estimate.duration,
            estimate_source=estimate.source,
            estimate_basis=estimate.basis,
            weight=self._weight(queue),
            hard=bool(wishes.hard),
            priority=facts.priority,
            priority_class=facts.priority_class,
            admitted=facts.admitted,
            reserved=facts.reserved,
            evicted=facts.evicted,
            message=facts.message,
            bypassed_by=self._annotations.get(BYPASSED_BY, ""),
            refused=refused,
        )

    def _bypass(self) -> tuple[tuple[int, Complaint], ...]:
        """What is put on record when somebody has let it pass by the plan."""
        who = self._annotations.get(BYPASSED_BY)
        if not who:
            return ()
        message = f"passes by the plan, by {who}: {self._annotations.get(BYPASS, '')}"
        return ((0, Complaint(self._root, "Bypassed", message)),)

    def _deadline(self, queue: QueueSettings) -> int | None:
        if self.wishes.deadline is not None:
            return self.wishes.deadline
        return None if queue.default_deadline is None else queue.default_deadline.of((self.owner or self.facts).created)

    def _weight(self, queue: QueueSettings) -> float:
        if self.wishes.weight is not None:
            return min(self.wishes.weight, queue.weight_cap)
        return queue.class_weights.get(self.facts.priority_class, queue.default_weight)

    @property
    def item(self) -> Item | None:
        """What the last verdict made of it, also when it is not planned."""
        if self._verdict is None:
            return None
        verdict = self._verdict[2]
        return verdict.stranded.item if verdict.stranded else verdict.item

    @property
    def annotations(self) -> Mapping[str, str]:
        """Ours, of its root object."""
        return self._annotations

    @property
    def name(self) -> str:
        """Of its root object."""
        return (
            self.owner.reference.name if self.owner else self.facts.owner.name if self.facts.owner else self._root.name
        )

    def family(self, cluster_queue: str) -> Family:
        """What it has in common with other work."""
        if self._family is None or self._family.cluster_queue != cluster_queue:
            facts, owner = self.facts, self.owner
            generated = owner.generate_name if owner else "" if facts.owner else facts.record.generate_name
            self._family = Family(
                namespace=facts.reference.namespace,
                local_queue=facts.queue,
                cluster_queue=cluster_queue,
                kind=facts.owner.kind if facts.owner else "Workload",
                image=facts.record.traits.image,
                shape=facts.record.traits.shape,
                stem=stem(self.name, generated),
                label=owner.family if owner else "",
            )
        return self._family

    def remaining(self, elapsed: int) -> int:
        """How much longer it will run that has run for ``elapsed`` (milliseconds); it is never assumed gone."""
        assert self.item is not None
        queue, least = self.settings.queue(self.item.cluster_queue), self.settings.minimum_remaining_ms
        if self._estimates is not None and queue.learn:
            kin = self._kin_now(self._estimates, self.item.cluster_queue)
            return kin.remaining(self._said(queue), elapsed, least, queue.estimate_quantile)
        if elapsed < self.item.estimate:
            return self.item.estimate - elapsed
        return max(least, self.item.estimate // 10)

    def _estimate(self, cluster_queue: str) -> Estimate:
        queue = self.settings.queue(cluster_queue)
        said = self._said(queue)
        if self._estimates is None or not queue.learn:
            return said_alone(said)
        kin = self._kin_now(self._estimates, cluster_queue)
        self._heard, self._stamp = self._estimates.version, kin.stamp(said)
        return kin.estimate(said, queue.estimate_quantile)

    def _estimate_moved(self, item: Item | None) -> bool:
        """Whether the past of its family says something new."""
        if item is None or self._estimates is None or self._heard == self._estimates.version:
            return False
        kin = self._kin_now(self._estimates, item.cluster_queue)
        if kin.stamp(self._said(self.settings.queue(item.cluster_queue))) == self._stamp:
            self._heard = self._estimates.version
            return False
        estimate = self._estimate(item.cluster_queue)
        return (estimate.duration, estimate.source) != (item.estimate, item.estimate_source)

    def _kin_now(self, estimates: Estimates, cluster_queue: str) -> Kin:
        family, epoch = self.family(cluster_queue), estimates.epoch
        if self._kin is None or self._kin[0] != epoch or self._kin[1] is not family:
            self._kin = epoch, family, estimates.kin(family)
            self._stamp = -1
        return self._kin[2]

    def _said(self, queue: QueueSettings) -> Said:
        limit, source = self.facts.max_execution, "maximumExecutionTimeSeconds"
        if limit is None and self.owner:
            limit, source = self.owner.active_deadline, "activeDeadlineSeconds"
        return Said(self.wishes.duration, limit, source, queue.default_duration_ms)

    def _finite(self) -> bool:
        """Whether it is of a kind that gets our gate; without one, it was released (or evicted after that)."""
        return self.facts.owner is None or self.facts.owner.kind in ROOT_KINDS

    def _owner_amiss(self, kind: str, name: str) -> tuple[int, Complaint]:
        """The gate of an owned Workload must come off its owner, or the owner can never start."""
        reference = self.facts.reference
        if kind in ROOT_KINDS:
            message = f"its owner {kind} {reference.namespace}/{name} is gone or cannot be read, so it is not planned"
            return self.facts.created + self.settings.owner_grace_ms, Complaint(reference, "OwnerGone", message)
        message = f"its owner {name} is a {kind}, which is not planned: it waits until {GATE} is taken off the {kind}"
        return 0, Complaint(reference, "UnknownOwner", message)

    def _oddities(self, item: Item) -> tuple[tuple[int, Complaint], ...]:
        """What is odd about work that is planned all the same."""
        complaints = [(0, Complaint(self._root, "InvalidAnnotation", c.message)) for c in self.wishes.complaints]
        if self._others:
            message = f"also waits for {', '.join(self._others)}, and starts after that is off"
            complaints.append((0, Complaint(self._root, "GatedByOthers", message)))
        if self.wishes.weight is not None and self.wishes.weight > item.weight:
            message = f"{WEIGHT}: more than ClusterQueue {item.cluster_queue} allows; counts as {item.weight:g}"
            complaints.append((0, Complaint(self._root, "WeightCapped", message)))
        if item.deadline is not None:
            deadline = format_instant(item.deadline)
            message = f"its deadline {deadline} has passed: it starts when that makes no other work late"
            complaints.append((item.deadline, Complaint(self._root, "DeadlinePassed", message)))
        return tuple(complaints)
