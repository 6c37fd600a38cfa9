"""Manifests of simple clusters and jobs, for scenarios and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.annotations import DEADLINE, DURATION, format_duration
from scheduler.cluster import PREFIX, QUEUE_LABEL
from simulator.timeline import GPU

RUN_FOR = f"{PREFIX}/run-for"
"""Annotation of a pod template: how long a simulated pod runs (a Go duration), whatever the job's estimate says."""

TEAM = "research"
"""The namespace, and its ClusterQueue, unless another is given."""

QUEUE = "gpus"
"""Name of each team's LocalQueue."""

FLAVOR = "gpu"


def flavor(name: str = FLAVOR, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A ResourceFlavor."""
    return {**_kueue("ResourceFlavor", name), "spec": {"nodeLabels": dict(labels or {})}}


def team(
    name: str = TEAM,
    gpus: int = 4,
    *,
    cohort: str = "",
    strict: bool = False,
    flavors: Mapping[str, int] | None = None,
    borrowing_limit: int | None = None,
    lending_limit: int | None = None,
    reclaims: bool = False,
) -> list[dict[str, Any]]:
    """A managed Namespace with a LocalQueue and a ClusterQueue of its own, which has so many GPUs.

    Parameters
    ----------
    flavors
        GPUs by flavor, in Kueue's order, in place of ``gpus`` of one flavor.
    reclaims
        Whether it gets back what it has lent, by eviction.
    """
    quotas = []
    for flavor_name, nominal in (flavors or {FLAVOR: gpus}).items():
        quota: dict[str, Any] = {"name": GPU, "nominalQuota": nominal}
        if borrowing_limit is not None:
            quota["borrowingLimit"] = borrowing_limit
        if lending_limit is not None:
            quota["lendingLimit"] = lending_limit
        quotas.append({"name": flavor_name, "resources": [quota]})
    spec: dict[str, Any] = {
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO" if strict else "BestEffortFIFO",
        "resourceGroups": [{"coveredResources": [GPU], "flavors": quotas}],
    }
    if cohort:
        spec["cohortName"] = cohort
    if reclaims:
        spec["preemption"] = {"reclaimWithinCohort": "Any"}
    local = _kueue("LocalQueue", QUEUE)
    local["metadata"]["namespace"] = name
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {f"{PREFIX}/managed": "true"}}},
        {**_kueue("ClusterQueue", name), "spec": spec},
        {**local, "spec": {"clusterQueue": name}},
    ]


def job(
    name: str,
    gpus: int,
    duration: int,
    *,
    namespace: str = TEAM,
    deadline: int | None = None,
    runs: int | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    pods: int = 1,
) -> dict[str, Any]:
    """A Job of ``pods`` pods with ``gpus`` each.

    Parameters
    ----------
    duration, deadline
        Estimate, and due date counted from creation, in milliseconds.
    runs
        How long it really runs, in milliseconds, if not as estimated.
    """
    ours = {DURATION: format_duration(duration)}
    if deadline is not None:
        ours[DEADLINE] = format_duration(deadline)
    template: dict[str, Any] = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {GPU: gpus}}}],
        }
    }
    if runs is not None:
        template["metadata"] = {"annotations": {RUN_FOR: format_duration(runs)}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {QUEUE_LABEL: QUEUE, **(labels or {})},
            "annotations": {**ours, **(annotations or {})},
        },
        "spec": {"parallelism": pods, "template": template},
    }


def _kueue(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
