"""Waits until freshly applied admission policies act: an apiserver looks for new ones once a second."""

from __future__ import annotations

import time

from localcluster import kueue
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.rest import ApiError

GATES = "kueue.x-k8s.io/admission-gated-by"
PROBE = "policy-probe"


def wait_for_policies(cluster: LocalCluster, namespace: str, queue: str, timeout: float = 30) -> None:
    """Return once a Job in this queue is gated and guarded. The namespace must be opted in.

    Raises
    ------
    LocalClusterError
        They do not act in time.
    """
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    job = {
        "metadata": {"name": PROBE, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    end = time.monotonic() + timeout
    while not _gated(cluster.api("POST", f"{jobs}?dryRun=All", job)):
        _pause(end, "no gate is put on Jobs")
    cluster.api("POST", jobs, job)
    # This guard is the last of its kind by name, so the last that `kubectl apply -k` creates: the others act too.
    while not _refused(cluster, f"{jobs}/{PROBE}?dryRun=All"):
        _pause(end, "a gated Job may be unsuspended")
    cluster.api("DELETE", f"{jobs}/{PROBE}?propagationPolicy=Background")
    while _has_workload(cluster, namespace):
        _pause(end, "the Workload of a deleted Job does not go")


def _gated(job: dict[str, dict[str, dict[str, str]]]) -> bool:
    return GATES in job["metadata"].get("annotations", {})


def _refused(cluster: LocalCluster, path: str) -> bool:
    try:
        cluster.api("PATCH", path, {"spec": {"suspend": False}})
    except ApiError as error:
        return error.status == 403
    return False


def _has_workload(cluster: LocalCluster, namespace: str) -> bool:
    workloads = cluster.api("GET", f"{kueue.API}/namespaces/{namespace}/workloads")["items"]
    owners = [owner["name"] for each in workloads for owner in each["metadata"].get("ownerReferences", [])]
    return PROBE in owners


def _pause(end: float, still: str) -> None:
    if time.monotonic() > end:
        raise LocalClusterError(f"waited for admission policies to act: {still}")
    time.sleep(0.1)
