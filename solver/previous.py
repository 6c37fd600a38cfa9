"""The plan in force, brought up to date with what has changed since."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.api import planner_pb2 as pb
from solver.greedy import finish
from solver.plan import HOUR, Plan
from solver.problem import NEVER
from solver.quota import Int64s
from solver.repair import (
    MOST_HOLES,
    MOST_MADE_WAY,
    Grid,
    Jobs,
    ahead_of,
    fill,
    jobs_of,
    make_grid,
    play,
    weave,
)
from solver.rules import Work
from solver.schedule import MOST_ENTRIES, Scheduler, Starts

MOST_REPAIRED = 1_000
"""Rows without a place up to which a plan is repaired; with more, the schedule is made anew, in the plan's order."""


def previous_plan(scheduler: Scheduler, policy: pb.Policy) -> Plan | None:
    """The plan in force, or nothing when there is none.

    What can, starts when it was to; what cannot, and what is new, is placed by :mod:`solver.repair`.
    """
    problem, ours = scheduler.problem, scheduler.ours
    known = ours[problem.previous[ours] >= 0]
    if not len(known):
        return None
    jobs = jobs_of(scheduler)
    start, option = problem.previous.copy(), problem.previous_option.astype(np.int64)
    by_start = known[np.lexsort((jobs.latest[known], problem.previous[known]))]
    grid = played(scheduler, jobs, by_start, start, option)
    impossible = (problem.previous >= 0) & (start < 0)
    todo = ours[start[ours] < 0]
    if len(todo) > MOST_REPAIRED or (len(todo) and grid is None):
        return replace(finish(scheduler, _in_order(scheduler, policy), "repair"), impossible=impossible)
    moved = 0
    if grid is not None:
        if len(todo):
            _place(scheduler, grid, jobs, todo, start, option, policy)
        moved = _filled(scheduler, grid, jobs, by_start, start, option, policy)
    starts = Starts(start, option.astype(np.int32))
    return replace(finish(scheduler, starts, "repair" if len(todo) or moved else "previous"), impossible=impossible)


def played(scheduler: Scheduler, jobs: Jobs, order: Int64s, start: Int64s, option: Int64s) -> Grid | None:
    """What is in use when rows start as they are to; of those that cannot, ``start`` becomes −1.

    Nothing, but for that, where it would take too much memory.
    """
    held = scheduler.held
    instants = 4 * len(order) + 2 * len(held.slot) + 8 * (MOST_REPAIRED + MOST_MADE_WAY + MOST_HOLES)
    keeps = instants * len(scheduler.compact.slots.up) <= MOST_ENTRIES
    grid = make_grid(scheduler, instants if keeps else 2)
    slot = held.slot.astype(np.int64)
    play(
        grid, ahead_of(grid, held), jobs, slot, held.amount, held.start, held.end, order, start, option, scheduler.stop
    )  # fmt: skip
    return grid if keeps else None


def _place(
    scheduler: Scheduler, grid: Grid, jobs: Jobs, todo: Int64s, start: Int64s, option: Int64s, policy: pb.Policy
) -> None:
    """Find places for rows that have none. What has waited too long makes way for nobody."""
    problem, ours = scheduler.problem, scheduler.ours
    movable = np.zeros(len(problem), dtype=np.bool_)
    movable[ours[~Work(problem, ours, policy.ageing_ms).aged]] = True
    since = np.where(jobs.latest < NEVER, 0, np.maximum(0, problem.previous))
    turns = Work(problem, todo, policy.ageing_ms).tail()
    weave(grid, jobs, turns, since, movable, start, option, MOST_MADE_WAY, scheduler.stop)


def _filled(
    scheduler: Scheduler, grid: Grid, jobs: Jobs, order: Int64s, start: Int64s, option: Int64s, policy: pb.Policy
) -> int:
    """Fill room that is free now: late work that is on time there first, then in an order. How many rows move."""
    problem, rows = scheduler.problem, scheduler.ours
    late = rows[((start + problem.length(option.astype(np.int32)) > jobs.due) & (jobs.latest >= jobs.earliest))[rows]]
    late = late[np.argsort((problem.size * problem.duration / np.maximum(1e-300, problem.weight))[late], kind="stable")]
    least = round(min(float(NEVER), policy.stability_threshold * HOUR))
    turns, pairs = np.concatenate([late, order]), len(problem.options.node)
    return int(fill(grid, jobs, turns, len(late), start, option, pairs, least, MOST_HOLES))


def _in_order(scheduler: Scheduler, policy: pb.Policy) -> Starts:
    """A schedule anew, in the order of the plan in force: on time what was so; the others by their latest start."""
    problem = scheduler.problem
    work = Work(problem, scheduler.ours, policy.ageing_ms)
    rows, previous = work.rows, problem.previous[work.rows]
    latest = (problem.due - problem.shortest)[rows]
    planned = previous >= 0
    able = work.aged | (work.counts & ~work.hopeless & (~planned | (previous <= latest)))
    key = np.where(work.aged, work.created, np.where(planned, previous, latest))
    order = np.lexsort((rows, key, ~work.aged))
    order = rows[order[able[order]]]
    return scheduler.schedule(order, work.tail())
