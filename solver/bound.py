"""A certified lower bound on late weight: no plan can do better, whoever makes it.

Between now and a due date a part of the quota tree has so much quota × time, less what is held already. Work that must
finish by then and be held there needs its own quota × time out of that. What does not fit is late. For one part of the
tree, letting work be on time by fractions, the least late weight is found greedily: in the order of due dates, whenever
the accepted work needs more than there is so far, give up what is worth least for its quota × time. (The constraints
are nested, so this is the optimum of the linear program.)

Parts that share no work add up; of parts that contain each other the larger bound counts. Work that is not ours stays
where it has its place, first in line. Where there is time, a linear program for all parts together says more
(:mod:`solver.bound_lp`).
"""

from __future__ import annotations

import math
import time
from heapq import heappop, heappush

import numpy as np
from numba import njit

from solver.bound_lp import energy_bound
from solver.energy import Part, Parts
from solver.problem import NEVER, Float64s, Problem
from solver.quota import Bools, Int64s
from solver.schedule import Scheduler

MOST_ROWS = 1_000_000
"""Rows looked at, over all parts of the tree; the parts nearest to the roots go first."""

PART_ROWS = 500
"""How many rows' worth of time looking at one part takes by itself."""


def certain_late_weight(scheduler: Scheduler) -> float:
    """Weight that is late in any plan, whatever else is planned: a bound that takes no time."""
    problem = scheduler.problem
    late, _ = certain(scheduler)
    return rounded(problem, float(problem.weight[late].sum()))


def late_weight_bound(scheduler: Scheduler, seconds: float = math.inf) -> float:
    """The least late weight of any plan for the scheduler's problem.

    Parameters
    ----------
    seconds
        About how long it may take.
    """
    problem = scheduler.problem
    late, open_rows = certain(scheduler)
    lost = float(problem.weight[late].sum())
    rows = np.flatnonzero(open_rows)
    rows = rows[np.argsort(problem.due[rows], kind="stable")]
    if not len(rows):
        return rounded(problem, lost)
    begun = time.monotonic()
    bound = _by_parts(scheduler, rows)
    # The program takes some times as long as the parts one by one.
    if 10 * (time.monotonic() - begun) < seconds:
        bound = max(bound, energy_bound(scheduler, rows, seconds))
    return rounded(problem, lost + bound)


def certain(scheduler: Scheduler) -> tuple[Bools, Bools]:
    """Rows that are late whatever is planned, and rows of which nobody knows yet; both ``bool [n]``."""
    problem, fixed = scheduler.problem, scheduler.fixed
    placed = fixed.start >= 0
    late = placed & (fixed.start + problem.length(fixed.option) > problem.due)
    counts = (problem.due < NEVER) & (problem.weight > 0) & ~placed
    hopeless = counts & (problem.release + problem.shortest > problem.due)
    return late | hopeless, counts & ~hopeless


def rounded(problem: Problem, bound: float) -> float:
    """The bound a little lower, because sums are not exact; or the next whole number, where all weights are whole."""
    bound = max(0.0, bound - 1e-9 * (1.0 + float(problem.weight.sum())))
    weight = problem.weight[problem.due < NEVER]
    return float(np.ceil(bound)) if (weight == np.floor(weight)).all() else bound


def _by_parts(scheduler: Scheduler, rows: Int64s) -> float:
    """Sum over the roots, or what nodes say if that is more; ``rows`` by due date."""
    problem, parts = scheduler.problem, Parts(scheduler)
    tree = problem.tree
    queue = problem.options.node[problem.pair[rows]]
    roots_first = np.argsort(parts.under.sum(axis=0), kind="stable")
    bound = np.zeros(len(tree.parent))
    looked_at = 0
    for node in roots_first.tolist():
        members = rows[parts.under[node][queue]]
        if not len(members):
            continue
        for part in parts.of(node):
            if looked_at < MOST_ROWS:
                looked_at += len(members) + PART_ROWS
                bound[node] = max(bound[node], _least_late(problem, members, part))
    for node in reversed(roots_first.tolist()):
        bound[node] = max(bound[node], bound[tree.parent == node].sum())
    # Nodes are shared by all trees, so their bound is another one for the whole.
    by_nodes = (_least_late(problem, rows, part) for part in parts.on_nodes())
    return max(float(bound[tree.parent < 0].sum()), *by_nodes, 0.0)


def _least_late(problem: Problem, rows: Int64s, part: Part) -> float:
    """Least late weight of rows, by due date, for one part."""
    energy: Float64s = problem.shortest[rows].astype(np.float64) * part.least[problem.pair[rows]]
    rows, energy = rows[energy > 0], energy[energy > 0]
    return float(_give_up(energy, problem.weight[rows], part.room_until(problem.due[rows])))


@njit(cache=True, nogil=True)
def _give_up(energy: Float64s, weight: Float64s, room: Float64s) -> float:
    """Weight given up so that the energy of rows ``0 … k`` is at most ``room[k]`` for every k; fractions count."""
    late, accepted = 0.0, 0.0
    heap = [(0.0, 0.0)]
    heap.clear()
    for k in range(len(energy)):
        heappush(heap, (weight[k] / energy[k], energy[k]))
        accepted += energy[k]
        while accepted > room[k] and len(heap) > 0:
            ratio, least = heappop(heap)
            excess = accepted - room[k]
            if least > excess:
                heappush(heap, (ratio, least - excess))
                least = excess
            late += ratio * least
            accepted -= least
    return late
