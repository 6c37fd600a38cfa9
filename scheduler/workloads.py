"""The Workload that Kueue makes for a Job.

The simulator needs it, and so does a plan of Jobs that are still files: there is no Kueue that would make it for them.
Follows Kueue 0.17 (``pkg/controller/jobframework``, ``pkg/controller/jobs/job``).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from scheduler.cluster import GATES_ANNOTATION, QUEUE_LABEL, Object

PRIORITY_CLASS_LABEL = "kueue.x-k8s.io/priority-class"
"""Kueue's label on a job: the name of its WorkloadPriorityClass."""

MAX_EXEC_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
"""Kueue's label on a job: it is evicted after so many seconds."""

MIN_PARALLELISM_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"
"""Kueue's annotation on a job: the smallest number of pods it may be admitted with."""


def queue_of(job: Object) -> str:
    """Name of the LocalQueue that a job names in its label; empty when Kueue ignores it."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL) or "")


def workload_name(job: Object) -> str:
    """The name that Kueue gives to a Job's Workload: with a hash, so that names of different kinds never meet."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid", "")
    digest = hashlib.sha1(f"Job\nbatch\n{name}\n{uid}".encode(), usedforsecurity=False).hexdigest()
    return f"{('job-' + name)[:247]}-{digest[:5]}"


def workload_for(job: Object, priorities: Mapping[str, int]) -> dict[str, Any]:
    """A new Workload for a Job, as Kueue makes it: pod set, queue, priority, gates, owner; not admitted.

    Parameters
    ----------
    job
        A ``batch/v1`` Job with name, namespace, uid and creationTimestamp.
    priorities
        Value of each WorkloadPriorityClass. A class that is not there counts 0.
    """
    metadata, spec = job["metadata"], job["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    parallelism = int(_default(spec.get("parallelism"), 1))
    pod_set: dict[str, Any] = {
        "name": "main",
        "count": min(parallelism, int(_default(spec.get("completions"), parallelism))),
        "template": copy.deepcopy(dict(spec.get("template") or {})),
    }
    if MIN_PARALLELISM_ANNOTATION in annotations:
        pod_set["minCount"] = int(annotations[MIN_PARALLELISM_ANNOTATION])
    workload: dict[str, Any] = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job),
            "namespace": metadata["namespace"],
            "creationTimestamp": metadata["creationTimestamp"],
            "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]},
            "annotations": {},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"active": True, "queueName": queue_of(job), "podSets": [pod_set], "priority": 0},
        "status": {},
    }
    if annotations.get(GATES_ANNOTATION):
        workload["metadata"]["annotations"][GATES_ANNOTATION] = annotations[GATES_ANNOTATION]
    if name := labels.get(PRIORITY_CLASS_LABEL):
        workload["spec"]["priority"] = priorities.get(name, 0)
        workload["spec"]["priorityClassRef"] = {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": name,
        }
    if str(labels.get(MAX_EXEC_LABEL, "")).isdecimal() and int(labels[MAX_EXEC_LABEL]) > 0:
        workload["spec"]["maximumExecutionTimeSeconds"] = int(labels[MAX_EXEC_LABEL])
    return workload


def _default(value: Any, otherwise: int) -> Any:
    return otherwise if value is None else value
