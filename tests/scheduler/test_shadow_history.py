"""The past of a cluster: from its Workloads, finished ones too, and from a ledger; and who says so once an hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_cluster import START, MemoryCluster

from scheduler.family import Family
from scheduler.ledger import Ledger
from scheduler.ledger_entry import Entry, Outcome
from scheduler.metrics import Metrics
from scheduler.policy import read_policy
from scheduler.settings import HOUR, MINUTE, Settings
from scheduler.shadow import PastWork
from scheduler.shadow_history import Past, past_of, remembered
from scheduler.shadow_watch import ShadowWatch

OBSERVE = read_policy("version: 1\nmode: observe\n").settings()


@pytest.fixture
def cluster() -> MemoryCluster:
    """One job that ran for an hour and was late, one that runs, one that waits, one that is not ours."""
    cluster = MemoryCluster()
    cluster.queue()
    cluster.put({"kind": "Namespace", "metadata": {"name": "free", "labels": {}}})
    cluster.put({"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "free"}, "spec": {"clusterQueue": "cq"}})
    cluster.job("done", 2, gates="", deadline="30m", duration="50m", weight="3")
    cluster.job("theirs", 1, namespace="free", gates="")
    cluster.admit("done")
    cluster.admit("theirs", namespace="free")
    cluster.time += HOUR
    cluster.finish("done")
    cluster.job("runs", 1, gates="")
    cluster.admit("runs")
    cluster.time += 2 * HOUR
    cluster.job("waits", 4, gates="", deadline="1h")
    cluster.time += HOUR
    return cluster


def by_name(past: Past, cluster: MemoryCluster) -> dict[str, PastWork]:
    names = {w["metadata"]["uid"]: w["metadata"]["name"] for w in cluster.objects("Workload").values()}
    return {names.get(work.uid, work.uid).removeprefix("job-")[:-6] or work.uid: work for work in past.work}


def test_what_the_cluster_still_shows(cluster: MemoryCluster) -> None:
    """Finished, running and waiting work with what was said, asked and granted; what is not ours stays as it was."""
    past = past_of(cluster, OBSERVE)
    assert (past.now, past.queues, past.remarks) == (START + 4 * HOUR, {"cq"}, ())
    found = by_name(past, cluster)
    done, runs, waits = found["done"], found["runs"], found["waits"]
    assert (done.submitted, done.started, done.ended) == (START, START, START + HOUR)
    assert (done.duration, done.estimate, done.weight) == (HOUR, 50 * MINUTE, 3)
    assert (done.deadline, done.usage, done.counts) == (START + 30 * MINUTE, (("gpu", "nvidia.com/gpu", 2),), True)
    assert (runs.duration, runs.estimate, runs.ended) == (3 * HOUR, HOUR, None)  # it outlives its estimate
    assert (waits.started, waits.shape is not None, waits.deadline) == (None, True, START + 4 * HOUR)
    assert [name for name, work in found.items() if not work.ours] == ["theirs"]


def test_defaults_and_caps_of_the_policy_count(cluster: MemoryCluster) -> None:
    """Work that said nothing gets the deadline and estimate that the policy gives it; weights are capped."""
    policy = read_policy("version: 1\nmode: observe\ndefaults: {deadline: 2h, duration: 5m}\nweights: {cap: 2}")
    found = by_name(past_of(cluster, policy.settings()), cluster)
    assert (found["runs"].deadline, found["runs"].estimate) == (START + 3 * HOUR, 5 * MINUTE)
    assert (found["done"].deadline, found["done"].weight) == (START + 30 * MINUTE, 2)
    assert found["theirs"].deadline is None


def test_whose_work_counts(cluster: MemoryCluster) -> None:
    """Observed queues; where none is, all, which is said. Opted-in namespaces; where none is, all, which is said."""
    (remark,) = past_of(cluster, Settings()).remarks
    assert "no queue is observed" in remark
    everyone = by_name(past_of(cluster, OBSERVE, everyone=True), cluster)
    assert everyone["theirs"].ours
    cluster.put({"kind": "Namespace", "metadata": {"name": "team", "labels": {}}})
    past = past_of(cluster, OBSERVE)
    assert "no namespace is opted in" in past.remarks[0]
    assert by_name(past, cluster)["theirs"].ours
    cluster.queue("other", local="other")
    policy = read_policy("version: 1\nclusterQueues: {other: {mode: observe}}")
    assert not any(work.ours for work in past_of(cluster, policy.settings()).work)


def entry(uid: str, **more: object) -> Entry:
    known = {
        "name": uid,
        "family": Family(namespace="team", local_queue="lq", cluster_queue="cq", kind="Job"),
        "submitted": START - 3 * HOUR,
        "updated": START,
        "started": START - 2 * HOUR,
        "ended": START - HOUR,
        "usage": (("gpu", "nvidia.com/gpu", 2),),
        "flavor": "gpu",
        "estimate": 30 * MINUTE,
        "deadline": START - 90 * MINUTE,
        "outcome": Outcome.SUCCEEDED,
    }
    return Entry(uid=uid, **{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("anonymous", [False, True])
def test_what_a_ledger_remembers(cluster: MemoryCluster, tmp_path: Path, anonymous: bool) -> None:
    """Work that the cluster has deleted comes from the ledger, also from one that hides names; nothing comes twice."""
    done = next(w["metadata"]["uid"] for w in cluster.objects("Workload").values() if "done" in w["metadata"]["name"])
    service = Family(namespace="team", local_queue="lq", cluster_queue="cq", kind="Deployment")
    file = str(tmp_path / "ledger.sqlite")
    with Ledger(file).open(anonymous=anonymous) as ledger:
        ledger.write(
            [
                entry("gone"),
                entry("failed", outcome=Outcome.FAILED),
                entry("never", started=None, usage=(), flavor=""),
                entry("service", family=service),
                entry("old", submitted=START - 30 * HOUR, started=START - 29 * HOUR, ended=START - 28 * HOUR),
                entry(done, estimate=7 * MINUTE, submitted=START, started=START, ended=START + HOUR),
            ]
        )
    entries, hide = remembered(file, START - 10 * HOUR)
    past = past_of(cluster, OBSERVE, entries, hide=hide)
    found = {work.uid: work for work in past.work}
    assert len(found) == len(past.work) == 7  # four of the cluster, three more of the ledger
    assert (found["gone"].ours, found["gone"].counts, found["gone"].deadline) == (True, True, START - 90 * MINUTE)
    assert (found["gone"].duration, found["gone"].estimate) == (HOUR, 30 * MINUTE)
    assert not found["failed"].counts
    assert not found["service"].ours
    assert found[done].estimate == 7 * MINUTE  # as it was then


def wait_until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "waited for a minute"
        time.sleep(0.02)


def test_once_an_hour_while_something_is_observed(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The line is in the log and its figures in the metrics; with nothing observed not a word."""
    going, metrics = [Settings()], Metrics()
    watch = ShadowWatch(cluster, lambda: going[0], metrics, "/no/such/ledger", first=0.01, every=0.05)
    with caplog.at_level(logging.INFO, "scheduler.shadow_watch"):
        watch.start()
        time.sleep(0.3)
        assert caplog.messages == []
        going[0] = OBSERVE
        wait_until(lambda: any(message.startswith("last 4 hours: 2 deadlines missed") for message in caplog.messages))
        watch.stop()
    assert "reporting without the ledger" in caplog.messages

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"punctual_observed_{name}", labels)

    assert (value("deadlines"), value("seconds")) == (2, 4 * 3600)
    assert value("deadlines_missed", schedule="real") == 2
    assert value("deadlines_missed", schedule="planned") is not None
    assert value("idle_gpu_seconds", schedule="kueue") is not None


def test_it_stops_in_the_midst_of_a_replay(cluster: MemoryCluster) -> None:
    """A controller that ends does not wait for a replay."""
    watch = ShadowWatch(cluster, lambda: OBSERVE, Metrics(), first=0, every=0)
    watch.start()
    time.sleep(0.1)
    watch.stop()
    assert "observe" not in {thread.name for thread in threading.enumerate()}
