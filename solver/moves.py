"""What moves against the plan in force, and why."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from solver.plan import Plan
from solver.problem import NEVER, Int8s, Problem, State
from solver.quota import Bools, Int64s


class MoveReason(IntEnum):
    """Why a planned start moves; values are those of the proto's MoveReason."""

    NOT_POSSIBLE = 1
    LATER_RELEASE = 2
    ON_TIME = 3
    LESS_LATE = 4
    SOONER = 5
    MAKES_WAY = 6


class Moves(NamedTuple):
    """Rows of the problem whose planned start is another one now; parallel columns."""

    row: Int64s
    reason: Int8s
    """:class:`MoveReason`."""
    cause: Int64s
    """Row of the problem that takes its place, −1 for none."""


def moves(problem: Problem, plan: Plan) -> Moves:
    """All rows that do not start as they were planned to, in the order of the problem."""
    known = problem.previous >= 0
    row = np.flatnonzero(known & (plan.start != problem.previous))
    old, new, due = problem.previous[row], plan.start[row], problem.due[row]
    counts = (due < NEVER) & (problem.weight[row] > 0)
    # With which option it was planned before is not always known; the one it gets is as good a guess as any.
    length = problem.length(plan.option)[row]
    was, late = np.maximum(0, old + length - due) * counts, np.maximum(0, new + length - due) * counts
    sooner = new < old
    reason = np.full(len(row), MoveReason.MAKES_WAY, dtype=np.int8)
    reason[sooner] = MoveReason.SOONER
    reason[sooner & (late < was)] = MoveReason.LESS_LATE
    reason[sooner & (was > 0) & (late == 0)] = MoveReason.ON_TIME
    cause = np.full(len(row), -1, dtype=np.int64)
    later = np.flatnonzero(~sooner)
    gains = np.zeros(len(problem), dtype=np.bool_)
    gains[row[np.isin(reason, (MoveReason.ON_TIME, MoveReason.LESS_LATE))]] = True
    gains[(problem.state == State.PENDING) & ~known & (problem.due < NEVER)] = True
    for candidates in (np.ones(len(problem), dtype=np.bool_), gains):  # who gains by it has the last word
        found = _taken_by(problem, plan, row[later], candidates)
        cause[later] = np.where(found >= 0, found, cause[later])
    gone = ~sooner & (cause < 0 if plan.impossible is None else plan.impossible[row])
    reason[gone] = MoveReason.NOT_POSSIBLE
    cause[gone] = -1
    postponed = ~sooner & (problem.release[row] > old)
    reason[postponed] = MoveReason.LATER_RELEASE
    cause[postponed] = -1
    return Moves(row, reason, cause)


def _taken_by(problem: Problem, plan: Plan, rows: Int64s, candidates: Bools) -> Int64s:
    """For each of some rows one that runs when it was to start, and did not before; −1 where there is none.

    Of the same tree, and with the same flavor and resource, the first that each asks for.
    """
    end = plan.start + problem.length(plan.option)
    before = problem.previous
    tree, options = problem.tree, problem.options
    first = options.need[plan.option]
    something = np.flatnonzero(first < options.need[plan.option + 1])
    group = np.full(len(problem), -1, dtype=np.int64)
    node = tree.root[options.node[problem.pair[something]]].astype(np.int64)
    group[something] = node * tree.cells + options.cell[first[something]]
    result = np.full(len(rows), -1, dtype=np.int64)
    came = np.flatnonzero(candidates & (plan.start != before) & (problem.state == State.PENDING))
    for one in np.unique(group[rows]).tolist():
        there = came[group[came] == one]
        there = there[np.argsort(plan.start[there], kind="stable")]
        asked = np.flatnonzero(group[rows] == one)
        if one < 0 or not len(there):
            continue
        # The one that goes on longest of those that have begun.
        last = np.maximum.accumulate(end[there])
        longest = np.maximum.accumulate(np.where(end[there] == last, np.arange(len(there)), 0))
        position = np.searchsorted(plan.start[there], before[rows[asked]], side="right") - 1
        who = there[longest[np.maximum(0, position)]]
        moment = before[rows[asked]]
        taken = (position >= 0) & (end[who] > moment) & (who != rows[asked])
        # Who was there already at that moment has not taken it.
        held = (before[who] >= 0) & (before[who] <= moment) & (moment < before[who] + end[who] - plan.start[who])
        result[asked] = np.where(taken & ~held, who, -1)
    return result
