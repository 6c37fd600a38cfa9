"""Plans over gRPC, in the background, and what happens when they do not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from scheduler.planner_client import (
    BackgroundPlanner,
    InlinePlanner,
    PlannerClient,
    PlannerRefused,
    PlannerUnavailable,
)
from solver.api import planner_pb2 as pb
from solver.api.planner_pb2_grpc import PlannerServicer, add_PlannerServicer_to_server

NOW = 1_800_000_000_000


def request(number: int = 0) -> pb.PlanRequest:
    return pb.PlanRequest(schema=1, now_ms=NOW + number)


def response(late: int, final: bool = False) -> pb.PlanResponse:
    plan = pb.Plan(
        workload=[0],
        start_ms=[NOW],
        not_before_ms=[0],
        finish_ms=[NOW + 1],
        assignment=[0],
        tardiness_ms=[late],
        reason=[pb.ROOM_NOW],
        assignments=[pb.Assignment()],
    )
    return pb.PlanResponse(plan=plan, final=final)


class Servicer(PlannerServicer):
    """Does what its one attribute says."""

    status: grpc.StatusCode | None = None
    details = ""
    sleep = 0.0

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanResponse:
        time.sleep(self.sleep)
        if self.status:
            context.abort(self.status, self.details)
        return pb.PlanResponse(objective=pb.Objective(engine="test"))

    def PlanStream(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> Iterator[pb.PlanResponse]:
        for late in range(3):
            yield response(late)
        if self.status:
            context.abort(self.status, self.details)
        yield response(2, final=True)


class Endless(Servicer):
    """Sends one plan and looks for a better one for as long as anybody listens."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = threading.Event()

    def PlanStream(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> Iterator[pb.PlanResponse]:
        self.calls += 1
        context.add_callback(self.cancelled.set)
        yield response(0)
        while context.is_active():
            time.sleep(0.01)


@contextmanager
def serving(address: str, servicer: Servicer | None = None) -> Iterator[Servicer]:
    servicer = servicer or Servicer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_PlannerServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/planner.sock"


def test_plan_over_a_socket(address: str) -> None:
    """A plan comes over a Unix socket."""
    with serving(address):
        client = PlannerClient(address)
        assert client.plan(request()).objective.engine == "test"
        client.close()


@pytest.mark.parametrize("status", [None, grpc.StatusCode.INTERNAL])
def test_stream_of_plans(address: str, status: grpc.StatusCode | None) -> None:
    """Each better plan is an answer, the repeated last one is not; an error after some plans is one more answer."""
    woken = threading.Semaphore(0)
    with serving(address) as servicer:
        servicer.status = status
        client = PlannerClient(address)
        planner = BackgroundPlanner(client.plans, woken.release)
        planner.ask(pb.PlanRequest(schema=1, now_ms=NOW, workloads=pb.Workloads(id=["x"])))
        for late in range(3):
            assert woken.acquire(timeout=10)
            answer = planner.answer()
            assert answer is not None
            assert answer.plan is not None
            assert answer.plan.placements["x"].tardiness == late
        assert woken.acquire(timeout=0.3) == (status is not None)
        failed = planner.answer()
        assert isinstance(failed and failed.error, PlannerRefused) == (status is not None)
        planner.close()
        client.close()


def test_stream_that_nobody_reads_on(address: str) -> None:
    """Giving up on better plans ends the call."""
    with serving(address):
        client = PlannerClient(address)
        stream = client.plans(pb.PlanRequest(workloads=pb.Workloads(id=["x"])))
        assert next(stream).plan.tardiness_ms == [0]
        stream.close()  # type: ignore[attr-defined]
        assert list(stream) == []
        client.close()


def test_sidecar_that_comes_later(address: str) -> None:
    """Without a sidecar calls fail at once; when it is there, the same client gets plans within seconds."""
    client = PlannerClient(address)
    with pytest.raises(PlannerUnavailable, match="UNAVAILABLE") as caught:
        client.plan(request(), timeout=5)
    assert caught.value.reason == "unavailable"
    with serving(address):
        for _ in range(100):
            try:
                assert client.plan(request(), timeout=5).objective.engine == "test"
                break
            except PlannerUnavailable:
                time.sleep(0.1)
        else:
            pytest.fail("never connected")
    client.close()
    with pytest.raises(PlannerUnavailable):
        client.plan(request())


@pytest.mark.parametrize(
    ("status", "details", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "quota.cohorts[3]", PlannerRefused),
        (grpc.StatusCode.FAILED_PRECONDITION, "schema", PlannerRefused),
        (grpc.StatusCode.INTERNAL, "no plan", PlannerRefused),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls", PlannerUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)", PlannerRefused),
        (grpc.StatusCode.UNAVAILABLE, "going away", PlannerUnavailable),
    ],
)
def test_errors(address: str, status: grpc.StatusCode, details: str, error: type[Exception]) -> None:
    """What is worth trying again is told from what is not, with the sidecar's own words."""
    with serving(address) as servicer:
        servicer.status, servicer.details = status, details
        client = PlannerClient(address)
        with pytest.raises(error, match=status.name) as caught:
            client.plan(request())
        assert details in str(caught.value)
        client.close()


