"""Leader election: never two at once by anybody's own clock, and never by comparing clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.apiserver import ApiError
from scheduler.leader import Elector, Timing
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal

LEASES = "/apis/coordination.k8s.io/v1/leases"
KEY = "punctual-system/punctual"


class Clock:
    """A clock that starts anywhere and goes at its own pace, as that of another machine does."""

    def __init__(self, start: float = 0.0) -> None:
        self.seconds = start

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


def elector(fake: FakeApiServer, who: str, clock: Callable[[], float], timing: Timing | None = None) -> Elector:
    return Elector(fake.api(), "punctual-system", "punctual", who, timing, clock)


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.005)


def test_the_first_one_leads(fake: FakeApiServer) -> None:
    """Who creates the Lease leads; who finds it held does not; the Lease says who, since when and for how long."""
    one, two = elector(fake, "one", Clock()), elector(fake, "two", Clock(1e9))
    assert not one.may_act()
    assert one.attempt()
    assert not two.attempt()
    assert one.may_act()
    assert not two.may_act()
    assert two.holder == "one"
    spec = fake.objects[LEASES][KEY]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
    assert spec["acquireTime"] == spec["renewTime"]


def test_a_renewed_lease_is_not_taken(fake: FakeApiServer) -> None:
    """As long as the Lease changes, nobody takes it over, however long that goes on."""
    clock = Clock()
    one, two = elector(fake, "one", clock), elector(fake, "two", clock)
    for _ in range(20):
        assert one.attempt()
        assert not two.attempt()
        clock.seconds += 8
    assert fake.objects[LEASES][KEY]["spec"]["leaseTransitions"] == 0


def test_a_stale_lease_is_taken(fake: FakeApiServer) -> None:
    """A Lease that has not changed for its duration since *we* saw it first is taken over, whatever times it names."""
    one, two = elector(fake, "one", Clock(5.0)), elector(fake, "two", clock := Clock(1e6))
    assert one.attempt()
    lease = fake.objects[LEASES][KEY]
    lease["spec"] |= {"renewTime": "1999-01-01T00:00:00.000000Z", "acquireTime": "2999-01-01T00:00:00.000000Z"}
    fake.put(LEASES, lease)
    assert not two.attempt()
    clock.seconds += 14.9
    assert not two.attempt()
    clock.seconds += 0.2
    assert two.attempt()
    assert fake.objects[LEASES][KEY]["spec"]["leaseTransitions"] == 1
    assert not one.attempt()
    assert not one.may_act()


def test_a_leader_that_slept_knows(fake: FakeApiServer) -> None:
    """Who has not renewed within the deadline may not act, even before it finds out that somebody else leads."""
    one = elector(fake, "one", clock := Clock())
    assert one.attempt()
    clock.seconds += 9.9
    assert one.may_act()
    clock.seconds += 0.2
    assert not one.may_act()


def test_a_slow_answer_does_not_lengthen_the_lease(fake: FakeApiServer) -> None:
    """The deadline counts from when the renewal was sent: the others may count from when it was written."""
    one = elector(fake, "one", clock := Clock())
    assert one.attempt()

    def slow(method: str, path: str) -> None:
        if method == "PUT":
            clock.seconds += 6

    fake.hooks.append(slow)
    assert one.attempt()
    clock.seconds += 4.1
    assert not one.may_act()


def test_two_that_try_at_once(fake: FakeApiServer) -> None:
    """Of two that find the Lease free at the same moment one gets it: the apiserver compares versions."""
    one, two = elector(fake, "one", Clock()), elector(fake, "two", Clock())
    assert one.attempt()
    lease = fake.objects[LEASES][KEY]
    lease["spec"]["holderIdentity"] = ""
    fake.put(LEASES, lease)
    winners: list[bool] = []

    def rival(method: str, path: str) -> None:
        if method == "PUT" and not winners:
            winners.append(True)
            winners[0] = two.attempt()

    fake.hooks.append(rival)
    assert not one.attempt()
    assert winners == [True]
    assert two.may_act()


def test_a_new_process_of_the_same_name_goes_on(fake: FakeApiServer) -> None:
    """A restarted replica with the identity of its dead self need not wait for its own lease to run out."""
    assert elector(fake, "pod-0", Clock()).attempt()
    again = elector(fake, "pod-0", Clock())
    assert not again.may_act()
    assert again.attempt()
    assert again.may_act()


def test_a_lease_given_back_is_free(fake: FakeApiServer) -> None:
    """A graceful end gives the lease back, so that the next one leads at once."""
    one, two = elector(fake, "one", time.monotonic), elector(fake, "two", time.monotonic)
    one.start()
    assert one.acquired.wait(10)
    one.stop()
    assert not one.may_act()
    assert not one.lost.is_set()
    assert two.attempt()


def test_losing_is_final(fake: FakeApiServer) -> None:
    """A leader that finds somebody else in its Lease has lost, may not act, and does not try again."""
    one = elector(fake, "one", time.monotonic, Timing(lease=1.0, renew=0.5, retry=0.05))
    one.start()
    assert one.acquired.wait(10)
    with fake.lock:
        lease = fake.objects[LEASES][KEY]
        lease["spec"]["holderIdentity"] = "two"
        fake.put(LEASES, lease)
    assert one.lost.wait(10)
    assert not one.may_act()
    requests = len(fake.requests)
    time.sleep(0.2)
    assert len(fake.requests) == requests


def test_an_apiserver_that_is_away_ends_the_lead(fake: FakeApiServer) -> None:
    """Who cannot renew in time has lost; a short outage is survived."""
    one = elector(fake, "one", time.monotonic, Timing(lease=4.0, renew=2.0, retry=0.05))
    one.start()
    assert one.acquired.wait(10)
    fake.stop()
    time.sleep(0.3)
    fake.start()
    requests = len(fake.requests)
    eventually(lambda: len(fake.requests) > requests + 2)
    assert not one.lost.is_set()
    fake.stop()
    assert one.lost.wait(10)
    fake.start()


def test_a_refusal_is_told(fake: FakeApiServer) -> None:
    """No permission to use Leases is an error with the apiserver's words, not "somebody else leads"."""

    def refuse(method: str, path: str) -> None:
        raise Refusal(403, "leases is forbidden")

    fake.hooks.append(refuse)
    with pytest.raises(ApiError, match="leases is forbidden"):
        elector(fake, "one", Clock()).attempt()


