"""Following one kind of object through everything an apiserver does to its watchers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.apiserver import RESOURCES
from scheduler.reflector import Backoff, Reflector, Store
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
LIMIT_RANGES = "/api/v1/limitranges"
COHORTS = "/apis/kueue.x-k8s.io/v1beta2/cohorts"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


@pytest.fixture
def follow(fake: FakeApiServer) -> Iterator[Callable[..., Reflector]]:
    """Starts a reflector; ends it after the test."""
    started = []

    def start(kind: str = "Job", changed: Callable[[], None] = lambda: None, page: int = 500) -> Reflector:
        reflector = Reflector(fake.api(), RESOURCES[kind], changed, page=page, backoff=Backoff(0.01, 0.05))
        reflector.start()
        started.append(reflector)
        return reflector

    yield start
    for reflector in started:
        reflector.stop()


def eventually(true: Callable[[], bool], what: str = "") -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.005)


def names(reflector: Reflector) -> set[str]:
    return {key.partition("/")[2] for key in reflector.store.snapshot()}


def test_lists_all_pages(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A list that comes in pages is held whole, asked for page by page."""
    for number in range(25):
        fake.put(JOBS, a_job(f"j{number}"))
    reflector = follow(page=10)
    assert reflector.wait_synced(10)
    assert names(reflector) == {f"j{number}" for number in range(25)}
    assert fake.count("GET", JOBS, limit="10") == 3


