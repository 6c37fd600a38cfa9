"""The queues of a cluster: which LocalQueue leads where, and the quota tree as the planner's contract has it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, cast, overload

from scheduler.cluster import Reference, View
from scheduler.facts import (
    ClusterQueueFacts,
    CohortFacts,
    Group,
    LocalQueueFacts,
    Reader,
    ResourceQuota,
    Unreadable,
    read_cluster_queue,
    read_cohort,
    read_local_queue,
    read_namespace,
)
from scheduler.kueue_config import read_counting
from scheduler.nodes import Node, nodes_of, read_node
from scheduler.pod import (
    Amounts,
    Counting,
    Limits,
    Pod,
    completed,
    counted,
    read_limit_range,
    read_runtime_class,
    refusal,
    together,
    total,
)
from scheduler.podset import Flavor, PodSet, excluded, read_flavor
from scheduler.quantity import in_units
from scheduler.unsupported import Cause, unsupported
from solver.api import planner_pb2 as pb
from solver.decode_nodes import MAX_NODES
from solver.preemption import Preemption
from solver.quota import MAX_AMOUNT

PODS = "pods"
_SHAPES_KEPT = 20_000
_VANISHED_KEPT = 10_000
_VERSIONS = count()
_NO_LIMITS = Limits()


class NoQueue(Exception):
    """Work cannot be planned through the queue it names. The message is for its owner."""

    def __init__(self, reason: str, message: str, confirmed: bool, cluster_queue: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.confirmed = confirmed
        """Whether the queue itself says so; a queue that was never seen may only be late."""
        self.cluster_queue = cluster_queue
        """Where the work would go, as far as that is known."""


@dataclass(eq=False)
class Shape:
    """A request shape of the contract; the same object for the same request through the same ClusterQueue."""

    message: pb.RequestShape
    refused: str
    """Why Kueue never admits it, however much is free; empty if it may."""


class QueueObjects(NamedTuple):
    """What was read, by name (LocalQueues by ``namespace/name``)."""

    cluster_queues: Mapping[str, ClusterQueueFacts]
    cohorts: Mapping[str, CohortFacts]
    flavors: Mapping[str, Flavor]
    local_queues: Mapping[str, LocalQueueFacts]
    namespaces: Mapping[str, tuple[tuple[str, str], ...]]
    """Labels."""
    limit_ranges: Mapping[str, Limits]
    overheads: Mapping[str, Amounts]
    """Of each RuntimeClass."""
    counting: Counting
    nodes: Mapping[str, Node]
    unreadable: tuple[Unreadable, ...]
    vanished: frozenset[str] = frozenset()
    """Queues that were there and are not any more, as :class:`scheduler.cluster.Reference` writes them."""


class Queues:
    """Queues and quotas, as long as nothing about them changes."""

    quota: pb.Quota
    """The tree. Flavors and resources that no queue has are appended when work asks for them or holds them."""

    def __init__(self, objects: QueueObjects) -> None:
        self.objects = objects
        self.unsupported = unsupported(objects.cluster_queues, objects.cohorts, objects.flavors)
        """By name of the ClusterQueue: why its work is left to Kueue."""
        self._left_to_kueue: dict[str, Mapping[str, tuple[Cause, ...]]] = {}
        self._unreadable = {str(broken.target) for broken in objects.unreadable}
        self.version = next(_VERSIONS)
        self.quota = pb.Quota()
        self._queue = {name: position for position, name in enumerate(objects.cluster_queues)}
        self._flavor: dict[str, int] = {}
        self._resource: dict[str, int] = {}
        self._shapes: dict[tuple[tuple[PodSet, ...], int, str], Shape] = {}
        self._limits = _by_namespace(objects.limit_ranges)
        numbers = {limits: number for number, limits in enumerate(dict.fromkeys(self._limits.values()), 1)}
        self._limits_number = {namespace: numbers[limits] for namespace, limits in self._limits.items()}
        for name in objects.flavors:
            self.flavor(name)
        for name, cohort in objects.cohorts.items():
            quotas = [self._quotas(*flavor) for group in cohort.groups for flavor in group.flavors]
            self.quota.cohorts.add(name=name, parent=cohort.parent, quotas=quotas)
        for name, queue in objects.cluster_queues.items():
            self.quota.cluster_queues.add(
                name=name,
                cohort=queue.cohort,
                resource_groups=[self._group(group) for group in queue.groups],
                queueing_strategy=pb.STRICT_FIFO if queue.strict_fifo else pb.BEST_EFFORT_FIFO,
                flavor_fungibility=pb.TRY_NEXT_FLAVOR if queue.try_next_flavor else pb.MAY_STOP_SEARCH,
                stopped=bool(self._why_stopped(name)),
                preemption=_preemption(queue.preemption),
            )
        self._add_nodes()

    def _add_nodes(self) -> None:
        quota = self.quota
        nominal: dict[int, Counter[str]] = defaultdict(Counter)
        offers = [offer for queue in quota.cluster_queues for group in queue.resource_groups for offer in group.flavors]
        for offer in (*offers, *(offer for cohort in quota.cohorts for offer in cohort.quotas)):
            for amounts in offer.resources:
                nominal[offer.flavor][quota.resources[amounts.resource]] += amounts.nominal
        nodes = self.objects.nodes.values()
        for name, flavor in self.objects.flavors.items() if nodes else ():
            position = self._flavor[name]
            for alike in nodes_of(flavor, nodes, nominal[position]):
                group = quota.flavors[position].nodes.add(count=min(MAX_NODES, alike.nodes))
                group.resources.append(self._resource[alike.resource])
                group.amounts.append(alike.size)

    def position(self, cluster_queue: str) -> int | None:
        """Position of a ClusterQueue in the request, None when there is none of that name."""
        return self._queue.get(cluster_queue)

    def has_node(self, name: str) -> bool:
        """Whether there is a ClusterQueue or a Cohort of that name."""
        objects = self.objects
        cohorts = {queue.cohort for queue in objects.cluster_queues.values()}
        cohorts |= {cohort.parent for cohort in objects.cohorts.values()} | objects.cohorts.keys()
        return bool(name) and (name in objects.cluster_queues or name in cohorts)

    def flavor(self, name: str) -> int:
        """Position of a flavor in the request."""
        if name not in self._flavor:
            self._flavor[name] = len(self._flavor)
            self.quota.flavors.add(name=name)
        return self._flavor[name]

    def resource(self, name: str) -> int:
        """Position of a resource in the request."""
        if name not in self._resource:
            self._resource[name] = len(self._resource)
            self.quota.resources.append(name)
        return self._resource[name]

    def find(self, namespace: str, local_queue: str, gated: bool = False) -> str:
        """The ClusterQueue that work of a namespace reaches through a LocalQueue.

        Parameters
        ----------
        gated
            Whether the work waits for us: then a queue that is not supported is none.

        Raises
        ------
        NoQueue
            If one of the two is missing or stopped, or the namespace may not use it.
        """
        local = self.objects.local_queues.get(f"{namespace}/{local_queue}")
        if local is None:
            raise self._missing(f"LocalQueue {namespace}/{local_queue}")
        name = local.cluster_queue
        if local.stopped:
            raise NoQueue("QueueStopped", local.stopped, True, name)
        if name not in self.objects.cluster_queues:
            raise self._missing(f"ClusterQueue {name}", f" of LocalQueue {local_queue}")
        if stopped := self._why_stopped(name):
            raise NoQueue("QueueStopped", stopped, True, name)
        if not self._admits(self.objects.cluster_queues[name], namespace):
            message = f"ClusterQueue {name} does not take work of namespace {namespace}"
            raise NoQueue("NamespaceRefused", message, False, name)
        if gated and name in self.unsupported:
            raise NoQueue("QueueUnsupported", self.why_unsupported(name), True, name)
        return name

    def why_unsupported(self, cluster_queue: str) -> str:
        """In words, why a ClusterQueue is left to Kueue."""
        causes = "; ".join(cause.message for cause in self.unsupported[cluster_queue])
        return f"ClusterQueue {cluster_queue} is not supported: {causes}"

    def left_to_kueue(self, label: str) -> Mapping[str, tuple[Cause, ...]]:
        """Which of the unsupported ClusterQueues a namespace that is opted in leads to, and why they are."""
        if label not in self._left_to_kueue:
            opted_in = {name for name in self.objects.namespaces if self.managed(name, label)}
            reached = {
                queue.cluster_queue
                for key, queue in self.objects.local_queues.items()
                if key.partition("/")[0] in opted_in
            }
            self._left_to_kueue[label] = {name: why for name, why in self.unsupported.items() if name in reached}
        return self._left_to_kueue[label]

    def managed(self, namespace: str, label: str) -> bool:
        """Whether a namespace is opted in."""
        return (label, "true") in self.objects.namespaces.get(namespace, ())

    def shape(self, pod_sets: tuple[PodSet, ...], namespace: str, cluster_queue: str) -> Shape:
        """What pod sets of a namespace ask of a ClusterQueue."""
        key = pod_sets, self._limits_number.get(namespace, 0), cluster_queue
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            limits = self._limits.get(namespace, _NO_LIMITS)
            pods = [self._completed(pod_set.pod, limits) for pod_set in pod_sets]
            refused = next(filter(None, (refusal(pod, limits) for pod in pods)), "")
            groups = self.objects.cluster_queues[cluster_queue].groups
            message = pb.RequestShape(
                pod_sets=[
                    self._pod_set(pod_set, pod, groups, bool(refused))
                    for pod_set, pod in zip(pod_sets, pods, strict=True)
                ]
            )
            self._shapes[key] = Shape(message, refused)
        return self._shapes[key]

    def _completed(self, pod: Pod, limits: Limits) -> Pod:
        return completed(pod, limits, self.objects.overheads.get(pod.runtime_class, ()))

    def _missing(self, queue: str, whose: str = "") -> NoQueue:
        if queue in self._unreadable:
            return NoQueue("UnknownQueue", f"{queue}{whose} cannot be read", False)
        return NoQueue("UnknownQueue", f"{queue}{whose} does not exist", queue in self.objects.vanished)

    def _why_stopped(self, cluster_queue: str) -> str:
        """Why a ClusterQueue admits nothing, empty if it does."""
        queue = self.objects.cluster_queues[cluster_queue]
        missing = [name for group in queue.groups for name, _ in group.flavors if name not in self.objects.flavors]
        if missing and not queue.stopped:
            return f"ClusterQueue {cluster_queue} references missing ResourceFlavor {', '.join(missing)}"
        return queue.stopped

    def _admits(self, queue: ClusterQueueFacts, namespace: str) -> bool:
        if queue.selector is None:
            return False
        if namespace not in self.objects.namespaces:
            return True  # its labels are not known: leave it to Kueue
        labels = dict(self.objects.namespaces[namespace])
        return all(expression.matches(labels) for expression in queue.selector)

    def _pod_set(self, pods: PodSet, pod: Pod, groups: Iterable[Group], refused: bool) -> pb.PodSet:
        covered: set[str] = set()
        ruled_out: set[str] = set()
        for group in groups:
            covered.update(group.covered)
            flavors = {name: self.objects.flavors.get(name) for name, _ in group.flavors}
            ruled_out |= flavors.keys() if refused else excluded(pods, flavors)
        requests = {
            name: in_units(name, value) for name, value in sorted(counted(total(pod), self.objects.counting).items())
        }
        # Kueue counts pods where they are limited, and overlooks zeros of what no flavor has.
        if PODS in covered:
            requests[PODS] = 1
        requests = {name: value for name, value in requests.items() if value or name in covered}
        return pb.PodSet(
            count=pods.count,
            min_count=pods.min_count,
            resources=[self.resource(name) for name in requests],
            amounts=list(requests.values()),
            excluded_flavors=sorted(self.flavor(name) for name in ruled_out),
        )

    def _group(self, group: Group) -> pb.ResourceGroup:
        return pb.ResourceGroup(
            covered_resources=[self.resource(name) for name in group.covered],
            flavors=[self._quotas(*flavor) for flavor in group.flavors],
        )

    def _quotas(self, flavor: str, quotas: Iterable[ResourceQuota]) -> pb.FlavorQuotas:
        return pb.FlavorQuotas(
            flavor=self.flavor(flavor),
            resources=[
                pb.ResourceQuota(
                    resource=self.resource(quota.resource),
                    nominal=_capped(quota.nominal),
                    borrowing_limit=_capped(quota.borrowing_limit),
                    lending_limit=_capped(quota.lending_limit),
                )
                for quota in quotas
            ],
        )


class QueueReader:
    """Follows the queues of a cluster."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader[Any]] = {
            "ResourceFlavor": Reader("ResourceFlavor", read_flavor),
            "ClusterQueue": Reader("ClusterQueue", read_cluster_queue),
            "Cohort": Reader("Cohort", read_cohort),
            "LocalQueue": Reader("LocalQueue", read_local_queue),
            "Namespace": Reader("Namespace", read_namespace),
            "LimitRange": Reader("LimitRange", read_limit_range),
            "RuntimeClass": Reader("RuntimeClass", read_runtime_class),
            "ConfigMap": Reader("ConfigMap", read_counting),
            "Node": Reader("Node", read_node),
        }
        self._queues: Queues | None = None
        self._there: set[str] = set()
        self._vanished: frozenset[str] = frozenset()

    def read(self, cluster: View) -> Queues:
        """The queues as they are now; the same object as last time if nothing has changed."""
        changes = [reader.follow(cluster.objects(kind)) for kind, reader in self._readers.items()]
        if self._queues is not None and not any(changes):
            return self._queues

        def read(kind: str) -> dict[str, Any]:
            return dict(sorted(self._readers[kind].facts.items()))

        flavors: dict[str, Flavor] = read("ResourceFlavor")
        unreadable = [
            Unreadable(Reference("ResourceFlavor", "", name, flavor.uid), flavor.wrong)
            for name, flavor in flavors.items()
            if flavor.wrong
        ]
        there: set[str] = set()
        for kind, reader in self._readers.items():
            unreadable += [reader.broken[key] for key in sorted(reader.broken)]
            if kind in ("LocalQueue", "ClusterQueue"):
                there.update(f"{kind} {key}" for key in (*reader.facts, *reader.broken))
        if there != self._there:
            self._follow(there)
        objects = QueueObjects(
            cluster_queues=read("ClusterQueue"),
            cohorts=read("Cohort"),
            flavors=flavors,
            local_queues=read("LocalQueue"),
            namespaces=read("Namespace"),
            limit_ranges=read("LimitRange"),
            overheads=read("RuntimeClass"),
            counting=next(iter(read("ConfigMap").values()), Counting()),
            nodes=read("Node"),
            unreadable=tuple(unreadable),
            vanished=self._vanished,
        )
        if self._queues is None or objects != self._queues.objects:
            self._queues = Queues(objects)
        return self._queues

    def _follow(self, there: set[str]) -> None:
        """Remember which queues are gone, now that these are there."""
        gone = (self._there - there) | self._vanished
        self._there, self._vanished = there, frozenset(gone - there if len(gone) <= _VANISHED_KEPT else ())


def _by_namespace(limit_ranges: Mapping[str, Limits]) -> dict[str, Limits]:
    found: dict[str, list[Limits]] = {}
    for key, limits in limit_ranges.items():
        found.setdefault(key.partition("/")[0], []).append(limits)
    return {namespace: together(limits) for namespace, limits in found.items()}


def _preemption(policy: Preemption) -> pb.Preemption:
    return pb.Preemption(
        within_cluster_queue=cast(pb.PreemptionPolicy, int(policy.within_queue)),
        reclaim_within_cohort=cast(pb.PreemptionPolicy, int(policy.reclaim)),
        borrow_within_cohort=policy.borrowing,
        max_priority_threshold=policy.threshold,
        stop_search=policy.stop_search,
        over_borrowing=policy.rather_preempt,
    )


@overload
def _capped(value: int) -> int: ...
@overload
def _capped(value: int | None) -> int | None: ...
def _capped(value: int | None) -> int | None:
    """More than the planner's largest amount (``1Ei`` of memory, to say "no limit") is as good as that."""
    return None if value is None else min(value, MAX_AMOUNT)