def test_timing_is_checked() -> None:
    """Times that would let two lead at once are refused."""
    for lease, renew, retry in ((10, 10, 1), (10, 5, 5), (10, 5, 0), (5, 10, 1)):
        with pytest.raises(ValueError, match="retry < renew < lease"):
            Timing(lease, renew, retry)


class Direct:
    """The fake apiserver without HTTP between, for many examples."""

    def __init__(self, fake: FakeApiServer) -> None:
        self.fake = fake

    def request(self, method: str, path: str, *, body: Any = None, seconds: float = 0) -> dict[str, Any]:
        try:
            return self.fake.handle(method, path, {}, body, "application/json")
        except Refusal as refusal:
            raise ApiError(refusal.status, refusal.message) from refusal


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 4.9, 7.6, 9.9, 15.1])), min_size=15, max_size=40),
    st.lists(st.floats(0, 1e9), min_size=2, max_size=2),
)
def test_never_two_at_once(fake: FakeApiServer, steps: list[tuple[int, float]], starts: list[float]) -> None:
    """Whoever tries when, and wherever their clocks stand: at no moment may two of them act."""
    fake.objects.clear()
    clocks = [Clock(start) for start in starts]
    api: Any = Direct(fake)
    electors = [Elector(api, "punctual-system", "punctual", str(n), clock=clock) for n, clock in enumerate(clocks)]
    for number, pause in steps:
        for clock in clocks:
            clock.seconds += pause
        electors[number].attempt()
        assert sum(one.may_act() for one in electors) <= 1
