"""Nodes: what is read of them, whose they are, and how many are counted on."""

from __future__ import annotations

from typing import Any

from memory_cluster import MemoryCluster

from scheduler.forecast import forecast
from scheduler.kubernetes import KubernetesCluster
from scheduler.nodes import Alike, essence, nodes_of, read_node
from scheduler.podset import NODES, Flavor, read_flavor
from scheduler.settings import Settings
from scheduler.snapshot import Snapshotter, snapshot
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal

GPU = "nvidia.com/gpu"
NODES_PATH = "/api/v1/nodes"


def node(name: str = "n", gpus: int = 8, **more: Any) -> dict[str, Any]:
    """A Node in service; keywords: labels, taints, unschedulable, ready, and further resources."""
    ready = "True" if more.pop("ready", True) else "False"
    labels, spec = more.pop("labels", {}), {k: more.pop(k) for k in ("taints", "unschedulable") if k in more}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {
            "allocatable": {GPU: str(gpus), **more},
            "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": "2027-01-15T08:00:00Z"}],
        },
    }


def flavor(**spec: Any) -> Flavor:
    """A ResourceFlavor whose nodes are all that there will be."""
    return read_flavor({"metadata": {"annotations": {NODES: "fixed"}}, "spec": spec})


def gpus_of(flavor: Flavor, *nodes: dict[str, Any], quota: int = 100) -> dict[int, int]:
    """Number of nodes of a flavor by their GPUs."""
    return {alike.size: alike.nodes for alike in nodes_of(flavor, [read_node(n) for n in nodes], {GPU: quota})}


def test_nodes_of_a_flavor_have_its_labels() -> None:
    """Nodes belong to the flavors whose labels they have; to a flavor without labels all do."""
    nodes = [node(labels={"gpu": "a100", "zone": "1"}), node(gpus=4, labels={"gpu": "t4"}), node(gpus=0)]
    assert gpus_of(flavor(), *nodes) == {8: 1, 4: 1}
    assert gpus_of(flavor(nodeLabels={"gpu": "a100"}), *nodes) == {8: 1}
    assert gpus_of(flavor(nodeLabels={"gpu": "h100"}), *nodes) == {}


def test_nodes_out_of_service_do_not_count() -> None:
    """Nodes that are not ready, cordoned or tainted do not count; taints that the flavor expects do no harm."""
    mine = {"key": "team", "value": "a", "effect": "NoSchedule"}
    others = {"key": "team", "value": "b", "effect": "NoSchedule"}
    gpu = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    full = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    slow = {"key": "slow", "effect": "PreferNoSchedule"}
    usual = flavor(nodeTaints=[mine])
    for wrong in ({"ready": False}, {"unschedulable": True}, {"taints": [others]}, {"taints": [mine, full]}):
        assert gpus_of(usual, node(**wrong)) == {}
    for right in ({}, {"taints": [mine]}, {"taints": [gpu]}, {"taints": [slow]}):
        assert gpus_of(usual, node(**right)) == {8: 1}
    assert gpus_of(flavor(tolerations=[{"key": "team", "operator": "Exists"}]), node(taints=[others])) == {8: 1}


def test_more_nodes_are_expected_where_quota_says_so() -> None:
    """Nodes of the largest kind are added until they have the flavor's quota, unless its nodes are fixed."""
    nodes = [node(), node(gpus=4)]
    assert gpus_of(read_flavor({}), *nodes, quota=12) == {8: 1, 4: 1}
    assert gpus_of(read_flavor({}), *nodes, quota=13) == {8: 2, 4: 1}
    assert gpus_of(read_flavor({}), quota=13) == {}
    assert gpus_of(flavor(), *nodes, quota=13) == {8: 1, 4: 1}


def test_nodes_of_a_kind_are_alike() -> None:
    """Memory that differs by some pages is the same; cpu is in millicores; what there is no quota of is left out."""
    nodes = [read_node(node(memory=memory, cpu="63500m")) for memory in ("503Gi", "527433728Ki", "16Gi")]
    assert list(nodes_of(flavor(), nodes, {"memory": 0, "cpu": 0})) == [
        Alike("memory", 16 << 30, 1),
        Alike("memory", 503 << 30, 2),
        Alike("cpu", 63_500, 3),
    ]


