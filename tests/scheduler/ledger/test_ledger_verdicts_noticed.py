"""Verdicts on results, as a controller notices them in annotations."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.ledger import Judgement, Verdict
from scheduler.settings import HOUR
from tests.scheduler.ledger.test_ledger_recorder import Controller, cluster, dsn, entries, start
from tests.scheduler.memory_cluster import START, MemoryCluster

__all__ = ["cluster", "dsn", "start"]  # fixtures

VERIFIED, REJECTED = Verdict.VERIFIED, Verdict.REJECTED


def annotate(cluster: MemoryCluster, verdict: str, by: str, reason: str = "because") -> None:
    """What the apiserver keeps once the admission policy has let it pass."""
    said = {"verdict": verdict, "verdict-by": by, "verdict-reason": reason}
    annotations = {f"punctual.kueue/{key}": text for key, text in said.items()}
    cluster.edit("Job", "team/a", lambda job: job["metadata"].setdefault("annotations", {}).update(annotations))


def test_it_is_recorded_with_who_and_when(cluster: MemoryCluster, start: Callable[[], Controller], dsn: str) -> None:
    """A verdict on a finished job is there once, whoever looks how often; a later one comes behind it and counts."""
    cluster.job("a", deadline="8h")
    controller = start()
    cluster.admit("a")
    controller.look()
    cluster.time += HOUR
    cluster.condition("a", "Finished", "True", "Succeeded")
    controller.look()
    assert entries(dsn)[0].verdict is None
    cluster.time += HOUR
    annotate(cluster, "verified", "alice")
    controller.look()
    controller.look()
    cluster.time += HOUR
    start().look()
    first = Judgement(START + 2 * HOUR, VERIFIED, "alice", "because")
    assert entries(dsn)[0].judgements == (first,)
    annotate(cluster, "rejected", "bob", "labels were wrong")
    start().look()
    (entry,) = entries(dsn)
    assert entry.judgements == (first, Judgement(START + 3 * HOUR, REJECTED, "bob", "labels were wrong"))
    assert entry.verdict is REJECTED


def test_what_is_no_verdict_is_none(cluster: MemoryCluster, start: Callable[[], Controller], dsn: str) -> None:
    """Another word in the annotation is not taken for one."""
    cluster.job("a")
    annotate(cluster, "fine", "alice")
    start().look()
    assert entries(dsn)[0].judgements == ()


def test_an_edit_after_the_end_does_not_make_it_punctual(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """A late job stays late, whatever is written into its annotations afterwards."""
    cluster.job("a", deadline="1h", weight="2")
    cluster.admit("a")
    controller = start()
    controller.look()
    cluster.time += 2 * HOUR
    cluster.condition("a", "Finished", "True", "Succeeded")
    controller.look()
    later = {"punctual.kueue/deadline": "9h", "punctual.kueue/weight": "9"}
    cluster.edit("Job", "team/a", lambda job: job["metadata"]["annotations"].update(later))
    controller.look()
    (entry,) = entries(dsn)
    assert (entry.deadline, entry.weight, entry.late) == (START + HOUR, 2.0, True)
