"""A Kueue cluster in memory, on a virtual clock: the same control loop runs on it as on a real one.

It behaves as Kueue 0.17 on Kubernetes 1.36 was measured to behave, delays included: a Workload that was tried without
room is parked until a batch that comes a second after quota was freed, one that was just released is tried at once, and
quota is free again only about a second after a job's pods have ended. What is evicted begins anew. Not simulated: fair
sharing, admission checks, topology, reclaimable pods, failing pods, execution limits, and nodes (pods always find one).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.annotations import parse_duration, parse_instant, read_wishes
from scheduler.apiserver import RESOURCES
from scheduler.cluster import GATE, GATES_ANNOTATION, Object, Reference, Release, ReleaseResult
from scheduler.facts import gates_of
from scheduler.files import with_gate
from scheduler.pod import total
from scheduler.podset import read_pod_set
from scheduler.quantity import in_units
from scheduler.queues import NoQueue, QueueReader
from scheduler.settings import Settings
from scheduler.workloads import queue_of, workload_for
from simulator.admission import PodSetAssignment, Request, Rules
from simulator.clock import VirtualClock
from simulator.kueue import Kueue, Pending
from simulator.manifests import RUN_FOR
from simulator.store import Store, condition, key_of, timestamp
from simulator.timeline import Record, Timeline
from solver.explain import quantity


@dataclass(frozen=True)
class Delays:
    """How long things take in a quiet cluster, in milliseconds."""

    workload: int = 20
    """Job created → its Workload exists."""
    release: int = 15
    """Our gate taken off the Job → Kueue has seen it on the Workload."""
    admission: int = 20
    """Workload in the heap → tried."""
    start: int = 40
    """Admitted → pods running."""
    complete: int = 1_040
    """Pods ended → Job Complete: the Job controller batches pod updates for a second."""
    finish: int = 25
    """Job Complete → Workload Finished, quota free."""
    requeue: int = 1_000
    """Quota freed → parked Workloads are tried again: Kueue's ``requeueBatchPeriod``."""
    cycle: int = 10
    """A scheduling cycle that admitted something."""
    evict: int = 1_000
    """Evicted → its pods are gone, and its quota is free."""