def test_timeout(address: str) -> None:
    """A sidecar that hangs counts as unavailable once the time is up."""
    with serving(address) as servicer:
        servicer.sleep = 1.0
        client = PlannerClient(address)
        with pytest.raises(PlannerUnavailable, match="DEADLINE_EXCEEDED"):
            client.plan(request(), timeout=0.1)
        client.close()


def test_inline() -> None:
    """An inline planner has its answer when it was asked, with the request it is for."""
    planner = InlinePlanner(lambda r: pb.PlanResponse(objective=pb.Objective(engine=str(r.now_ms))))
    assert planner.answer() is None
    planner.ask(request(1))
    planner.ask(request(2))
    assert not planner.busy()
    answers = [planner.answer(), planner.answer(), planner.answer()]
    assert [a and a.request.now_ms for a in answers] == [NOW + 1, NOW + 2, None]
    assert answers[0] is not None
    assert answers[0].plan is not None
    assert answers[0].plan.engine == str(NOW + 1)


def test_a_sidecar_that_lies() -> None:
    """A response that makes no sense is an error, not a plan and not an exception."""
    planner = InlinePlanner(lambda _: pb.PlanResponse(plan=pb.Plan(workload=[7])))
    planner.ask(request())
    answer = planner.answer()
    assert answer is not None
    assert answer.plan is None
    assert isinstance(answer.error, PlannerRefused)
    assert answer.error.reason == "bad_plan"


def wait_for(planner: BackgroundPlanner, woken: threading.Semaphore) -> pb.PlanRequest:
    assert woken.acquire(timeout=10)
    answer = planner.answer()
    assert answer is not None
    return answer.request


def test_background_takes_the_newest_next() -> None:
    """While a call is under way requests replace each other; each answer wakes the loop and knows its request."""
    begun, go, woken = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def call(_: pb.PlanRequest) -> list[pb.PlanResponse]:
        begun.set()
        assert go.acquire(timeout=10)
        return [pb.PlanResponse()]

    planner = BackgroundPlanner(call, woken.release)
    assert not planner.busy()
    planner.ask(request(1))
    assert begun.wait(10)
    for number in (2, 3, 4):
        planner.ask(request(number))
    assert planner.busy()
    assert planner.answer() is None
    go.release()
    assert wait_for(planner, woken).now_ms == NOW + 1
    go.release()
    assert wait_for(planner, woken).now_ms == NOW + 4
    assert planner.answer() is None
    planner.close()


def test_background_survives_whatever_happens() -> None:
    """An exception in a call is an answer; the next request is planned."""
    woken = threading.Semaphore(0)
    outcomes: Iterator[Exception | pb.PlanResponse] = iter([RuntimeError("boom"), pb.PlanResponse()])

    def call(_: pb.PlanRequest) -> list[pb.PlanResponse]:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return [outcome]

    planner = BackgroundPlanner(call, woken.release)
    planner.ask(request())
    assert woken.acquire(timeout=10)
    failed = planner.answer()
    assert failed is not None
    assert str(failed.error) == "boom"
    planner.ask(request())
    assert woken.acquire(timeout=10)
    worked = planner.answer()
    assert worked is not None
    assert worked.plan is not None
    planner.close()
    planner.ask(request())
    assert not woken.acquire(timeout=0.1)


def test_a_planner_that_is_always_asked_rests() -> None:
    """Between two calls there is a pause as long as was said, and then the newest request is planned."""
    begun: list[tuple[float, str]] = []
    woken = threading.Semaphore(0)

    def call(request: pb.PlanRequest) -> list[pb.PlanResponse]:
        begun.append((time.monotonic(), request.workloads.id[0]))
        time.sleep(0.1)
        return [pb.PlanResponse()]

    def ask(name: str) -> None:
        planner.ask(pb.PlanRequest(schema=1, now_ms=NOW, workloads=pb.Workloads(id=[name])))

    planner = BackgroundPlanner(call, woken.release, rest=2)
    for name in ("first", "second", "third"):
        ask(name)
        time.sleep(0.02)
    for _ in range(2):
        assert woken.acquire(timeout=10)
    (first, _), (second, planned) = begun
    assert second - first >= 0.3
    assert planned == "third"
    planner.close()


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_a_call_that_is_out_of_date_is_cut_short(address: str, least: float) -> None:
    """Once it has brought a plan (and had its time), a call ends when the next is asked for; that is no failure."""
    servicer, woken = Endless(), threading.Semaphore(0)
    with serving(address, servicer):
        client = PlannerClient(address)
        planner = BackgroundPlanner(client.plans, woken.release, client.cut, least, rest=0)
        begun = time.monotonic()
        planner.ask(pb.PlanRequest(schema=1, now_ms=NOW, workloads=pb.Workloads(id=["first"])))
        assert woken.acquire(timeout=10)
        planner.ask(pb.PlanRequest(schema=1, now_ms=NOW, workloads=pb.Workloads(id=["second"])))
        assert woken.acquire(timeout=10)
        assert time.monotonic() - begun >= least
        answers = [planner.answer(), planner.answer()]
        assert [list(a.plan.placements) for a in answers if a and a.plan] == [["first"], ["second"]]
        assert planner.answer() is None
        assert servicer.cancelled.wait(10)
        planner.close()
        client.close()
    assert servicer.calls == 2
