"""The real cluster as the control loop sees it, on an apiserver that can be broken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler.cluster import GATE, GATES_ANNOTATION, KINDS, Reference, Release
from scheduler.gated import find_gated
from scheduler.kinds import ROOTS
from scheduler.kubernetes import GATHER, KubernetesCluster, frees_quota
from scheduler.loop import ReleasesInBackground
from scheduler.metrics import Metrics
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
COHORTS = "/apis/kueue.x-k8s.io/v1beta2/cohorts"
SOON, LATER, CREATED = "2026-12-01T08:00:00Z", "2026-12-01T09:00:00Z", "2026-12-01T00:00:00Z"
RESERVED, FINISHED = {"type": "QuotaReserved", "status": "True"}, {"type": "Finished", "status": "True"}


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def cluster(fake: FakeApiServer, metrics: Metrics) -> Iterator[KubernetesCluster]:
    cluster = KubernetesCluster(fake.api(), metrics=metrics)
    yield cluster
    cluster.stop()


def started(cluster: KubernetesCluster) -> KubernetesCluster:
    cluster.start()
    assert cluster.wait_synced(10)
    return cluster


def reference(item: dict[str, Any]) -> Reference:
    metadata = item["metadata"]
    return Reference(item["kind"], metadata["namespace"], metadata["name"], metadata["uid"])


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.005)


def test_shows_all_kinds(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """Every kind is there after the first synchronisation, by namespace and name, or name alone."""
    fake.put("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    fake.put(JOBS, a_job("train"))
    started(cluster)
    assert set(cluster.objects("Namespace")) == {"team-a"}
    assert set(cluster.objects("Job")) == {"team-a/train"}
    assert {kind for kind in KINDS if not cluster.objects(kind)} == set(KINDS) - {"Namespace", "Job"}


def test_what_is_shown_does_not_change(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """A copy taken before a change goes on showing what was there."""
    fake.put(JOBS, a_job("one"))
    before = started(cluster).objects("Job")
    fake.put(JOBS, a_job("two"))
    eventually(lambda: set(cluster.objects("Job")) == {"team-a/one", "team-a/two"})
    assert set(before) == {"team-a/one"}
    with pytest.raises(TypeError):
        before["team-a/three"] = {}  # type: ignore[index]


def test_every_change_ends_the_wait(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """A change of any kind lets wait() return, and the change can be seen then; without any it times out."""
    started(cluster)
    while cluster.wait(0.3):
        pass
    for collection, kind in ((JOBS, "Job"), (WORKLOADS, "Workload")):
        fake.put(collection, {**a_job("x"), "kind": kind})
        assert cluster.wait(10)
        assert "team-a/x" in cluster.objects(kind)
    while cluster.wait(0.3):
        pass
    assert not cluster.wait(0.05)
    cluster.wake()
    assert cluster.wait(10)


def test_only_room_ends_a_wait_at_once(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """While changes never end, waits end a little apart; but as soon as work gives quota back."""
    running = {"metadata": {"name": "x", "namespace": "team-a"}, "status": {"conditions": [RESERVED]}}
    fake.put(WORKLOADS, running)
    started(cluster)
    while cluster.wait(0.3):
        pass
    fake.put(JOBS, a_job("one"))
    assert cluster.wait(10)
    begun = time.monotonic()
    fake.put(JOBS, a_job("two"))
    assert cluster.wait(10)
    assert time.monotonic() - begun > 0.9 * GATHER
    begun = time.monotonic()
    fake.put(JOBS, a_job("three"))
    fake.put(WORKLOADS, {**running, "status": {"conditions": [RESERVED, FINISHED]}})
    assert cluster.wait(10)
    if not cluster.changing:  # both came by two watches, the Job's may be the later one
        assert time.monotonic() - begun < 0.9 * GATHER
        assert cluster.woken_by is not None
        assert begun <= cluster.woken_by <= time.monotonic()


@pytest.mark.parametrize(
    ("before", "now", "frees"),
    [
        ([RESERVED], [RESERVED, FINISHED], True),
        ([RESERVED], [{**RESERVED, "status": "False"}], True),
        ([RESERVED], None, True),
        ([RESERVED], [RESERVED, {"type": "PodsReady", "status": "True"}], False),
        ([], [RESERVED], False),
        (None, [RESERVED], False),
        ([], [FINISHED], False),
        ([RESERVED, FINISHED], None, False),
    ],
)
def test_what_frees_quota(before: list[Any] | None, now: list[Any] | None, frees: bool) -> None:
    """Work that finishes, is evicted or goes frees what it holds; nothing else does."""
    first, second = (None if each is None else {"status": {"conditions": each}} for each in (before, now))
    assert frees_quota(first, second) == frees


def test_finished_pods_free_quota() -> None:
    """So does work of which some pods have finished for good."""
    some = {"status": {"conditions": [RESERVED], "reclaimablePods": [{"name": "main", "count": 1}]}}
    assert frees_quota({"status": {"conditions": [RESERVED]}}, some)
    assert not frees_quota(some, some)


def test_no_change_is_missed(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """Whatever changes between two waits, or during one, is seen after the last: nobody sleeps over a change."""
    started(cluster)
    writer = threading.Thread(target=lambda: [fake.put(JOBS, a_job(f"j{number}")) for number in range(300)])
    writer.start()
    seen = 0
    while seen < 300:
        assert cluster.wait(10), f"slept with {seen} seen"
        seen = len(cluster.objects("Job"))
    writer.join()


def test_says_what_is_missing(fake: FakeApiServer, cluster: KubernetesCluster, metrics: Metrics) -> None:
    """A kind that the cluster does not have is named; the other kinds are followed all the same."""
    fake.kinds.discard(COHORTS)
    fake.put(JOBS, a_job("one"))
    started(cluster)
    assert set(cluster.objects("Job")) == {"team-a/one"}
    assert list(cluster.unsynced()) == ["Cohort"]
    assert "no cohorts" in cluster.unsynced()["Cohort"]
    assert metrics.registry.get_sample_value("punctual_watch_synced", {"kind": "Cohort"}) == 0
    eventually(lambda: metrics.registry.get_sample_value("punctual_watch_synced", {"kind": "Job"}) == 1)


def test_is_not_synced_before_all_kinds_are(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """One kind that may not be listed keeps the whole from counting as synced, and says why."""

    def refuse(method: str, path: str) -> None:
        if path == WORKLOADS:
            raise Refusal(403, "workloads is forbidden")

    fake.hooks.append(refuse)
    cluster.start()
    eventually(lambda: list(cluster.unsynced()) == ["Workload"])
    assert not cluster.wait_synced(0.1)
    assert "forbidden" in cluster.unsynced()["Workload"]


def test_releases_what_it_has_seen_with_one_call(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """A release of an object that was seen costs one patch, no read."""
    job = fake.put(JOBS, a_job("train", gates=GATE))
    started(cluster)
    before = len(fake.requests)
    assert cluster.release(reference(job)).release is Release.DONE
    calls = [method for method, path, _ in fake.requests[before:] if path.endswith("/jobs/train")]
    assert calls == ["PATCH"]


def test_releases_what_it_has_not_seen(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """An object that the watch has not shown yet, or that is older than its namesake there, is read first."""
    started(cluster)
    old = fake.put(JOBS, a_job("train", gates=GATE))
    fake.delete(JOBS, "team-a/train")
    new = fake.put(JOBS, a_job("train", gates=GATE))
    assert cluster.release(reference(old)).release is Release.GONE
    assert cluster.release(reference(new)).release is Release.DONE


def test_releases_several_at_once(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """Many releases overlap, and their results come in the order of the targets."""
    assert isinstance(cluster, ReleasesInBackground)
    jobs = [fake.put(JOBS, a_job(f"j{number}", gates=GATE if number % 2 else None)) for number in range(40)]
    started(cluster)
    under_way, most, lock = 0, 0, threading.Lock()

    def count(method: str, path: str) -> None:
        nonlocal under_way, most
        if method == "PATCH":
            with lock:
                under_way += 1
                most = max(most, under_way)
            time.sleep(0.02)
            with lock:
                under_way -= 1

    fake.hooks.append(count)
    results = [future.result() for future in [cluster.begin_release(reference(job)) for job in jobs]]
    assert [result.release for result in results] == [Release.NOT_GATED, Release.DONE] * 20
    assert most > 1


def test_a_silent_apiserver_does_not_hold_up_the_loop(
    fake: FakeApiServer, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a release times out, those behind it are put off instead of timing out one after another."""
    monkeypatch.setattr("scheduler.kubernetes.SLOW_SECONDS", 0.1)
    jobs = [fake.put(JOBS, a_job(f"j{number}", gates=GATE)) for number in range(50)]
    started(cluster)

    def hang(method: str, path: str) -> None:
        if method == "PATCH":
            time.sleep(0.2)
            raise Refusal(503, "too busy")

    fake.hooks.append(hang)
    results = [future.result() for future in [cluster.begin_release(reference(job)) for job in jobs]]
    assert {result.release for result in results} == {Release.TRY_AGAIN}
    assert sum(method == "PATCH" for method, _, _ in fake.requests) < 20


