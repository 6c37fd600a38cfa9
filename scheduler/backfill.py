"""Room over time, as running work is expected to leave it: who may start early without holding up those who wait.

Conservative backfilling: each that waits books the first room it is expected to get, in the order of the plan, and
others may pass that leave these bookings room. (Mu'alem & Feitelson, IEEE Trans. Parallel Distrib. Syst. 12(6), 2001.)
Only the first few in a tree book; it would cost too much for all, and those further down are planned anew long before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.problem import NEVER, Options, Problem
from solver.quota import Int32s, Int64s, TreeArrays, available, inner, take

BOOKINGS = 16
"""Most that book room in one tree of quota."""


CLOSED = 1 << 30


class Course(NamedTuple):
    """How use is expected to change: ``amount[k]`` more of ``cell[k]`` at ``node[k]`` from ``at[k]`` on, by time.

    The first ``size[0]`` entries of these columns are in use.
    """

    at: Int64s
    node: Int32s
    cell: Int32s
    amount: Int64s
    size: Int64s
    booked: Int64s
    """``[N]``: how many have booked, by root; ``CLOSED`` where nobody knows any more what is in use when."""
    root: Int32s
    """``[N]``: root of each node."""


def course(problem: Problem) -> Course:
    """What runs ends when it is expected to; what is reserved comes and goes."""
    busy, tree = problem.busy, problem.tree
    comes = busy.start > 0
    at = np.concatenate([busy.end, busy.start[comes]])
    order = np.argsort(at, kind="stable")
    entries = len(order)
    # Each booking comes and goes, in each cell.
    room = entries + (len(problem) + 2 * BOOKINGS * len(tree.parent)) * tree.cells
    node, cell = np.zeros(room, dtype=np.int32), np.zeros(room, dtype=np.int32)
    when, amount = np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64)
    when[:entries] = at[order]
    node[:entries] = np.concatenate([busy.node, busy.node[comes]])[order]
    cell[:entries] = np.concatenate([busy.cell, busy.cell[comes]])[order]
    amount[:entries] = np.concatenate([-busy.amount, busy.amount[comes]])[order]
    size = np.array([entries], dtype=np.int64)
    return Course(when, node, cell, amount, size, np.zeros(len(tree.parent), dtype=np.int64), tree.root)


@inner
def change(course: Course, at: int, node: int, total: Int64s, sign: int) -> None:
    """From ``at`` on ``total`` (by cell) more is in use, or with a negative sign less."""
    count, cells = course.size[0], np.count_nonzero(total)
    k = count
    while k > 0 and course.at[k - 1] > at:
        k -= 1
        course.at[k + cells], course.node[k + cells] = course.at[k], course.node[k]
        course.cell[k + cells], course.amount[k + cells] = course.cell[k], course.amount[k]
    for cell in range(len(total)):
        if total[cell] != 0:
            course.at[k], course.node[k], course.cell[k], course.amount[k] = at, node, cell, sign * total[cell]
            k += 1
    course.size[0] = count + cells


@inner
def first_room(
    tree: TreeArrays, course: Course, usage: Int64s, node: int, total: Int64s, begin: int, end: int, length: int
) -> int:
    """From when on, at an instant of ``begin … end``, a node may have ``total`` for so long; ``NEVER`` if at none.

    ``usage``: what is in use now.
    """
    later = usage.copy()
    start, k, count, at = -1, 0, course.size[0], begin
    while True:
        while k < count and course.at[k] <= at:
            if course.root[course.node[k]] == course.root[node]:
                take(tree, later, course.node[k], course.cell[k], course.amount[k])
            k += 1
        if start >= 0 and at >= start + length:
            return start
        fits = True
        for cell in range(len(total)):
            if total[cell] > 0 and total[cell] > max(0, available(tree, later, node, cell)):
                fits = False
                break
        if fits and start < 0 and at <= end:
            start = at
        elif not fits:
            start = -1
        if start < 0 and (at >= end or k == count):
            return NEVER
        if k == count:
            return start
        at = course.at[k]


@inner
def book(
    tree: TreeArrays, course: Course, options: Options, usage: Int64s, pair: int, begin: int, duration: int
) -> int:
    """Book the first room for what waits, with whichever option gets it first; when that is.

    −1 if enough others have booked, or no room is expected.
    """
    node = options.node[pair]
    if course.booked[course.root[node]] >= BOOKINGS:
        return -1
    best, taken = NEVER, -1
    total = np.zeros(usage.shape[1], dtype=np.int64)
    for option in range(options.first[pair], options.first[pair + 1]):
        _total(options, option, total)
        start = first_room(tree, course, usage, node, total, begin, best - 1, duration + options.lead[option])
        if start < best:
            best, taken = start, option
    if taken < 0:
        return -1
    _total(options, taken, total)
    course.booked[course.root[node]] += 1
    change(course, int(best), int(node), total, 1)
    change(course, int(best + duration + options.lead[taken]), int(node), total, -1)
    return int(best)


@inner
def _total(options: Options, option: int, total: Int64s) -> None:
    total[:] = 0
    for k in range(options.need[option], options.need[option + 1]):
        total[options.cell[k]] += options.amount[k]
