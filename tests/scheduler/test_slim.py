"""What is kept of objects is all that is read of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from scheduler.facts import read_cluster_queue, read_local_queue, read_root, read_workload
from scheduler.kinds import ROOTS, RootKind
from scheduler.ledger_facts import read_record
from scheduler.slim import slim

METADATA: dict[str, Any] = {
    "name": "train",
    "namespace": "team",
    "uid": "u1",
    "resourceVersion": "7",
    "generateName": "tr",
    "creationTimestamp": "2027-01-15T08:00:00Z",
    "labels": {"kueue.x-k8s.io/queue-name": "lq"},
    "annotations": {
        "punctual.kueue/deadline": "8h",
        "kueue.x-k8s.io/admission-gated-by": "punctual.kueue/plan",
        "kubectl.kubernetes.io/last-applied-configuration": "{…}" * 1000,
    },
}
CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "train:1",
    "command": ["train"] * 50,
    "env": [{"name": f"V{k}", "value": "x"} for k in range(50)],
    "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
}
POD: dict[str, Any] = {
    "containers": [CONTAINER],
    "initContainers": [{**CONTAINER, "name": "init", "restartPolicy": "Always"}],
    "overhead": {"cpu": "100m"},
    "runtimeClassName": "gvisor",
    "nodeSelector": {"gpu-kind": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumes": [{"name": "data"}],
}
ADMITTED = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": "2027-01-15T09:00:00Z"}
WORKLOAD: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": METADATA,
    "spec": {
        "queueName": "lq",
        "priority": 3,
        "priorityClassRef": {"name": "gold"},
        "maximumExecutionTimeSeconds": 60,
        "podSets": [{"name": "main", "count": 2, "minCount": 1, "template": {"spec": POD}}],
    },
    "status": {
        "conditions": [ADMITTED, {**ADMITTED, "type": "QuotaReserved"}],
        "admission": {
            "clusterQueue": "cq",
            "podSetAssignments": [
                {
                    "name": "main",
                    "count": 2,
                    "flavors": {"nvidia.com/gpu": "a"},
                    "resourceUsage": {"nvidia.com/gpu": "4"},
                }
            ],
        },
    },
}


def of_kind(kind: RootKind) -> dict[str, Any]:
    spec: dict[str, Any] = {"template": {"spec": POD}, "replicas": [{"template": {"spec": POD}}]}
    policy = spec
    for part in kind.policy[1:]:
        policy = policy.setdefault(part, {"pods": {"spec": POD}})
    policy |= {"suspend": True, "activeDeadlineSeconds": 30}
    item = {"apiVersion": kind.version, "kind": kind.kind, "metadata": METADATA, "spec": spec}
    return {**item, "status": {"active": 1}}


@pytest.mark.parametrize("kind", ROOTS, ids=lambda kind: kind.kind)
def test_a_root_object_reads_the_same(kind: RootKind) -> None:
    """Facts of a root object are those of the whole one, and its pod templates are gone."""
    whole = of_kind(kind)
    kept = slim(kind.kind, copy.deepcopy(whole))
    assert read_root(kind.kind, kept) == read_root(kind.kind, whole)
    assert read_root(kind.kind, kept).active_deadline == 30_000
    assert "containers" not in json.dumps(kept)
    assert len(json.dumps(kept)) < 1000


def test_a_workload_reads_the_same() -> None:
    """Facts of a Workload, and what the ledger wants of it, are those of the whole one; it is a good deal smaller."""
    kept = slim("Workload", copy.deepcopy(WORKLOAD))
    assert read_workload(kept) == read_workload(WORKLOAD)
    assert read_record(kept) == read_record(WORKLOAD)
    assert len(json.dumps(kept)) < len(json.dumps(WORKLOAD)) / 4


def test_what_kueue_counts_in_queues_is_no_change() -> None:
    """A queue reads the same without the numbers that Kueue writes into it at each start and end of work."""
    condition = {"type": "Active", "status": "False", "reason": "Stopped", "message": "is stopped"}
    queue = {
        "metadata": {"name": "q", "uid": "u", "resourceVersion": "1", "namespace": "team"},
        "spec": {"clusterQueue": "cq", "cohortName": "all", "namespaceSelector": {}},
        "status": {"conditions": [condition], "fairSharing": {"weightedShare": 1}, "pendingWorkloads": 3},
    }
    later = {**queue, "status": {**queue["status"], "pendingWorkloads": 4, "flavorsReservation": [{"name": "gpu"}]}}
    for kind, read in (("ClusterQueue", read_cluster_queue), ("LocalQueue", read_local_queue)):
        kept = slim(kind, copy.deepcopy(later))
        assert read(kept) == read(later)
        assert kept == slim(kind, copy.deepcopy(queue))


@pytest.mark.parametrize("spec", [None, [], "text", {"podSets": "no"}, {"podSets": [None, {"template": []}]}])
@pytest.mark.parametrize("kind", ["Workload", "Job", "PyTorchJob", "ClusterQueue"])
def test_odd_objects_are_kept(kind: str, spec: Any) -> None:
    """What is not as it should be is for the reader to say, not to fail on here."""
    item = {"kind": kind, "metadata": {"name": "x"}, "spec": copy.deepcopy(spec)}
    assert slim(kind, item)["metadata"] == {"name": "x"}
