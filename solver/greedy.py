"""Plans by selection and by priority rules: one schedule each, in milliseconds for thousands of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver.api import planner_pb2 as pb
from solver.buckets import Flag
from solver.plan import Plan, valued
from solver.problem import Problem
from solver.quota import Int64s
from solver.rules import RULES, Work
from solver.schedule import Scheduler, Starts
from solver.selection import TASTES, Selection
from solver.worth import levels, worth


def greedy(problem: Problem, policy: pb.Policy | None = None, stop: Flag | None = None) -> Plan:
    """The best plan of all rules. Feasible whatever happens; see :class:`solver.schedule.Scheduler` for ``stop``."""
    policy = policy or pb.Policy()
    return min(rule_plans(Scheduler(problem, stop), policy), key=lambda plan: worth(problem, plan, policy))


def rule_plans(scheduler: Scheduler, policy: pb.Policy) -> Iterator[Plan]:
    """A plan for each selection and each rule, as they are asked for, the quickest first, then the best; at least one.

    A policy for which being on time is not what counts most gets plans that put nothing back for being late, too.
    """
    work = Work(scheduler.problem, scheduler.ours, policy.ageing_ms)
    tail = work.tail()
    if levels(policy)[0] != pb.LATE_WEIGHT:
        yield finish(scheduler, scheduler.schedule(tail), "greedy/weighted-lateness")
        shortest = work.rows[np.lexsort((work.rows, work.energy, ~work.aged))]
        yield finish(scheduler, scheduler.schedule(shortest), "greedy/shortest")
    quick = True
    for name, order in orders(scheduler, work):
        yield finish(scheduler, scheduler.schedule(order, tail, quick=quick), f"greedy/{name}")
        quick = False


def orders(scheduler: Scheduler, work: Work) -> Iterator[tuple[str, Int64s]]:
    """Orders of the work that can be on time, by selection and by rules, each once, with its first name."""
    seen: list[Int64s] = []
    for name, order in _all_orders(scheduler, work):
        if not any(np.array_equal(order, other) for other in seen):
            seen.append(order)
            yield name, order


def _all_orders(scheduler: Scheduler, work: Work) -> Iterator[tuple[str, Int64s]]:
    yield "half-slack", work.order(RULES["half-slack"](work))  # at once; selection takes a moment to prepare
    selection = Selection(scheduler, work)
    for taste in TASTES:
        yield "selection", selection.order(taste)
    for name, rule in RULES.items():
        yield name, work.order(rule(work))


def finish(scheduler: Scheduler, starts: Starts, engine: str) -> Plan:
    """A valued plan from the starts of the rows that are ours; the others keep theirs."""
    problem, fixed = scheduler.problem, scheduler.fixed
    start = np.where(fixed.start >= 0, fixed.start, starts.start)
    option = np.where(fixed.start >= 0, fixed.option, starts.option)
    return valued(problem, Plan(start, option, _not_before(problem, start, option), engine))


def _not_before(problem: Problem, start: Int64s, option: Int64s) -> Int64s:
    """Times before which a release would be wrong, not only unlikely: release dates, and ends of reservations.

    Kueue knows nothing of a reservation. So what is planned behind one that is kept free in the same tree, of something
    that it needs, must not slip in before it when other work ends early.
    """
    tree, options, busy = problem.tree, problem.options, problem.busy
    result = problem.release.copy()
    for k in np.flatnonzero(busy.row < 0):
        needs_it = np.zeros(len(options.need) - 1, dtype=np.bool_)
        needs_it[np.searchsorted(options.need, np.flatnonzero(options.cell == busy.cell[k]), side="right") - 1] = True
        same_tree = tree.root[options.node[problem.pair]] == tree.root[busy.node[k]]
        behind = same_tree & needs_it[option] & (start >= busy.end[k])
        result[behind] = np.maximum(result[behind], busy.end[k])
    return result
