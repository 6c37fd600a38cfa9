"""Kubernetes objects become the planning request that they mean, and the broken ones spoil nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import START, MemoryCluster

from scheduler import facts
from scheduler.annotations import MAX_DURATION
from scheduler.cluster import GATE, GATES_ANNOTATION
from scheduler.kinds import ROOTS, RootKind
from scheduler.plans import Placement, PlanInForce
from scheduler.settings import HOUR, MINUTE, SECOND, Settings
from scheduler.snapshot import Item, Snapshot, Snapshotter, snapshot
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.problem import State


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.queue()
    return cluster


def only(snap: Snapshot) -> Item:
    assert len(snap.items) == len(snap.request.workloads.id) == 1
    return snap.items[0]


def reasons(snap: Snapshot) -> list[str]:
    return [complaint.reason for complaint in snap.complaints]


def test_gated_job(cluster: MemoryCluster) -> None:
    """A gated Job is one pending row with its wishes, its request and its root."""
    cluster.job("train", 2, deadline="8h", duration="2h30m", weight="3", lateness="hard", spec={"parallelism": 2})
    snap = snapshot(cluster)
    item = only(snap)
    assert (item.state, item.gated, item.releasable) == (State.PENDING, True, True)
    assert (str(item.root), item.workload.kind) == ("Job team/train", "Workload")
    assert (item.queue, item.cluster_queue) == ("lq", "cq")
    assert (item.estimate, item.estimate_source) == (150 * MINUTE, "punctual.kueue/duration")
    row = snap.request.workloads
    assert list(row.due_ms) == [START + 8 * HOUR]
    assert (list(row.weight), list(row.hard)) == ([3.0], [True])
    pods = snap.request.shapes[row.shape[0]].pod_sets[0]
    assert (pods.count, list(pods.amounts)) == (2, [2])
    assert [snap.request.quota.resources[r] for r in pods.resources] == ["nvidia.com/gpu"]
    assert snap.complaints == ()
    problem = decode(snap.request)
    assert (len(problem), problem.rejected) == (1, ())


def test_estimates_by_default(cluster: MemoryCluster) -> None:
    """Kueue's execution limit, then the Job's, then the setting estimate the run time."""
    cluster.job("a", spec={"activeDeadlineSeconds": 60})
    cluster.job("b", spec={"activeDeadlineSeconds": 60})
    cluster.job("c")
    cluster.edit("Workload", cluster.key_of("b"), lambda w: w["spec"].update(maximumExecutionTimeSeconds=30))
    items = {i.root.name: i for i in snapshot(cluster, Settings(default_duration_ms=7 * MINUTE)).items}
    assert {name: (i.estimate, i.estimate_source) for name, i in items.items()} == {
        "a": (60 * SECOND, "activeDeadlineSeconds"),
        "b": (30 * SECOND, "maximumExecutionTimeSeconds"),
        "c": (7 * MINUTE, "default"),
    }


def test_no_limit_at_all(cluster: MemoryCluster) -> None:
    """An execution limit of many years, to say that there is none, is no reason to leave work out of the plan."""
    cluster.job("a", spec={"activeDeadlineSeconds": 1 << 62})
    cluster.job("b")
    cluster.edit("Workload", cluster.key_of("b"), lambda w: w["spec"].update(maximumExecutionTimeSeconds=(1 << 31) - 1))
    snap = snapshot(cluster)
    assert {item.estimate for item in snap.items} == {MAX_DURATION}
    assert decode(snap.request).rejected == ()


def test_ownerless_workload(cluster: MemoryCluster) -> None:
    """An ownerless Workload is its own root, and has the annotations itself."""
    workload = cluster.job("train", deadline="1h")
    cluster.drop("Job", "team/train")

    def disown(w: dict[str, Any]) -> None:
        del w["metadata"]["ownerReferences"]
        w["metadata"]["annotations"]["punctual.kueue/deadline"] = "2h"

    cluster.edit("Workload", f"team/{workload['metadata']['name']}", disown)
    item = only(snapshot(cluster))
    assert (item.root, item.deadline, item.releasable) == (item.workload, START + 2 * HOUR, True)


def test_life_of_a_job(cluster: MemoryCluster) -> None:
    """Pending, in flight, running, and gone when finished; evicted, it is in flight again."""
    cluster.job("train", duration="1h")
    taker = Snapshotter(Settings())
    assert only(taker.take(cluster)).state == State.PENDING
    cluster.release(only(taker.take(cluster)).root)
    assert only(taker.take(cluster)).state == State.IN_FLIGHT
    cluster.admit("train")
    cluster.time += 20 * MINUTE
    snap = taker.take(cluster)
    assert only(snap).state == State.RUNNING
    assert list(snap.request.workloads.duration_ms) == [40 * MINUTE]
    cluster.condition("train", "QuotaReserved", "False", "Pending", "Preempted to accommodate another")
    evicted = only(taker.take(cluster))
    assert (evicted.state, evicted.message) == (State.IN_FLIGHT, "Preempted to accommodate another")
    cluster.finish("train")
    assert taker.take(cluster).items == ()


def test_released_counts_although_the_watch_lags(cluster: MemoryCluster) -> None:
    """What was released is in flight, whatever annotation is still seen."""
    cluster.job("train")
    uid = only(snapshot(cluster)).uid
    item = only(Snapshotter(Settings()).take(cluster, released={uid}))
    assert (item.state, item.releasable) == (State.IN_FLIGHT, False)


def test_gate_is_told_by_the_root(cluster: MemoryCluster) -> None:
    """A Job without our gate is in flight even while its Workload still shows the gate, and the other way round."""
    cluster.job("train")
    cluster.edit("Job", "team/train", lambda j: j["metadata"].update(annotations={}))
    assert only(snapshot(cluster)).state == State.IN_FLIGHT
    cluster.job("other")
    cluster.edit("Workload", cluster.key_of("other"), lambda w: w["metadata"].update(annotations={}))
    cluster.condition("other", "QuotaReserved", "False", "Pending")
    assert {i.root.name: i.state for i in snapshot(cluster).items}["other"] == State.PENDING


def test_other_gates(cluster: MemoryCluster) -> None:
    """Work that somebody else gates as well is planned, not released, and its owner is told; else it is not ours."""
    cluster.job("both", gates=f"budget.example.com/check, {GATE}")
    cluster.job("theirs", gates="budget.example.com/check")
    snap = snapshot(cluster)
    item = only(snap)
    assert (item.root.name, item.state, item.releasable) == ("both", State.PENDING, False)
    assert item.other_gates == ("budget.example.com/check",)
    assert reasons(snap) == ["GatedByOthers"]


def test_foreign_work(cluster: MemoryCluster) -> None:
    """Ungated work of other namespaces, and services anywhere, is not ours."""
    cluster.put({"kind": "Namespace", "metadata": {"name": "free", "labels": {}}})
    cluster.put({"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "free"}, "spec": {"clusterQueue": "cq"}})
    cluster.job("free", namespace="free", gates="")
    cluster.job("service", gates="")
    owner = {"kind": "StatefulSet", "apiVersion": "apps/v1", "name": "service", "uid": "x", "controller": True}
    cluster.edit("Workload", cluster.key_of("service"), lambda w: w["metadata"].update(ownerReferences=[owner]))
    snap = snapshot(cluster)
    assert [item.state for item in snap.items] == [State.FOREIGN, State.FOREIGN]
    assert snap.complaints == ()


def test_out_of_the_plan(cluster: MemoryCluster) -> None:
    """Deactivated and deleted work is no business of a plan."""
    cluster.job("inactive")
    cluster.edit("Workload", cluster.key_of("inactive"), lambda w: w["spec"].update(active=False))
    cluster.job("deleting")
    cluster.edit("Job", "team/deleting", lambda j: j["metadata"].update(deletionTimestamp="2027-01-15T08:00:00Z"))
    assert snapshot(cluster).items == ()


def test_use_of_running_work(cluster: MemoryCluster) -> None:
    """Quota in use is the admitted one less what finished pods gave back, in its flavor, even one nobody lists."""
    cluster.job("train", 3, spec={"parallelism": 4, "completions": 8})
    cluster.admit("train", flavor="old")
    cluster.edit(
        "Workload",
        cluster.key_of("train"),
        lambda w: w["status"].update(reclaimablePods=[{"name": "main", "count": 1}]),
    )
    request = snapshot(cluster).request
    held = request.assignments[request.workloads.assignment[0]]
    assert [request.quota.flavors[f].name for f in held.flavors] == ["old"]
    assert list(held.amounts) == [9]
    problem = decode(request)
    assert (problem.busy.amount.tolist(), problem.rejected) == ([9], ())


def test_partial_admission_gives_back_late(cluster: MemoryCluster) -> None:
    """Admitted with fewer pods than it wanted, work gives back only when fewer than those are left."""
    cluster.job("train", 1, spec={"parallelism": 10})
    cluster.admit("train")

    def cut(w: dict[str, Any]) -> None:
        w["status"]["admission"]["podSetAssignments"][0].update(count=6, resourceUsage={"nvidia.com/gpu": "6"})
        w["status"]["reclaimablePods"] = [{"name": "main", "count": 3}]

    cluster.edit("Workload", cluster.key_of("train"), cut)
    assert list(snapshot(cluster).request.assignments[0].amounts) == [6]


def test_overrun_is_extended(cluster: MemoryCluster) -> None:
    """Work that outlives its estimate is expected to go on for a tenth of it, and never to be gone."""
    cluster.job("train", duration="10h")
    cluster.admit("train")
    for elapsed in (10 * HOUR, 100 * HOUR):
        cluster.time = START + elapsed
        assert list(snapshot(cluster).request.workloads.duration_ms) == [HOUR]


def test_backoff_after_an_eviction(cluster: MemoryCluster) -> None:
    """Kueue leaves evicted work alone until its requeue time, and so does the plan."""
    cluster.job("train", gates="")
    at = {"requeueState": {"requeueAt": "2027-01-15T08:10:00Z"}}
    cluster.edit("Workload", cluster.key_of("train"), lambda w: w["status"].update(at))
    assert list(snapshot(cluster).request.workloads.release_ms) == [START + 10 * MINUTE]


def test_earliest_start(cluster: MemoryCluster) -> None:
    """An earliest start to come is a release date; one that has passed is none."""
    cluster.job("soon", earliest_start="2027-01-15T09:00:00Z")
    cluster.job("past", earliest_start="2027-01-15T07:00:00Z")
    snap = snapshot(cluster)
    dates = dict(zip((i.root.name for i in snap.items), snap.request.workloads.release_ms, strict=True))
    assert dates == {"soon": START + HOUR, "past": 0}


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.kind)
def test_every_root_kind(cluster: MemoryCluster, root: RootKind) -> None:
    """Of whatever kind the root is: its wishes and its limit count, and it is what is released; ungated it is ours."""
    policy: dict[str, Any] = {"suspend": True, "activeDeadlineSeconds": 90}
    for part in reversed(root.policy):
        policy = {part: policy}
    cluster.job("train")
    owner = {"kind": root.kind, "apiVersion": root.version, "name": "train", "uid": "root", "controller": True}
    cluster.edit("Workload", cluster.key_of("train"), lambda w: w["metadata"].update(ownerReferences=[owner]))
    cluster.drop("Job", "team/train")
    annotations = {GATES_ANNOTATION: GATE, "punctual.kueue/deadline": "8h"}
    metadata = {"name": "train", "namespace": "team", "uid": "root", "annotations": annotations}
    cluster.put({"kind": root.kind, "metadata": metadata, **policy})
    planned = only(snapshot(cluster))
    assert (planned.root.kind, planned.root.uid, planned.state) == (root.kind, "root", State.PENDING)
    assert (planned.deadline, planned.estimate) == (START + 8 * HOUR, 90 * SECOND)
    assert planned.releasable
    cluster.edit(root.kind, "team/train", lambda o: o["metadata"]["annotations"].pop(GATES_ANNOTATION))
    assert only(snapshot(cluster)).state == State.IN_FLIGHT


def test_services_are_foreign(cluster: MemoryCluster) -> None:
    """Ungated work of a kind that never gets our gate keeps its turn, also in a managed namespace."""
    cluster.job("serve", gates="")
    owner = {"kind": "RayCluster", "apiVersion": "ray.io/v1", "name": "serve", "uid": "x", "controller": True}
    cluster.edit("Workload", cluster.key_of("serve"), lambda w: w["metadata"].update(ownerReferences=[owner]))
    assert only(snapshot(cluster)).state == State.FOREIGN


def test_owner_gone(cluster: MemoryCluster) -> None:
    """A gated Workload whose Job is gone is not planned; that is said only after the watches had time to meet."""
    cluster.job("train")
    cluster.drop("Job", "team/train")
    assert snapshot(cluster).complaints == ()
    cluster.time += 11 * SECOND
    snap = snapshot(cluster)
    assert (snap.items, reasons(snap)) == ((), ["OwnerGone"])
    assert snap.complaints[0].target.kind == "Workload"


def test_owner_of_another_kind(cluster: MemoryCluster) -> None:
    """A gated Workload of a kind we cannot release is complained about, never planned."""
    cluster.job("train")
    owner = {"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "name": "train", "uid": "x", "controller": True}
    cluster.edit("Workload", cluster.key_of("train"), lambda w: w["metadata"].update(ownerReferences=[owner]))
    snap = snapshot(cluster)
    assert (snap.items, reasons(snap)) == ((), ["UnknownOwner"])


@pytest.mark.parametrize(
    ("change", "reason", "words", "confirmed"),
    [
        (lambda c: c.drop("LocalQueue", "team/lq"), "UnknownQueue", "LocalQueue team/lq does not exist", False),
        (lambda c: c.drop("ClusterQueue", "cq"), "UnknownQueue", "ClusterQueue cq of LocalQueue lq", False),
        (
            lambda c: c.edit("LocalQueue", "team/lq", lambda q: q["spec"].update(stopPolicy="Hold")),
            "QueueStopped",
            "LocalQueue team/lq is stopped (stopPolicy: Hold)",
            True,
        ),
        (
            lambda c: c.edit("ClusterQueue", "cq", lambda q: q["spec"].update(stopPolicy="HoldAndDrain")),
            "QueueStopped",
            "ClusterQueue cq is stopped",
            True,
        ),
        (lambda c: c.drop("ResourceFlavor", "gpu"), "QueueStopped", "missing ResourceFlavor gpu", True),
        (
            lambda c: c.edit(
                "ClusterQueue",
                "cq",
                lambda q: q.update(
                    status={"conditions": [{"type": "Active", "status": "False", "message": "no admission check"}]}
                ),
            ),
            "QueueStopped",
            "ClusterQueue cq is not active: no admission check",
            True,
        ),
        (
            lambda c: c.edit("ClusterQueue", "cq", lambda q: q["spec"].pop("namespaceSelector")),
            "NamespaceRefused",
            "does not take work of namespace team",
            False,
        ),
        (
            lambda c: c.edit(
                "ClusterQueue",
                "cq",
                lambda q: q["spec"].update(namespaceSelector={"matchLabels": {"tier": "gold"}}),
            ),
            "NamespaceRefused",
            "does not take work of namespace team",
            False,
        ),
    ],
)
def test_no_way_into_a_queue(cluster: MemoryCluster, change: Any, reason: str, words: str, confirmed: bool) -> None:
    """Work whose queue is missing, stopped or closed to it is not planned, its owner hears why, and it is stranded."""
    cluster.job("train")
    change(cluster)
    snap = snapshot(cluster)
    assert (snap.items, reasons(snap)) == ((), [reason])
    assert words in snap.complaints[0].message
    assert snap.complaints[0].target.name == "train"
    assert [(lost.item.root.name, lost.confirmed) for lost in snap.stranded] == [("train", confirmed)]


def test_kueue_confirms_a_missing_queue(cluster: MemoryCluster) -> None:
    """A queue that we do not see is surely missing when Kueue says so too."""
    cluster.job("train", queue="nowhere")
    cluster.condition("train", "QuotaReserved", "False", "Inadmissible", "LocalQueue nowhere doesn't exist")
    assert [lost.confirmed for lost in snapshot(cluster).stranded] == [True]


def test_deadline_passed(cluster: MemoryCluster) -> None:
    """A deadline in the past is legal, planned with, and its owner hears of it."""
    cluster.job("train", deadline="1h")
    cluster.time += 2 * HOUR
    snap = snapshot(cluster)
    assert list(snap.request.workloads.due_ms) == [START + HOUR]
    assert reasons(snap) == ["DeadlinePassed"]


def test_bad_annotations(cluster: MemoryCluster) -> None:
    """An unreadable annotation is a complaint to the Job; the Job is planned without it."""
    cluster.job("train", deadline="2027-01-16T08:00:00", duration="1h")
    snap = snapshot(cluster)
    assert (only(snap).deadline, only(snap).estimate) == (None, HOUR)
    assert reasons(snap) == ["InvalidAnnotation"]
    assert "write 2027-01-16T08:00:00Z" in snap.complaints[0].message
    assert str(snap.complaints[0].target) == "Job team/train"


def test_never_fits(cluster: MemoryCluster) -> None:
    """A request beyond the whole quota, or for what the queue does not have, is rejected when it is decoded."""
    cluster.job("large", 5)
    cluster.job("memory", pod={"containers": [{"name": "m", "resources": {"requests": {"memory": "1Gi"}}}]})
    snap = snapshot(cluster)
    problem = decode(snap.request)
    told = {snap.items[r.row].root.name: (r.kind, r.message) for r in problem.rejected}
    assert told["large"][0] == told["memory"][0] == pb.NEVER_FITS
    assert "maximum capacity 4" in told["large"][1]
    assert "resource memory unavailable" in told["memory"][1]


def test_excluded_flavors_and_pods(cluster: MemoryCluster) -> None:
    """A node selector excludes flavors, and pods count where the queue limits them."""
    for kind in "ab":
        flavor = {"kind": "ResourceFlavor", "metadata": {"name": kind}, "spec": {"nodeLabels": {"kind": kind}}}
        cluster.put(flavor)
    quotas = [{"name": "nvidia.com/gpu", "nominalQuota": 4}, {"name": "pods", "nominalQuota": 8}]
    group = {
        "coveredResources": ["nvidia.com/gpu", "pods"],
        "flavors": [{"name": name, "resources": quotas} for name in "ab"],
    }
    cluster.edit("ClusterQueue", "cq", lambda q: q["spec"].update(resourceGroups=[group]))
    cluster.job("train", 1, pod={"nodeSelector": {"kind": "b"}}, spec={"parallelism": 3})
    request = snapshot(cluster).request
    pods = request.shapes[0].pod_sets[0]
    assert [request.quota.flavors[f].name for f in pods.excluded_flavors] == ["a"]
    amounts = {request.quota.resources[r]: a for r, a in zip(pods.resources, pods.amounts, strict=True)}
    assert (pods.count, amounts) == (3, {"nvidia.com/gpu": 1, "pods": 1})


def test_quota_tree(cluster: MemoryCluster) -> None:
    """Cohorts, limits, strategies and fungibility arrive as they are; "no limit" in memory is cut to what counts."""
    cluster.put({"kind": "Cohort", "metadata": {"name": "all"}, "spec": {"parentName": "root"}})
    quotas = [{"name": "memory", "nominalQuota": "8Ei", "borrowingLimit": "1Gi", "lendingLimit": "2Gi"}]
    group = {"coveredResources": ["memory"], "flavors": [{"name": "gpu", "resources": quotas}]}
    cluster.edit(
        "ClusterQueue",
        "cq",
        lambda q: q["spec"].update(
            cohortName="all",
            queueingStrategy="StrictFIFO",
            flavorFungibility={"whenCanBorrow": "TryNextFlavor"},
            resourceGroups=[group],
        ),
    )
    tree = decode(snapshot(cluster).request).tree
    assert tree.frozen == {}
    assert (tree.strict_fifo.tolist(), tree.try_next_flavor.tolist()) == ([True], [True])
    node, memory = int(tree.queue_node[0]), tree.cell(0, tree.resources.index("memory"))
    assert (tree.borrowing[node, memory], tree.lending[node, memory]) == (1 << 30, 2 << 30)
    assert tree.names[tree.parent[node]] == "all"
    assert tree.names[tree.parent[tree.parent[node]]] == "root"


def test_previous_plan(cluster: MemoryCluster) -> None:
    """The plan in force goes along, for the rows that are still there."""
    cluster.job("a")
    cluster.job("b")
    seen = snapshot(cluster)
    placement = Placement(0, START + HOUR, 0, START + 2 * HOUR, 0, 2, {})
    plan = PlanInForce(START, {seen.items[1].uid: placement, "gone": placement}, {}, "x", (), 0.0, 0.0)
    previous = seen.request_after(plan).previous
    assert (list(previous.workload), list(previous.start_ms)) == ([1], [START + HOUR])
    assert seen.request_after(None) == seen.request
    assert not seen.request.HasField("previous")


def test_signature(cluster: MemoryCluster) -> None:
    """The signature tells changes that matter to a plan from those that do not, and from time that passes."""
    taker = Snapshotter(Settings())
    cluster.job("train", deadline="1h")
    before = taker.take(cluster).signature
    cluster.time += MINUTE
    cluster.condition("train", "QuotaReserved", "False", "AdmissionGated")
    assert taker.take(cluster).signature == before
    cluster.edit("Job", "team/train", lambda j: j["metadata"]["annotations"].update({"punctual.kueue/deadline": "2h"}))
    after = taker.take(cluster).signature
    assert after != before
    cluster.queue(gpus=8)
    assert taker.take(cluster).signature != after


BROKEN = [
    {},
    {"metadata": None},
    {"metadata": {}},
    {"metadata": {"name": "x"}},
    {"metadata": {"name": "x", "namespace": "team", "uid": "u", "creationTimestamp": "yesterday"}, "spec": {}},
    {
        "metadata": {"name": "x", "namespace": "team", "uid": "u", "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"podSets": [{"count": "many"}], "queueName": "lq"},
    },
    {
        "metadata": {"name": "x", "namespace": "team", "uid": "u", "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"podSets": 7, "resourceGroups": 7, "nodeLabels": 7, "clusterQueue": None},
        "status": {"conditions": [{}]},
    },
    7,
    None,
]


@pytest.mark.parametrize(
    "kind",
    [
        "Namespace",
        "Job",
        "Workload",
        "LocalQueue",
        "ClusterQueue",
        "Cohort",
        "ResourceFlavor",
        "LimitRange",
        "RuntimeClass",
        "ConfigMap",
    ],
)
@pytest.mark.parametrize("broken", BROKEN)
def test_broken_objects(cluster: MemoryCluster, kind: str, broken: Any) -> None:
    """A half-written object of any kind never hides the others; what cannot be read is complained about."""
    cluster.job("train")
    objects = cluster.objects
    cluster.objects = lambda k: {**objects(k), **({"team/x": broken} if k == kind else {})}  # type: ignore[method-assign]
    snap = snapshot(cluster)
    assert "train" in [item.root.name for item in snap.items]
    for complaint in snap.complaints:
        assert (complaint.reason, complaint.target.kind) == ("Unreadable", kind)
    if not isinstance(broken, dict):
        assert "cannot be read" in snap.complaints[0].message


def test_a_workload_without_pod_sets(cluster: MemoryCluster) -> None:
    """It is complained about in words that name the field."""
    cluster.job("train")
    cluster.edit("Workload", cluster.key_of("train"), lambda w: w["spec"].update(podSets=None))
    (complaint,) = snapshot(cluster).complaints
    assert complaint.message.endswith("cannot be read: spec.podSets is no list")


def test_a_label_that_is_no_text(cluster: MemoryCluster) -> None:
    """A flavor with a node label that is no text is complained about, and so is a Job with such a node selector."""
    node = {"allocatable": {"nvidia.com/gpu": "8"}}
    cluster.put({"kind": "Node", "metadata": {"name": "n", "labels": {"gpu": "h100"}}, "status": node})
    cluster.put({"kind": "ResourceFlavor", "metadata": {"name": "odd"}, "spec": {"nodeLabels": {"gpu": ["h100"]}}})
    cluster.job("train")
    cluster.job("other")
    selector = {"gpu": ["h100"]}
    cluster.edit(
        "Workload",
        cluster.key_of("other"),
        lambda w: w["spec"]["podSets"][0]["template"]["spec"].update(nodeSelector=selector),
    )
    snap = snapshot(cluster)
    assert only(snap).root.name == "train"
    assert [complaint.message.partition(": ")[2] for complaint in snap.complaints] == [
        "nodeLabels.gpu is ['h100'], not text",
        "nodeSelector.gpu is ['h100'], not text",
    ]


json = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 3, 10**20, -(10**20), "9E", "-1"]) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "count", "uid"]), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["Job", "Workload", "LocalQueue", "ClusterQueue", "ResourceFlavor"]), st.data())
def test_any_field_may_be_nonsense(kind: str, data: st.DataObject) -> None:
    """Whatever JSON stands in whatever field: no exception, and the healthy Job beside it is planned."""
    cluster = MemoryCluster()
    cluster.queue()
    cluster.queue("cq2", local="lq2")
    cluster.job("train")
    cluster.job("broken", queue="lq2", deadline="1h")
    cluster.admit("broken", queue="cq2")
    key = {"Job": "team/broken", "Workload": cluster.key_of("broken"), "LocalQueue": "team/lq2", "ClusterQueue": "cq2"}
    cluster.put({"kind": "ResourceFlavor", "metadata": {"name": "spare"}, "spec": {"nodeLabels": {"a": "b"}}})

    def spoil(item: Any) -> None:
        while True:
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            at = data.draw(st.sampled_from(keys))
            inner = item[at]
            if inner and isinstance(inner, dict | list) and data.draw(st.booleans()):
                item = inner
                continue
            item[at] = data.draw(json)
            return

    item = copy.deepcopy(dict(cluster.objects(kind)[key.get(kind, "spare")]))
    spoil(item)
    objects = cluster.objects
    spoiled = {k: item if k == key.get(kind, "spare") else v for k, v in objects(kind).items()}
    cluster.objects = lambda k: spoiled if k == kind else objects(k)  # type: ignore[method-assign]
    snap = snapshot(cluster)
    assert "train" in [i.root.name for i in snap.items]
    assert len(snap.items) == len(snap.request.workloads.id)
    decode(snap.request)


def test_many_are_cheap_to_look_at_again(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what changed is parsed again."""
    for number in range(20):
        cluster.job(f"job-{number}")
    taker = Snapshotter(Settings())
    taker.take(cluster)
    parsed: list[str] = []
    read = facts.read_pod_set
    monkeypatch.setattr(facts, "read_pod_set", lambda *a: parsed.append("one") or read(*a))
    taker.take(cluster)
    assert parsed == []
    cluster.condition("job-3", "QuotaReserved", "False", "AdmissionGated")
    assert len(taker.take(cluster).items) == 20
    assert len(parsed) == 1


