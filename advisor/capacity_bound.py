"""At least how many deadlines are missed, whoever plans: what an interval of time can hold and what must run in it.

Work that must lie between its release date and its due date must, wherever it is put, run for a part of an interval of
time: for the less of what it runs in it when started at once and when started as late as it may. (Energetic reasoning:
Erschler & Lopez 1990; Baptiste, Le Pape & Nuijten 1999.) When all of that together is more than the interval's quota ×
time, some of the work is late: at least so many rows as have to go, the largest first, until the rest fits. And of
three GPUs jobs of two use only two: quota counts as much as the sizes at hand can fill.

It complements :mod:`solver.bound`, which looks only at intervals that begin now, but at weights and all trees together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numba import njit

from solver.bound import certain, late_weight_bound
from solver.energy import Part, Parts
from solver.problem import Float64s, Problem
from solver.quota import Int64s
from solver.schedule import Scheduler

MOST_WORK = 20_000_000
"""Rows times intervals looked at, for one part of the tree."""

MOST_PARTS = 100
"""Parts of the tree looked at, those nearest to the roots first."""

MOST_SIZES = 1 << 18
"""Largest quota, in parts of its smallest piece, of which it is found out how much the sizes at hand can fill."""


def least_late(scheduler: Scheduler) -> int:
    """A lower bound on the number of rows that miss their due date, in any plan. All weights must be 1."""
    late, open_rows = certain(scheduler)
    bound = round(late_weight_bound(scheduler))
    rows = np.flatnonzero(open_rows)
    if not len(rows):
        return bound
    parts = Parts(scheduler)
    times = np.concatenate([parts.start, parts.end, scheduler.held.start, scheduler.held.end, [0]])
    steps = np.unique(times[times >= 0])
    roots_first = np.argsort(parts.under.sum(axis=0), kind="stable").tolist()
    every = chain(parts.on_nodes(), chain.from_iterable(parts.of(node) for node in roots_first))
    sure = int(late.sum())
    for part, _ in zip(_asked(scheduler.problem, rows, every), range(MOST_PARTS), strict=False):
        bound = max(bound, sure + _in_intervals(scheduler.problem, rows, part, steps))
    return bound


def _asked(problem: Problem, rows: Int64s, parts: Iterator[Part]) -> Iterator[Part]:
    """Parts of which something is asked."""
    return (part for part in parts if part.least[problem.pair[rows]].any())


def _in_intervals(problem: Problem, rows: Int64s, part: Part, steps: Int64s) -> int:
    amount = part.least[problem.pair[rows]]
    rows, amount = rows[amount > 0], amount[amount > 0]
    release, due, length = problem.release[rows], problem.due[rows], problem.shortest[rows]
    wide = max(8, int((MOST_WORK / len(rows)) ** 0.5))
    begin = _spread(np.concatenate([release, due - length]), wide)
    end = _spread(np.concatenate([due, release + length]), wide)
    so_far = _usable_until(part, amount, steps, np.concatenate([begin, end]))
    # Sums are not exact, so a thousandth of a millisecond is not enough to call anything late.
    return int(_most_over(release, due, length, amount, begin, end, so_far[: len(begin)], so_far[len(begin) :]))


def _spread(instants: Int64s, most: int) -> Int64s:
    """The distinct instants, or as many as may be, spread evenly."""
    instants = np.unique(instants)
    if len(instants) <= most:
        return instants
    return instants[np.linspace(0, len(instants) - 1, most).astype(np.int64)]


def _usable_until(part: Part, amount: Int64s, steps: Int64s, instants: Int64s) -> Float64s:
    """Quota × time between now and each instant that work of these sizes can use."""
    edges = np.append(steps, max(int(steps[-1]), int(instants.max())) + 1)
    free = np.rint(np.diff(part.room_until(edges)) / np.diff(edges)).astype(np.int64)
    usable = filled(amount, free).astype(np.float64)
    before = np.concatenate([[0.0], np.cumsum(usable * np.diff(edges))])
    step = np.clip(np.searchsorted(edges, instants, side="right") - 1, 0, len(free) - 1)
    result: Float64s = before[step] + usable[step] * (instants - edges[step])
    return result


def filled(sizes: Int64s, room: Int64s) -> Int64s:
    """How much of each room some of the sizes, each used once, can fill at most: ``int64``, as long as ``room``."""
    piece = int(np.gcd.reduce(sizes))
    most = int(room.max(initial=0)) // piece
    result: Int64s = room // piece * piece
    if most > MOST_SIZES:
        return result
    reached, mask = 1, (1 << (most + 1)) - 1  # bit k: k pieces can be filled
    for size, count in zip(*np.unique(sizes // piece, return_counts=True), strict=True):
        left, several = min(int(count), most // int(size)), 1
        while left > 0:  # as many sizes as their number has digits make every number of them
            used = min(several, left)
            reached |= (reached << (int(size) * used)) & mask
            left, several = left - used, several * 2
    for k, pieces in enumerate((room // piece).tolist()):
        result[k] = ((reached & ((1 << (pieces + 1)) - 1)).bit_length() - 1) * piece
    return result


@njit(cache=True, nogil=True)
def _most_over(
    release: Int64s,
    due: Int64s,
    length: Int64s,
    amount: Int64s,
    begin: Int64s,
    end: Int64s,
    until_begin: Float64s,
    until_end: Float64s,
) -> int:
    """The most rows that have to go from one interval, over all intervals."""
    most = 0
    needed = np.empty(len(release), dtype=np.float64)
    for a in range(len(begin)):
        for b in range(len(end)):
            if end[b] <= begin[a]:
                continue
            total, count = 0.0, 0
            for k in range(len(release)):
                early = min(release[k] + length[k], end[b]) - max(release[k], begin[a])
                late = min(due[k], end[b]) - max(due[k] - length[k], begin[a])
                inside = min(early, late)
                if inside > 0:
                    needed[count] = float(inside) * float(amount[k])
                    total += needed[count]
                    count += 1
            room = (until_end[b] - until_begin[a]) * (1 + 1e-9) + 1e-3
            if total > room:
                largest = np.sort(needed[:count])
                gone = 0
                while total > room:
                    gone += 1
                    total -= largest[count - gone]
                most = max(most, gone)
    return most
