"""Asking the solver for plans: over gRPC, and off the path that releases work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from scheduler.plans import BadPlan, PlanInForce, read_plan
from solver.api import planner_pb2 as pb
from solver.api.planner_pb2_grpc import PlannerStub

LARGEST_PLAN = 512 << 20
"""Bytes of the largest response that is accepted: about two million workloads."""

_OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_PLAN),
    ("grpc.max_send_message_length", -1),
    # A sidecar that restarts is back within seconds; gRPC's own back-off would wait for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
)

_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)

_PATIENCE = 10.0
"""Seconds beyond the solver's budget until a call is given up."""
LONGEST_REST = 1.0
"""Seconds that a planner rests at most."""
_DEFAULT_BUDGET = 30.0
"""Seconds a server may take by its own default."""


class PlannerError(Exception):
    """No plan came. ``reason`` is one word out of few, for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PlannerUnavailable(PlannerError):
    """The sidecar did not answer: not there, too slow, too busy or going away. Worth trying again."""


class PlannerRefused(PlannerError):
    """The sidecar refused the request or failed on it. The same request would fail again."""


@dataclass(frozen=True)
class TLS:
    """Files in PEM format. With certificate and key the client proves who it is (mTLS)."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """Name to expect in the server's certificate, if it is not the one in the address."""


class PlannerClient:
    """A connection to the sidecar.

    Parameters
    ----------
    address
        ``unix:///path/to/socket`` or ``host:port``.
    tls
        None: without encryption (only for a socket or the loopback).
    """

    def __init__(self, address: str, tls: TLS | None = None) -> None:
        self.address = address
        if tls is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            ca, key, certificate = (file.read_bytes() if file else None for file in (tls.ca, tls.key, tls.certificate))
            name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
            self._channel = grpc.secure_channel(address, credentials, (*_OPTIONS, *name))
        self._stub = PlannerStub(self._channel)  # type: ignore[no-untyped-call]
        self._stream: grpc.Future[object] | None = None

    def plan(self, request: pb.PlanRequest, timeout: float | None = None) -> pb.PlanResponse:
        """One plan.

        Parameters
        ----------
        timeout
            Seconds until the call is given up; None: ten seconds beyond the request's budget.

        Raises
        ------
        PlannerUnavailable, PlannerRefused
        """
        with self._told():
            response: pb.PlanResponse = self._stub.Plan(request, timeout=_timeout(request, timeout))
        return response

    def plans(self, request: pb.PlanRequest, timeout: float | None = None) -> Iterator[pb.PlanResponse]:
        """Plans as they improve, the first one within milliseconds; parameters and errors as for :meth:`plan`."""
        with self._told():
            call = self._stream = self._stub.PlanStream(request, timeout=_timeout(request, timeout))
            try:
                yield from call
            finally:
                call.cancel()  # no effect on one that has ended

    def cut(self) -> None:
        """End the stream that was begun last, from whatever thread; it ends with :class:`PlannerUnavailable`."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Give the connection back; a call under way ends with :class:`PlannerUnavailable`."""
        self._channel.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What gRPC raises, in our words."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._error(error) from error
        except ValueError as error:
            if "closed channel" not in str(error):
                raise
            raise PlannerUnavailable("closed", f"planner at {self.address}: the connection was closed") from error

    def _error(self, error: grpc.RpcError) -> PlannerError:
        code, details = error.code(), error.details() or ""
        message = f"planner at {self.address}: {code.name}: {details}"
        # gRPC has one code for "too busy" and "too large a message"; only the text tells them apart.
        if code in _REFUSALS or (code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details):
            return PlannerRefused(code.name.lower(), message)
        return PlannerUnavailable(code.name.lower(), message)


def _timeout(request: pb.PlanRequest, timeout: float | None) -> float:
    if timeout is not None:
        return timeout
    return (request.budget.wall_ms / 1000 or _DEFAULT_BUDGET) + _PATIENCE


PlanCall = Callable[[pb.PlanRequest], pb.PlanResponse]
"""Makes one plan: :meth:`PlannerClient.plan`, or the solver itself in the same process."""

PlansCall = Callable[[pb.PlanRequest], Iterable[pb.PlanResponse]]
"""Makes plans that get better: :meth:`PlannerClient.plans`."""


@dataclass(frozen=True)
class Answer:
    """What came of one request: a sound plan (maybe the first of several, each better), or an error."""

    request: pb.PlanRequest
    plan: PlanInForce | None
    error: Exception | None
    seconds: float
    """From asking to having it."""


class Planner(Protocol):
    """Where the loop gets its plans from."""

    def ask(self, request: pb.PlanRequest) -> None:
        """Ask for a plan. A request that still waits for its turn is replaced: only the newest counts."""

    def answer(self) -> Answer | None:
        """The next answer that has not been fetched yet, oldest first; None if there is none. Never blocks."""

    def busy(self) -> bool:
        """Whether an answer is on its way."""

    def close(self) -> None:
        """Stop; give up what has not begun."""


