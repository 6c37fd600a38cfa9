"""What we need of each Kubernetes object, read once per version of it.

A broken object must not spoil the others: it yields an :class:`Unreadable` in place of its facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from scheduler.annotations import MAX_DURATION, parse_instant
from scheduler.cluster import GATES_ANNOTATION, PREFIX, Object, Reference
from scheduler.family import FAMILY_LABEL
from scheduler.kinds import ROOT_KINDS, root_kind
from scheduler.ledger_facts import Record, read_record
from scheduler.podset import Expression, PodSet, read_pod_set
from scheduler.quantity import MAX_VALUE, amount, int32
from scheduler.settings import SECOND
from solver.preemption import Preemption, Whom

T = TypeVar("T")
_UNSEEN = object()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that could not be read, and why."""

    target: Reference
    message: str


class Reader(Generic[T]):
    """Reads objects of one kind, each version only once.

    Attributes
    ----------
    facts
        Of all objects seen last, by their key.
    broken
        Those that could not be read.
    """

    def __init__(self, kind: str, read: Callable[[Object], T]) -> None:
        self._kind = kind
        self._read = read
        self._seen: dict[str, Object] = {}
        self._versions: dict[str, tuple[Any, Any]] = {}
        self.facts: dict[str, T] = {}
        self.broken: dict[str, Unreadable] = {}

    def follow(self, objects: Mapping[str, Object]) -> dict[str, T | None]:
        """Look again: what is new, gone or another version, by key, each with the facts that it had before."""
        changed: dict[str, T | None] = {}
        seen = self._seen
        for key in [key for key, item in objects.items() if seen.get(key, _UNSEEN) is not item]:
            item = seen[key] = objects[key]
            version = self._version(item)
            if self._versions.get(key) != version or version[1] is None:
                changed[key] = self._forget(key)
                self._versions[key] = version
                self._read_anew(key, item)
        if len(seen) > len(objects):
            for key in seen.keys() - objects.keys():
                del seen[key], self._versions[key]
                changed[key] = self._forget(key)
        return changed

    @staticmethod
    def _version(item: Object) -> tuple[Any, Any]:
        try:
            metadata = item["metadata"]
            return metadata["uid"], metadata["resourceVersion"]
        except (KeyError, TypeError):
            return None, None

    def _forget(self, key: str) -> T | None:
        self.broken.pop(key, None)
        return self.facts.pop(key, None)

    def _read_anew(self, key: str, item: Object) -> None:
        try:
            self.facts[key] = self._read(item)
        except Exception as error:  # whatever somebody wrote into it, the others go on
            namespace, _, name = key.rpartition("/")
            target = Reference(self._kind, namespace, name, str(self._version(item)[0] or ""))
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            self.broken[key] = Unreadable(target, f"{target} cannot be read: {what}")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a Workload belongs to."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Quota that Kueue has granted."""

    cluster_queue: str
    usage: tuple[tuple[str, str, int, int], ...]
    """Flavor, resource and amount in Kueue's unit, less what its finished pods gave back; and how many equal pods that
    is for."""


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """A Workload. Instants are milliseconds since the Unix epoch."""

    reference: Reference
    owner: Owner | None
    queue: str
    created: int
    annotations: tuple[tuple[str, str], ...]
    """Ours only."""
    gates: tuple[str, ...]
    active: bool
    finished: int | None
    """When it finished; None if it has not."""
    deleting: bool
    admission: Admission | None
    """Held quota: reserved and not finished."""
    admitted: int | None
    ready: int | None
    """Since when all its pods are ready, where Kueue watches that."""
    reserved: int | None
    """Since when it holds quota."""
    evicted: bool
    pod_sets: tuple[PodSet, ...]
    priority: int
    priority_class: str
    """Name of its WorkloadPriorityClass or PriorityClass; empty without one."""
    max_execution: int | None
    """Milliseconds after which Kueue evicts it, less what it has run before."""
    requeue_at: int | None
    """Kueue leaves it alone until then (a back-off after an eviction)."""
    inadmissible: bool
    """Kueue says that its queue is missing or inactive."""
    message: str
    """Kueue's own words on why it has no quota."""
    record: Record
    """What only the ledger wants to know."""


