"""How long after its admission work begins: said, or learned."""

from __future__ import annotations

import pytest
from memory_cluster import MemoryCluster

from scheduler.estimates import LEDGER, Estimates
from scheduler.loop import Loop
from scheduler.metrics import Metrics
from scheduler.podset import START_LEAD, read_flavor
from scheduler.settings import Settings
from scheduler.snapshot import Snapshot, Snapshotter, snapshot

SECOND = 1_000


@pytest.fixture
def cluster() -> MemoryCluster:
    result = MemoryCluster()
    result.queue(gpus=100)
    return result


def say(cluster: MemoryCluster, text: str) -> None:
    """Set the annotation of the flavor."""
    cluster.put({"kind": "ResourceFlavor", "metadata": {"name": "gpu", "annotations": {START_LEAD: text}}, "spec": {}})


def begin(cluster: MemoryCluster, name: str, seconds: int) -> None:
    """A job is admitted, and its pods are ready so much later."""
    cluster.job(name, 1)
    cluster.admit(name)
    cluster.time += seconds * SECOND
    cluster.condition(name, "PodsReady", "True")


def lead(seen: Snapshot) -> int:
    """In seconds, as the planner hears it."""
    (flavor,) = seen.request.quota.flavors
    return flavor.lead_ms // SECOND


def test_what_is_said_counts(cluster: MemoryCluster) -> None:
    """The annotation of a ResourceFlavor is its lead time, whatever has been seen."""
    assert lead(snapshot(cluster)) == 0
    say(cluster, "2m")
    snapshotter = Snapshotter(Settings())
    for number in range(5):
        begin(cluster, f"j{number}", 7)
        snapshotter.take(cluster)
    assert lead(snapshotter.take(cluster)) == 120


def test_nonsense_is_told_and_does_not_count(cluster: MemoryCluster) -> None:
    """A flavor with an annotation that makes no sense is there as if it had none, and its owner hears why."""
    say(cluster, "soon")
    cluster.job("j")
    seen = snapshot(cluster)
    assert (lead(seen), len(seen.items)) == (0, 1)
    (complaint,) = seen.complaints
    assert str(complaint.target) == "ResourceFlavor gpu"
    assert START_LEAD in complaint.message
    assert read_flavor({"metadata": {"annotations": {START_LEAD: "-5m"}}}).lead in (0, None)


def test_it_is_learned(cluster: MemoryCluster) -> None:
    """From the third workload on whose pods were ready it is the median of what they took, each told once."""
    snapshotter = Snapshotter(Settings())
    expected = [0, 0, 20, 25, 30]
    for number, seconds in enumerate((20, 10, 40, 30, 31)):
        begin(cluster, f"j{number}", seconds)
        snapshotter.take(cluster)
        assert lead(snapshotter.take(cluster)) == expected[number]


def test_an_earlier_admission_teaches_nothing(cluster: MemoryCluster) -> None:
    """Pods that were ready before the last admission say nothing about it, until they are ready again."""
    snapshotter = Snapshotter(Settings())
    for number in range(3):
        begin(cluster, f"j{number}", 10)
        cluster.time += 50 * SECOND
        cluster.condition(f"j{number}", "Admitted", "True")  # again, after an eviction
    snapshotter.take(cluster)
    assert lead(snapshotter.take(cluster)) == 0
    cluster.time += 5 * SECOND
    for number in range(3):
        cluster.condition(f"j{number}", "PodsReady", "True")
    snapshotter.take(cluster)
    assert lead(snapshotter.take(cluster)) > 0


def test_running_work_has_begun_late(cluster: MemoryCluster) -> None:
    """What its owner says of a run time counts from when it begins, so it holds its quota for longer."""
    say(cluster, "1m")
    cluster.job("j", 1, duration="10m")
    cluster.admit("j")
    for passed, left in ((0, 660), (30, 630), (60, 600), (120, 540)):
        at = MemoryCluster.__new__(MemoryCluster)
        at.__dict__ = {**cluster.__dict__, "time": cluster.time + passed * SECOND}
        assert snapshot(at).request.workloads.duration_ms[0] == left * SECOND


def test_what_was_learned_from_the_ledger_has_it_already(cluster: MemoryCluster) -> None:
    """Run times of the ledger run from admission to end: the lead is taken off them, and not added to what is left."""
    say(cluster, "1m")
    estimates = Estimates()
    snapshotter = Snapshotter(Settings(), estimates)
    cluster.job("j", 1)
    (item,) = snapshotter.take(cluster).items
    for _ in range(20):
        estimates.learn(snapshotter.works[item.uid].family("cq"), 300 * SECOND)
    seen = snapshotter.take(cluster)
    (item,) = seen.items
    assert item.estimate_source == LEDGER
    assert seen.request.workloads.duration_ms[0] == item.estimate - 60 * SECOND
    cluster.admit("j")
    cluster.time += 30 * SECOND
    assert snapshotter.take(cluster).request.workloads.duration_ms[0] == pytest.approx(270 * SECOND, rel=0.1)


def test_a_new_lead_is_reason_for_a_new_plan(cluster: MemoryCluster) -> None:
    """Snapshots that differ in a lead time only are not equal."""
    cluster.job("j")
    snapshotter = Snapshotter(Settings())
    before = snapshotter.take(cluster).signature
    assert snapshotter.take(cluster).signature == before
    say(cluster, "1m")
    assert snapshotter.take(cluster).signature != before


def test_it_is_a_metric(cluster: MemoryCluster) -> None:
    """Lead times that count are to be seen, by flavor, in seconds."""
    say(cluster, "90s")
    metrics = Metrics()

    class Nobody:
        """A planner that is never there."""

        def ask(self, request: object) -> None: ...
        def answer(self) -> None: ...
        def busy(self) -> bool:
            return True

    Loop(cluster, Nobody(), metrics=metrics).step()  # type: ignore[arg-type]
    assert metrics.registry.get_sample_value("punctual_start_lead_seconds", {"flavor": "gpu"}) == 90
