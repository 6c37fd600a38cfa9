"""What owners hear: enough to know where they stand, never twice, never in a flood."""

from __future__ import annotations

import pytest
from memory_cluster import START, MemoryCluster

from scheduler.news import News, forecast
from scheduler.plans import Placement, PlanInForce
from scheduler.settings import HOUR, MINUTE, SECOND, Settings
from scheduler.snapshot import Snapshot, snapshot
from solver.api import planner_pb2 as pb


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.queue()
    return cluster


def placement(start: int, tardiness: int = 0, reason: int = pb.WAITS_FOR_QUOTA) -> Placement:
    return Placement(0, start, 0, start + HOUR, tardiness, reason, {})


def plan_for(snap: Snapshot, start: int) -> PlanInForce:
    return PlanInForce(snap.now, {item.uid: placement(start) for item in snap.items}, {}, "test", (), 0.0, 0.0)


def test_moves_that_are_news(cluster: MemoryCluster) -> None:
    """A start that moves is told again when the move is noticeable for its distance, and not within five minutes."""
    cluster.job("job")
    news = News(cluster, Settings())

    def tell(start: int) -> int:
        before = len(cluster.events)
        snap = snapshot(cluster)
        news.tell(snap, plan_for(snap, start))
        return len(cluster.events) - before

    assert tell(START + 10 * HOUR) == 1
    assert tell(START + 20 * HOUR) == 0  # too soon
    cluster.time += 5 * MINUTE
    assert tell(START + 10 * HOUR + 30 * MINUTE) == 0  # too little for what is ten hours away
    assert tell(START + 12 * HOUR) == 1
    cluster.time = START + 12 * HOUR - 2 * MINUTE
    assert tell(START + 12 * HOUR + 59 * SECOND) == 0
    assert tell(START + 12 * HOUR + 61 * SECOND) == 1


def test_no_flood(cluster: MemoryCluster) -> None:
    """A plan of many is told in portions, everyone once."""
    for number in range(50):
        cluster.job(f"job-{number}")
    news = News(cluster, Settings(notices_per_step=20))
    counts = []
    for _ in range(4):
        snap = snapshot(cluster)
        news.tell(snap, plan_for(snap, START + HOUR))
        counts.append(len(cluster.events))
    assert counts == [20, 40, 50, 50]
    assert len({target.name for target, *_ in cluster.events}) == 50


def test_late_and_on_time_again(cluster: MemoryCluster) -> None:
    """Lateness is told with its cause, and so is its end, at most every five minutes."""
    cluster.job("job", deadline="3h")
    news = News(cluster, Settings())
    told = []
    for start in (START + HOUR, START + 2 * HOUR + MINUTE, START + 2 * HOUR + MINUTE, START + HOUR):
        snap = snapshot(cluster)
        news.tell(snap, plan_for(snap, start))
        told.append([(kind, reason) for _, kind, reason, _ in cluster.events])
        cluster.time += 5 * MINUTE
    planned, late = ("Normal", "Planned"), ("Warning", "WillBeLate")
    assert told == [[planned], [planned, late], [planned, late], [planned, late, planned]]


def test_released_work_is_left_alone(cluster: MemoryCluster) -> None:
    """What was just released is not told a planned start, whatever the snapshot still shows."""
    cluster.job("job")
    snap = snapshot(cluster)
    News(cluster, Settings()).tell(snap, plan_for(snap, START + HOUR), released={snap.items[0].uid})
    assert cluster.events == []


def test_forgets_what_is_gone(cluster: MemoryCluster) -> None:
    """Work of the same name made later hears its complaints anew."""
    news = News(cluster, Settings())
    for uid in ("1", "2"):
        cluster.job("job", weight="-1")
        cluster.edit("Job", "team/job", lambda j, uid=uid: j["metadata"].update(uid=uid))
        key = next(iter(cluster.objects("Workload")))

        def adopt(w: dict, uid: str = uid) -> None:  # type: ignore[type-arg]
            w["metadata"]["ownerReferences"][0]["uid"] = w["metadata"]["uid"] = uid

        cluster.edit("Workload", key, adopt)
        news.tell(snapshot(cluster), None)
        cluster.drop("Workload", key)
        cluster.drop("Job", "team/job")
        news.tell(snapshot(cluster), None)
    assert len(cluster.told("InvalidAnnotation")) == 2
    assert news._said == {}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            pb.LATE_ALREADY,
            "after its deadline 2027-01-15T10:00:00Z: it could not be on time even if it started at once",
        ),
        (pb.LATE_NO_ROOM, "work that weighs more or is due sooner needs the quota"),
        (pb.WAITS_FOR_QUOTA, "30m after its deadline 2027-01-15T10:00:00Z"),
    ],
)
def test_words_for_late_work(cluster: MemoryCluster, reason: int, words: str) -> None:
    """The warning says by how much, and why."""
    cluster.job("job", deadline="2h")
    item = snapshot(cluster).items[0]
    kind, _, message = forecast(item, placement(START + 90 * MINUTE, reason=reason))
    assert kind == "Warning"
    assert words in message