@dataclass(frozen=True, slots=True)
class RootFacts:
    """A Job, or another object of a kind of :data:`scheduler.kinds.ROOTS`."""

    reference: Reference
    created: int
    annotations: tuple[tuple[str, str], ...]
    gates: tuple[str, ...]
    deleting: bool
    active_deadline: int | None
    """Milliseconds."""
    generate_name: str
    """What Kubernetes made its name from; empty if somebody chose it."""
    family: str
    """The user's own word for work that takes about as long; empty without one."""


@dataclass(frozen=True, slots=True)
class ResourceQuota:
    """Quota of one resource of a flavor; None where a limit is unset."""

    resource: str
    nominal: int
    borrowing_limit: int | None
    lending_limit: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A resource group: the flavors in Kueue's order, each with its quotas."""

    covered: tuple[str, ...]
    flavors: tuple[tuple[str, tuple[ResourceQuota, ...]], ...]


@dataclass(frozen=True, slots=True)
class ClusterQueueFacts:
    """A ClusterQueue."""

    reference: Reference
    cohort: str
    groups: tuple[Group, ...]
    strict_fifo: bool
    try_next_flavor: bool
    preemption: Preemption
    stopped: str
    """Why it admits nothing, or empty."""
    selector: tuple[Expression, ...] | None
    """Namespaces that may use it; None: none."""
    checks: tuple[str, ...]
    """Names of its admission checks."""
    fair_sharing: bool | None
    """Whether Kueue says that fair sharing is on; None while it has said nothing about this queue."""
    admission_fair_sharing: bool
    weighted: bool
    """Whether it has a weight for fair sharing."""


@dataclass(frozen=True, slots=True)
class CohortFacts:
    """A Cohort."""

    parent: str
    groups: tuple[Group, ...]
    weighted: bool
    """Whether it has a weight for fair sharing."""


@dataclass(frozen=True, slots=True)
class LocalQueueFacts:
    """A LocalQueue."""

    cluster_queue: str
    stopped: str
    """Why it admits nothing, or empty."""


def gates_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The admission gates that an object's annotation names."""
    text = (metadata.get("annotations") or {}).get(GATES_ANNOTATION) or ""
    return tuple(gate for part in text.split(",") if (gate := part.strip()))


def read_workload(item: Object) -> WorkloadFacts:
    """Read a Workload."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    conditions = _conditions(status)
    finished, reserved = _since(conditions, "Finished"), _status(conditions, "QuotaReserved") == "True"
    reclaimable = {str(pods["name"]): int32(pods["count"]) for pods in status.get("reclaimablePods") or ()}
    limit = spec.get("maximumExecutionTimeSeconds")
    past = status.get("accumulatedPastExecutionTimeSeconds") or 0
    requeue_at = (status.get("requeueState") or {}).get("requeueAt")
    waiting = conditions.get("QuotaReserved") or {}
    if not isinstance(spec["podSets"], list):
        raise ValueError("spec.podSets is no list")
    return WorkloadFacts(
        reference=_reference("Workload", metadata),
        owner=_owner(metadata),
        queue=str(spec.get("queueName") or ""),
        created=instant(metadata["creationTimestamp"]),
        annotations=_ours(metadata),
        gates=gates_of(metadata),
        active=spec.get("active") is not False,
        finished=finished,
        deleting=bool(metadata.get("deletionTimestamp")),
        admission=_admission(spec, status["admission"], reclaimable) if reserved and not finished else None,
        admitted=_since(conditions, "Admitted"),
        ready=_since(conditions, "PodsReady"),
        reserved=_since(conditions, "QuotaReserved"),
        evicted=_status(conditions, "Evicted") == "True",
        pod_sets=tuple(
            read_pod_set(pod_set, reclaimable.get(str(pod_set.get("name")), 0)) for pod_set in spec["podSets"]
        ),
        priority=int32(spec.get("priority") or 0),
        priority_class=str((spec.get("priorityClassRef") or {}).get("name") or ""),
        max_execution=None if limit is None else min(MAX_DURATION, max(1, int32(limit) - int32(past)) * SECOND),
        requeue_at=instant(requeue_at) if requeue_at else None,
        inadmissible=waiting.get("reason") == "Inadmissible",
        message="" if reserved else str(waiting.get("message") or ""),
        record=read_record(item),
    )


def read_root(kind: str, item: Object) -> RootFacts:
    """Read an object of a kind of :data:`scheduler.kinds.ROOTS`."""
    metadata = item["metadata"]
    policy: Mapping[str, Any] = item
    for part in ROOT_KINDS[kind].policy:
        policy = policy.get(part) or {}
    active_deadline = policy.get("activeDeadlineSeconds")
    return RootFacts(
        reference=_reference(kind, metadata),
        created=instant(metadata["creationTimestamp"]),
        annotations=_ours(metadata),
        gates=gates_of(metadata),
        deleting=bool(metadata.get("deletionTimestamp")),
        active_deadline=None
        if active_deadline is None
        else min(MAX_DURATION, max(SECOND, int(active_deadline) * SECOND)),
        generate_name=str(metadata.get("generateName") or ""),
        family=str((metadata.get("labels") or {}).get(FAMILY_LABEL) or ""),
    )


def read_cluster_queue(item: Object) -> ClusterQueueFacts:
    """Read a ClusterQueue."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    name = metadata["name"]
    fungibility = spec.get("flavorFungibility") or {}
    # v1beta1 has a plain list of names as well.
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = {*(str(rule["name"]) for rule in rules), *(str(check) for check in spec.get("admissionChecks") or ())}
    return ClusterQueueFacts(
        reference=_reference("ClusterQueue", metadata),
        cohort=str(spec.get("cohortName") or ""),
        groups=_groups(spec),
        strict_fifo=spec.get("queueingStrategy") == "StrictFIFO",
        try_next_flavor=fungibility.get("whenCanBorrow") == "TryNextFlavor",
        preemption=_preemption(spec.get("preemption") or {}, fungibility),
        stopped=_stopped(f"ClusterQueue {name}", item),
        selector=_selector(spec.get("namespaceSelector")),
        checks=tuple(sorted(checks)),
        fair_sharing="fairSharing" in status if "Active" in _conditions(status) else None,
        admission_fair_sharing=(spec.get("admissionScope") or {}).get("admissionMode")
        == "UsageBasedAdmissionFairSharing",
        weighted="fairSharing" in spec,
    )


