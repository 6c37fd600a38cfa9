"""A planner that lies: sound plans, nonsense, and answers of any size, in place of the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from solver.api import planner_pb2 as pb
from solver.api.planner_pb2_grpc import PlannerServicer, add_PlannerServicer_to_server

Lie = Callable[[pb.PlanRequest], pb.PlanResponse]


class _Liar(PlannerServicer):
    """Answers what a function makes up."""

    def __init__(self, lie: Lie) -> None:
        self.lie = lie
        self.calls = 0

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanResponse:
        """One answer."""
        self.calls += 1
        return self.lie(request)

    def PlanStream(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> Iterator[pb.PlanResponse]:
        """The same, as a stream of one."""
        yield self.Plan(request, context)


@contextmanager
def lying(address: str, lie: Lie) -> Iterator[_Liar]:
    """A server at this address that lies, while the block runs."""
    server, liar, servicer = grpc.server(ThreadPoolExecutor(4)), _Liar(lie), health.HealthServicer()
    add_PlannerServicer_to_server(liar, server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    servicer.set("", HealthCheckResponse.SERVING)
    server.add_insecure_port(address)
    server.start()
    try:
        yield liar
    finally:
        server.stop(None).wait()


def waiting(request: pb.PlanRequest) -> list[int]:
    """Rows that a plan should place."""
    return [row for row, state in enumerate(request.workloads.state) if state != pb.RUNNING]


def everything_now(request: pb.PlanRequest) -> pb.PlanResponse:
    """Well formed and wrong: all work at once, the last first, whatever the quota; finished in a millisecond."""
    rows = waiting(request)[::-1]
    response = pb.PlanResponse()
    plan = response.plan
    plan.assignments.add(flavors=[0], resources=[0], amounts=[1])
    plan.workload.extend(rows)
    plan.start_ms.extend([request.now_ms] * len(rows))
    plan.finish_ms.extend([request.now_ms + 1] * len(rows))
    for column in (plan.not_before_ms, plan.tardiness_ms, plan.reason, plan.assignment):
        column.extend([0] * len(rows))
    response.objective.engine = "liar"
    return response


def nonsense(request: pb.PlanRequest) -> pb.PlanResponse:
    """Rows that do not exist, twice, in columns of different lengths, at absurd times."""
    response = everything_now(request)
    response.plan.workload.extend([10**6, 10**6])
    response.plan.start_ms.extend([-5, 1 << 62, 3])
    return response


def huge(mebibytes: int) -> Lie:
    """A sound answer with so much text in it."""

    def lie(request: pb.PlanRequest) -> pb.PlanResponse:
        response = everything_now(request)
        text = "x" * (1 << 20)
        for _ in range(mebibytes):
            response.rejections.add(workload=0, kind=pb.INVALID, message=text)
        return response

    return lie
