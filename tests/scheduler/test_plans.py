"""A response is checked before anybody believes it."""

import math
from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from scheduler.plans import BadPlan, read_plan
from solver.api import planner_pb2 as pb

NOW = 1_800_000_000_000


def request() -> pb.PlanRequest:
    return pb.PlanRequest(
        schema=1,
        now_ms=NOW,
        quota=pb.Quota(resources=["gpu"], flavors=[pb.ResourceFlavor(name="a100")]),
        workloads=pb.Workloads(id=["x", "y", "z"], state=[pb.PENDING, pb.RUNNING, pb.PENDING]),
    )


def response() -> pb.PlanResponse:
    plan = pb.Plan(
        workload=[2, 0],
        start_ms=[NOW, NOW + 500],
        not_before_ms=[0, NOW + 400],
        finish_ms=[NOW + 100, NOW + 900],
        assignment=[0, 0],
        tardiness_ms=[0, 300],
        reason=[pb.ROOM_NOW, pb.LATE_NO_ROOM],
        assignments=[pb.Assignment(flavors=[0], resources=[0], amounts=[2])],
    )
    objective = pb.Objective(levels=[pb.ObjectiveValue(level=pb.LATE_WEIGHT, value=1)], bound=1, engine="greedy/edf")
    return pb.PlanResponse(plan=plan, objective=objective, final=True)


def test_sound_plan() -> None:
    """A sound plan is kept by workload, in the order of admission."""
    plan = read_plan(request(), response())
    assert list(plan.placements) == ["z", "x"]
    x = plan.placements["x"]
    assert (x.rank, x.start, x.not_before, x.finish, x.tardiness) == (1, NOW + 500, NOW + 400, NOW + 900, 300)
    assert (x.reason, dict(x.flavors)) == (pb.LATE_NO_ROOM, {"gpu": "a100"})
    assert (plan.made_for, plan.engine, plan.objective, plan.bound) == (NOW, "greedy/edf", (1.0,), 1.0)


def test_rejections() -> None:
    """Why work is not planned is kept by workload too."""
    answer = response()
    answer.rejections.add(workload=0, message="too large")
    assert read_plan(request(), answer).rejections == {"x": "too large"}


def test_empty_plan() -> None:
    """A plan of nothing is sound."""
    assert read_plan(pb.PlanRequest(now_ms=NOW), pb.PlanResponse()).placements == {}


LIES: dict[str, Callable[[pb.PlanResponse], object]] = {
    "plan.workload": lambda r: r.plan.workload.__setitem__(0, 3),
    "row twice": lambda r: r.plan.workload.__setitem__(0, 0),
    "runs already": lambda r: r.plan.workload.__setitem__(0, 1),
    "plan.start_ms has 3": lambda r: r.plan.start_ms.append(NOW),
    "plan.reason has 1": lambda r: r.plan.reason.pop(),
    r"plan.start_ms\[0\]": lambda r: r.plan.start_ms.__setitem__(0, NOW - 1),
    r"plan.start_ms\[1\]": lambda r: r.plan.start_ms.__setitem__(1, 1 << 62),
    r"plan.not_before_ms\[0\]": lambda r: r.plan.not_before_ms.__setitem__(0, -5),
    r"plan.finish_ms\[0\]": lambda r: r.plan.finish_ms.__setitem__(0, 5),
    "plan.finish_ms is before": lambda r: r.plan.finish_ms.__setitem__(1, NOW + 499),
    r"plan.tardiness_ms\[1\]": lambda r: r.plan.tardiness_ms.__setitem__(1, -1),
    r"plan.assignment\[1\]": lambda r: r.plan.assignment.__setitem__(1, 1),
    "names a flavor": lambda r: r.plan.assignments[0].flavors.__setitem__(0, 1),
    "names a resource": lambda r: r.plan.assignments[0].resources.__setitem__(0, 9),
    "columns of different lengths": lambda r: r.plan.assignments[0].amounts.append(1),
    "rejections name row 7": lambda r: r.rejections.add(workload=7),
    "not finite": lambda r: r.objective.levels.add(value=math.nan),
}


@pytest.mark.parametrize("words", LIES)
def test_lies(words: str) -> None:
    """A response that makes no sense for its request is refused, and the message says where."""
    answer = response()
    LIES[words](answer)
    with pytest.raises(BadPlan, match=words):
        read_plan(request(), answer)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes(noise: bytes, merge: bool) -> None:
    """Whatever comes over the wire: a plan or a :class:`BadPlan`."""
    answer = response() if merge else pb.PlanResponse()
    try:
        answer.MergeFromString(noise)
    except DecodeError:  # gRPC would have refused it
        return
    try:
        plan = read_plan(request(), answer)
    except BadPlan:
        return
    assert set(plan.placements) <= {"x", "z"}
