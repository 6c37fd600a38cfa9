"""A plan in force: it stays where it can, moves where that is worth it, and says what moved and why."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import NOW, SECOND, add, request, requests

from benchmarks import backlog, rpc
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.greedy import finish, greedy
from solver.plan import Plan
from solver.planner import plan, plans, warm_up, warm_up_repair
from solver.previous import previous_plan
from solver.problem import Problem
from solver.schedule import Scheduler, Starts
from solver.steady import moved, steadied
from solver.verify import verify
from solver.worth import worth

rule = partial(settings, deadline=None)  # the first call compiles

HOUR = 3600 * SECOND
WORK = pb.Budget(work_limit=20)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()
    warm_up_repair()


def follow(asked: pb.PlanRequest, made: pb.PlanResponse) -> pb.PlanRequest:
    """The same request once more, with the plan that was made for it in force."""
    result = pb.PlanRequest()
    result.CopyFrom(asked)
    columns = made.plan
    result.previous.CopyFrom(
        pb.PreviousPlan(
            workload=columns.workload,
            start_ms=columns.start_ms,
            assignment=columns.assignment,
            assignments=columns.assignments,
        )
    )
    return result


def violations(asked: pb.PlanRequest, problem: Problem, made: Plan) -> list[str]:
    """What the independent checker has to say about a plan."""
    response = encode(problem, made, asked.policy)
    return [violation.message for violation in verify(asked, response.plan, response.objective)]


def kept(asked: pb.PlanRequest) -> tuple[Problem, Plan]:
    """The plan in force of a request, brought up to date."""
    problem = decode(asked)
    made = previous_plan(Scheduler(problem), asked.policy)
    assert made is not None
    return problem, made


def moves(asked: pb.PlanRequest, made: Plan) -> list[tuple[int, int, int, int, int]]:
    """Workload, from, to, reason and cause of what a response says has moved; times from now."""
    told = encode(decode(asked), made, asked.policy).moves
    columns = zip(told.workload, told.from_ms, told.to_ms, told.reason, told.cause, strict=True)
    return [(row, begin - NOW, end - NOW, reason, cause - 1) for row, begin, end, reason, cause in columns]


@rule(max_examples=25)
@given(requests(), st.sampled_from([0.0, 1e-6, 0.1]))
def test_unchanged_work_keeps_its_plan(asked, threshold):
    """The plan in force of an unchanged request is as it was, and nothing is told; what moves then makes it better."""
    asked.policy.stability_threshold = threshold
    asked.policy.engine = pb.GREEDY
    again = follow(asked, encode(decode(asked), plan(decode(asked), asked.policy, WORK), asked.policy))
    problem = decode(again)
    if (problem.previous >= 0).any():
        made = previous_plan(Scheduler(problem), pb.Policy(stability_threshold=1e9))
        assert moved(problem, made) == 0
        assert not encode(problem, made).moves.workload
        assert violations(again, problem, made) == []
        last = plan(problem, again.policy, WORK)
        assert moved(problem, last) == 0 or worth(problem, last, pb.Policy()) < worth(problem, made, pb.Policy())


@rule(max_examples=25)
@given(st.data())
def test_whatever_has_changed(data):
    """A plan for other work, or none at all, is repaired into sound plans, the last as good as one made anew."""
    asked = data.draw(requests())
    n = len(asked.workloads.id)
    size = data.draw(st.integers(0, n + 2))
    asked.previous.workload.extend(data.draw(st.lists(st.integers(0, n + 1), min_size=size, max_size=size)))
    instants = st.one_of(st.integers(NOW - 5, NOW + 60), st.sampled_from([-1, 0, 1 << 62]))
    asked.previous.start_ms.extend(data.draw(st.lists(instants, min_size=size, max_size=size)))
    if data.draw(st.booleans()):
        asked.previous.assignment.extend(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))
        for flavor in range(2):
            asked.previous.assignments.add(flavors=[flavor], resources=[0])
    asked.policy.stability_threshold = data.draw(st.sampled_from([0.0, 1e-6, 1.0]))
    problem = decode(asked)
    made = list(plans(problem, asked.policy, WORK))
    for one in made:
        assert violations(asked, problem, one) == []
    assert made[-1].objective.late_weight <= greedy(problem, asked.policy).objective.late_weight + 1e-9
    for before, after in itertools.pairwise(made):
        assert worth(problem, after, asked.policy) <= worth(problem, before, asked.policy)
    again = list(plans(problem, asked.policy, WORK))
    assert [one.start.tolist() for one in again] == [one.start.tolist() for one in made]


@rule(max_examples=25)
@given(requests(states=(pb.PENDING, pb.PENDING, pb.RUNNING)), st.integers(0, 100))
def test_steady_plans(asked, seed):
    """A plan that was made steady is sound, moves no more starts than it did, and has as much on time."""
    rng = np.random.default_rng(seed)
    n = len(asked.workloads.id)
    asked.previous.workload.extend(range(n))
    asked.previous.start_ms.extend((NOW + rng.integers(0, 30, size=n)).tolist())
    asked.policy.stability_threshold = 1e-6
    problem = decode(asked)
    scheduler = Scheduler(problem)
    old = previous_plan(scheduler, asked.policy)
    if old is None:
        return
    new = greedy(problem, asked.policy)
    made = steadied(scheduler, new, old, asked.policy)
    assert violations(asked, problem, made) == []
    assert moved(problem, made) <= moved(problem, new)
    assert made.objective.late_weight <= new.objective.late_weight


def test_only_what_must_moves():
    """Work that finds its quota in use for longer moves back, all else keeps its start, and it is said why."""
    asked = request({"q": 4}, stability_threshold=1)
    add(asked, 2, 30, state=pb.RUNNING)
    add(asked, 2, 10, due=500, previous=10)
    add(asked, 2, 10, due=500, previous=20)
    add(asked, 4, 10, due=500, previous=30)
    problem, made = kept(asked)
    assert made.start.tolist() == [10, 20, 30]
    asked.workloads.duration_ms[0] = 35  # it runs longer
    problem, made = kept(asked)
    assert violations(asked, problem, made) == []
    assert made.start.tolist() == [10, 20, 35]
    assert moves(asked, made) == [(3, 30, 35, pb.NOT_POSSIBLE, -1)]


def test_new_work_takes_the_place_of_what_is_worth_less():
    """New work that is due soon takes the place of best effort; who makes way says for whom."""
    asked = request({"q": 1})
    add(asked, 1, 10, due=500, previous=0)
    add(asked, 1, 20, previous=10)
    add(asked, 1, 10, due=22)
    problem, made = kept(asked)
    assert violations(asked, problem, made) == []
    assert made.start.tolist() == [0, 20, 10]
    assert moves(asked, made) == [(1, 10, 20, pb.MAKES_WAY, 2)]


def test_nobody_makes_way_for_what_is_worth_less():
    """New work of less weight is late rather than that work of more weight is."""
    asked = request({"q": 1})
    add(asked, 1, 10, due=10, previous=0, weight=2.0)
    add(asked, 1, 10, due=10, weight=1.0)
    _, made = kept(asked)
    assert made.start.tolist() == [0, 10]
    asked.workloads.weight[1] = 3.0
    problem, made = kept(asked)
    assert made.start.tolist() == [10, 0]
    assert violations(asked, problem, made) == []


def test_room_that_came_free_goes_to_who_was_late():
    """Work ended early: what would have been late takes the room, and says that it is on time now."""
    asked = request({"q": 1})
    add(asked, 1, 10, due=12, previous=10)
    _, made = kept(asked)
    assert made.start.tolist() == [0]
    assert moves(asked, made) == [(0, 10, 0, pb.ON_TIME, -1)]


def test_room_that_came_free_is_worth_a_move_from_the_threshold_on():
    """A start moves forward into free room when it gains more than the threshold by that, else it stays."""
    asked = request({"q": 1}, stability_threshold=0.5)
    add(asked, 1, HOUR, previous=HOUR // 2)
    assert plan(decode(asked), asked.policy, WORK).start.tolist() == [HOUR // 2]
    asked.previous.start_ms[0] += 1
    made = plan(decode(asked), asked.policy, WORK)
    assert made.start.tolist() == [0]
    assert moves(asked, made) == [(0, HOUR // 2 + 1, 0, pb.SOONER, -1)]


def test_starts_are_put_back_where_that_costs_nothing():
    """Of two plans as good, work starts as in the one in force, unless it gains more than the threshold itself."""
    asked = request({"q": 2}, stability_threshold=0.5)
    add(asked, 1, HOUR, due=9 * HOUR, previous=HOUR)
    add(asked, 1, HOUR, due=9 * HOUR, previous=4 * HOUR)
    add(asked, 1, HOUR, due=2 * HOUR, previous=2 * HOUR)
    problem = decode(asked)
    scheduler = Scheduler(problem)
    by_hand = Plan(problem.previous, np.zeros(3, dtype=np.int32), problem.release, "by hand")
    starts = Starts(np.array([HOUR + 1000, HOUR, HOUR]) - 1000, by_hand.option)
    made = steadied(scheduler, finish(scheduler, starts, "new"), finish(scheduler, by_hand, "old"), asked.policy)
    assert made.start.tolist() == [HOUR, HOUR - 1000, HOUR - 1000]


def test_later_release_date():
    """Work whose release date was put off moves there, and that is the reason."""
    asked = request({"q": 1})
    add(asked, 1, 10, release=50, previous=10)
    _, made = kept(asked)
    assert moves(asked, made) == [(0, 10, 50, pb.LATER_RELEASE, -1)]


def test_flavors_of_the_plan_are_kept():
    """Work that was planned in its second flavor stays there, although the first one would do by now."""
    asked = request({"q": 1})
    asked.quota.flavors.add(name="second")
    asked.quota.cluster_queues[0].resource_groups[0].flavors.add(flavor=1).resources.add(resource=0, nominal=1)
    add(asked, 1, 10, previous=0)
    asked.previous.assignment.append(0)
    asked.previous.assignments.add(flavors=[1], resources=[0])
    problem, made = kept(asked)
    assert encode(problem, made).plan.assignments[0].flavors == [1]
    asked.previous.ClearField("assignment")
    problem, made = kept(asked)
    assert encode(problem, made).plan.assignments[0].flavors == [0]


def test_what_makes_no_sense_is_noted():
    """A plan in force that contradicts itself or the request costs no error: what is left out of it is told."""
    asked = request({"q": 1})
    add(asked, 1, 10, previous=20)
    asked.previous.workload.extend([7, 0, 0])
    asked.previous.start_ms.extend([NOW, -1, NOW + 30, NOW])
    asked.previous.assignment.append(3)
    problem = decode(asked)
    assert problem.previous.tolist() == [30]
    notes = list(encode(problem, plan(problem, budget=WORK)).notes)
    assert notes == [
        "the previous plan has 4 workloads and 5 starts: only the first 4 count",
        "the previous plan has 4 workloads and 1 assignments: these do not count",
        "the previous plan has 1 entries that name no workload of the request; they are left out",
        "the previous plan has 1 entries that start at no instant near now; they are left out",
        "the previous plan has 1 entries for workloads that it has again further on; the last counts",
    ]


@pytest.mark.parametrize("asked", [backlog.instance(400, 1.1, seed=3), rpc.instance(400, seed=3).message()])
def test_events_in_a_larger_plan(asked):
    """After overruns, early ends, arrivals and cut quota a repaired plan is sound, and hardly later than one anew."""
    asked.policy.CopyFrom(pb.Policy(engine=pb.GREEDY, stability_threshold=0.1))
    made = encode(decode(asked), plan(decode(asked), asked.policy, WORK), asked.policy)
    running = [row for row, state in enumerate(asked.workloads.state) if state == pb.RUNNING]
    for change in range(4):
        now = follow(asked, made)
        if change == 0:
            now.workloads.duration_ms[running[0]] += 4 * HOUR
        elif change == 1:
            now.workloads.duration_ms[running[0]] = 1
        elif change == 2:
            del now.previous.workload[0], now.previous.start_ms[0], now.previous.assignment[0]
        else:
            for offer in now.quota.cluster_queues[0].resource_groups[0].flavors:
                for amount in offer.resources:
                    amount.nominal //= 2
        problem, repaired = kept(now)
        assert violations(now, problem, repaired) == []
        made_then = list(plans(problem, now.policy, WORK))
        assert made_then[0].start.tolist() == repaired.start.tolist()  # it is there before any other plan
        last = made_then[-1]
        assert violations(now, problem, last) == []
        anew = plan(decode(asked_anew(now)), now.policy, WORK)
        assert last.objective.late_weight <= 1.1 * anew.objective.late_weight + 1e-9


def asked_anew(asked: pb.PlanRequest) -> pb.PlanRequest:
    """A request without its plan in force."""
    result = pb.PlanRequest()
    result.CopyFrom(asked)
    result.ClearField("previous")
    return result


def test_very_much_work_needs_no_profile(monkeypatch):
    """Where use over time would take too much memory, what fits stays, and if anything does not, all is made anew."""
    monkeypatch.setattr("solver.previous.MOST_ENTRIES", 1)
    asked = request({"q": 1})
    add(asked, 1, 10, previous=5)
    add(asked, 1, 10, previous=15)
    problem, made = kept(asked)
    assert (made.start.tolist(), made.engine) == ([5, 15], "previous")
    asked.previous.start_ms[1] = NOW + 10
    problem, made = kept(asked)
    assert violations(asked, problem, made) == []
    assert (made.start.tolist(), made.engine) == ([0, 10], "repair")
