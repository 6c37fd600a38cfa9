"""Work begins some time after its admission, and holds its quota from then on."""

from __future__ import annotations

from functools import partial

import pytest
from small_requests import NOW, add, request

from solver.api import planner_pb2 as pb
from solver.bound import late_weight_bound
from solver.decode import decode
from solver.encode import encode
from solver.invalid import InvalidRequest
from solver.planner import plan
from solver.schedule import Scheduler
from solver.verify import verify

WORK = pb.Budget(work_limit=20)

planned = partial(plan, budget=WORK)


def two_flavors(first: int, second: int) -> pb.PlanRequest:
    """A queue with 4 GPUs of each of two flavors, in which work begins so much after the start."""
    asked = request({"q": 4})
    asked.quota.flavors[0].lead_ms = first
    asked.quota.flavors.add(name="other", lead_ms=second)
    group = asked.quota.cluster_queues[0].resource_groups[0]
    group.flavors.add(flavor=1).resources.add(resource=0, nominal=4)
    return asked


def response(asked: pb.PlanRequest) -> pb.PlanResponse:
    """The plan, which the verifier lets pass."""
    problem = decode(asked)
    made = encode(problem, planned(problem))
    assert [violation.message for violation in verify(asked, made.plan, made.objective)] == []
    return made


def test_quota_is_held_until_what_began_late_ends():
    """Two jobs follow each other by lead and duration; each finishes so much after its start."""
    asked = request({"q": 4})
    asked.quota.flavors[0].lead_ms = 5
    add(asked, 4, 10, due=15)
    add(asked, 4, 10, due=30)
    made = response(asked).plan
    assert [start - NOW for start in made.start_ms] == [0, 15]
    assert [finish - NOW for finish in made.finish_ms] == [15, 30]
    assert list(made.tardiness_ms) == [0, 0]


def test_lead_makes_late():
    """What would be on time by its duration alone is late by its lead: in the forecast, the reason and the bound."""
    asked = request({"q": 4})
    asked.quota.flavors[0].lead_ms = 5
    add(asked, 1, 10, due=14)
    made = response(asked)
    assert list(made.plan.tardiness_ms) == [1]
    assert list(made.plan.reason) == [pb.LATE_ALREADY]
    assert made.objective.bound == 1


@pytest.mark.parametrize(("first", "second", "late"), [(0, 5, [0, 1]), (5, 0, [1, 0])])
def test_each_flavor_has_its_lead(first: int, second: int, late: list[int]):
    """Of two jobs at once that get a flavor each, the one in the slow flavor is late by its lead."""
    asked = two_flavors(first, second)
    add(asked, 4, 10, due=14, times=2)
    made = response(asked).plan
    assert sorted(zip((made.assignments[k].flavors[0] for k in made.assignment), made.tardiness_ms, strict=True)) == [
        (flavor, tardy) for flavor, tardy in enumerate(late)
    ]


def test_the_bound_reckons_with_the_quickest_flavor():
    """What can be on time in one of its flavors is not certainly late, and quota × time counts with the least lead."""
    asked = two_flavors(9, 2)
    add(asked, 4, 10, due=12)
    assert late_weight_bound(Scheduler(decode(asked))) == 0
    add(asked, 4, 10, due=24, times=4)
    assert late_weight_bound(Scheduler(decode(asked))) == 1


def test_the_verifier_knows_leads():
    """A plan that forgets them starts work without quota, and finishes at the wrong time."""
    asked = request({"q": 4})
    add(asked, 4, 10, times=2)
    made = response(asked).plan
    asked.quota.flavors[0].lead_ms = 1
    told = [violation.message for violation in verify(asked, made)]
    assert any("11 ms, lead included" in message for message in told)
    assert any("starts without quota" in message for message in told)


def test_bad_lead():
    """A negative lead refuses the request."""
    asked = request({"q": 4})
    asked.quota.flavors[0].lead_ms = -1
    with pytest.raises(InvalidRequest) as refused:
        decode(asked)
    assert refused.value.field == "quota.flavors[0].lead_ms"
