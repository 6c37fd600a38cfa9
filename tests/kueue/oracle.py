"""Asks the real Kueue what it admits, and compares with what Punctual expects.

Each case (:mod:`oracle_cases`) gets a namespace, queues and flavors of its own. A Workload without owner and without
gate is created, Kueue's verdict is awaited, and compared with the answer of the production code on the objects as they
were: :mod:`scheduler.snapshot` reads them, :mod:`solver.decode` builds the tree, :mod:`solver.choose` answers. "The
same" means: admitted or not, and if admitted the flavor of each resource and the number of pods of every pod set.

Kueue's caches follow an edit or a deletion by some milliseconds, and its own retries come in batches of a second. So a
disagreement counts only if it is there again after a while of quiet, with a new Workload and a new answer.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from oracle_cases import (
    UNIT,
    Case,
    Change,
    Cohort,
    Edit,
    End,
    Extras,
    Flavor,
    Group,
    PodSet,
    Queue,
    Submit,
    smaller,
)

import solver.choose as kernel
from localcluster.rest import ApiError
from scheduler.podset import read_pod_set
from scheduler.queues import QueueReader
from scheduler.snapshot import snapshot
from solver.api import planner_pb2 as pb
from solver.choose import Mode
from solver.decode import decode
from solver.decode_admission import decode_admission
from solver.explain import explain
from solver.preemption import Whom
from solver.quota import take_all

API = "kueue.x-k8s.io/v1beta2"
VERSIONS = {"Namespace": "v1", "LimitRange": "v1", "RuntimeClass": "node.k8s.io/v1"}
"""Of what is not Kueue's."""
KUEUE = f"/apis/{API}"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
CONFIG = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
REFUSALS = ("resources validation failed: ", "resources didn't satisfy LimitRange constraints: ")
"""How Kueue begins when it does not even look for room."""
ATTEMPTS = 40
"""More attempts than that and Kueue goes on for ever."""

QUIET, LONG_QUIET = 0.25, 1.6
"""Seconds a verdict must stand; seconds of quiet before a disagreement is asked again (Kueue's batches: 1 s)."""

RESTLESS = 10.0
"""Seconds after which no change of mind is awaited any more: Kueue goes on for ever, with other words each time."""

WHOM = {
    "Never": Whom.NEVER,
    "LowerPriority": Whom.LOWER_PRIORITY,
    "LowerOrNewerEqualPriority": Whom.LOWER_OR_NEWER_EQUAL_PRIORITY,
    "Any": Whom.ANY,
}
NAMES = {whom: name for name, whom in WHOM.items()}

Answer = tuple[tuple[int, tuple[tuple[str, str], ...]], ...] | None
"""For each pod set its pods and its flavors by resource; None: not admitted."""


@dataclass(frozen=True)
class Expectation:
    """What the production code expects of Kueue."""

    answer: Answer
    attempts: int
    """How often Kueue tries before it is done with it; 1 unless it goes on from the next flavor."""
    level: int
    partial: bool
    victims: tuple[str, ...] = ()
    """Names of the Workloads that are evicted for it first."""
    wrong: str = ""
    """Something that production code contradicts itself about."""
    reasons: tuple[tuple[str, ...], ...] = ()
    """Why each pod set has no flavor; empty where Kueue's words depend on chance."""
    refused: str = ""
    """Why no room would do."""


@dataclass
class Disagreement:
    """One verdict that was not expected, twice."""

    case: Case
    step: int
    expected: Expectation
    answer: Answer
    victims: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        case = re.sub(r"<(Whom\.\w+): \d>", r"\1", repr(self.case))
        kueue = f"{self.answer or self.message}, evicted: {self.victims}"
        return f"step {self.step} of\n{case}\nexpected {self.expected}\nKueue: {kueue}"


@dataclass
class Tally:
    """What was asked and how it went."""

    counts: Counter[str] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.counts += other.counts
        self.disagreements += other.disagreements
        return self

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))


