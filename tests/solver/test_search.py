"""Search: better than where it begins or as good, feasible, repeatable, and over when it is told to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from small_requests import requests

from benchmarks.backlog import instance
from solver.api import planner_pb2 as pb
from solver.bound import late_weight_bound
from solver.decode import decode
from solver.encode import encode
from solver.greedy import greedy
from solver.limit import Limit
from solver.planner import plan, plans
from solver.schedule import Scheduler, never_stop
from solver.search import search
from solver.verify import verify
from solver.worth import worth

SEARCH = pb.Policy(engine=pb.SEARCH)


def test_search_finds_what_rules_miss():
    """On a backlog with too much work, search gets more weight on time than every rule and selection."""
    problem = decode(instance(100, 1.3, seed=7))
    rules = greedy(problem)
    best = plan(problem, SEARCH, pb.Budget(work_limit=100), seed=1)
    assert best.engine == "search"
    assert late_weight_bound(Scheduler(problem)) <= best.objective.late_weight < rules.objective.late_weight


@pytest.mark.parametrize("objective", [[], [pb.START_TIMES], [pb.START_TIMES, pb.LATE_WEIGHT], [pb.TARDINESS]])
def test_search_goes_for_the_levels_of_the_policy(objective: list[pb.ObjectiveLevel]):
    """Whatever the first level is, search makes it no worse than the rules do, and the plan passes the verifier."""
    asked = instance(40, 1.2, seed=3)
    asked.policy.engine, asked.policy.objective[:] = pb.SEARCH, objective
    problem = decode(asked)
    best = plan(problem, asked.policy, pb.Budget(work_limit=30))
    rules = greedy(problem, asked.policy)
    assert worth(problem, best, asked.policy) <= worth(problem, rules, asked.policy)
    response = encode(problem, best, asked.policy)
    assert [v.message for v in verify(asked, response.plan, response.objective)] == []


def test_same_seed_and_work_limit_same_plan():
    """With a work limit, a seed decides everything; another seed looks elsewhere."""
    problem = decode(instance(80, 1.3, seed=2))
    one, same, other = (plan(problem, SEARCH, pb.Budget(work_limit=60), seed=seed) for seed in (4, 4, 5))
    assert (one.start == same.start).all()
    assert (one.option == same.option).all()
    assert not np.array_equal(one.start, other.start)


def test_a_stopped_search_is_over():
    """With the stop flag set, search makes no plan at all."""
    problem, stop = decode(instance(80, 1.3, seed=2)), never_stop()
    start = greedy(problem)
    stop[0] = 1
    assert list(search(Scheduler(problem, stop), start, pb.Policy(), Limit(pb.Budget()), 0, 0.0)) == []


@settings(deadline=None, max_examples=60)
@given(requests())
def test_all_plans_of_search_hold(asked: pb.PlanRequest):
    """Whatever is asked, each plan is feasible and better than the one before."""
    asked.policy.engine = pb.SEARCH
    problem = decode(asked)
    before = None
    for made in plans(problem, asked.policy, pb.Budget(work_limit=5)):
        response = encode(problem, made, asked.policy)
        assert [v.message for v in verify(asked, response.plan, response.objective)] == []
        value = worth(problem, made, asked.policy)
        assert before is None or value <= before
        before = value


@pytest.mark.parametrize("objective", [[], [pb.TARDINESS, pb.LATE_WEIGHT, pb.START_TIMES]])
def test_levels_share_one_work_limit(objective: list[pb.ObjectiveLevel]):
    """All levels together place no more rows than the limit says, but for the last step."""
    problem = decode(instance(60, 1.3, seed=2))
    policy = pb.Policy(engine=pb.SEARCH, objective=objective)
    limit = Limit(pb.Budget(work_limit=20))
    list(search(Scheduler(problem), greedy(problem, policy), policy, limit, 0, 0.0))
    assert limit.work_left() == 0
    assert limit._spent[0] <= 20 + 0.5


def test_the_second_level_leaves_the_first_as_it_is():
    """Search for less tardiness makes no work late that was on time, and finds less tardiness than the rules."""
    problem = decode(instance(60, 1.3, seed=2))
    policy = pb.Policy(engine=pb.SEARCH)
    rules = greedy(problem)
    bound = rules.objective.late_weight  # nothing is looked for on the first level
    made = list(search(Scheduler(problem), rules, policy, Limit(pb.Budget(work_limit=200)), 0, bound))
    assert min(plan.objective for plan in made) < rules.objective
    assert all(plan.objective.late_weight <= rules.objective.late_weight for plan in made)