def test_releases_nothing_without_leave(fake: FakeApiServer) -> None:
    """A replica that does not lead takes no gate off."""
    job = fake.put(JOBS, a_job("train", gates=GATE))
    cluster = KubernetesCluster(fake.api(), may_act=lambda: False)
    try:
        started(cluster)
        assert cluster.release(reference(job)).release is Release.TRY_AGAIN
    finally:
        cluster.stop()
    assert fake.objects[JOBS]["team-a/train"]["metadata"]["annotations"] == {GATES_ANNOTATION: GATE}


def test_tells_owners(fake: FakeApiServer, cluster: KubernetesCluster) -> None:
    """Events and annotations reach the object; the caller never waits for them."""
    job = fake.put(JOBS, a_job("train"))
    started(cluster)
    cluster.event(reference(job), "Warning", "InvalidAnnotation", "no offset")
    cluster.annotate(reference(job), {"punctual.kueue/planned-start": SOON})
    eventually(lambda: bool(fake.objects.get("/api/v1/events")))
    eventually(
        lambda: fake.objects[JOBS]["team-a/train"]["metadata"]["annotations"] == {"punctual.kueue/planned-start": SOON}
    )


def test_finds_all_that_is_gated(fake: FakeApiServer) -> None:
    """All root objects with our gate are found, due first: Jobs without a queue too, Workloads of Jobs not."""

    def put(collection: str, name: str, gates: str | None = GATE, due: str = "", **metadata: Any) -> None:
        item = a_job(name, gates=gates, creationTimestamp=CREATED, **metadata)
        item["kind"] = "Workload" if collection == WORKLOADS else "Job"
        if due:
            item["metadata"]["annotations"]["punctual.kueue/deadline"] = due
        fake.put(collection, item)

    put(JOBS, "whenever")
    put(JOBS, "later", due=LATER)
    put(WORKLOADS, "ownerless", due="8h30m")
    put(JOBS, "soon", due=SOON, gates=f"a.example/b,{GATE}")
    put(JOBS, "unlabelled", due="bad", labels={})
    put(JOBS, "free", gates=None)
    put(JOBS, "others", gates="a.example/b")
    put(WORKLOADS, "of-a-job", ownerReferences=[{"kind": "Job", "name": "soon", "uid": "1", "controller": True}])
    names = [gated.target.name for gated in find_gated(fake.api())]
    assert names == ["soon", "ownerless", "later", "unlabelled", "whenever"]
    assert find_gated(fake.api(), "team-b") == []


def test_gated_work_of_every_kind_is_found(fake: FakeApiServer) -> None:
    """What an uninstall has to let go: root objects of all kinds that the cluster has."""
    found = ROOTS[::2]  # of the others there are no CRDs
    for root in found:
        path = f"/apis/{root.version}/{root.plural}"
        fake.kinds.add(path)
        fake.put(path, {**a_job(root.kind.lower(), gates=GATE, creationTimestamp=CREATED), "kind": root.kind})
    assert {gated.target.kind for gated in find_gated(fake.api())} == {root.kind for root in found}


def test_nothing_is_gated_without_kueue(fake: FakeApiServer) -> None:
    """After Kueue itself was uninstalled, the Jobs that it left gated are still found."""
    fake.kinds.discard(WORKLOADS)
    fake.put(JOBS, a_job("left", gates=GATE, creationTimestamp=CREATED))
    assert [gated.target.name for gated in find_gated(fake.api())] == ["left"]