def two_wide_jobs() -> MemoryCluster:
    """Quota for 16 GPUs, and two jobs that ask for 6 in one pod."""
    cluster = MemoryCluster()
    cluster.queue(gpus=16)
    cluster.put({"kind": "ResourceFlavor", "metadata": {"name": "gpu", "annotations": {NODES: "fixed"}}, "spec": {}})
    cluster.job("one", 6, duration="1h", deadline="1h")
    cluster.job("two", 6, duration="1h")
    return cluster


def test_work_that_waits_for_nodes_says_so() -> None:
    """On one node of 8 GPUs two pods of 6 follow each other, for want of nodes; on two nodes they run at once."""
    cluster = two_wide_jobs()
    for nodes, second in (
        (1, "waits for nodes: those of flavor gpu have no room for pods of 6 nvidia.com/gpu until"),
        (2, "starts now: there is room"),
    ):
        cluster.put(node(f"n{nodes}"))
        seen = snapshot(cluster)
        problem = decode(seen.request)
        shown = forecast(seen, encode(problem, plan(problem, seen.request.policy)))
        reasons = {row.item.root.name: row.reason for row in shown.rows}
        assert reasons["one"] == "starts now: there is room"
        assert reasons["two"].startswith(second)


def test_running_pods_take_their_nodes() -> None:
    """What runs holds its pods' nodes: two pods of 5 GPUs leave no room for one of 4 on two nodes."""
    cluster = two_wide_jobs()
    cluster.put(node("n1"))
    cluster.put(node("n2"))
    cluster.job("wide", 5, spec={"parallelism": 2, "completions": 2})
    cluster.admit("wide")
    cluster.job("small", 4)
    cluster.job("tiny", 3)
    seen = snapshot(cluster)
    assert [list(held.pods) for held in seen.request.assignments] == [[2]]
    problem = decode(seen.request)
    starts = dict(zip((problem.ids[row] for row in problem.row), plan(problem).start.tolist(), strict=True))
    by_name = {item.root.name: starts.get(item.uid) for item in seen.items}
    assert by_name["small"] > 0
    assert by_name["tiny"] == 0


def test_heartbeats_change_nothing() -> None:
    """A Node that only says that it is alive is no reason for another plan; one that is cordoned is."""
    cluster = two_wide_jobs()
    cluster.put(node("n1"))
    cluster.put(node("n2"))
    snapshotter = Snapshotter(Settings())
    before = snapshotter.take(cluster)
    cluster.edit("Node", "n1", lambda n: n["status"]["conditions"][0].update(lastHeartbeatTime="2027-01-15T09:00:00Z"))
    assert snapshotter.take(cluster).signature == before.signature
    cluster.edit("Node", "n1", lambda n: n["spec"].update(unschedulable=True))
    assert snapshotter.take(cluster).signature != before.signature


def test_heartbeats_wake_nobody() -> None:
    """A watch event by which nothing that matters of a Node changes does not end the wait; another one does."""
    fake = FakeApiServer()
    cluster = KubernetesCluster(fake.api())
    fake.put(NODES_PATH, node("n1"))
    cluster.start()
    assert cluster.wait_synced(10)
    while cluster.wait(0.3):
        pass
    known = cluster.objects("Node")["n1"]
    assert "lastHeartbeatTime" not in known["status"]["conditions"][0]
    beat = node("n1")
    beat["metadata"]["uid"] = known["metadata"]["uid"]
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "2027-01-15T09:00:00Z"
    fake.put(NODES_PATH, beat)
    assert not cluster.wait(0.5)
    fake.put(NODES_PATH, node("n1", gpus=7))
    assert cluster.wait(10)
    assert read_node(cluster.objects("Node")["n1"]) == read_node(node("n1", gpus=7))
    cluster.stop()
    fake.stop()


def test_without_leave_to_see_nodes_plans_are_made_without_them() -> None:
    """A controller that may not list nodes goes on as if there were none known."""
    fake = FakeApiServer()

    def refuse(method: str, path: str) -> None:
        if path == NODES_PATH:
            raise Refusal(403, "nodes is forbidden")

    fake.hooks.append(refuse)
    cluster = KubernetesCluster(fake.api())
    cluster.start()
    assert cluster.wait_synced(10)
    assert cluster.objects("Node") == {}
    assert cluster.unsynced() == {}
    cluster.stop()
    fake.stop()


def test_what_is_kept_of_a_node_is_read_the_same() -> None:
    """Leaving out what nobody reads changes nothing that is read."""
    for item in (
        node(taints=[{"key": "a", "effect": "NoSchedule"}]),
        node(ready=False),
        {"metadata": {"name": "bare"}},
    ):
        assert read_node(essence(item)) == read_node(item)