def answers(call: PlansCall, request: pb.PlanRequest) -> Iterator[Answer]:
    """Make one call and check what comes of it. Never raises; an error ends it."""
    begun = time.perf_counter()
    before: pb.PlanResponse | None = None
    try:
        for response in call(request):
            # A stream may repeat its last plan, to mark it final.
            if before is None or response.plan != before.plan:
                yield Answer(request, read_plan(request, response), None, time.perf_counter() - begun)
            before = response
    except BadPlan as bad:
        error = PlannerRefused("bad_plan", f"the planner's answer makes no sense: {bad}")
        yield Answer(request, None, error, time.perf_counter() - begun)
    except Exception as other:  # whatever goes wrong there, dispatching goes on here
        yield Answer(request, None, other, time.perf_counter() - begun)


class InlinePlanner:
    """Plans while the caller waits: for simulations, whose clock stands still meanwhile."""

    def __init__(self, call: PlanCall) -> None:
        self._call = call
        self._answers: deque[Answer] = deque()

    def ask(self, request: pb.PlanRequest) -> None:
        """Plan now."""
        self._answers.extend(answers(lambda request: (self._call(request),), request))

    def answer(self) -> Answer | None:
        """The next answer, if there is one."""
        return self._answers.popleft() if self._answers else None

    def busy(self) -> bool:
        """Never: :meth:`ask` has its answer when it returns."""
        return False

    def close(self) -> None:
        """Nothing to stop."""


class BackgroundPlanner:
    """Plans in a thread of its own: one call under way at a time, the newest request next.

    A call whose request is out of date is cut short once it has brought a plan and had a little time. The next one
    begins where it ended (a request holds the plan in force), so little is lost; and what is new is planned soon.
    While changes never end, the planner rests between two calls: the processor may be wanted elsewhere, and what
    changes meanwhile is planned in one go.

    Parameters
    ----------
    call
        Makes plans for one request; may block.
    wake
        Called when an answer has come, from that thread: lets the loop come round at once.
    cut
        Makes the call under way end soon, with whatever error.
    least
        Seconds that each call gets to find better plans, whatever is asked meanwhile.
    rest
        How long the planner rests after a call, in parts of how long that took; never longer than :data:`LONGEST_REST`.
    """

    def __init__(
        self,
        call: PlansCall,
        wake: Callable[[], None] = lambda: None,
        cut: Callable[[], None] = lambda: None,
        least: float = 0.3,
        rest: float = 2.0,
    ) -> None:
        self._call = call
        self._wake = wake
        self._end_call = cut
        self._least = least
        self._rest = rest
        self._condition = threading.Condition()
        self._next: pb.PlanRequest | None = None
        self._under_way: _UnderWay | None = None
        self._closed = False
        self._answers: deque[Answer] = deque()
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        self._thread.start()

    def ask(self, request: pb.PlanRequest) -> None:
        """Plan this one next."""
        with self._condition:
            self._next = request
            self._condition.notify()
            self._cut_soon()

    def answer(self) -> Answer | None:
        """The next answer, if there is one."""
        with self._condition:
            return self._answers.popleft() if self._answers else None

    def busy(self) -> bool:
        """Whether a call is under way or a request waits for it to end."""
        with self._condition:
            return self._under_way is not None or self._next is not None

    def close(self) -> None:
        """Begin no further call. One that is under way ends with its connection (:meth:`PlannerClient.close`)."""
        with self._condition:
            self._closed = True
            self._next = None
            self._condition.notify()

    def _run(self) -> None:
        rested = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed, max(0.0, rested - time.monotonic()))
                self._condition.wait_for(lambda: self._closed or self._next is not None)
                if self._closed or self._next is None:
                    return
                request, self._next = self._next, None
                call = self._under_way = _UnderWay(time.monotonic())
            for answer in answers(self._call, request):
                with self._condition:
                    if answer.plan is None and call.cut:
                        break  # that is how it ends
                    self._answers.append(answer)
                    call.has_plan = True
                    self._cut_soon()
                self._wake()
            with self._condition:
                self._under_way = None
            now = time.monotonic()
            rested = now + min(LONGEST_REST, self._rest * (now - call.begun))

    def _cut_soon(self) -> None:
        """Cut the call under way short, now or when it has had its time. The caller holds the lock."""
        call = self._under_way
        if call is None or not call.has_plan or call.cut or self._next is None:
            return
        left = call.begun + self._least - time.monotonic()
        if left <= 0:
            call.cut = True
            self._end_call()
        elif not call.timed:
            call.timed = True
            timer = threading.Timer(left, self._cut_if_still, (call,))
            timer.daemon = True
            timer.start()

    def _cut_if_still(self, call: _UnderWay) -> None:
        with self._condition:
            if self._under_way is call:
                self._cut_soon()


@dataclass
class _UnderWay:
    """A call under way."""

    begun: float
    has_plan: bool = False
    timed: bool = False
    """Whether it will be cut at a time."""
    cut: bool = False
