"""Stability: a better plan takes the place of the one in force with as few moves of planned starts as it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.api import planner_pb2 as pb
from solver.greedy import finish
from solver.plan import HOUR, Plan
from solver.previous import played
from solver.problem import NEVER, Problem
from solver.quota import Bools
from solver.repair import jobs_of, put_back
from solver.schedule import Scheduler, Starts
from solver.worth import levels, worth

PASSES = 2
"""How often it is tried to put starts back: each one makes room for others."""

EQUAL = 1e-9
"""Sums of weights that differ by no more, relatively, are the same: they were added up in another order."""


def moved(problem: Problem, plan: Plan) -> int:
    """How many planned starts a plan moves."""
    return int(np.count_nonzero((problem.previous >= 0) & (plan.start != problem.previous)))


def worth_moving(problem: Problem, plan: Plan, other: Plan, policy: pb.Policy) -> bool:
    """Whether a plan is so much better than another that it may move more planned starts.

    It must be better by the policy's levels. When it is so on a level of tardiness or start times, the hours that it
    gains must be more than the policy's threshold for each start that it moves more.
    """
    new, old = (worth(problem, p, policy) for p in (plan, other))
    if new >= old:
        return False
    more = policy.stability_threshold * max(0, moved(problem, plan) - moved(problem, other))
    gained = 0.0
    for level, a, b in zip(levels(policy), new, old, strict=True):
        if level == pb.TARDINESS:
            gained += b - a
        elif level == pb.START_TIMES:
            gained += (b - a) * len(problem)
        elif abs(b - a) > EQUAL * (1 + abs(b)) and gained <= 0:
            return b > a
    return gained > more


def steadied(scheduler: Scheduler, plan: Plan, kept: Plan, policy: pb.Policy) -> Plan:
    """A plan, with all starts as they are in ``kept`` that can be put back one by one, at hardly any cost.

    A start that is moved all the same gains more than the policy's threshold by itself, or has no room any more where
    it was, as the others are now. Nothing that is on time becomes late.
    """
    problem, ours = scheduler.problem, scheduler.ours
    jobs, start, option = jobs_of(scheduler), plan.start.copy(), plan.option.astype(np.int64)
    grid = played(scheduler, jobs, ours[np.lexsort((jobs.latest[ours], start[ours]))], start, option)
    if grid is None or (start[ours] < 0).any():
        return plan
    kept_option = kept.option.astype(np.int64)
    there = ours[(problem.previous == kept.start)[ours] & ~_costs(problem, plan, kept, policy)[ours]]
    for _ in range(PASSES):
        away = there[start[there] != kept.start[there]]
        later = kept.start[away] > start[away]
        # The last go first to where they are to start later, the first go first to where they are to start sooner.
        order = away[np.lexsort((np.where(later, -1, 1) * kept.start[away], ~later))]
        if not put_back(grid, jobs, order, kept.start, kept_option, start, option, scheduler.stop):
            break
    made = finish(scheduler, Starts(start, option.astype(np.int32)), plan.engine)
    return replace(made, bound=plan.bound, impossible=kept.impossible)


def _costs(problem: Problem, plan: Plan, kept: Plan, policy: pb.Policy) -> Bools:
    """Rows that lose more than the policy's threshold when they start as in ``kept``: ``bool [n]``."""
    counts = (problem.due < NEVER) & (problem.weight > 0)
    late, was = (
        np.where(counts, np.maximum(0, p.start + problem.length(p.option) - problem.due), 0) for p in (kept, plan)
    )
    tardier = np.where(problem.hard, 0.0, problem.weight * (late - was) / HOUR)
    later = problem.pull * len(problem) * (kept.start - plan.start) / HOUR
    hours = np.maximum(0.0, tardier) + np.maximum(0.0, later)
    result: Bools = ((late > 0) & (was == 0)) | (hours > policy.stability_threshold)
    return result
