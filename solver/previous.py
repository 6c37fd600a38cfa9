"""The plan in force, brought up to date: what was planned stays where it was, newcomers go around it."""

from __future__ import annotations

import numpy as np

from solver.api import planner_pb2 as pb
from solver.greedy import finish
from solver.plan import Plan
from solver.rules import Work, half_slack
from solver.schedule import Scheduler, Starts
from solver.worth import levels, worth


def previous_plan(scheduler: Scheduler, policy: pb.Policy) -> Plan | None:
    """The plan in force, or nothing when there is none.

    A start that is not possible any more moves back to the next instant that is.
    """
    problem = scheduler.problem
    known = scheduler.ours[problem.previous[scheduler.ours] >= 0]
    if not len(known):
        return None
    wanted = np.maximum(problem.release, problem.previous)
    start, option = scheduler.exactly(known[np.lexsort((known, wanted[known]))], release=wanted)
    new = scheduler.ours[problem.previous[scheduler.ours] < 0]
    if len(new):
        work = Work(problem, new, policy.ageing_ms)
        held = scheduler.with_rows(scheduler.held, known, start, option)
        added = scheduler.schedule(work.order(half_slack(work)), work.tail(), held)
        start[new], option[new] = added.start[new], added.option[new]
    return finish(scheduler, Starts(start, option), "previous")


def worth_moving(scheduler: Scheduler, plan: Plan, previous: Plan, policy: pb.Policy) -> bool:
    """Whether a plan is so much better than the one in force that planned starts may move.

    What is gained on the level of tardiness must exceed the policy's threshold; a gain on a level above it always
    counts, on a level below it only when the threshold is 0.
    """
    new, old = (worth(scheduler.problem, p, policy) for p in (plan, previous))
    if new >= old:
        return False
    if policy.stability_threshold == 0:
        return True
    for level, a, b in zip(levels(policy), new, old, strict=True):
        if level == pb.TARDINESS:
            return b - a > policy.stability_threshold
        if a != b:
            return a < b
    return False
