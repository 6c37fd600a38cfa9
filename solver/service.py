"""The Planner service: plans for whoever asks, each one verified before it leaves.

What can go wrong here and what is done about it:

* a client that goes away, or whose deadline passes: the stop flag of its call is set, and solving ends within
  milliseconds (kernels give up the GIL and look at the flag);
* more calls than the machine can plan for: a few wait for a moment, the rest are told at once;
* a planner that makes a mistake: the plan is dropped, the one before it is sent; without one, INTERNAL and what was
  wrong. No plan that failed the verifier is ever sent;
* anything unforeseen: INTERNAL with a short id, under which the log has the traceback.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc

from solver.api import planner_pb2 as pb
from solver.api import planner_pb2_grpc as rpc
from solver.buckets import Flag
from solver.decode import InvalidRequest, UnknownSchema, decode
from solver.encode import encode
from solver.limit import DEFAULT_WALL_MS
from solver.plan import Plan
from solver.planner import plans
from solver.schedule import never_stop
from solver.status import DETAILS, bad_field
from solver.verify import verify

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that a call waits for another one to end before it is refused."""

RESERVE, RESERVE_PER_ROW, RESERVE_SHARE = 0.05, 10e-6, 0.1
"""What of the call's deadline is kept for verifying and encoding: seconds in any case, seconds for each workload, and a
share of what is left, because a machine that is busy stays busy, and a plan that comes too late is no plan."""

FOREVER = 365 * 24 * 3600.0
"""Seconds; a deadline further away is none. (gRPC has a number for "no deadline", of some hundred years.)"""

TOLD = 10
"""Violations that a status and a log line name."""

LONGEST = 700
"""Bytes of a status message."""


class _Refused(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service(rpc.PlannerServicer):
    """The Planner service.

    Attributes
    ----------
    bad_plans
        Plans that the verifier did not let pass since the start; more than 0 is a bug in a planner.
    """

    def __init__(self, max_concurrent: int) -> None:
        self.bad_plans = 0
        self._max = max_concurrent
        self._closed: str | None = "the planner is compiling its kernels; try again in a moment"
        self._waiting = 0
        self._stops: dict[int, Flag] = {}
        self._changed = threading.Condition()

    @property
    def in_flight(self) -> int:
        """Calls that are worked on."""
        return len(self._stops)

    def open(self) -> None:
        """Take calls from now on."""
        self._closed = None

    def close(self) -> None:
        """Take no more calls."""
        self._closed = "the planner is stopping; try again when another has taken its place"

    def drained(self, timeout: float) -> bool:
        """Wait until no call is worked on; False when some still are after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._stops, timeout)

    def hurry(self) -> None:
        """Have all calls under way send what they have."""
        with self._changed:
            for stop in self._stops.values():
                stop[0] = 1

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanResponse:
        """One plan: the best that passes the verifier."""
        with self._call(context) as stop:
            work = _Work(self, request, context, stop)
            found = list(work.plans())
            if not context.is_active():
                raise _Refused(grpc.StatusCode.CANCELLED, "the call was cancelled")
            for plan in reversed(found):
                if response := work.verified(plan):
                    return work.finished(response)
            raise work.failure()

    def PlanStream(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> Iterator[pb.PlanResponse]:
        """Plans as they improve. When there is no better one to come, the last is sent once more, marked final."""
        with self._call(context) as stop:
            work = _Work(self, request, context, stop)
            last: pb.PlanResponse | None = None
            for plan in work.plans():
                if not context.is_active():
                    raise _Refused(grpc.StatusCode.CANCELLED, "the call was cancelled")
                if response := work.verified(plan):
                    last = response
                    yield response
            if last is None:
                raise work.failure()
            yield work.finished(last)

    def Verify(self, request: pb.VerifyRequest, context: grpc.ServicerContext) -> pb.VerifyResponse:
        """What is wrong with a plan."""
        with self._call(context):
            decode(request.request)
            violations = verify(request.request, request.plan)
            return pb.VerifyResponse(valid=not violations, violations=violations)

    @contextmanager
    def _call(self, context: grpc.ServicerContext) -> Iterator[Flag]:
        """A call's turn, its stop flag, and a status for whatever goes wrong."""
        try:
            with self._turn(context) as stop:
                yield stop
        except _Refused as refused:
            code, message = refused.code, str(refused)
        except InvalidRequest as invalid:
            unknown = isinstance(invalid, UnknownSchema)
            code = grpc.StatusCode.FAILED_PRECONDITION if unknown else grpc.StatusCode.INVALID_ARGUMENT
            message = _cut(str(invalid))
            details = bad_field(code.value[0], message, _cut(invalid.field), _cut(invalid.message))
            context.set_trailing_metadata(((DETAILS, details),))
        except Exception:
            name = uuid.uuid4().hex[:8]
            log.exception("a call failed", extra={"id": name})
            code, message = grpc.StatusCode.INTERNAL, f"the planner failed; its log has the details under id {name}"
        else:
            return
        context.abort(code, _cut(message))

    @contextmanager
    def _turn(self, context: grpc.ServicerContext) -> Iterator[Flag]:
        """Wait for a free place; then a stop flag that is set when the call ends before its plan is there."""
        if self._closed is not None:
            raise _Refused(grpc.StatusCode.UNAVAILABLE, self._closed)
        stop = never_stop()
        patience = min(PATIENCE, context.time_remaining())
        with self._changed:
            free = self._waiting < self._max
            self._waiting += 1
            free = free and self._changed.wait_for(lambda: len(self._stops) < self._max, patience)
            self._waiting -= 1
            if not free:
                told = f"{self._max} calls are being worked on already; try again later, or raise --max-concurrent"
                raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, told)
            self._stops[id(stop)] = stop
        try:
            if not context.add_callback(lambda: stop.fill(1)):
                stop[0] = 1
            yield stop
        finally:
            with self._changed:
                del self._stops[id(stop)]
                self._changed.notify_all()