def read_cohort(item: Object) -> CohortFacts:
    """Read a Cohort."""
    spec = item.get("spec") or {}
    return CohortFacts(parent=str(spec.get("parentName") or ""), groups=_groups(spec), weighted="fairSharing" in spec)


def read_local_queue(item: Object) -> LocalQueueFacts:
    """Read a LocalQueue."""
    # Its Active condition only repeats what is true of its ClusterQueue, later.
    metadata = item["metadata"]
    spec = item["spec"]
    return LocalQueueFacts(
        cluster_queue=str(spec["clusterQueue"]),
        stopped=_stopped(f"LocalQueue {metadata['namespace']}/{metadata['name']}", {**item, "status": {}}),
    )


def read_namespace(item: Object) -> tuple[tuple[str, str], ...]:
    """The labels of a Namespace."""
    return tuple(sorted((item["metadata"].get("labels") or {}).items()))


@lru_cache(maxsize=65_536)
def instant(time: str) -> int:
    """A time of the Kubernetes API, in milliseconds since the Unix epoch.

    Raises
    ------
    ValueError
        If it is not one.
    """
    return parse_instant(time)


def _reference(kind: str, metadata: Mapping[str, Any]) -> Reference:
    return Reference(kind, str(metadata.get("namespace") or ""), str(metadata["name"]), str(metadata["uid"]))


def _owner(metadata: Mapping[str, Any]) -> Owner | None:
    owners = metadata.get("ownerReferences") or ()
    for owner in sorted(owners, key=lambda owner: not owner.get("controller")):
        kind, version = str(owner["kind"]), str(owner["apiVersion"])
        if kind in ROOT_KINDS and not root_kind(kind, version):
            kind = f"{kind} of {version}"  # other groups have kinds of that name as well
        return Owner(kind, str(owner["name"]), str(owner["uid"]))
    return None


def _ours(metadata: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    annotations = metadata.get("annotations") or {}
    return tuple(sorted((key, str(text)) for key, text in annotations.items() if key.startswith(f"{PREFIX}/")))


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(condition["type"]): condition for condition in status.get("conditions") or ()}


