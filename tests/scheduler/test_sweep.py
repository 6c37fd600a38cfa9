"""The sweeper on a fake apiserver, with a clock that is moved by hand or short delays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.apiserver import ApiError
from scheduler.cluster import GATE, GATES_ANNOTATION, Reference
from scheduler.sweep import GAP, End, Orders, Silence, Sweeper
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
LEASES = "/apis/coordination.k8s.io/v1/leases"
NAMESPACE, LEASE = "punctual-system", "punctual-controller"
ORDERS = Orders(after=0.3, rate=200)
CREATED = "2026-12-01T00:00:00Z"


class Told:
    """Notes Events instead of writing them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        self.events.append((str(target), reason, message))


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


def renew(fake: FakeApiServer, seconds: float = 0.2) -> None:
    spec = {"holderIdentity": "", "leaseDurationSeconds": seconds}
    known = fake.objects.get(LEASES, {}).get(f"{NAMESPACE}/{LEASE}", {}).get("metadata", {})
    fake.put(LEASES, {"metadata": {**known, "name": LEASE, "namespace": NAMESPACE}, "spec": spec})


def put(fake: FakeApiServer, name: str, due: str = "", gates: str = GATE) -> None:
    job = a_job(name, gates=gates, creationTimestamp=CREATED)
    if due:
        job["metadata"]["annotations"]["punctual.kueue/deadline"] = due
    fake.put(JOBS, job)


def gated(fake: FakeApiServer) -> set[str]:
    jobs = fake.objects[JOBS].values()
    return {j["metadata"]["name"] for j in jobs if GATE in j["metadata"]["annotations"].get(GATES_ANNOTATION, "")}


def swept(fake: FakeApiServer) -> list[str]:
    return [path.rpartition("/")[2] for method, path, _ in fake.requests if method == "PATCH"]


class Running:
    """A sweeper in a thread."""

    def __init__(self, fake: FakeApiServer, orders: Orders = ORDERS) -> None:
        self.told = Told()
        self.orders = orders
        self.sweeper = Sweeper(fake.api(), NAMESPACE, LEASE, lambda: self.orders, self.told)
        self.end: End | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.end = self.sweeper.run()

    def ended(self) -> End | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.end

    def stop(self) -> None:
        self.sweeper.stop()
        self.thread.join(20)


@pytest.fixture
def run(fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Running]]:
    monkeypatch.setattr("scheduler.sweep.EVERY", 0.05)
    monkeypatch.setattr("scheduler.sweep.LIST_EVERY", 0.3)
    started: list[Running] = []

    def start(**orders: Any) -> Running:
        started.append(Running(fake, replace(ORDERS, **orders)))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def eventually(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.01)


# --- how long the Lease has been silent ------------------------------------------------------------------------------


class Script:
    """An apiserver that answers as told, at instants as told."""

    def __init__(self) -> None:
        self.now, self.version, self.away = 0.0, 1, False

    def request(self, method: str, path: str) -> dict[str, Any]:
        if self.away:
            raise ApiError(0, "no answer")
        return {"metadata": {"uid": "u", "resourceVersion": str(self.version)}, "spec": {"leaseDurationSeconds": 15}}

    def silence(self) -> Silence:
        api: Any = self
        return Silence(api, NAMESPACE, LEASE, clock=lambda: self.now)


STEP = st.tuples(st.sampled_from(["wait", "renew", "away"]), st.floats(0.1, 2 * GAP))


@given(st.lists(STEP, max_size=40))
def test_silence_is_never_overestimated(steps: list[tuple[str, float]]) -> None:
    """Whatever happens, the Lease has really not changed for as long as is said, and the apiserver answered."""
    script = Script()
    silence = script.silence()
    certain_since: float | None = None
    looked = 0.0
    for what, seconds in steps:
        script.now += seconds
        if what == "renew":
            script.version += 1
            certain_since = None
        script.away = what == "away"
        if script.away:
            with pytest.raises(ApiError):
                silence.look()
            certain_since = None
            continue
        look = silence.look()
        if certain_since is None or script.now - looked > GAP:
            certain_since = script.now
        looked = script.now
        assert look.silent <= script.now - certain_since + 1e-9
        assert look.moved <= (script.version > 1)


