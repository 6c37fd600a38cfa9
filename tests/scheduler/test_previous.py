"""The plan in force as part of the next request."""

from __future__ import annotations

from types import SimpleNamespace

from scheduler.plans import Placement, PlanInForce
from scheduler.previous import add_previous
from solver.api import planner_pb2 as pb


def test_starts_and_flavors_of_what_is_still_there():
    """Known rows have their start and the flavors they are expected to get, by the tables of the new request."""
    request = pb.PlanRequest()
    request.quota.resources.extend(["cpu", "gpu"])
    request.quota.flavors.add(name="new")
    request.quota.flavors.add(name="a100")
    both, gone = {"gpu": "a100", "cpu": "a100"}, {"gpu": "h100"}
    placements = {
        uid: Placement(0, start, 0, start + 1, 0, 0, flavors)
        for uid, start, flavors in [("b", 7, both), ("c", 9, gone), ("left", 5, both), ("d", 11, both)]
    }
    plan = PlanInForce(0, placements, {}, "test", (), 0.0, 0.0)
    add_previous(request, [SimpleNamespace(uid=uid) for uid in "abcd"], plan)
    previous = request.previous
    assert list(previous.workload) == [1, 2, 3]
    assert list(previous.start_ms) == [7, 9, 11]
    assert list(previous.assignment) == [0, 1, 0]
    assert [(list(held.flavors), list(held.resources)) for held in previous.assignments] == [([1, 1], [1, 0]), ([], [])]