def expect(objects: Mapping[str, Mapping[str, Any]], uid: str) -> Expectation:
    """What the production code expects of Kueue for one Workload, from the objects by kind and name."""
    request = snapshot(_Seen(objects)).request
    problem = decode(request)
    tree, usage = problem.tree, problem.tree.no_usage()
    take_all(tree.arrays, usage, problem.busy.node, problem.busy.cell, problem.busy.amount)
    row = list(request.workloads.id).index(uid)
    queue, shape = request.workloads.cluster_queue[row], request.workloads.shape[row]
    admission = decode_admission(request, problem)
    queues, holders = admission.queues, admission.holders
    shapes = kernel.pack_shapes(tree, [shape.pod_sets for shape in request.shapes])
    choice = kernel.blank(queues, shapes, holders)
    asker = request.workloads.priority[row], request.workloads.created_ms[row]
    mode, level, attempts = kernel.retry(tree.arrays, queues, shapes, usage, queue, shape, choice, ATTEMPTS, *asker)
    never = any(rejected.row == row and rejected.kind == pb.NEVER_FITS for rejected in problem.rejected)
    if refused := _refused(objects, uid):
        wrong = "" if never else "decode says that it may fit"
        return Expectation(None, attempts, level, False, wrong=wrong, refused=refused)
    if mode < Mode.PREEMPTS:
        reasons: list[list[str]] = []
        if attempts == 1 and len(tree.groups[queue]) == 1:
            reasons = explain(tree, queues, shapes, usage, queue, shape, choice)
        if any("unavailable" in reason for against in reasons for reason in against):
            reasons = []  # Kueue may name another resource of the pod set instead
        return Expectation(None, attempts, level, False, reasons=tuple(map(tuple, reasons)))
    answer = []
    partial = False
    for k, pod_set in enumerate(request.shapes[shape].pod_sets):
        flavors = {}
        for resource in pod_set.resources:
            group = queues.group[queue, resource] - queues.first[queue]
            flavors[tree.resources[resource]] = tree.flavors[choice.flavor[k, group]]
        answer.append((int(choice.pods[k]), tuple(sorted(flavors.items()))))
        partial |= bool(choice.pods[k] != pod_set.count)
    wrong = ""
    if never and not partial:
        wrong = "decode says that it never fits"
    elif not partial:
        pair = problem.pair[np.flatnonzero(problem.row == row)[0]]
        first, last = problem.options.first[pair : pair + 2]
        columns = problem.options.need, problem.options.cell, problem.options.amount
        if kernel.option_of(choice.total, first, last, *columns) < 0:
            wrong = "no option is what was chosen"
    names = {item["metadata"]["uid"]: item["metadata"]["name"] for item in objects["Workload"].values()}
    victims = tuple(sorted(names[request.workloads.id[admission.holder[w]]] for w in choice.victims if w >= 0))
    return Expectation(tuple(answer), attempts, level, partial, victims, wrong)


def _refused(objects: Mapping[str, Mapping[str, Any]], uid: str) -> str:
    seen = _Seen(objects)
    queues = QueueReader().read(seen)
    (workload,) = (item for item in objects["Workload"].values() if item["metadata"]["uid"] == uid)
    namespace, spec = workload["metadata"]["namespace"], workload["spec"]
    queue = queues.find(namespace, spec["queueName"])
    return queues.shape(tuple(map(read_pod_set, spec["podSets"])), namespace, queue).refused


def as_expected(message: str, reasons: tuple[tuple[str, ...], ...]) -> bool:
    """Whether Kueue gives no other reasons than these, and some for each pod set that has any."""
    parts = dict(re.findall(r"couldn't assign flavors to pod set p(\d+): (.*?)(?:; (?=couldn't)|$)", message))
    if set(parts) != {str(k) for k, against in enumerate(reasons) if against}:
        return False
    for k, text in parts.items():
        for reason in reasons[int(k)]:
            text = text.replace(reason, "")
        for told in (r"flavor \S+ doesn't match node affinity", r"untolerated taint \{.*?\} in flavor \S+?(?=,|$)"):
            text = re.sub(told, "", text)
        if text.strip(", "):
            return False
    return True


def ask(api: Callable[..., Any], case: Case, prefix: str) -> Tally:
    """Play a case on the cluster; everything that it made is gone afterwards."""
    tree = _Tree(api, case, prefix)
    try:
        tree.create()
        return tree.play()
    finally:
        tree.remove()


def shrink(api: Callable[..., Any], found: Disagreement, prefix: str, tries: int) -> Disagreement:
    """A smaller case that disagrees too, found with so many tries at most."""
    count = 0
    while count < tries:
        for case in smaller(found.case):
            count += 1
            if count > tries:
                break
            if disagreements := ask(api, case, f"{prefix}s{count}-").disagreements:
                found = disagreements[0]
                break
        else:
            break
    return found


