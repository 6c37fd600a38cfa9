"""A whole controller on a fake apiserver: starting, standing by, leading, losing, stopping."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.apiserver import RESOURCES
from scheduler.cluster import GATES_ANNOTATION, KINDS
from scheduler.controller import Controller, End, Options
from scheduler.leader import LEASE, Timing
from scheduler.ledger import Ledger
from scheduler.ledger_recorder import LedgerOptions
from scheduler.settings import Settings
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal
from tests.scheduler.fake_kueue import WORKLOADS, FakeKueue
from tests.scheduler.memory_cluster import MemoryCluster

JOBS = "/apis/batch/v1/jobs"
LEASES = "/apis/coordination.k8s.io/v1/leases"
QUICK = Timing(lease=2.0, renew=1.0, retry=0.05)
NO_SOLVER = "unix:///nonexistent/punctual.sock"


@pytest.fixture
def fake() -> Iterator[FakeKueue]:
    server = FakeKueue()
    cluster = MemoryCluster()
    cluster.queue()
    cluster.job("train")
    for kind in KINDS:
        for item in cluster.objects(kind).values():
            server.put(RESOURCES[kind].path(), dict(item))
    yield server
    server.stop()


class Running:
    """A controller in a thread."""

    def __init__(self, fake: FakeApiServer, identity: str, lease_namespace: str | None, **options: Any) -> None:
        settings = Settings(settle_ms=50, newcomer_wait_ms=200)
        options = {"timing": QUICK, "settings": settings, **options}
        self.controller = Controller(
            fake.api(), Options(NO_SOLVER, "127.0.0.1:0", identity, lease_namespace, **options), "test"
        )
        self.end: End | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.end = self.controller.run()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.controller.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> None:
        self.controller.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def run(fake: FakeApiServer) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(identity: str = "one", lease_namespace: str | None = "punctual-system", **options: Any) -> Running:
        started.append(Running(fake, identity, lease_namespace, **options))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def eventually(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.01)


def gated(fake: FakeApiServer) -> bool:
    return GATES_ANNOTATION in fake.objects[JOBS]["team/train"]["metadata"]["annotations"]


def holder(fake: FakeApiServer) -> str:
    lease = fake.objects.get(LEASES, {}).get(f"punctual-system/{LEASE}")
    return str(lease["spec"]["holderIdentity"]) if lease else ""


def test_works_without_a_planner(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """With the sidecar not up yet, work that fits is released all the same; metrics say that the planner is down."""
    one = run(lease_namespace=None)
    eventually(lambda: not gated(fake))
    assert LEASES not in fake.objects
    eventually(lambda: 'punctual_releases_total{outcome="done"} 1.0' in one.get("/metrics")[1])
    eventually(lambda: "punctual_planner_up 0.0" in one.get("/metrics")[1])
    assert "punctual_leader 1.0" in one.get("/metrics")[1]
    assert one.get("/healthz")[0] == 200
    one.stop()
    assert one.end is End.STOPPED


def test_a_ledger_that_fails_stops_nothing(fake: FakeApiServer, run: Callable[..., Running], tmp_path: Path) -> None:
    """Work is released while the ledger cannot be written; what waits for it is written when it can be."""
    in_the_way = tmp_path / "volume"
    in_the_way.write_text("")
    one = run(lease_namespace=None, ledger=LedgerOptions(str(in_the_way / "ledger.db")))
    eventually(lambda: not gated(fake))
    assert "punctual_ledger_up 0.0" in one.get("/metrics")[1]
    assert one.get("/healthz")[0] == one.get("/readyz")[0] == 200
    in_the_way.unlink()
    one.stop()
    with Ledger(str(in_the_way / "ledger.db")).open_for_reading() as ledger:
        assert [(entry.name, entry.managed) for entry in ledger.recent()] == [("train", True)]


def test_says_what_it_found(fake: FakeApiServer, run: Callable[..., Running], caplog: pytest.LogCaptureFixture) -> None:
    """One line at the start tells what is there; gated work that holds quota shows that Kueue ignores gates."""
    key, workload = next(iter(fake.objects[WORKLOADS].items()))
    condition = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-12-01T00:00:00Z"}
    fake.put(WORKLOADS, {**workload, "status": {"conditions": [condition]}})
    fake.kinds.discard("/apis/kueue.x-k8s.io/v1beta2/cohorts")
    with caplog.at_level("INFO"):
        run(lease_namespace=None)
        eventually(lambda: any("AdmissionGatedBy" in record.message for record in caplog.records))
    (found,) = (vars(record) for record in caplog.records if record.message == "found")
    assert (found["cluster_queues"], found["workloads"], found["gated"]) == (1, 1, 1), key
    assert found["planner"] == f"does not answer yet at {NO_SOLVER}"
    assert "no cohorts" in found["missing"]
    assert "no ConfigMap kueue-system/kueue-manager-config" in found["kueue_configuration"]


def test_enforces_nothing_while_gates_are_ignored(fake: FakeKueue, run: Callable[..., Running]) -> None:
    """With Kueue's feature gate off nothing is released; metric, Event and /readyz say so; on again, it goes on."""
    fake.heeds = False
    one = run(lease_namespace=None)
    eventually(lambda: "ok, but: Kueue ignores admission gates" in one.get("/readyz")[1])
    assert one.get("/readyz")[0] == 200
    assert "punctual_enforcing 0.0" in one.get("/metrics")[1]
    eventually(lambda: ("ClusterQueue", "GatesIgnored") in told(fake))
    time.sleep(1.0)
    assert "PATCH" not in {method for method, path, _ in fake.requests if path.startswith("/apis/batch")}
    fake.heeds = True
    eventually(lambda: not gated(fake))
    assert one.get("/readyz")[1] == "ok\n"
    assert "punctual_enforcing 1.0" in one.get("/metrics")[1]
    eventually(lambda: ("ClusterQueue", "GatesHeeded") in told(fake))


