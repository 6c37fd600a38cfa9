"""A cluster of plain dictionaries, moved by hand: what the tests of snapshot and loop look at."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scheduler.cluster import GATE, GATES_ANNOTATION, KINDS, Object, Reference, Release, ReleaseResult
from scheduler.workloads import workload_for

START = 1_800_000_000_000
"""Where its clock begins: 2027-01-15T08:00:00Z."""


def rfc3339(instant: int) -> str:
    """An instant as Kubernetes writes it."""
    return datetime.fromtimestamp(instant / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MemoryCluster:
    """Implements :class:`scheduler.cluster.Cluster`; time stands still unless moved."""

    def __init__(self) -> None:
        self.time = START
        self.events: list[tuple[Reference, str, str, str]] = []
        self.answers: dict[str, ReleaseResult | Exception] = {}
        """What a release of an object of some name comes to, if not DONE."""
        self.released: list[str] = []
        self._objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self._version = 0

    def now(self) -> int:
        return self.time

    def wait(self, seconds: float) -> bool:
        self.time += round(seconds * 1000)
        return False

    def objects(self, kind: str) -> Mapping[str, Object]:
        return dict(self._objects[kind])

    def release(self, target: Reference) -> ReleaseResult:
        answer = self.answers.get(target.name, ReleaseResult(Release.DONE))
        if isinstance(answer, Exception):
            raise answer
        if answer.release == Release.DONE:
            self.released.append(target.name)
            key = f"{target.namespace}/{target.name}"
            self.edit(target.kind, key, lambda o: o["metadata"]["annotations"].pop(GATES_ANNOTATION))
            for name, workload in self._objects["Workload"].items():
                if any(owner["uid"] == target.uid for owner in workload["metadata"].get("ownerReferences", ())):
                    self.edit("Workload", name, lambda o: o["metadata"]["annotations"].pop(GATES_ANNOTATION))
        return answer

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        self.events.append((target, kind, reason, message))

    def annotate(self, target: Reference, annotations: Mapping[str, str | None]) -> None:
        key = f"{target.namespace}/{target.name}"
        self.edit(target.kind, key, lambda o: o["metadata"].setdefault("annotations", {}).update(annotations))

    # --- by hand -------------------------------------------------------------------------------------------------

    def put(self, item: dict[str, Any]) -> dict[str, Any]:
        """Create or replace an object; gives it uid, version and creation time where it has none."""
        item = copy.deepcopy(item)
        metadata = item["metadata"]
        self._version += 1
        key = f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]
        metadata.setdefault("uid", f"{item['kind']}-{key}".lower())
        metadata.setdefault("creationTimestamp", rfc3339(self.time))
        metadata["resourceVersion"] = str(self._version)
        self._objects[item["kind"]][key] = item
        return item

    def edit(self, kind: str, key: str, change: Any) -> None:
        """Change an object, as a new version of it."""
        item = copy.deepcopy(self._objects[kind][key])
        change(item)
        self.put(item)

    def drop(self, kind: str, key: str) -> None:
        """Delete an object."""
        del self._objects[kind][key]

    def queue(self, name: str = "cq", gpus: int = 4, local: str = "lq", namespace: str = "team", **spec: Any) -> None:
        """A ClusterQueue with one flavor of GPUs, a LocalQueue and a managed namespace."""
        self.put({"kind": "Namespace", "metadata": {"name": namespace, "labels": {"punctual.kueue/managed": "true"}}})
        self.put({"kind": "ResourceFlavor", "metadata": {"name": "gpu"}, "spec": {}})
        group = {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]}],
        }
        spec = {"namespaceSelector": {}, "resourceGroups": [group], **spec}
        self.put({"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
        local_queue = {"kind": "LocalQueue", "metadata": {"name": local, "namespace": namespace}}
        self.put({**local_queue, "spec": {"clusterQueue": name}})

    def job(
        self,
        name: str,
        gpus: int = 2,
        *,
        namespace: str = "team",
        queue: str = "lq",
        gates: str = GATE,
        pod: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
        **annotations: str,
    ) -> dict[str, Any]:
        """A Job and the Workload that Kueue makes for it; keywords are our annotations (``earliest_start`` …)."""
        container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": queue},
            "annotations": {f"punctual.kueue/{key.replace('_', '-')}": text for key, text in annotations.items()},
        }
        if gates:
            metadata["annotations"][GATES_ANNOTATION] = gates
        template = {"spec": {"containers": [container], **(pod or {})}}
        job = self.put({"kind": "Job", "metadata": metadata, "spec": {"template": template, **(spec or {})}})
        return self.put(workload_for(job, {}))

    def key_of(self, job: str, namespace: str = "team") -> str:
        """The key of a Job's Workload."""
        uid = self._objects["Job"][f"{namespace}/{job}"]["metadata"]["uid"]
        for key, workload in self._objects["Workload"].items():
            if any(owner["uid"] == uid for owner in workload["metadata"].get("ownerReferences", ())):
                return key
        raise KeyError(job)

    def admit(self, job: str, namespace: str = "team", queue: str = "cq", flavor: str = "gpu") -> None:
        """What Kueue does with work that fits."""

        def change(workload: dict[str, Any]) -> None:
            assignments = []
            for pod_set in workload["spec"]["podSets"]:
                requests = pod_set["template"]["spec"]["containers"][0]["resources"]["requests"]
                usage = {name: str(int(value) * pod_set["count"]) for name, value in requests.items()}
                flavors = dict.fromkeys(usage, flavor)
                assignments.append(
                    {"name": pod_set["name"], "count": pod_set["count"], "flavors": flavors, "resourceUsage": usage}
                )
            since = {"status": "True", "lastTransitionTime": rfc3339(self.time), "reason": "", "message": ""}
            workload["status"] = {
                "admission": {"clusterQueue": queue, "podSetAssignments": assignments},
                "conditions": [{"type": "QuotaReserved", **since}, {"type": "Admitted", **since}],
            }

        self.edit("Workload", self.key_of(job, namespace), change)

    def condition(self, job: str, kind: str, status: str, reason: str = "", message: str = "") -> None:
        """Set a condition of a Job's Workload."""

        def change(workload: dict[str, Any]) -> None:
            conditions = workload["status"].setdefault("conditions", [])
            conditions[:] = [condition for condition in conditions if condition["type"] != kind]
            at = rfc3339(self.time)
            conditions.append(
                {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
            )

        self.edit("Workload", self.key_of(job), change)

    def finish(self, job: str) -> None:
        """The Workload of a Job has finished."""
        self.condition(job, "Finished", "True")

    def told(self, reason: str) -> list[str]:
        """Messages of all Events of a reason."""
        return [message for _, _, r, message in self.events if r == reason]