class _Seen:
    """Objects as a cluster shows them."""

    def __init__(self, objects: Mapping[str, Mapping[str, Any]]) -> None:
        self._objects = objects

    def now(self) -> int:
        return int(time.time() * 1000)

    def objects(self, kind: str) -> Mapping[str, Any]:
        return self._objects.get(kind, {})


class _Tree:
    """One case on the cluster."""

    def __init__(self, api: Callable[..., Any], case: Case, prefix: str) -> None:
        self.api, self.case, self.prefix = api, case, prefix
        self.namespace = f"{prefix}ns"
        self.workloads = f"{KUEUE}/namespaces/{self.namespace}/workloads"
        self.objects: dict[str, dict[str, Any]] = {}
        self.made: list[str] = []
        self.tally = Tally(Counter(trees=1))
        self.asked = 0
        self.running: list[str] = []

    def create(self) -> None:
        self._see("ConfigMap", self.api("GET", CONFIG))
        self._post("Namespace", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        limit_range, runtime_class = self._extras(self.case.extras)
        self._post("LimitRange", f"/api/v1/namespaces/{self.namespace}/limitranges", limit_range)
        self._post("RuntimeClass", CLASSES, {**runtime_class, "handler": "none"})
        for flavor in self.case.flavors:
            self._post("ResourceFlavor", f"{KUEUE}/resourceflavors", self._flavor(flavor))
        for cohort in self.case.cohorts:
            self._post("Cohort", f"{KUEUE}/cohorts", self._cohort(cohort))
        for queue in self.case.queues:
            self._post("ClusterQueue", f"{KUEUE}/clusterqueues", self._queue(queue))
        for queue in self.case.queues:
            spec = {"clusterQueue": self.prefix + queue.name}
            body = {"kind": "LocalQueue", "metadata": {"name": queue.name, "namespace": self.namespace}, "spec": spec}
            self._post("LocalQueue", f"{KUEUE}/namespaces/{self.namespace}/localqueues", body)
        for queue in self.case.queues:
            _until(lambda queue=queue: self._active(queue), f"{self.prefix}{queue.name} to be active")

    def play(self) -> Tally:
        running = self.running
        for k, step in enumerate(self.case.steps):
            if isinstance(step, Submit):
                if name := self._submit(k, step):
                    running.append(name)
            elif isinstance(step, End):
                if running:
                    self._delete(running.pop(step.which % len(running)))
                    self.tally.counts["deletions"] += 1
                    time.sleep(QUIET / 2)
            elif isinstance(step, Edit):
                kind = type(step.to).__name__.replace("Queue", "ClusterQueue")
                body = self._queue(step.to) if isinstance(step.to, Queue) else self._cohort(step.to)
                path = f"{KUEUE}/{kind.lower()}s/{body['metadata']['name']}"
                self._see(kind, self.api("PATCH", path, body))
                self.tally.counts["edits"] += 1
                time.sleep(QUIET / 2)
            elif isinstance(step, Change):
                limit_range, runtime_class = self._extras(step.extras)
                runtime_class["overhead"]["podFixed"] = dict.fromkeys(UNIT) | runtime_class["overhead"]["podFixed"]
                path = f"/api/v1/namespaces/{self.namespace}/limitranges/extras"
                self._see("LimitRange", self.api("PATCH", path, limit_range))
                self._see("RuntimeClass", self.api("PATCH", f"{CLASSES}/{self.prefix}extras", runtime_class))
                self.tally.counts["edits"] += 1
                time.sleep(QUIET / 2)
        return self.tally

    def remove(self) -> None:
        """Workloads first, then the queues: nothing is left waiting for a queue that is gone."""
        self.api("DELETE", self.workloads)
        _until(lambda: not self.api("GET", self.workloads)["items"], "the Workloads to go")
        for path in reversed(self.made):
            try:
                self.api("DELETE", path)
            except ApiError as error:
                if error.status != 404:
                    raise

    def _submit(self, k: int, step: Submit) -> str | None:
        """Ask; the name of the Workload if it was admitted and stays."""
        name, expected, answer, victims, message = self._ask(step)
        if (answer, victims) != (expected.answer, expected.victims):
            self.tally.counts["asked again"] += 1
            self._delete(name)
            time.sleep(LONG_QUIET)
            name, expected, answer, victims, message = self._ask(step, patient=True)
        counts = self.tally.counts
        counts["cases"] += 1
        counts["admitted" if answer else "not admitted"] += 1
        counts["partial"] += bool(answer) and expected.partial
        counts["borrowed"] += bool(answer) and expected.level > 0
        counts["on a later attempt"] += bool(answer) and expected.attempts > 1
        counts["tried for ever"] += expected.attempts > ATTEMPTS
        words = not expected.reasons or as_expected(message, expected.reasons)
        words &= answer is not None or bool(expected.refused) == message.startswith(REFUSALS)
        counts["refused"] += answer is None and bool(expected.refused)
        counts["reasons compared"] += answer is None and bool(expected.reasons)
        counts["by eviction"] += bool(answer) and bool(victims)
        counts["evicted"] += len(victims)
        if (answer, victims) != (expected.answer, expected.victims) or expected.wrong or not words:
            counts["disagreements"] += 1
            self.tally.disagreements.append(Disagreement(self.case, k, expected, answer, victims, message))
        if answer is None:
            self._delete(name)
            return None
        return name

    def _ask(self, step: Submit, patient: bool = False) -> tuple[str, Expectation, Answer, tuple[str, ...], str]:
        self.asked += 1
        name = f"w{self.asked}"
        listed = self.api("GET", self.workloads)["items"]
        body = self.api("POST", self.workloads, self._workload(name, step))
        before = {f"{self.namespace}/{item['metadata']['name']}": item for item in [*listed, body]}
        expected = expect({**self.objects, "Workload": before}, body["metadata"]["uid"])
        answer, message = self._verdict(name, LONG_QUIET if patient or expected.attempts > 1 else QUIET)
        victims: tuple[str, ...] = ()
        if answer is None and "Pending the preemption of" in message:
            victims = self._evicted()
            for victim in victims:  # nobody else would: they have no job whose pods have to end
                self._delete(victim)
                self.running.remove(victim)
            answer, message = self._verdict(name, LONG_QUIET)
        return name, expected, answer, victims, message

    def _evicted(self) -> tuple[str, ...]:
        """Names of Workloads that Kueue has evicted."""
        listed = self.api("GET", self.workloads)["items"]
        conditions = {i["metadata"]["name"]: i.get("status", {}).get("conditions", ()) for i in listed}
        evicted = [
            n for n, cs in conditions.items() if any((c["type"], c["status"]) == ("Evicted", "True") for c in cs)
        ]
        return tuple(sorted(evicted))

    def _verdict(self, name: str, quiet: float) -> tuple[Answer, str]:
        """Kueue's answer once it has stood for a while, or is for good."""
        asked = since = time.monotonic()
        before = ""
        while True:
            status = self.api("GET", f"{self.workloads}/{name}").get("status", {})
            reserved = next((c for c in status.get("conditions", ()) if c["type"] == "QuotaReserved"), {})
            if reserved.get("status") == "True":
                assignments = status["admission"]["podSetAssignments"]
                return tuple((a["count"], tuple(sorted(a.get("flavors", {}).items()))) for a in assignments), ""
            message, now = reserved.get("message", ""), time.monotonic()
            if message and now - asked > RESTLESS:
                self.tally.counts["told otherwise again and again"] += 1
                return None, message
            if message != before:
                before, since = message, now
            elif message and now - since > quiet:
                return None, message
            elif now - asked > 20:
                raise TimeoutError(f"{self.namespace}/{name}: no word from Kueue in 20 s")
            time.sleep(0.05)

    def _delete(self, name: str) -> None:
        self.api("DELETE", f"{self.workloads}/{name}")

        def gone() -> bool:
            try:
                self.api("GET", f"{self.workloads}/{name}")
            except ApiError as error:
                return error.status == 404
            return False

        _until(gone, f"{name} to go")

    def _post(self, kind: str, path: str, body: dict[str, Any]) -> None:
        self._see(kind, self.api("POST", path, {"apiVersion": VERSIONS.get(kind, API), "kind": kind, **body}))
        self.made.append(f"{path}/{body['metadata']['name']}")

    def _see(self, kind: str, item: dict[str, Any]) -> None:
        namespace, name = item["metadata"].get("namespace"), item["metadata"]["name"]
        self.objects.setdefault(kind, {})[f"{namespace}/{name}" if namespace else name] = item

    def _active(self, queue: Queue) -> bool:
        local = self.api("GET", f"{KUEUE}/namespaces/{self.namespace}/localqueues/{queue.name}")
        return any(
            c["type"] == "Active" and c["status"] == "True" for c in local.get("status", {}).get("conditions", ())
        )

    def _extras(self, extras: Extras) -> tuple[dict[str, Any], dict[str, Any]]:
        """LimitRange and RuntimeClass."""
        container = {
            "type": "Container",
            "default": _quantities(extras.default),
            "defaultRequest": _quantities(extras.default_request),
            "max": _quantities(extras.most),
        }
        pod = {"type": "Pod", "max": _quantities(extras.most_of_pod)}
        limit_range = {"metadata": {"name": "extras"}, "spec": {"limits": [container, pod]}}
        runtime_class = {
            "metadata": {"name": f"{self.prefix}extras"},
            "overhead": {"podFixed": _quantities(extras.overhead)},
        }
        return limit_range, runtime_class

    def _flavor(self, flavor: Flavor) -> dict[str, Any]:
        spec: dict[str, Any] = {"nodeLabels": flavor.labels}
        if flavor.taint:
            spec["nodeTaints"] = [{"key": flavor.taint, "value": "yes", "effect": "NoSchedule"}]
        if flavor.tolerated:
            spec["tolerations"] = [{"key": flavor.taint, "operator": "Exists"}]
        return {"metadata": {"name": self.prefix + flavor.name}, "spec": spec}

    def _cohort(self, cohort: Cohort) -> dict[str, Any]:
        spec = {
            "parentName": self.prefix + cohort.parent if cohort.parent else None,
            "resourceGroups": self._groups(cohort.groups),
        }
        return {"metadata": {"name": self.prefix + cohort.name}, "spec": spec}

    def _queue(self, queue: Queue) -> dict[str, Any]:
        policy = queue.preemption
        borrowing = {"policy": "LowerPriority", "maxPriorityThreshold": policy.threshold}
        spec = {
            "namespaceSelector": {},
            "cohortName": self.prefix + queue.cohort if queue.cohort else None,
            "resourceGroups": self._groups(queue.groups),
            "flavorFungibility": {
                "whenCanBorrow": "TryNextFlavor" if queue.try_next else "MayStopSearch",
                "whenCanPreempt": "MayStopSearch" if policy.stop_search else "TryNextFlavor",
                "preference": "PreemptionOverBorrowing" if policy.rather_preempt else None,
            },
            "preemption": {
                "withinClusterQueue": NAMES[policy.within_queue],
                "reclaimWithinCohort": NAMES[policy.reclaim],
                "borrowWithinCohort": borrowing if policy.borrowing else {"policy": "Never"},
            },
        }
        return {"metadata": {"name": self.prefix + queue.name}, "spec": spec}

    def _groups(self, groups: Iterable[Group]) -> list[dict[str, Any]]:
        def quota(resource: str, limits: tuple[int | None, ...]) -> dict[str, Any]:
            names = ("nominalQuota", "borrowingLimit", "lendingLimit")
            given = zip(names, limits, strict=True)
            return {"name": resource, **{name: _quantity(resource, n) for name, n in given if n is not None}}

        return [
            {
                "coveredResources": list(group.resources),
                "flavors": [
                    {"name": self.prefix + name, "resources": [quota(r, limits[r]) for r in group.resources]}
                    for name, limits in group.flavors.items()
                ],
            }
            for group in groups
        ]

    def _workload(self, name: str, step: Submit) -> dict[str, Any]:
        return {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "queueName": step.queue,
                "priority": step.priority,
                "podSets": [_pod_set(k, p, f"{self.prefix}extras") for k, p in enumerate(step.pod_sets)],
            },
        }


def _pod_set(position: int, pod_set: PodSet, runtime_class: str) -> dict[str, Any]:
    amounts = _quantities(pod_set.requests)
    resources = {"requests": amounts, **({"limits": amounts} if pod_set.limited else {})}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        **({"runtimeClassName": runtime_class} if pod_set.sandboxed else {}),
        "nodeSelector": pod_set.selector,
        "tolerations": [{"key": key, "operator": "Exists"} for key in pod_set.tolerates],
    }
    if pod_set.affinity:
        expressions = [{"key": k, "operator": o, "values": list(v)} for k, o, v in pod_set.affinity]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    made = {"name": f"p{position}", "count": pod_set.count, "template": {"spec": pod}}
    return made if pod_set.minimum is None else {**made, "minCount": pod_set.minimum}


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {resource: _quantity(resource, units) for resource, units in amounts.items()}


def _quantity(resource: str, units: int) -> str:
    suffix, size = UNIT[resource]
    return f"{units * size}{suffix}"


def _until(check: Callable[[], bool], what: str, timeout: float = 90) -> None:
    end = time.monotonic() + timeout
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.05)
