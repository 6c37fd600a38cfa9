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

MOST_WORK = 4_000_000
"""Rows times begins of intervals looked at, for one part of the tree."""

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
    begins = _spread(np.concatenate([release, due - length]), max(8, MOST_WORK // len(rows)))
    edges = np.append(steps, max(int(steps[-1]), int(due.max())) + 1)
    free = np.rint(np.diff(part.room_until(edges)) / np.diff(edges)).astype(np.int64)
    usable = filled(amount, free).astype(np.float64)
    so_far = np.concatenate([[0.0], np.cumsum(usable * np.diff(edges))])
    order = np.argsort(due - length, kind="stable")
    return int(_most_over(release[order], due[order], length[order], amount[order], begins, edges, so_far, usable))


def _spread(instants: Int64s, most: int) -> Int64s:
    """The distinct instants, or as many as may be, spread evenly."""
    instants = np.unique(instants)
    if len(instants) <= most:
        return instants
    return instants[np.linspace(0, len(instants) - 1, most).astype(np.int64)]


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
    begins: Int64s,
    edges: Int64s,
    so_far: Float64s,
    usable: Float64s,
) -> int:
    """The most rows that have to go from one interval, over all begins; of each the end at which most is too much.

    Rows by their latest starts. With the begin ``a``, what a row must run until ``b`` grows evenly from its latest
    start (or ``a``) on, up to what is left of it after ``a`` when it is started at once: one sweep looks at all ends.
    """
    n, most = len(release), 0
    start, full, took = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    needed = np.empty(n, np.float64)
    for a in begins:
        count = 0
        for k in range(n):
            left = release[k] + length[k] - max(release[k], a)
            if left > 0:
                start[count] = max(due[k] - length[k], a)
                full[count] = start[count] + left
                took[count] = amount[k]
                count += 1
        by_full = np.argsort(full[:count])
        before, total, slope, now = _usable(a, edges, so_far, usable), 0.0, 0.0, a
        worst, end, i, j = 0.0, a, 0, 0
        while j < count:
            if i < count and start[i] <= full[by_full[j]]:
                instant, change = start[i], took[i]
                i += 1
            else:
                instant, change = full[by_full[j]], -took[by_full[j]]
                j += 1
            total += slope * (instant - now)
            now, slope = instant, slope + change
            if change < 0:
                room = _usable(now, edges, so_far, usable) - before
                over = total - room * (1 + 1e-9) - 1e-3  # sums are not exact
                if over > worst:
                    worst, end = over, now
        if worst > 0:
            at = 0
            for k in range(count):
                inside = min(end, full[k]) - start[k]
                if inside > 0:
                    needed[at] = float(inside) * took[k]
                    at += 1
            largest, gone = np.sort(needed[:at]), 0
            while worst > 0:
                gone += 1
                worst -= largest[at - gone]
            most = max(most, gone)
    return most


@njit(cache=True, nogil=True)
def _usable(instant: int, edges: Int64s, so_far: Float64s, usable: Float64s) -> float:
    """Quota × time between now and an instant that work can use."""
    step = min(max(0, int(np.searchsorted(edges, instant, side="right")) - 1), len(usable) - 1)
    return float(so_far[step] + usable[step] * (instant - edges[step]))