def asked(snap: Snapshot) -> dict[str, dict[str, int]]:
    """What one pod of each Job asks for."""
    resources, shapes, rows = snap.request.quota.resources, snap.request.shapes, snap.request.workloads
    return {
        item.root.name: {
            resources[r]: amount
            for pod_set in shapes[rows.shape[row]].pod_sets
            for r, amount in zip(pod_set.resources, pod_set.amounts, strict=True)
        }
        for row, item in enumerate(snap.items)
    }


def test_what_the_namespace_adds_counts(cluster: MemoryCluster) -> None:
    """Defaults of LimitRanges count in their namespace only, overhead of a RuntimeClass for its pods; a change counts
    at once, and is news to the plan."""
    cluster.queue("cq-other", local="lq", namespace="other")
    cluster.job("plain", 1)
    cluster.job("sandboxed", 1, pod={"runtimeClassName": "kata"})
    cluster.job("elsewhere", 1, namespace="other")
    taker = Snapshotter(Settings())
    before = taker.take(cluster)
    gpu = {"nvidia.com/gpu": 1}
    assert asked(before) == {"plain": gpu, "sandboxed": gpu, "elsewhere": gpu}
    limits = [{"type": "Container", "defaultRequest": {"cpu": "2"}}]
    cluster.put({"kind": "LimitRange", "metadata": {"name": "l", "namespace": "team"}, "spec": {"limits": limits}})
    cluster.put({"kind": "RuntimeClass", "metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "1"}}})
    after = taker.take(cluster)
    assert asked(after) == {"plain": {**gpu, "cpu": 2000}, "sandboxed": {**gpu, "cpu": 3000}, "elsewhere": gpu}
    assert after.signature != before.signature
    assert taker.take(cluster).signature == after.signature
    cluster.drop("LimitRange", "team/l")
    cluster.drop("RuntimeClass", "kata")
    assert asked(taker.take(cluster)) == asked(before)


def test_kueues_configuration_counts(cluster: MemoryCluster) -> None:
    """Resources are transformed as Kueue's ConfigMap says; one that cannot be read is complained about, and no rule."""

    def configure(resources: str) -> None:
        metadata = {"name": "kueue-manager-config", "namespace": "kueue-system"}
        data = {"controller_manager_config.yaml": f"resources: {resources}"}
        cluster.put({"kind": "ConfigMap", "metadata": metadata, "data": data})

    cluster.job("train", 2)
    taker = Snapshotter(Settings())
    configure("{transformations: [{input: nvidia.com/gpu, strategy: Replace, outputs: {units: 8}}]}")
    assert asked(taker.take(cluster)) == {"train": {"units": 16}}
    configure("{transformations: 7}")
    broken = taker.take(cluster)
    assert asked(broken) == {"train": {"nvidia.com/gpu": 2}}
    (complaint,) = broken.complaints
    assert (complaint.reason, complaint.target.kind) == ("Unreadable", "ConfigMap")


def test_what_kueue_refuses_is_said(cluster: MemoryCluster) -> None:
    """Work that breaks a LimitRange never fits, however much is free, and it is said why."""
    limits = [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]
    cluster.put({"kind": "LimitRange", "metadata": {"name": "l", "namespace": "team"}, "spec": {"limits": limits}})
    cluster.job("large", 2)
    cluster.job("small", 1)
    snap = snapshot(cluster)
    refused = {item.root.name: item.refused for item in snap.items}
    assert "more nvidia.com/gpu than its limit" in refused.pop("large")
    assert refused == {"small": ""}
    rejected = [(snap.items[r.row].root.name, r.kind) for r in decode(snap.request).rejected]
    assert rejected == [("large", pb.NEVER_FITS)]


def test_work_that_passes_by_the_plan_is_put_on_record(cluster: MemoryCluster) -> None:
    """Who let it pass and why is said on it, waiting or running; a reason alone, which anybody may write, is none."""
    cluster.job("urgent", gates="", bypass="outage of prod", bypassed_by="alice")
    cluster.job("claims", gates="", bypass="me first")
    before = snapshot(cluster)
    cluster.admit("urgent")
    for seen in (before, snapshot(cluster)):
        assert [item.root.name for item in seen.items if item.bypassed_by] == ["urgent"]
        (told,) = [complaint for complaint in seen.complaints if complaint.reason == "Bypassed"]
        assert (told.target.name, told.message) == ("urgent", "passes by the plan, by alice: outage of prod")
