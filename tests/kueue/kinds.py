"""The smallest object of each finite root kind that Kueue queues, for a queue of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.kinds import ROOT_KINDS
from tests.kueue.team import QUEUE, Team

RUNTIME = "plain"
"""The TrainingRuntime that a TrainJob names."""


def pod(container: str = "main", gpus: int = 1) -> dict[str, Any]:
    """A pod template."""
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    containers = [{"name": container, "image": "none", "resources": resources}]
    return {"spec": {"restartPolicy": "Never", "containers": containers}}


def _replicas(field: str, **roles: int) -> Callable[[], dict[str, Any]]:
    """Spec of a Kubeflow job: one pod a role, with so many GPUs."""
    return lambda: {
        "runPolicy": {},
        field: {
            role: {"replicas": 1, "restartPolicy": "Never", "template": pod(field.removesuffix("ReplicaSpecs"), gpus)}
            for role, gpus in roles.items()
        },
    }


def _jobset(container: str = "main", **metadata: Any) -> dict[str, Any]:
    spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": pod(container)}
    return {"replicatedJobs": [{"name": container, "replicas": 1, "template": {"metadata": metadata, "spec": spec}}]}


def _ray() -> dict[str, Any]:
    workers = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    head = {"rayStartParams": {}, "template": pod("head", 0)}
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [{**workers, "template": pod("worker")}]}
    return {
        "entrypoint": "true",
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
    }


SPECS: dict[str, Callable[[], dict[str, Any]]] = {
    "Job": lambda: {"template": {**pod(), "metadata": {"annotations": {"punctual.kueue/run-for": "1h"}}}},
    "JobSet": _jobset,
    "TrainJob": lambda: {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": RUNTIME},
        "trainer": {"numNodes": 1},
    },
    "PyTorchJob": _replicas("pytorchReplicaSpecs", Master=1),
    "TFJob": _replicas("tfReplicaSpecs", Worker=1),
    "XGBoostJob": _replicas("xgbReplicaSpecs", Master=1),
    "PaddleJob": _replicas("paddleReplicaSpecs", Worker=1),
    "JAXJob": _replicas("jaxReplicaSpecs", Worker=1),
    "MPIJob": _replicas("mpiReplicaSpecs", Launcher=0, Worker=1),
    "RayJob": _ray,
}
"""Spec by kind: each asks for one GPU."""


def training_runtime() -> dict[str, Any]:
    """What a TrainJob is made from."""
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": RUNTIME},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": _jobset("node", labels=step)}},
    }


def collection(team: Team, kind: str) -> str:
    """Path of a team's objects of a kind."""
    root = ROOT_KINDS[kind]
    return f"/apis/{root.version}/namespaces/{team.name}/{root.plural}"


def body(team: Team, kind: str, name: str, queue: str | None = None, **annotations: str) -> dict[str, Any]:
    """An object of a kind in the team's queue (or another, "" for none), with annotations of ours."""
    queue = team.queue if queue is None else queue
    named = {f"punctual.kueue/{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "labels": {QUEUE: queue} if queue else {}, "annotations": named}
    return {"apiVersion": ROOT_KINDS[kind].version, "kind": kind, "metadata": metadata, "spec": SPECS[kind]()}
