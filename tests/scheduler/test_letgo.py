"""Work of queues that take none: when it is let go, and what its owner hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from test_loop import rounds, solve

from scheduler.cluster import GATE, Release, ReleaseResult
from scheduler.letgo import AT_ONCE, LetGo
from scheduler.loop import Loop
from scheduler.metrics import Metrics
from scheduler.planner_client import InlinePlanner
from scheduler.settings import Settings
from scheduler.snapshot import snapshot
from solver.api import planner_pb2 as pb

SETTINGS = Settings(budget_ms=200, engine=pb.GREEDY)
PATIENCE = SETTINGS.stranded_ms

Change = Callable[[MemoryCluster], object]


def hold(cluster: MemoryCluster, policy: str = "Hold") -> None:
    cluster.edit("ClusterQueue", "cq", lambda q: q["spec"].update(stopPolicy=policy))


def inactive(cluster: MemoryCluster) -> None:
    condition = {"type": "Active", "status": "False", "reason": "AdmissionCheckNotFound", "message": "no such check"}
    cluster.edit("ClusterQueue", "cq", lambda q: q.update(status={"conditions": [condition]}))


CAUSES: dict[str, Change] = {
    "LocalQueue deleted": lambda c: c.drop("LocalQueue", "team/lq"),
    "LocalQueue held": lambda c: c.edit("LocalQueue", "team/lq", lambda q: q["spec"].update(stopPolicy="Hold")),
    "ClusterQueue deleted": lambda c: c.drop("ClusterQueue", "cq"),
    "ClusterQueue held": hold,
    "ClusterQueue drained": lambda c: hold(c, "HoldAndDrain"),
    "flavor deleted": lambda c: c.drop("ResourceFlavor", "gpu"),
    "ClusterQueue inactive": inactive,
}


@pytest.fixture
def cluster() -> MemoryCluster:
    """One job runs, one waits behind our gate."""
    cluster = MemoryCluster()
    cluster.queue()
    cluster.job("running", 4, duration="1h")
    cluster.admit("running")
    cluster.job("waiting", 4, duration="1h")
    return cluster


def loop_of(cluster: MemoryCluster) -> Loop:
    return Loop(cluster, InlinePlanner(solve), SETTINGS)


@pytest.mark.parametrize("change", CAUSES.values(), ids=CAUSES)
def test_let_go_within_two_seconds(cluster: MemoryCluster, change: Change) -> None:
    """Whatever stops a queue, its gates are off within two seconds and not at once, and owners hear why, once."""
    loop = loop_of(cluster)
    rounds(loop, cluster, 3)
    change(cluster)
    rounds(loop, cluster, 0.8)
    assert cluster.released == []
    rounds(loop, cluster, 1)
    assert cluster.released == ["waiting"]
    (message,) = cluster.told("LetGo")
    assert message.endswith("no longer planned: Kueue admits it as soon as its queue takes work")
    rounds(loop, cluster, 10)
    assert (cluster.told("QueueStopped"), cluster.told("UnknownQueue")) == ([], [])


@pytest.mark.parametrize("change", CAUSES.values(), ids=CAUSES)
def test_a_stop_that_passes_changes_nothing(change: Change) -> None:
    """A queue that opens again in time keeps its gates, and what waits there is planned as before."""
    cluster = MemoryCluster()
    cluster.queue()
    cluster.job("other-gate", 4, duration="1h", gates=f"{GATE},budget.example.com/check")
    loop = loop_of(cluster)
    rounds(loop, cluster, 3)
    change(cluster)
    rounds(loop, cluster, 0.8)
    cluster.queue()
    rounds(loop, cluster, 5)
    assert cluster.released == []
    for key, kind in (("team/other-gate", "Job"), (cluster.key_of("other-gate"), "Workload")):
        gates = {"kueue.x-k8s.io/admission-gated-by": GATE}
        cluster.edit(kind, key, lambda o, gates=gates: o["metadata"]["annotations"].update(gates))
    rounds(loop, cluster, 3)
    assert (cluster.released, cluster.told("LetGo")) == (["other-gate"], [])


def test_queue_that_comes_after_its_work() -> None:
    """One ``kubectl apply`` may bring the work first, and its queues and flavors after it: nothing is let go."""
    cluster = MemoryCluster()
    loop = loop_of(cluster)
    cluster.job("job")
    rounds(loop, cluster, 0.8)
    cluster.queue()
    flavor = cluster.objects("ResourceFlavor")["gpu"]
    cluster.drop("ResourceFlavor", "gpu")
    rounds(loop, cluster, 0.8)
    cluster.put(dict(flavor))
    rounds(loop, cluster, 5)
    assert (cluster.released, cluster.told("LetGo")) == (["job"], [])


def test_old_words_of_kueue_do_not_count(cluster: MemoryCluster) -> None:
    """What Kueue says of a ClusterQueue as it was before the last edit is no reason to let work go."""
    inactive(cluster)
    cluster.edit("ClusterQueue", "cq", lambda q: q["metadata"].update(generation=2))
    cluster.edit("ClusterQueue", "cq", lambda q: q["status"]["conditions"][0].update(observedGeneration=1))
    rounds(loop_of(cluster), cluster, 5)
    assert cluster.released == []


def test_flavors_we_see_ourselves(cluster: MemoryCluster) -> None:
    """That a flavor was missing when Kueue last said something is no reason either, once the flavor is there."""
    inactive(cluster)
    cluster.edit("ClusterQueue", "cq", lambda q: q["status"]["conditions"][0].update(reason="FlavorNotFound"))
    rounds(loop_of(cluster), cluster, 5)
    assert cluster.released == []


def test_inactive_work_too(cluster: MemoryCluster) -> None:
    """Deactivated gated work keeps Kueue just as busy: it is let go as well."""
    cluster.edit("Workload", cluster.key_of("waiting"), lambda w: w["spec"].update(active=False))
    hold(cluster)
    rounds(loop_of(cluster), cluster, 3)
    assert cluster.released == ["waiting"]


def test_refused(cluster: MemoryCluster) -> None:
    """When the gate cannot be taken off, the owner hears what is wrong with the queue, and that."""
    cluster.answers["waiting"] = ReleaseResult(Release.REFUSED, "no")
    hold(cluster)
    rounds(loop_of(cluster), cluster, 5)
    assert (len(cluster.told("QueueStopped")), len(cluster.told("ReleaseRefused"))) == (1, 1)
    assert cluster.told("LetGo") == []


def test_unreadable_queue_is_not_missing(cluster: MemoryCluster) -> None:
    """A queue that is written so that it cannot be read is frozen: nothing is let go."""
    loop = loop_of(cluster)
    rounds(loop, cluster, 1)
    cluster.edit("LocalQueue", "team/lq", lambda q: q.update(spec={}))
    rounds(loop, cluster, 5)
    assert cluster.released == []
    assert cluster.told("UnknownQueue") == ["LocalQueue team/lq cannot be read"]


def test_many_do_not_hold_up_others() -> None:
    """Of very many, only some are let go in one round, those due first; the next round follows at once."""
    cluster = MemoryCluster()
    cluster.queue()
    for number in range(AT_ONCE + 10):
        cluster.job(f"job-{number:02}", deadline=f"{100 - number}h")
    hold(cluster)
    seen = snapshot(cluster)
    memory = LetGo(PATIENCE)
    first = memory.look(seen.stranded, seen.now, ())
    assert (first.now, len(first.later), first.pause) == ([], AT_ONCE + 10, PATIENCE / 1000)
    then = memory.look(seen.stranded, seen.now + PATIENCE, ())
    assert [lost.item.root.name for lost in then.now] == [f"job-{n:02}" for n in range(AT_ONCE + 9, 9, -1)]
    assert (len(then.later), then.pause) == (10, 0)


# --- queues that are not supported ------------------------------------------------------------------------------------


def rule(*names: str) -> dict[str, Any]:
    return {"admissionChecksStrategy": {"admissionChecks": [{"name": name} for name in names]}}


def kueue_says(cluster: MemoryCluster, **status: Any) -> MemoryCluster:
    active = {"type": "Active", "status": "True", "reason": "Ready", "message": ""}
    cluster.edit("ClusterQueue", "cq", lambda q: q.update(status={"conditions": [active], **status}))
    return cluster


def in_cohort(cluster: MemoryCluster, **spec: Any) -> MemoryCluster:
    cluster.edit("ClusterQueue", "cq", lambda q: q["spec"].update(cohortName="all", **spec))
    return cluster


UNSUPPORTED: dict[str, tuple[Change, str, str]] = {
    "admission checks": (
        lambda c: c.edit("ClusterQueue", "cq", lambda q: q["spec"].update(rule("scan", "budget"))),
        "AdmissionChecks",
        "admission checks (budget, scan)",
    ),
    "admission checks in v1beta1": (
        lambda c: c.edit("ClusterQueue", "cq", lambda q: q["spec"].update(admissionChecks=["scan"])),
        "AdmissionChecks",
        "admission checks (scan)",
    ),
    "topology": (
        lambda c: c.edit("ResourceFlavor", "gpu", lambda f: f["spec"].update(topologyName="racks")),
        "TopologyAwareScheduling",
        "flavor gpu",
    ),
    "admission fair sharing": (
        lambda c: c.edit(
            "ClusterQueue",
            "cq",
            lambda q: q["spec"].update(admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"}),
        ),
        "AdmissionFairSharing",
        "admission fair sharing",
    ),
    "fair sharing, by Kueue's word": (
        lambda c: kueue_says(in_cohort(c), fairSharing={"weightedShare": 0}),
        "FairSharing",
        "fair sharing",
    ),
    "fair sharing, by a weight": (
        lambda c: in_cohort(c, fairSharing={"weight": "2"}),
        "FairSharing",
        "fair sharing",
    ),
    "fair sharing, by a Cohort's weight": (
        lambda c: in_cohort(c).put(
            {"kind": "Cohort", "metadata": {"name": "all"}, "spec": {"fairSharing": {"weight": "2"}}}
        ),
        "FairSharing",
        "fair sharing",
    ),
}


@pytest.mark.parametrize(("change", "cause", "words"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_queue(cluster: MemoryCluster, change: Change, cause: str, words: str) -> None:
    """What plans do not reckon with is left to Kueue: gates off, said to the owner, on the queue, and as a metric."""
    change(cluster)
    metrics = Metrics()
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS, metrics=metrics), cluster, 3)
    assert cluster.released == ["waiting"]
    (message,) = cluster.told("LetGo")
    assert message.startswith("ClusterQueue cq is not supported: ")
    assert words in message
    assert message.endswith("Kueue alone decides")
    ((target, _, _, told),) = [event for event in cluster.events if event[2] == "QueueUnsupported"]
    assert (str(target), told) == ("ClusterQueue cq", message.partition("; no longer")[0])
    assert f'punctual_unsupported_cluster_queues{{cause="{cause}",cluster_queue="cq"}} 1.0' in metrics.text()


SUPPORTED: dict[str, Change] = {
    "a weight without a cohort": lambda c: c.edit(
        "ClusterQueue", "cq", lambda q: q["spec"].update(fairSharing={"weight": "2"})
    ),
    "a weight, but fair sharing is off": lambda c: kueue_says(in_cohort(c, fairSharing={"weight": "2"})),
    "admission fair sharing switched off": lambda c: c.edit(
        "ClusterQueue", "cq", lambda q: q["spec"].update(admissionScope={"admissionMode": "NoAdmissionFairSharing"})
    ),
}


@pytest.mark.parametrize("change", SUPPORTED.values(), ids=SUPPORTED)
def test_supported_queue(cluster: MemoryCluster, change: Change) -> None:
    """What only looks like it changes nothing."""
    change(cluster)
    rounds(loop_of(cluster), cluster, 3)
    assert cluster.released == []
    assert cluster.told("QueueUnsupported") == []


def test_others_in_an_unsupported_queue_keep_their_turn(cluster: MemoryCluster) -> None:
    """What waits in a queue that is left to Kueue still has a claim on the quota it shares with ours."""
    cluster.finish("running")
    in_cohort(cluster)
    cluster.queue("checked", 0, local="lq2", cohortName="all", **rule("scan"))
    cluster.job("theirs", 2, queue="lq2", gates="")
    cluster.job("ours", 1, duration="1h")
    loop = loop_of(cluster)
    rounds(loop, cluster, 3)
    assert cluster.released == ["ours"]
    states = {item.root.name: item.state.name for item in loop.step().snapshot.items}
    assert states == {"theirs": "FOREIGN", "waiting": "PENDING", "ours": "IN_FLIGHT"}


def test_unsupported_queue_of_others(cluster: MemoryCluster) -> None:
    """A queue that no namespace of ours leads to is no business of ours."""
    cluster.queue("theirs", local="lq", namespace="elsewhere", **rule("scan"))
    cluster.edit("Namespace", "elsewhere", lambda n: n["metadata"].update(labels={}))
    assert snapshot(cluster).unsupported == {}