def test_begins_again_when_pages_become_too_old(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """When the continue token expires between two pages, the list is asked for once more, in one piece."""
    for number in range(25):
        fake.put(JOBS, a_job(f"j{number}"))
    seen = []

    def expire(method: str, path: str) -> None:
        seen.append(method)
        if len(seen) == 2:
            fake.put(JOBS, a_job("newcomer"))
            fake.compact()

    fake.hooks.append(expire)
    reflector = follow(page=10)
    assert reflector.wait_synced(10)
    assert names(reflector) == {"newcomer", *(f"j{number}" for number in range(25))}


def test_follows_what_changes(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """What is created, changed and deleted after the list is seen, and each change is told."""
    changes = threading.Semaphore(0)
    fake.put(JOBS, a_job("old"))
    reflector = follow(changed=changes.release)
    assert changes.acquire(timeout=10)
    fake.put(JOBS, a_job("new"))
    assert changes.acquire(timeout=10)
    assert names(reflector) == {"old", "new"}
    fake.put(JOBS, a_job("old", annotations={"a": "b"}))
    assert changes.acquire(timeout=10)
    assert reflector.store.snapshot()["team-a/old"]["metadata"]["annotations"] == {"a": "b"}
    fake.delete(JOBS, "team-a/old")
    assert changes.acquire(timeout=10)
    assert names(reflector) == {"new"}


def test_asks_only_for_what_matters(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Jobs without a queue are none of our business: the apiserver leaves them out."""
    fake.put(JOBS, a_job("ours"))
    fake.put(JOBS, a_job("other", labels={}))
    reflector = follow()
    assert reflector.wait_synced(10)
    assert names(reflector) == {"ours"}


def test_goes_on_after_the_end_of_a_watch(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A watch whose time is over is continued from its last version, without a new list."""
    reflector = follow()
    eventually(lambda: fake.count("WATCH", JOBS) == 1)
    fake.put(JOBS, a_job("before"))
    eventually(lambda: names(reflector) == {"before"})
    fake.end_watches()
    eventually(lambda: fake.count("WATCH", JOBS) >= 2)
    fake.put(JOBS, a_job("after"))
    eventually(lambda: names(reflector) == {"before", "after"})
    assert fake.count("GET", JOBS) == 1


def test_bookmarks_move_the_version(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A bookmark moves the version from which the next watch goes on, so history may be forgotten; it is no change."""
    changes: list[int] = []
    reflector = follow(changed=lambda: changes.append(1))
    eventually(lambda: fake.count("WATCH", JOBS) == 1 and len(changes) == 1)
    fake.bookmark(JOBS)
    eventually(lambda: reflector._version == str(fake.version))
    fake.compact()
    eventually(lambda: fake.count("WATCH", JOBS) >= 2)
    assert fake.count("GET", JOBS) == 1
    assert len(changes) == 1


def test_lists_again_when_its_version_is_too_old(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """After 410 Gone everything is listed anew; what was deleted meanwhile is gone here too."""
    fake.put(JOBS, a_job("stays"))
    fake.put(JOBS, a_job("goes"))
    reflector = follow()
    eventually(lambda: fake.count("WATCH", JOBS) == 1)
    with fake.lock:
        fake.delete(JOBS, "team-a/goes")
        fake.put(JOBS, a_job("comes"))
        fake.compact()
    eventually(lambda: names(reflector) == {"stays", "comes"})
    assert fake.count("GET", JOBS) >= 2
    assert reflector.problem == ""


def test_an_error_event_with_410_lists_again(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """The apiserver also says 410 as an ERROR event in the middle of a stream that began well."""
    reflector = follow()
    eventually(lambda: fake.count("WATCH", JOBS) == 1)
    with fake.lock:
        fake.version += 1
        expired = {"kind": "Status", "code": 410, "message": "too old", "metadata": {}}
        fake.history.append(
            (fake.version, JOBS, "ERROR", {**expired, "metadata": {"labels": a_job()["metadata"]["labels"]}})
        )
        fake.lock.notify_all()
    eventually(lambda: fake.count("GET", JOBS) >= 2)
    fake.put(JOBS, a_job("after"))
    eventually(lambda: names(reflector) == {"after"})


def test_survives_cut_connections(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Connections that close in the middle of a stream cost nothing but a reconnect; nothing is lost, nothing twice."""
    reflector = follow()
    assert reflector.wait_synced(10)
    for number in range(5):
        fake.cut()
        fake.put(JOBS, a_job(f"j{number}"))
    eventually(lambda: names(reflector) == {f"j{number}" for number in range(5)})
    assert fake.count("GET", JOBS) == 1


def test_survives_a_restart(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """While the apiserver is away the last state stays and the problem is told; afterwards all is as it was."""
    fake.put(JOBS, a_job("one"))
    reflector = follow()
    eventually(lambda: names(reflector) == {"one"})
    fake.stop()
    eventually(lambda: "cannot follow jobs" in reflector.problem)
    assert names(reflector) == {"one"}
    assert reflector.has_synced
    fake.start()
    fake.put(JOBS, a_job("two"))
    eventually(lambda: names(reflector) == {"one", "two"} and not reflector.problem)


def test_says_when_a_kind_is_unknown(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A kind that the cluster does not have counts as empty, is told, and is found when it appears later."""
    fake.kinds.discard(COHORTS)
    reflector = follow("Cohort")
    assert reflector.wait_synced(10)
    assert reflector.store.snapshot() == {}
    assert "no cohorts" in reflector.problem
    fake.kinds.add(COHORTS)
    fake.put(COHORTS, {"metadata": {"name": "all"}})
    eventually(lambda: set(reflector.store.snapshot()) == {"all"} and not reflector.problem)


def test_a_crd_that_may_be_missing_is_no_problem(
    fake: FakeApiServer, follow: Callable[..., Reflector], caplog: pytest.LogCaptureFixture
) -> None:
    """A job kind whose CRD is not installed counts as empty, without a word, and is found when it appears later."""
    reflector = follow("JobSet")
    assert reflector.wait_synced(10)
    eventually(lambda: fake.count("GET", JOBSETS) > 3)
    assert (reflector.store.snapshot(), reflector.problem, caplog.messages) == ({}, "", [])
    fake.kinds.add(JOBSETS)
    fake.put(JOBSETS, {**a_job("train"), "kind": "JobSet"})
    eventually(lambda: names(reflector) == {"train"} and not reflector.missing)


def test_a_starting_apiserver_empties_nothing(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Custom resources may be "not found" for a moment while an apiserver starts: known objects stay."""
    fake.put(COHORTS, {"metadata": {"name": "all"}})
    reflector = follow("Cohort")
    eventually(lambda: set(reflector.store.snapshot()) == {"all"})
    fake.kinds.discard(COHORTS)
    fake.end_watches()
    eventually(lambda: bool(reflector.problem))
    assert set(reflector.store.snapshot()) == {"all"}


def test_is_not_synced_without_permission(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A refused list is told in the apiserver's words and does not count as "there is nothing"."""

    def refuse(method: str, path: str) -> None:
        raise Refusal(403, 'jobs.batch is forbidden: User "x" cannot list')

    fake.hooks.append(refuse)
    reflector = follow()
    eventually(lambda: "cannot list" in reflector.problem)
    assert not reflector.has_synced
    fake.hooks.clear()
    assert reflector.wait_synced(10)


def test_what_is_dispensable_need_not_be_readable(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """A refused list of what plans can do without counts as empty, and is told; once it is allowed, it counts."""

    def refuse(method: str, path: str) -> None:
        raise Refusal(403, "limitranges is forbidden")

    fake.put(LIMIT_RANGES, {"metadata": {"name": "l", "namespace": "team-a"}})
    fake.hooks.append(refuse)
    reflector = follow("LimitRange")
    assert reflector.wait_synced(10)
    assert "limitranges is forbidden" in reflector.problem
    assert "without them" in reflector.problem
    assert reflector.store.snapshot() == {}
    fake.hooks.clear()
    eventually(lambda: set(reflector.store.snapshot()) == {"team-a/l"} and not reflector.problem)


def test_only_one_object_is_asked_for(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Of the ConfigMaps only Kueue's is listed and watched, by name, in its namespace."""
    follow("ConfigMap")
    path, query = "/api/v1/namespaces/kueue-system/configmaps", {"fieldSelector": "metadata.name=kueue-manager-config"}
    for method in ("GET", "WATCH"):
        eventually(lambda method=method: fake.count(method, path, **query) > 0)  # type: ignore[misc]


def test_does_not_hammer_an_apiserver_that_ends_watches_at_once(fake: FakeApiServer) -> None:
    """Watches that end as soon as they begin are begun more and more slowly."""
    waits: list[float] = []

    class Recorded(Backoff):
        def seconds(self) -> float:
            waits.append(super().seconds())
            return waits[-1]

    reflector = Reflector(fake.api(), RESOURCES["Job"], lambda: None, backoff=Recorded(0.01, 0.05))
    reflector.start()
    for watches in range(1, 7):
        eventually(lambda watches=watches: fake.count("WATCH", JOBS) == watches)  # type: ignore[misc]
        fake.end_watches()
    reflector.stop()
    assert waits[0] <= 0.01
    assert max(waits) > 0.02


def test_leaves_out_what_nobody_reads(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Managed fields are dropped on arrival, and items of a list get the kind that lists leave out."""
    bare = a_job("one", managedFields=[{"manager": "kubectl"}])
    del bare["kind"], bare["apiVersion"]
    fake.put(JOBS, bare)
    reflector = follow()
    assert reflector.wait_synced(10)
    fake.put(JOBS, a_job("two", managedFields=[{"manager": "kubectl"}]))
    eventually(lambda: names(reflector) == {"one", "two"})
    for item in reflector.store.snapshot().values():
        assert "managedFields" not in item["metadata"]
        assert (item["kind"], item["apiVersion"]) == ("Job", "batch/v1")


def test_stops_at_once(fake: FakeApiServer, follow: Callable[..., Reflector]) -> None:
    """Stopping does not wait for the watch's time to be over."""
    reflector = follow()
    eventually(lambda: fake.count("WATCH", JOBS) == 1)
    reflector.stop()
    assert not reflector._thread.is_alive()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9), st.booleans())))
def test_snapshots_never_change(steps: list[tuple[str, int | None, bool]]) -> None:
    """A snapshot of the store is what the store was when it was taken, whatever comes later."""
    store, truth, taken = Store(), {}, []
    for key, value, look in steps:
        store.put(key, None if value is None else {"metadata": {"v": value}})
        truth = {k: v for k, v in {**truth, key: value}.items() if v is not None}
        if look:
            taken.append((store.snapshot(), json.dumps(truth, sort_keys=True)))
    for snapshot, as_it_was in taken:
        assert json.dumps({k: v["metadata"]["v"] for k, v in snapshot.items()}, sort_keys=True) == as_it_was


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "delete", "cut", "end", "compact", "bookmark", "restart"]),
            st.sampled_from("abcdef"),
        ),
        max_size=25,
    )
)
def test_ends_up_with_the_truth(steps: list[tuple[str, str]]) -> None:
    """Whatever happens to objects, history and connections, in any order: in the end the store is the apiserver's."""
    fake = FakeApiServer()
    reflector = Reflector(fake.api(), RESOURCES["Job"], lambda: None, page=2, backoff=Backoff(0.005, 0.02))
    reflector.start()
    try:
        for what, name in steps:
            if what == "put":
                fake.put(JOBS, a_job(name))
            elif what == "delete" and f"team-a/{name}" in fake.objects.get(JOBS, {}):
                fake.delete(JOBS, f"team-a/{name}")
            elif what == "cut":
                fake.cut()
            elif what == "end":
                fake.end_watches()
            elif what == "compact":
                fake.compact()
            elif what == "bookmark":
                fake.bookmark(JOBS)
            elif what == "restart":
                fake.stop()
                fake.start()

        def versions(objects: object) -> dict[str, str]:
            return {key: item["metadata"]["resourceVersion"] for key, item in dict(objects).items()}  # type: ignore[call-overload]

        eventually(lambda: versions(reflector.store.snapshot()) == versions(fake.objects.get(JOBS, {})), str(steps))
    finally:
        reflector.stop()
        fake.stop()
