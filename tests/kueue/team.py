"""A team of a test cluster: a namespace with its own queue and quota, and the Jobs in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from localcluster.cluster import LocalCluster
from localcluster.rest import ApiError

GATE = "punctual.kueue/plan"
GATES = "kueue.x-k8s.io/admission-gated-by"
QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"

T = TypeVar("T")


def wait_for(check: Callable[[], T], what: str = "", timeout: float = 30, every: float = 0.05) -> T:
    """Poll ``check`` until it returns something true; return that. A refused connection counts as not yet."""
    end = time.monotonic() + timeout
    while True:
        try:
            if result := check():
                return result
            last: object = result
        except (ApiError, OSError) as error:
            last = error
        if time.monotonic() > end:
            pytest.fail(f"waited {timeout:.0f} s for: {what or check}; last: {last}", pytrace=False)
        time.sleep(every)


@dataclass(frozen=True)
class Team:
    """A namespace with a LocalQueue, and the ClusterQueue and flavor behind it.

    Attributes
    ----------
    name
        Name of the namespace, the ClusterQueue and the flavor.
    queue
        Name of the LocalQueue.
    """

    cluster: LocalCluster
    name: str
    queue: str

    @property
    def jobs(self) -> str:
        """Path of the namespace's Jobs."""
        return f"/apis/batch/v1/namespaces/{self.name}/jobs"

    @property
    def workloads(self) -> str:
        """Path of the namespace's Workloads."""
        return f"{KUEUE}/namespaces/{self.name}/workloads"

    def job(
        self,
        name: str,
        gpus: int = 2,
        run_for: float = 1,
        annotations: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        queue: str | None = None,
        fails: bool = False,
        parallelism: int = 1,
        spec: dict[str, Any] | None = None,
        owner: dict[str, Any] | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Create a Job whose pods run for ``run_for`` seconds; the object as the apiserver has it.

        Parameters
        ----------
        gpus
            Of each pod.
        queue
            Name of its LocalQueue; the team's by default, "" for none.
        spec
            Added to the Job's spec.
        owner
            The Job that controls it. Kueue's webhook refuses the child while its cache has no such parent.
        """
        body = self.job_body(name, gpus, run_for, annotations, labels=labels, queue=queue, fails=fails)
        body["spec"] |= {"parallelism": parallelism, "completions": parallelism, **(spec or {})}
        path = self.jobs + ("?dryRun=All" if dry_run else "")
        if owner is None:
            return dict(self.cluster.api("POST", path, body))
        body["metadata"]["ownerReferences"] = [owner]
        return dict(wait_for(lambda: self.cluster.api("POST", path, body), "Kueue to know the parent"))

    def job_body(
        self,
        name: str,
        gpus: int = 2,
        run_for: float = 1,
        annotations: dict[str, str] | None = None,
        *,
        labels: dict[str, str] | None = None,
        queue: str | None = None,
        fails: bool = False,
    ) -> dict[str, Any]:
        """The Job that :meth:`job` creates, not created."""
        queue = self.queue if queue is None else queue
        pod_annotations = {
            "punctual.kueue/run-for": f"{run_for}s",
            **({"punctual.kueue/fail": "true"} if fails else {}),
        }
        requests = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
        resources = {"requests": requests, "limits": {"nvidia.com/gpu": str(gpus)}}
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none", "resources": resources}]}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": self.name,
                "labels": {**({QUEUE: queue} if queue else {}), **(labels or {})},
                "annotations": annotations or {},
            },
            "spec": {
                "suspend": True,
                "backoffLimit": 0,
                "template": {"metadata": {"annotations": pod_annotations}, "spec": pod},
            },
        }

    def get_job(self, name: str) -> dict[str, Any]:
        """A Job as it is now."""
        return dict(self.cluster.api("GET", f"{self.jobs}/{name}"))

    def workload_of(self, job: str) -> dict[str, Any]:
        """The Workload of a Job; empty while there is none."""
        for workload in self.cluster.api("GET", self.workloads)["items"]:
            if any(owner["name"] == job for owner in workload["metadata"].get("ownerReferences", [])):
                return dict(workload)
        return {}

    def condition(self, job: str, kind: str) -> dict[str, str]:
        """A condition of a Job's Workload (``QuotaReserved``, ``Admitted``, ``Finished`` …); empty without it."""
        return condition_of(self.workload_of(job), kind)

    def admitted(self, job: str) -> bool:
        """Whether Kueue has admitted a Job's Workload (also when it has finished since)."""
        return self.condition(job, "Admitted").get("status") == "True"

    def finished(self, job: str) -> bool:
        """Whether a Job's Workload has finished."""
        return self.condition(job, "Finished").get("status") == "True"

    def release(self, job: str) -> None:
        """Take our gate off a Job as administrator."""
        gates = [gate for gate in gates_of(self.get_job(job)) if gate != GATE]
        self.cluster.api("PATCH", f"{self.jobs}/{job}", {"metadata": {"annotations": {GATES: ",".join(gates) or None}}})

    def delete_jobs(self) -> None:
        """Delete all Jobs and Workloads; returns when Kueue has let them go."""
        for path in (self.jobs, self.workloads):
            self.cluster.api("DELETE", f"{path}?propagationPolicy=Background")
        wait_for(lambda: not self.cluster.api("GET", self.workloads)["items"], "the Workloads to go")


def condition_of(workload: dict[str, Any], kind: str) -> dict[str, str]:
    """A condition of a Workload; empty without it."""
    conditions = workload.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def gates_of(item: dict[str, Any]) -> list[str]:
    """The gates on an object, as Kueue reads them."""
    return [gate for gate in item["metadata"].get("annotations", {}).get(GATES, "").split(",") if gate]


def new_team(
    cluster: LocalCluster, name: str, gpus: int, managed: bool, queue: str, cohort: str | None, spec: dict[str, Any]
) -> Team:
    named: dict[str, Any] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": name}}
    quota = {"cpu": "1000", "memory": "8Ti", "nvidia.com/gpu": gpus}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
    queue_spec = {"namespaceSelector": {}, "resourceGroups": [group], **({"cohortName": cohort} if cohort else {})}
    labels = {"punctual.kueue/managed": "true"} if managed else {}
    cluster.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    cluster.api("POST", f"{KUEUE}/resourceflavors", {**named, "kind": "ResourceFlavor"})
    cluster.api("POST", f"{KUEUE}/clusterqueues", {**named, "kind": "ClusterQueue", "spec": {**queue_spec, **spec}})
    local = {"metadata": {"name": queue}, "kind": "LocalQueue", "spec": {"clusterQueue": name}}
    cluster.api("POST", f"{KUEUE}/namespaces/{name}/localqueues", {**named, **local})
    team = Team(cluster, name, queue)
    active = f"{KUEUE}/namespaces/{name}/localqueues/{queue}"
    wait_for(lambda: condition_of(cluster.api("GET", active), "Active").get("status") == "True", "an active LocalQueue")
    return team


def remove_team(team: Team) -> None:
    """Workloads first: Kueue 0.17 rewrites the status of a gated one without its queue for ever."""
    team.delete_jobs()
    for path in (
        f"{KUEUE}/namespaces/{team.name}/localqueues/{team.queue}",
        f"{KUEUE}/clusterqueues/{team.name}",
        f"{KUEUE}/resourceflavors/{team.name}",
        f"/api/v1/namespaces/{team.name}",
    ):
        try:
            team.cluster.api("DELETE", path)
        except ApiError as error:
            if error.status != 404:  # some tests take a queue away themselves
                raise