def _status(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> str:
    return str((conditions.get(kind) or {}).get("status"))


def _since(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> int | None:
    return instant(conditions[kind]["lastTransitionTime"]) if _status(conditions, kind) == "True" else None


def _admission(spec: Mapping[str, Any], admission: Mapping[str, Any], reclaimable: Mapping[str, int]) -> Admission:
    counts = {str(pod_set.get("name")): int32(pod_set["count"]) for pod_set in spec["podSets"]}
    usage: dict[tuple[str, str, int], tuple[int, int]] = {}
    for assignment in admission["podSetAssignments"]:
        name = str(assignment["name"])
        flavors = assignment.get("flavors") or {}
        count = int32(counts.get(name, 0) if assignment.get("count") is None else assignment["count"])
        left = counts.get(name, count) - reclaimable.get(name, 0)
        for resource, quantity in (assignment.get("resourceUsage") or {}).items():
            if resource in flavors:
                held = amount(resource, quantity)
                # In Kueue's order of operations; one admitted with fewer pods than it wanted gives back later.
                held = held // count * left if 0 < count > left else held
                pods = max(0, min(left, count))
                cell = str(flavors[resource]), str(resource), held // max(1, pods)
                before = usage.get(cell, (0, 0))
                usage[cell] = min(MAX_VALUE, before[0] + max(0, held)), before[1] + pods
    return Admission(
        cluster_queue=str(admission["clusterQueue"]),
        usage=tuple(sorted((flavor, name, held, pods) for (flavor, name, _), (held, pods) in usage.items() if held)),
    )


_WHOM = {
    "Never": Whom.NEVER,
    "LowerPriority": Whom.LOWER_PRIORITY,
    "LowerOrNewerEqualPriority": Whom.LOWER_OR_NEWER_EQUAL_PRIORITY,
    "Any": Whom.ANY,
}


def _preemption(policy: Mapping[str, Any], fungibility: Mapping[str, Any]) -> Preemption:
    """What a ClusterQueue may do to others; a value that we do not know yet evicts nobody."""
    borrowing = policy.get("borrowWithinCohort") or {}
    threshold = borrowing.get("maxPriorityThreshold")
    return Preemption(
        within_queue=_WHOM.get(policy.get("withinClusterQueue") or "", Whom.NEVER),
        reclaim=_WHOM.get(policy.get("reclaimWithinCohort") or "", Whom.NEVER),
        borrowing=borrowing.get("policy") == "LowerPriority",
        threshold=None if threshold is None else int32(threshold),
        stop_search=fungibility.get("whenCanPreempt") == "MayStopSearch",
        rather_preempt=fungibility.get("preference") == "PreemptionOverBorrowing",
    )


def _groups(spec: Mapping[str, Any]) -> tuple[Group, ...]:
    return tuple(
        Group(
            covered=tuple(str(resource) for resource in group.get("coveredResources") or ()),
            flavors=tuple(
                (str(flavor["name"]), tuple(_resource_quota(quota) for quota in flavor.get("resources") or ()))
                for flavor in group.get("flavors") or ()
            ),
        )
        for group in spec.get("resourceGroups") or ()
    )


def _resource_quota(quota: Mapping[str, Any]) -> ResourceQuota:
    name = str(quota["name"])

    def limit(field: str) -> int | None:
        return None if quota.get(field) is None else amount(name, quota[field])

    return ResourceQuota(name, limit("nominalQuota") or 0, limit("borrowingLimit"), limit("lendingLimit"))


def _stopped(name: str, item: Object) -> str:
    policy = (item.get("spec") or {}).get("stopPolicy")
    if item["metadata"].get("deletionTimestamp"):
        return f"{name} is being deleted"
    if policy in ("Hold", "HoldAndDrain"):
        return f"{name} is stopped (stopPolicy: {policy})"
    active = _conditions(item.get("status") or {}).get("Active") or {}
    # Kueue's word lags behind by up to a second: what it says of an older spec does not count, and which flavors are
    # missing we see ourselves.
    generation = item["metadata"].get("generation", 0)
    current = active.get("observedGeneration", generation) >= generation and active.get("reason") != "FlavorNotFound"
    if active.get("status") == "False" and current:
        return f"{name} is not active: {active.get('message') or active.get('reason') or 'no reason given'}"
    return ""


def _selector(selector: Mapping[str, Any] | None) -> tuple[Expression, ...] | None:
    if selector is None:
        return None
    labels = [Expression(str(key), "In", (str(value),)) for key, value in (selector.get("matchLabels") or {}).items()]
    expressions = [
        Expression(str(e["key"]), str(e["operator"]), tuple(str(value) for value in e.get("values") or ()))
        for e in selector.get("matchExpressions") or ()
    ]
    return (*labels, *expressions)
