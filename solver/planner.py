"""The pipeline from a problem to plans that get better until the budget ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solver.api import planner_pb2 as pb
from solver.bound import certain_late_weight, late_weight_bound
from solver.buckets import Flag
from solver.decode import decode
from solver.encode import encode
from solver.greedy import greedy, rule_plans
from solver.limit import Limit
from solver.plan import Plan
from solver.previous import previous_plan
from solver.problem import Problem
from solver.schedule import Scheduler
from solver.search import search
from solver.steady import steadied, worth_moving
from solver.worth import better

CP_SAT_ROWS = 200
"""Most rows of ours for which CP-SAT is tried unasked; with more, search finds more in the same time."""

BOUND_SHARE = 0.2
"""Part of the budget for the bound at most."""

SEARCH_SHARE = 0.3
"""Part of the budget for search when CP-SAT is to follow."""


def plan(
    problem: Problem,
    policy: pb.Policy | None = None,
    budget: pb.Budget | None = None,
    seed: int = 0,
    stop: Flag | None = None,
) -> Plan:
    """The last of :func:`plans`."""
    *_, last = plans(problem, policy, budget, seed, stop)
    return last


def plans(
    problem: Problem,
    policy: pb.Policy | None = None,
    budget: pb.Budget | None = None,
    seed: int = 0,
    stop: Flag | None = None,
) -> Iterator[Plan]:
    """Plans for a problem, each better than the one before by the policy's objective, or with a higher bound.

    There always is one, also when nothing is to be planned and when time is up at once. The plan in force comes first,
    as far as there is one, and stays unless another is better by more than the policy's threshold. Then priority rules
    take turns; search, and for few rows CP-SAT, use what is left of the budget.

    Parameters
    ----------
    problem
        What to plan.
    policy
        What counts, and which engine may be used.
    budget
        When to stop. With a ``work_limit`` and no ``wall_ms``, the plans do not depend on the machine's speed.
    seed
        Source of all random choices.
    stop
        ``uint8 [1]``: set by another thread to end all work at once.

    Yields
    ------
    Plan
        Valued, with a certified bound on its late weight.
    """
    policy, limit = policy or pb.Policy(), Limit(budget or pb.Budget())
    scheduler = Scheduler(problem, stop)
    bound = certain_late_weight(scheduler)
    best = kept = previous_plan(scheduler, policy)
    if best is not None:
        yield replace(best, bound=bound)
    for candidate in _candidates(scheduler, policy, limit, seed):
        proved = candidate.bound
        wins = best is None or better(problem, candidate, best, policy)
        if wins and best is not None and kept is not None:
            candidate = _steady(scheduler, candidate, best, kept, policy)
            wins = candidate is not best
        if wins:
            best = candidate
        if best is not None and (wins or proved > bound):
            bound = max(bound, proved)
            yield replace(best, bound=bound)


def _steady(scheduler: Scheduler, candidate: Plan, best: Plan, kept: Plan, policy: pb.Policy) -> Plan:
    """What to go on with when a candidate is better than the best so far, and there is a plan in force."""
    problem = scheduler.problem
    if not worth_moving(problem, candidate, best, policy):
        return best
    calmer = steadied(scheduler, candidate, kept, policy)
    if worth_moving(problem, calmer, best, policy):
        return calmer
    return replace(candidate, impossible=kept.impossible)


def _candidates(scheduler: Scheduler, policy: pb.Policy, limit: Limit, seed: int) -> Iterator[Plan]:
    """Plans of all engines in turn, at least one; bounds are those that the engine itself has proved."""
    best: Plan | None = None
    bound = 0.0
    for candidate in rule_plans(scheduler, policy):
        yield candidate
        first = best is None
        if best is None or better(scheduler.problem, candidate, best, policy):
            best = candidate
        if limit.over() or scheduler.stop[0]:
            return
        if first:  # not before a plan is out
            seconds = math.inf if limit.deterministic else BOUND_SHARE * limit.seconds_left()
            bound = late_weight_bound(scheduler, seconds)
            yield replace(best, bound=bound)
    assert best is not None  # there is at least one rule
    cp_sat = policy.engine == pb.CP_SAT or (
        policy.engine == pb.ENGINE_UNSPECIFIED and len(scheduler.ours) <= CP_SAT_ROWS
    )
    if policy.engine in (pb.ENGINE_UNSPECIFIED, pb.SEARCH):
        part = limit.part(SEARCH_SHARE) if cp_sat else limit
        for candidate in search(scheduler, best, policy, part, seed, bound):
            yield candidate
            if better(scheduler.problem, candidate, best, policy):
                best = candidate
    if cp_sat and not limit.over() and not scheduler.stop[0]:
        from solver.cpsat import improve  # OR-tools takes a moment to load

        yield from improve(scheduler, replace(best, bound=bound), policy, limit, seed)


def warm_up() -> None:
    """Compile or load all kernels and CP-SAT, so that the first real plan does not wait for them.

    All but those of :func:`warm_up_repair`.
    """
    problem, policy = _small(), pb.Policy()
    for last in plans(problem, policy, pb.Budget(work_limit=10)):
        encode(problem, last, policy)
    scheduler = Scheduler(problem)
    scheduler.in_buckets(scheduler.ours, scheduler.ours)


def warm_up_repair() -> None:
    """Compile or load what only plans need that follow another one, so that the second real plan does not wait."""
    problem = replace(_small(), previous=np.array([-1, 6, 0, 0]))
    kept = previous_plan(Scheduler(problem), pb.Policy())
    assert kept is not None
    encode(problem, steadied(Scheduler(problem), greedy(problem), kept, pb.Policy()), pb.Policy())


def _small() -> Problem:
    """A problem with something of everything."""
    request = pb.PlanRequest(schema=1, now_ms=1, policy=pb.Policy())
    request.quota.resources.append("gpu")
    request.quota.flavors.add(name="gpu").nodes.add(count=1, resources=[0], amounts=[1])
    group = request.quota.cluster_queues.add(name="queue").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=2)  # more than nodes have: they count
    request.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[1])
    states = [pb.IN_FLIGHT, pb.PENDING, pb.PENDING, pb.PENDING]
    request.workloads.id.extend(str(k) for k in range(len(states)))
    request.workloads.state.extend(states)
    request.workloads.duration_ms.extend([5, 3, 2, 7])
    request.workloads.due_ms.extend([0, 9, 9, 10])
    return decode(request)
