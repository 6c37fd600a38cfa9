"""What a plan is worth under a policy: one number a level, compared like a tuple, smaller is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from solver.api import planner_pb2 as pb
from solver.plan import HOUR, Plan
from solver.problem import Problem

DEFAULT_LEVELS: tuple[int, ...] = (pb.LATE_WEIGHT, pb.TARDINESS, pb.START_TIMES, pb.STABILITY)
"""Levels when the policy names none."""

Worth = tuple[float, ...]


def levels(policy: pb.Policy) -> tuple[int, ...]:
    """The levels of a policy, most important first."""
    return tuple(policy.objective) or DEFAULT_LEVELS


def worth(problem: Problem, plan: Plan, policy: pb.Policy) -> Worth:
    """Value of each level of the policy for a valued plan."""
    return tuple(_VALUES[level](problem, plan) for level in levels(policy))


def better(problem: Problem, plan: Plan, other: Plan, policy: pb.Policy) -> bool:
    """Whether a plan is worth more than another; both are valued."""
    return worth(problem, plan, policy) < worth(problem, other, policy)


def peak(problem: Problem, plan: Plan) -> float:
    """Highest use over time of any flavor and resource of any tree, in parts of the tree's nominal quota of it.

    Reservations are use like any other.
    """
    tree, options, busy = problem.tree, problem.options, problem.busy
    count = options.need[plan.option + 1] - options.need[plan.option]
    row = np.repeat(np.arange(len(problem)), count)
    entry = np.arange(len(row)) + np.repeat(options.need[plan.option] - np.cumsum(count) + count, count)
    node = np.concatenate([options.node[problem.pair[row]], busy.node])
    cell = np.concatenate([options.cell[entry], busy.cell])
    amount = np.concatenate([options.amount[entry], busy.amount])
    start = np.concatenate([plan.start[row], busy.start])
    end = np.concatenate([(plan.start + problem.length(plan.option))[row], busy.end])
    if not len(node):
        return 0.0
    group = tree.root[node].astype(np.int64) * tree.cells + cell
    groups, times, changes = np.tile(group, 2), np.concatenate([start, end]), np.concatenate([amount, -amount])
    order = np.lexsort((changes, times, groups))  # what ends goes before what starts
    use = np.cumsum(changes[order])  # each group ends at 0, so the next begins there
    whole = np.zeros((len(tree.parent), tree.cells))
    np.add.at(whole, tree.root, tree.nominal)
    return float((use / np.maximum(1, whole.reshape(-1)[groups[order]])).max())


def moves(problem: Problem, plan: Plan) -> float:
    """Sum of how far planned starts move from the plan in force, in hours."""
    known = problem.previous >= 0
    return float(np.abs(plan.start[known] - problem.previous[known]).sum() / HOUR)


_VALUES: Mapping[int, Callable[[Problem, Plan], float]] = {
    pb.LATE_WEIGHT: lambda _, plan: plan.objective.late_weight,
    pb.TARDINESS: lambda _, plan: plan.objective.tardiness,
    pb.PEAK: peak,
    pb.START_TIMES: lambda _, plan: plan.objective.start_hours,
    pb.STABILITY: moves,
}