def told(fake: FakeApiServer) -> set[tuple[str, str]]:
    return {(e["involvedObject"]["kind"], e["reason"]) for e in fake.objects.get("/api/v1/events", {}).values()}


def test_is_ready_when_it_has_seen_everything(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Not ready, but alive, and releasing nothing, while a kind may not be read; the reason is on /readyz."""

    def refuse(method: str, path: str) -> None:
        if path.endswith("/clusterqueues"):
            raise Refusal(403, "clusterqueues is forbidden")

    fake.hooks.append(refuse)
    one = run()
    eventually(lambda: "clusterqueues is forbidden" in one.get("/readyz")[1])
    assert one.get("/readyz")[0] == 503
    assert one.get("/healthz")[0] == 200
    assert gated(fake)
    fake.hooks.clear()
    eventually(lambda: one.get("/readyz")[0] == 200)
    eventually(lambda: not gated(fake))


def test_only_one_acts(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """While somebody else holds the Lease, a replica is ready and releases nothing; when it is free, it leads."""
    fake.put(LEASES, {"metadata": {"namespace": "punctual-system", "name": LEASE}, "spec": {"holderIdentity": "other"}})
    renewing = threading.Event()

    def renew() -> None:
        while not renewing.wait(0.2):
            fake.put(LEASES, fake.objects[LEASES][f"punctual-system/{LEASE}"])

    thread = threading.Thread(target=renew)
    thread.start()
    two = run("two")
    eventually(lambda: two.get("/readyz")[0] == 200)
    time.sleep(1.0)
    assert gated(fake)
    assert "punctual_leader 0.0" in two.get("/metrics")[1]
    renewing.set()
    thread.join()
    eventually(lambda: not gated(fake))
    assert holder(fake) == "two"


def test_gives_the_lease_back(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """A replica that is told to stop gives the Lease back, so the next one need not wait for it to run out."""
    one = run("one")
    eventually(lambda: not gated(fake))
    one.stop()
    assert one.end is End.STOPPED
    assert holder(fake) == ""


def test_ends_when_it_loses_the_lease(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """A leader that finds somebody else in its Lease ends by itself and says why."""
    one = run("one")
    eventually(lambda: not gated(fake))
    with fake.lock:
        lease = fake.objects[LEASES][f"punctual-system/{LEASE}"]
        fake.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "other"}})
    one.thread.join(20)
    assert one.end is End.LOST
    assert holder(fake) == "other"


def test_waits_for_an_apiserver_that_is_away(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """A controller that starts before the apiserver answers waits for it."""
    fake.stop()
    one = run(lease_namespace=None)
    eventually(lambda: "no answer" in one.get("/readyz")[1])
    fake.start()
    eventually(lambda: not gated(fake))