def test_silence_grows_while_it_is_watched() -> None:
    """Looked at again and again, an unchanged Lease is known to be silent for the whole time."""
    script = Script()
    silence = script.silence()
    for _ in range(61):
        look = silence.look()
        script.now += 10
    assert (look.silent, look.moved, look.floor) == (600, False, 15)


def test_an_apiserver_that_was_away_proves_nothing() -> None:
    """A Lease could not be renewed while the apiserver was away: the time begins anew."""
    script = Script()
    silence = script.silence()
    for script.now in (0.0, 10.0):
        silence.look()
    script.away, script.now = True, 12.0
    with pytest.raises(ApiError):
        silence.look()
    script.away, script.now = False, 14.0
    assert silence.look().silent == 0


def test_no_time_is_compared_with_the_clusters() -> None:
    """A change counts as one whenever it is seen, also after a gap in which we looked at nothing."""
    script = Script()
    silence = script.silence()
    silence.look()
    script.now, script.version = 10 * GAP, 2
    assert silence.look().moved


# --- sweeping --------------------------------------------------------------------------------------------------------


def test_nothing_is_swept_while_the_lease_is_renewed(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """As soon as the Lease moves the sweeper ends, content; what waits goes on waiting."""
    put(fake, "waits")
    renew(fake)
    running = run(after=60.0)
    time.sleep(0.2)
    renew(fake)
    assert running.ended() is End.ALIVE
    assert (gated(fake), swept(fake), running.told.events) == ({"waits"}, [], [])


def test_all_is_swept_in_order_when_it_is_not(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Due first, then what has no deadline; gates of others stay; what comes later goes too; owners are told why."""
    put(fake, "whenever")
    put(fake, "later", due="2h")
    put(fake, "soon", due="1h", gates=f"{GATE},a.example/b")
    put(fake, "not-ours", gates="a.example/b")
    renew(fake)
    running = run()
    eventually(lambda: not gated(fake))
    assert swept(fake) == ["soon", "later", "whenever"]
    annotations = fake.objects[JOBS]["team-a/soon"]["metadata"]["annotations"]
    assert annotations[GATES_ANNOTATION] == "a.example/b"
    put(fake, "newcomer")
    eventually(lambda: not gated(fake))
    running.stop()
    assert running.ended() is End.STOPPED
    lost, *told = running.told.events
    assert lost[:2] == ("Lease punctual-system/punctual-controller", "ControllerLost")
    assert "3 wait and are let go" in lost[2]
    assert [target for target, reason, _ in told if reason == "Swept"] == [
        f"Job team-a/{name}" for name in ("soon", "later", "whenever", "newcomer")
    ]


def test_it_stops_at_once_when_the_lease_moves(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """A controller that comes back in the middle of it finds all that has not been swept yet."""
    for number in range(30):
        put(fake, f"job-{number:02}", due=f"{number + 1}h")
    renew(fake)

    def come_back(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("job-04"):
            renew(fake)

    fake.hooks.append(come_back)
    running = run()
    assert running.ended() is End.ALIVE
    assert swept(fake) == [f"job-{number:02}" for number in range(5)]
    assert len(gated(fake)) == 25


def test_hold_only_says_so(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """With orders to hold nothing is released; it is said how many wait."""
    put(fake, "waits")
    renew(fake)
    running = run(hold=True)
    assert running.ended() is End.HELD
    assert (gated(fake), swept(fake)) == ({"waits"}, [])
    ((_, reason, message),) = running.told.events
    assert reason == "ControllerLost"
    assert "1 wait and are held" in message


def test_whoever_decides_to_hold_in_the_middle_of_it_is_heard(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Orders are read again and again: changed to hold, they end the sweep with what has gone so far."""
    for number in range(40):
        put(fake, f"job-{number:02}")
    renew(fake)
    running = run(rate=20)
    eventually(lambda: len(swept(fake)) >= 2)
    running.orders = replace(running.orders, hold=True)
    assert running.ended() is End.HELD
    assert 0 < len(gated(fake)) < 40


def test_a_lease_that_is_not_there_is_silent_too(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Without any Lease there is no controller; the first one that appears ends the sweep."""
    put(fake, "waits")
    with_floor = run(after=60.0)
    time.sleep(0.2)
    renew(fake)
    assert with_floor.ended() is End.ALIVE
    assert gated(fake) == {"waits"}


def test_the_lease_has_its_own_duration(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Its holder may be silent for the Lease's duration and be alive: a shorter delay does not count."""
    put(fake, "waits")
    renew(fake, seconds=60)
    running = run(after=0.1)
    time.sleep(0.6)
    running.stop()
    assert running.ended() is End.STOPPED
    assert gated(fake) == {"waits"}


def test_one_that_fails_each_time_holds_up_no_other(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """However long one takes that may work later: what was not tried yet goes first when work is listed anew."""
    put(fake, "broken", due="1h")
    put(fake, "sound", due="2h")
    renew(fake)

    def fail(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/broken"):
            raise Refusal(500, "a webhook does not answer")

    fake.hooks.append(fail)
    running = run(rate=2)  # one attempt is all that there is time for before the next list
    eventually(lambda: running.sweeper.released == 1)
    assert gated(fake) == {"broken"}


def test_one_that_is_refused_stops_no_other(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """What cannot be released is tried once and counted; the others go."""
    put(fake, "guarded", due="1h")
    put(fake, "free", due="2h")
    renew(fake)

    def refuse(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/guarded"):
            raise Refusal(403, "needs the verb ungate")

    fake.hooks.append(refuse)
    running = run()
    eventually(lambda: gated(fake) == {"guarded"})
    time.sleep(0.7)
    running.stop()
    assert swept(fake).count("guarded") == 1
    assert (running.sweeper.released, running.sweeper.failed) == (1, 1)


def test_a_kind_that_may_not_be_listed_stops_no_other(
    fake: FakeApiServer, run: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """Rights that lack for one kind are said, and the other kinds are released."""
    put(fake, "free")
    renew(fake)

    def refuse(method: str, path: str) -> None:
        if path.endswith("/jobsets"):
            raise Refusal(403, "jobsets is forbidden")

    fake.hooks.append(refuse)
    run()
    eventually(lambda: not gated(fake))
    assert "JobSet objects that wait cannot be released: jobsets is forbidden" in caplog.text


def test_releases_are_paced(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Never more a second than told: Kueue and the apiserver are not flooded by all that waited."""
    for number in range(100):
        put(fake, f"job-{number}")
    renew(fake)
    running = run(rate=10)
    eventually(lambda: len(swept(fake)) >= 2)
    begun, before = time.monotonic(), len(swept(fake))
    time.sleep(0.5)
    running.stop()
    assert len(swept(fake)) - before <= (time.monotonic() - begun) * 10 + 1


def test_a_list_that_takes_long_is_used_all_the_same(
    fake: FakeApiServer, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time in which we did not look at the Lease does not count; it is waited for, and what was listed is released."""
    put(fake, "waits")
    renew(fake)
    running = run()
    eventually(lambda: not gated(fake))
    monkeypatch.setattr(running.sweeper._silence, "_gap", 0.3)

    def slow(method: str, path: str) -> None:
        if method == "GET" and path == JOBS:
            time.sleep(0.5)

    fake.hooks.append(slow)
    put(fake, "newcomer")
    eventually(lambda: not gated(fake))
    running.stop()
    assert running.ended() is End.STOPPED


def test_an_apiserver_that_goes_away_is_waited_for(fake: FakeApiServer, run: Callable[..., Running]) -> None:
    """Without answers nothing is released, and afterwards the Lease must be silent anew."""
    put(fake, "waits")
    renew(fake)
    fake.stop()
    running = run()
    time.sleep(0.5)
    fake.start()
    eventually(lambda: not gated(fake))
    running.stop()
    assert running.sweeper.released == 1