class SimulatedCluster:
    """API objects, Kueue and the Job controller, in memory.

    Implements :class:`scheduler.cluster.Cluster`. A job runs for the time that its pod template's annotation
    ``punctual.kueue/run-for`` says, as often as its completions need, else for its estimate times a random factor. An
    ownerless Workload does too, and is then Finished, as if a controller of its own watched it.

    Parameters
    ----------
    clock
        Virtual time; events of the caller's own may be put on it too.
    gating
        Whether Jobs of managed namespaces get our gate. Without it this is plain Kueue.
    settings
        The estimate of a job that gives none, and the label that makes a namespace managed.
    delays
        How long things take.
    noise
        Standard deviation of the logarithm of real run time over estimate; 0: estimates are exact.
    seed
        Source of the noise. A job's run time depends on its name and the seed only, not on when it runs.

    Attributes
    ----------
    timeline
        What happened to each job.
    events
        What owners were told: instant, target, kind, reason, message.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        gating: bool = True,
        settings: Settings | None = None,
        delays: Delays | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.timeline = Timeline()
        self.events: list[tuple[int, Reference, str, str, str]] = []
        self._gating, self._noise, self._seed = gating, noise, seed
        self._settings = settings or Settings()
        self._delays = delays or Delays()
        self._store = Store()
        self._made = 0
        self._reader = QueueReader()
        self._queues = self._reader.read(self)
        self._rules = Rules.of(self._queues.quota)
        self._requests: dict[str, Request] = {}
        self._runs: dict[str, int] = {}
        """How often a Workload was evicted, by key."""
        self._owned: dict[str, str] = {}
        """Key of the Workload of each Job, by the Job's uid."""
        self._kueue = Kueue(
            clock,
            self._rules,
            self._request,
            self._admit,
            self._refuse,
            self._evict,
            delay=self._delays.admission,
            requeue=self._delays.requeue,
            busy=self._delays.cycle,
        )

    # --- what the control loop sees and does ---------------------------------------------------------------------

    def now(self) -> int:
        """The time, in milliseconds since the Unix epoch."""
        return self.clock.now

    def wait(self, seconds: float) -> bool:
        """Let time pass until something changed since the last call, or ``seconds`` passed."""
        until = self.clock.now + round(seconds * 1000)
        while not self._store.changed and self.clock.step(until):
            pass
        changed, self._store.changed = self._store.changed, False
        return changed

    def objects(self, kind: str) -> Mapping[str, Object]:
        """All objects of a kind by ``namespace/name`` (``name`` alone for cluster-scoped kinds): a consistent copy."""
        return dict(self._store.all(kind))

    def release(self, target: Reference) -> ReleaseResult:
        """Take our gate off a Job or an ownerless Workload; Kueue sees it a little later."""
        item = self._store.get(target)
        if item is None:
            return ReleaseResult(Release.GONE, f"{target} is gone")
        if target.kind == "Workload" and item["metadata"].get("ownerReferences"):
            return ReleaseResult(Release.REFUSED, f"{target} has an owner: the gate comes off there")
        gates = _gates(item)
        if GATE not in gates:
            return ReleaseResult(Release.NOT_GATED)
        left = ",".join(gate for gate in gates if gate != GATE)
        self._store.annotate(target.kind, key_of(target), {GATES_ANNOTATION: left or None})
        if record := self.timeline.records.get(key_of(target)):
            record.released = self.now()
        self.clock.after(self._delays.release, lambda: self._gates_changed(target))
        return ReleaseResult(Release.DONE)

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        """Remember what an owner was told."""
        self.events.append((self.now(), target, kind, reason, message))

    def annotate(self, target: Reference, annotations: Mapping[str, str | None]) -> None:
        """Set (None: remove) annotations on an object; nothing happens when it is gone."""
        if self._store.get(target) is not None:
            self._store.annotate(target.kind, key_of(target), annotations)

    # --- what users and administrators do ------------------------------------------------------------------------

    def create(self, manifest: Object) -> Reference:
        """Create an object, as ``kubectl create`` would; returns the reference to it.

        Raises
        ------
        ValueError
            If it exists, its namespace does not, or it is a Job that names no queue.
        """
        kind, metadata = manifest["kind"], dict(manifest["metadata"])
        if not RESOURCES[kind].namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", "default") not in self._store.all("Namespace"):
            raise ValueError(f"{kind} {metadata['name']}: namespace {metadata['namespace']} does not exist")
        for column in ("labels", "annotations"):
            metadata[column] = dict(metadata.get(column) or {})
        self._made += 1
        # Counted, so that work created within one second sorts in the order in which it came.
        metadata["uid"] = f"00000000-0000-4000-8000-{self._made:012d}"
        metadata["creationTimestamp"] = timestamp(self.now())
        target = Reference(kind, metadata.get("namespace", ""), metadata["name"], metadata["uid"])
        if key_of(target) in self._store.all(kind):
            raise ValueError(f"{target} exists already")
        item = {**manifest, "metadata": metadata}
        if kind == "Job":
            self._create_job(target, item)
        elif kind == "Workload":
            self._gate(item)
            self._record(item, item)
            self._create_workload(item)
        else:
            self._store.put(kind, key_of(target), item)
            self._surroundings_changed()
        return target

    def replace(self, manifest: Object) -> None:
        """Change a queue, cohort, flavor, namespace or priority class.

        Raises
        ------
        ValueError
            If there is no such object, or it is a Job or Workload.
        """
        kind, metadata = manifest["kind"], manifest["metadata"]
        namespace = metadata.get("namespace", "default") if RESOURCES[kind].namespaced else ""
        key = key_of(Reference(kind, namespace, metadata["name"], ""))
        old = self._store.all(kind).get(key)
        if old is None or kind in ("Job", "Workload"):
            raise ValueError(f"{kind} {key} cannot be replaced")
        self._store.put(kind, key, {**manifest, "metadata": {**old["metadata"], **metadata}})
        self._surroundings_changed()

    def delete(self, target: Reference) -> None:
        """Delete an object; a Job takes its Workload along, and both their quota. Nothing happens when it is gone."""
        if self._store.get(target) is None:
            return
        self._store.remove(target.kind, key_of(target))
        if target.kind not in ("Job", "Workload"):
            self._surroundings_changed()
            return
        key = self._owned.pop(target.uid, None) if target.kind == "Job" else key_of(target)
        if key is not None:
            if target.kind == "Job":
                self._store.remove("Workload", key)
            self._requests.pop(key, None)
            self._kueue.remove(key)

    def run(self) -> None:
        """Let time pass until nothing more will happen by itself: plain Kueue has no control loop to do it."""
        while (instant := self.clock.next()) is not None:
            self.clock.step(instant)

    # --- jobs and their Workloads --------------------------------------------------------------------------------

    def _create_job(self, target: Reference, job: dict[str, Any]) -> None:
        if not queue_of(job):
            if f"{target.namespace}/default" not in self._store.all("LocalQueue"):
                raise ValueError(f"{target} names no queue: Kueue would ignore it")
            job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "default"
        self._gate(job)
        job["spec"] = {"parallelism": 1, **job["spec"], "suspend": True}
        job["spec"].setdefault("completions", job["spec"]["parallelism"])
        job["status"] = {}
        self._store.put("Job", key_of(target), job)
        self._record(job, workload_for(job, {}))
        self.clock.after(self._delays.workload, lambda: self._make_workload(target))

    def _make_workload(self, target: Reference) -> None:
        job = self._store.get(target)
        if job is None:
            return
        priorities = {name: int(item["value"]) for name, item in self._store.all("WorkloadPriorityClass").items()}
        workload = workload_for(job, priorities)
        self._made += 1
        workload["metadata"]["uid"] = f"00000000-0000-4000-8000-{self._made:012d}"
        self._owned[target.uid] = _key(workload)
        self._create_workload(workload)

    def _gate(self, item: dict[str, Any]) -> None:
        """What the admission policy does to new jobs of managed namespaces."""
        labels = self._store.all("Namespace")[item["metadata"]["namespace"]]["metadata"]["labels"]
        if self._gating and labels.get(self._settings.managed_label) == "true":
            annotations = item["metadata"]["annotations"]
            annotations[GATES_ANNOTATION] = with_gate(annotations.get(GATES_ANNOTATION))

    def _create_workload(self, workload: dict[str, Any]) -> None:
        key = _key(workload)
        self._store.put("Workload", key, workload)
        if gates := _gates(workload):
            message = f"Admission is gated by: {','.join(gates)}"
            gated = condition("QuotaReserved", False, "AdmissionGated", message, self.now())
            self._store.set_status("Workload", key, {}, gated)
        else:
            self._enqueue(key)

    def _gates_changed(self, target: Reference) -> None:
        """Kueue copies the gates of a Job to its Workload, and queues what has none left."""
        root = self._store.get(target)
        key = self._owned.get(target.uid) if target.kind == "Job" else key_of(target)
        if root is None or key is None:
            return
        workload = self._store.all("Workload")[key]
        if target.kind == "Job":
            if _gates(workload) == _gates(root):
                return
            self._store.annotate("Workload", key, {GATES_ANNOTATION: ",".join(_gates(root)) or None})
        if not _gates(root):
            self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        """A Workload without gates enters the heap of its ClusterQueue, or waits for its queue to exist and be open."""
        workload = self._store.all("Workload")[key]
        metadata = workload["metadata"]
        try:
            queue = self._queues.find(metadata["namespace"], workload["spec"]["queueName"])
        except NoQueue as error:
            self._kueue.remove(key)
            shut = condition("QuotaReserved", False, "Inadmissible", str(error), self.now())
            self._store.set_status("Workload", key, {}, shut)
            return
        age = (metadata["creationTimestamp"], metadata["uid"])
        created = parse_instant(age[0])
        self._kueue.push(Pending(-int(workload["spec"].get("priority") or 0), age, key, queue, created))

    def _surroundings_changed(self) -> None:
        """Queues, cohorts, flavors or namespaces were changed: a new quota tree, and all that waits looks again."""
        queues = self._reader.read(self)
        if queues is self._queues:
            return
        self._queues = queues
        self._rules = Rules.of(queues.quota)
        self._requests.clear()
        self._kueue.use(self._rules)
        for key, workload in list(self._store.all("Workload").items()):
            if not _gates(workload) and key not in self._kueue.held and not _is(workload, "Finished"):
                self._enqueue(key)

    # --- what Kueue and the Job controller decide ----------------------------------------------------------------

    def _request(self, key: str) -> Request:
        if key not in self._requests:
            workload = self._store.all("Workload")[key]
            pod_sets = workload["spec"]["podSets"]
            queue = self._queues.find(workload["metadata"]["namespace"], workload["spec"]["queueName"])
            namespace = workload["metadata"]["namespace"]
            shape = self._queues.shape(tuple(map(read_pod_set, pod_sets)), namespace, queue).message
            self._requests[key] = self._rules.request(shape, [pod_set["name"] for pod_set in pod_sets])
        return self._requests[key]

    def _refuse(self, key: str, message: str) -> None:
        waits = condition("QuotaReserved", False, "Pending", message, self.now())
        self._store.set_status("Workload", key, {}, waits)

    def _admit(self, key: str, queue: str, assignments: tuple[PodSetAssignment, ...]) -> None:
        now = self.now()
        admission = {
            "clusterQueue": queue,
            "podSetAssignments": [
                {
                    "name": pod_set.name,
                    "count": pod_set.pods,
                    "flavors": pod_set.flavors,
                    "resourceUsage": {name: quantity(name, amount) for name, amount in pod_set.usage.items()},
                }
                for pod_set in assignments
            ],
        }
        reserved = f"Quota reserved in ClusterQueue {queue}"
        again = [condition("Evicted", False, "QuotaReserved", reserved, now)] if self._runs.setdefault(key, 0) else []
        self._store.set_status(
            "Workload",
            key,
            {"admission": admission},
            condition("QuotaReserved", True, "QuotaReserved", reserved, now),
            condition("Admitted", True, "Admitted", "The workload is admitted", now),
            *again,
        )
        workload = self._store.all("Workload")[key]
        root = self._root(workload)
        self.timeline.records[_key(root)].admitted = now
        uid, pods = root["metadata"]["uid"], sum(pod_set.pods for pod_set in assignments)
        target = Reference(root["kind"], root["metadata"]["namespace"], root["metadata"]["name"], uid)
        run = self._runs[key]
        self.clock.after(self._delays.start, lambda: self._start(target, key, pods, run))

    def _start(self, target: Reference, key: str, pods: int, run: int) -> None:
        root = self._store.get(target)
        if root is None or self._runs[key] != run:
            return
        record = self.timeline.records[key_of(target)]
        record.started = self.now()
        record.starts += 1
        if target.kind == "Job":
            self._store.put("Job", key_of(target), {**root, "spec": {**root["spec"], "suspend": False}})
            running = {"startTime": timestamp(self.now()), "active": pods, "ready": pods}
            self._store.set_status(
                "Job", key_of(target), running, condition("Suspended", False, "JobResumed", "Job resumed", self.now())
            )
        self.clock.after(self._run_time(root, pods), lambda: self._end(target, key, run))

    def _evict(self, key: str, queue: str) -> None:
        """Kueue takes quota back for work of a ClusterQueue: its pods go, and what was begun is lost."""
        if self.timeline.records[_key(self._root(self._store.all("Workload")[key]))].ended is not None:
            return  # its quota is free in a moment
        self._runs[key] += 1  # whatever was to happen to this run does not
        message = f"Preempted to accommodate a workload of ClusterQueue {queue}"
        self._store.set_status("Workload", key, {}, condition("Evicted", True, "Preempted", message, self.now()))
        self.clock.after(self._delays.evict, lambda: self._evicted(key, message))

    def _evicted(self, key: str, message: str) -> None:
        """The quota of an evicted Workload is free; it waits anew, without our gate."""
        workload = self._store.all("Workload").get(key)
        if workload is None or _is(workload, "Finished"):
            return
        root = self._root(workload)
        self.timeline.records[_key(root)].interrupt(self.now())
        if root["kind"] == "Job":
            self._store.put("Job", _key(root), {**root, "spec": {**root["spec"], "suspend": True}})
            suspended = condition("Suspended", True, "JobSuspended", "Job suspended", self.now())
            self._store.set_status("Job", _key(root), {"active": 0, "ready": 0}, suspended)
        self._store.set_status(
            "Workload",
            key,
            {"admission": None},
            condition("QuotaReserved", False, "Pending", message, self.now()),
            condition("Admitted", False, "NoReservation", "The workload has no reservation", self.now()),
        )
        self._kueue.remove(key)
        self._enqueue(key)

    def _end(self, target: Reference, key: str, run: int) -> None:
        if self._store.get(target) is not None and self._runs[key] == run:
            self.timeline.records[key_of(target)].ended = self.now()
            self.clock.after(self._delays.complete, lambda: self._complete(target, key))

    def _complete(self, target: Reference, key: str) -> None:
        root = self._store.get(target)
        if root is None:
            return
        self.timeline.records[key_of(target)].completed = self.now()
        if target.kind == "Job":
            done = {
                "completionTime": timestamp(self.now()),
                "succeeded": root["spec"]["completions"],
                "active": 0,
                "ready": 0,
            }
            message = "Reached expected number of succeeded pods"
            self._store.set_status(
                "Job",
                key_of(target),
                done,
                condition("SuccessCriteriaMet", True, "CompletionsReached", message, self.now()),
                condition("Complete", True, "CompletionsReached", message, self.now()),
            )
        self.clock.after(self._delays.finish, lambda: self._finish(target, key))

    def _finish(self, target: Reference, key: str) -> None:
        if self._store.get(target) is None:
            return
        self.timeline.records[key_of(target)].finished = self.now()
        over = condition("Finished", True, "Succeeded", "Job finished successfully", self.now())
        self._store.set_status("Workload", key, {}, over)
        self._kueue.remove(key)

    def _run_time(self, root: Object, pods: int) -> int:
        """How long the pods of a job run, all waves of them, in milliseconds."""
        templates = (
            [root["spec"]["template"]] if root["kind"] == "Job" else [p["template"] for p in root["spec"]["podSets"]]
        )
        for template in templates:
            text = ((template.get("metadata") or {}).get("annotations") or {}).get(RUN_FOR)
            if text is not None:
                waves = math.ceil(int(root["spec"].get("completions", pods)) / max(1, pods))
                return parse_duration(text) * max(1, waves)
        wishes = read_wishes(root["metadata"]["annotations"], self.now())
        estimate = wishes.duration or self._settings.default_duration_ms
        factor = math.exp(random.Random(f"{self._seed}/{_key(root)}").gauss(0.0, self._noise))
        return max(1, round(estimate * factor))

    def _record(self, root: Object, workload: Object) -> None:
        """Begin the record of a job."""
        metadata = root["metadata"]
        amounts: dict[str, int] = {}
        for pod_set in map(read_pod_set, workload["spec"]["podSets"]):
            for resource, value in total(pod_set.pod).items():
                amounts[resource] = amounts.get(resource, 0) + in_units(resource, value) * pod_set.count
        created = parse_instant(metadata["creationTimestamp"])  # whole seconds: what a deadline like 8h counts from
        self.timeline.records[_key(root)] = Record(
            namespace=metadata["namespace"],
            name=metadata["name"],
            queue=workload["spec"]["queueName"],
            created=created,
            due=read_wishes(metadata["annotations"], created).deadline,
            amounts=amounts,
        )

    def _root(self, workload: Object) -> Object:
        """The object that the gate sits on: the Job, or the ownerless Workload itself."""
        for owner in workload["metadata"].get("ownerReferences") or ():
            return self._store.all("Job")[f"{workload['metadata']['namespace']}/{owner['name']}"]
        return workload


def _key(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _gates(item: Object) -> tuple[str, ...]:
    return gates_of(item["metadata"])


def _is(item: Object, kind: str) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)