def _cut(text: str) -> str:
    """As much of a text as the trailing metadata of a call has room for; it has 8 KiB, and percent-encodes."""
    short = text.encode()[:LONGEST].decode(errors="ignore")
    return text if len(short) == len(text) else short + " …"


class _Work:
    """One request on its way to a plan, and where its time goes."""

    def __init__(self, service: Service, request: pb.PlanRequest, context: grpc.ServicerContext, stop: Flag) -> None:
        self.service, self.request, self.context, self.stop = service, request, context, stop
        self.timing = pb.Timing()
        self.violations: list[pb.Violation] = []
        with self._timed("decode_us"):
            self.problem = decode(request)

    def plans(self) -> Iterator[Plan]:
        """Better and better plans, until the budget or the call's deadline ends."""
        budget, rest = self._budget()
        with ExitStack() as stack:
            if rest is not None:
                timer = threading.Timer(rest, lambda: self.stop.fill(1))
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            found = plans(self.problem, self.request.policy, budget, self.request.seed, self.stop)
            while True:
                with self._timed("solve_us"):
                    plan = next(found, None)
                if plan is None:
                    return
                yield plan

    def _budget(self) -> tuple[pb.Budget, float | None]:
        """The request's budget, within what the call's deadline leaves for solving; and the latter, in seconds."""
        budget = pb.Budget()
        budget.CopyFrom(self.request.budget)
        left = self.context.time_remaining()
        if left > FOREVER:
            return budget, None
        rest = max(0.001, (1 - RESERVE_SHARE) * left - RESERVE - RESERVE_PER_ROW * len(self.problem.ids))
        # With a work limit alone no clock decides, except where the deadline makes it.
        wanted = budget.wall_ms or (0 if budget.work_limit else DEFAULT_WALL_MS)
        bound = max(1, int(rest * 1000))
        budget.wall_ms = min(wanted, bound) if wanted else bound
        return budget, rest

    def verified(self, plan: Plan) -> pb.PlanResponse | None:
        """The response, not final yet, if the verifier has nothing against it."""
        with self._timed("encode_us"):
            response = encode(self.problem, plan, self.request.policy, final=False)
        with self._timed("verify_us"):
            violations = verify(self.request, response.plan, response.objective)
        if not violations:
            response.timing.CopyFrom(self.timing)
            return response
        self.violations = violations
        self.service.bad_plans += 1
        log.error(
            "a plan did not pass the verifier and is not sent",
            extra={
                "engine": plan.engine,
                "violations": [violation.message for violation in violations[:TOLD]],
                "bad_plans": self.service.bad_plans,
            },
        )
        return None

    def finished(self, response: pb.PlanResponse) -> pb.PlanResponse:
        """The last response of the call."""
        response.final = True
        response.timing.CopyFrom(self.timing)
        objective = response.objective
        log.info(
            "planned",
            extra={
                "workloads": len(self.problem),
                "rejected": len(response.rejections),
                "engine": objective.engine,
                "worth": {pb.ObjectiveLevel.Name(level.level): level.value for level in objective.levels},
                "gap": objective.gap,
                "moved": len(response.moves.workload),
                "notes": list(response.notes),
                "ms": {field.name[:-3]: value / 1000 for field, value in self.timing.ListFields()},
            },
        )
        return response

    def failure(self) -> _Refused:
        """What to say when no plan passed."""
        told = "; ".join(violation.message for violation in self.violations[:TOLD])
        return _Refused(grpc.StatusCode.INTERNAL, f"no plan passed the verifier, please report this: {told}")

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = round((time.perf_counter() - begun) * 1e6)
            setattr(self.timing, part, getattr(self.timing, part) + spent)
