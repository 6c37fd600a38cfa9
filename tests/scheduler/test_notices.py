"""Events and annotations: late or lost at worst, never in anybody's way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster import Reference
from scheduler.notices import MESSAGE_LIMIT, QUIET_SECONDS, SERIES_SECONDS, Bucket, Notices
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
EVENTS = "/api/v1/events"
TARGET = Reference("Job", "team-a", "train", "uid-1")


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.005)


def events(fake: FakeApiServer) -> list[dict[str, Any]]:
    return list(fake.objects.get(EVENTS, {}).values())


def test_writes_an_event(fake: FakeApiServer) -> None:
    """An Event is about the object and in its namespace, as ``kubectl describe`` looks for it."""
    notices = Notices(fake.api())
    notices.start()
    notices.event(TARGET, "Warning", "InvalidAnnotation", "no offset")
    notices.stop()
    (event,) = events(fake)
    assert event["metadata"]["namespace"] == "team-a"
    assert event["involvedObject"] == {
        "apiVersion": "batch/v1", "kind": "Job", "namespace": "team-a", "name": "train", "uid": "uid-1",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "InvalidAnnotation", "no offset")
    assert event["count"] == 1


def test_repeats_are_counted(fake: FakeApiServer) -> None:
    """The same Event again counts up the one that is there, and not more often than every so many seconds."""
    clock = Clock()
    notices = Notices(fake.api(), clock=clock)
    notices.start()
    told = 0

    def tell(times: int) -> None:
        nonlocal told
        for _ in range(times):
            told += 1
            notices.event(TARGET, "Normal", "Planned", "starts at 10:00")
            eventually(lambda: not notices._queue)

    tell(1)
    eventually(lambda: len(events(fake)) == 1)
    tell(3)
    clock.seconds += QUIET_SECONDS
    tell(1)
    eventually(lambda: events(fake)[0]["count"] == told)
    notices.event(TARGET, "Normal", "Planned", "starts at 11:00")
    notices.stop()
    assert [event["count"] for event in events(fake)] == [told, 1]
    assert sum(method == "PATCH" for method, _, _ in fake.requests) == 1


def test_an_old_or_expired_event_is_made_anew(fake: FakeApiServer) -> None:
    """When the Event has expired in the cluster, or its last time is long ago, there is a new one."""
    clock = Clock()
    notices = Notices(fake.api(), clock=clock)
    notices.start()
    notices.event(TARGET, "Normal", "Planned", "x")
    eventually(lambda: len(events(fake)) == 1)
    fake.delete(EVENTS, next(iter(fake.objects[EVENTS])))
    clock.seconds += QUIET_SECONDS
    notices.event(TARGET, "Normal", "Planned", "x")
    eventually(lambda: len(events(fake)) == 1)
    clock.seconds += SERIES_SECONDS
    notices.event(TARGET, "Normal", "Planned", "x")
    notices.stop()
    assert len(events(fake)) == 2


def test_waiting_notices_are_merged(fake: FakeApiServer) -> None:
    """What repeats before it is written is written once, and of two annotations the newer value counts."""
    job = fake.put(JOBS, a_job("train"))
    target = Reference("Job", "team-a", "train", job["metadata"]["uid"])
    notices = Notices(fake.api())
    for start in ("10:00", "11:00"):
        notices.event(TARGET, "Normal", "Planned", "soon")
        notices.annotate(target, {"punctual.kueue/planned-start": start, "punctual.kueue/other": None})
    notices.start()
    notices.stop()
    assert [event["count"] for event in events(fake)] == [2]
    annotations = fake.objects[JOBS]["team-a/train"]["metadata"]["annotations"]
    assert annotations == {"punctual.kueue/planned-start": "11:00"}
    assert fake.count("PATCH", "/apis/batch/v1/namespaces/team-a/jobs/train") == 1


def test_a_namesake_is_not_annotated(fake: FakeApiServer) -> None:
    """Annotations meant for an object that was replaced do not land on its successor."""
    fake.put(JOBS, a_job("train"))
    dropped: list[int] = []
    notices = Notices(fake.api(), lambda: dropped.append(1))
    notices.start()
    notices.annotate(TARGET, {"punctual.kueue/planned-start": "10:00"})
    notices.stop()
    assert fake.objects[JOBS]["team-a/train"]["metadata"]["annotations"] == {}
    assert dropped == [1]


def test_too_many_are_dropped(fake: FakeApiServer) -> None:
    """A queue that is full drops what comes, counts it, and never blocks its caller."""
    dropped: list[int] = []
    notices = Notices(fake.api(), lambda: dropped.append(1), capacity=3)
    for number in range(5):
        notices.event(TARGET, "Normal", "Planned", f"message {number}")
    assert len(dropped) == 2
    notices.start()
    notices.stop()
    assert len(events(fake)) == 3


def test_refusals_are_survived(fake: FakeApiServer) -> None:
    """An Event that the cluster refuses is dropped and the next one written; a busy apiserver is asked again."""
    answers = iter([403, 503])

    def refuse(method: str, path: str) -> None:
        if status := next(answers, None):
            raise Refusal(status, "no")

    fake.hooks.append(refuse)
    dropped: list[int] = []
    notices = Notices(fake.api(), lambda: dropped.append(1))
    notices.start()
    notices.event(TARGET, "Normal", "Planned", "first")
    notices.event(TARGET, "Normal", "Planned", "second")
    eventually(lambda: [event["message"] for event in events(fake)] == ["second"])
    notices.stop()
    assert dropped == [1]


def test_long_messages_are_cut(fake: FakeApiServer) -> None:
    """A message longer than Kubernetes takes is cut between two characters, not refused."""
    notices = Notices(fake.api())
    notices.start()
    notices.event(TARGET, "Normal", "Planned", "é" * MESSAGE_LIMIT)
    notices.stop()
    message = events(fake)[0]["message"]
    assert len(message.encode()) <= MESSAGE_LIMIT
    assert message.startswith("éé")
    assert message.endswith("...")


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.integers(1, 10))
def test_the_rate_is_kept(pauses: list[float], burst: int) -> None:
    """However requests come: in any stretch of time at most ``burst`` plus ``rate`` × its length pass."""
    clock = Clock()
    bucket = Bucket(2.0, burst, clock)
    passed = []
    for pause in pauses:
        clock.seconds += pause
        clock.seconds += bucket.take()
        passed.append(clock.seconds)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + 2.0 * (passed[last] - passed[first]) + 1e-6
