"""Schedules over instants: each row, in a given order, at the earliest instant at which it fits, with nothing rounded.

Use of the slots is a chain of *instants* at which it changes, each with the use from then on. What is held already
gives the first of them; each row that is placed adds at most its end, because it starts where something else ends, or
where it may start at all. The chain only grows, and an instant keeps its number, so that a table of lower bounds as in
:mod:`solver.buckets` can name instants, and a schedule can be taken up again where an order has changed (*marks*: what
there was before a position of the order).

Rounding costs quota × time, some per cent of it with a thousand buckets, and where quota is short each per cent
counts. Up to some thousand rows this takes no longer than buckets. Beyond, it takes longer the more work runs at a
time; search, which makes many schedules, then rounds times up to whole units, so that there are fewer instants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from solver.buckets import POLL, Flag, Hints, Rows
from solver.problem import NEVER, Float64s
from solver.quota import UNLIMITED, Bools, Int32s, Int64s
from solver.slots import Held, Needs, Slots, distance, hold

LATE, TARDINESS, STARTS = range(3)
"""Where the parts of a value stand: late weight, weight × hours late, and hours of starts, each weighted."""


class Board(NamedTuple):
    """All that a schedule depends on but the order. Times are whole units from now."""

    slots: Slots
    needs: Needs
    hints: Hints
    rows: Rows
    begin: Int32s
    """``[n]``: instant of each row's release."""
    limit: Int64s
    """``[n]``: when a row must end lest it be put back, which is not to place it; ``NEVER`` for no limit."""
    must: Bools
    """``[n]``: rows that may not be put back: a schedule that would is given up."""
    due: Int64s
    weight: Float64s
    tardy: Float64s
    """``[n]``: what a unit of tardiness costs."""
    pull: Float64s
    """``[n]``: what a unit of waiting costs."""


class Line(NamedTuple):
    """A schedule so far. ``[I]`` by instant; those that are not in use yet have no meaning."""

    time: Int64s
    after: Int32s
    """The next instant; −1 behind the last one."""
    use: Int64s
    """``[I, S]``: use of each slot from an instant on."""
    size: Int64s
    """``[1]``: instants in use."""
    table: Int32s
    """Lower bounds, by :class:`~solver.buckets.Hints`: no row of a class can start before this instant."""
    floor: Int32s
    """``[queues]``: earliest instant for the next row of a strict queue."""
    total: Float64s
    """``[3]``: value of the rows so far."""


class Marks(NamedTuple):
    """Lines as they were before some positions of an order, ``[K]`` of each, every so many rows."""

    lines: Line
    every: int
    good: Int64s
    """``[1]``: so many of them are those of the order as it is."""


def make_line(slots: Slots, held: Held, instants: Int64s, rows: int, hints: int, queues: int) -> Line:
    """A line with what is held, in units; it begins at 0 and has all ``instants``, and room for ``rows`` more."""
    time = np.unique(np.concatenate([[0], instants, held.start, held.end]))
    time = time[time >= 0]
    count = len(time)
    after = np.arange(1, count + 1, dtype=np.int32)
    after[-1] = -1
    more = np.zeros(rows, dtype=np.int64)
    use = np.zeros((count + rows, len(slots.up)), dtype=np.int64)
    held = held.by_start()
    _fill(slots, held, np.argsort(held.end, kind="stable"), time, use)
    return Line(
        np.concatenate([time, more]),
        np.concatenate([after, more.astype(np.int32)]),
        use,
        np.array([count]),
        np.zeros(hints, dtype=np.int32),
        np.zeros(queues, dtype=np.int32),
        np.zeros(3),
    )


def make_marks(line: Line, rows: int, most: int) -> Marks:
    """Marks for an order of so many rows, ``most`` of them at most; the first is the line as it is."""
    every = max(1, -(-rows // most))
    count = -(-rows // every) or 1
    lines = Line._make(np.repeat(array[None], count, axis=0) for array in line)
    return Marks(lines, every, np.ones(1, dtype=np.int64))


@njit(cache=True, nogil=True)
def _fill(slots: Slots, held: Held, by_end: Int64s, time: Int64s, use: Int64s) -> None:
    """Use by what is held, which comes by start, at each instant."""
    now = np.zeros(len(slots.up), dtype=np.int64)
    begun, ended = 0, 0
    for t in range(len(time)):
        while begun < len(by_end) and held.start[begun] <= time[t]:
            hold(slots, now, held.slot[begun], held.amount[begun])
            begun += 1
        while ended < len(by_end) and held.end[by_end[ended]] <= time[t]:
            hold(slots, now, held.slot[by_end[ended]], -held.amount[by_end[ended]])
            ended += 1
        use[t] = now


@njit(cache=True, nogil=True)
def keep(line: Line, marks: Marks) -> None:
    """Make the line as it is the first mark, and the only one."""
    _mark(line, marks.lines, 0)
    marks.good[0] = 1


@njit(cache=True, nogil=True, inline="always")
def _restore(line: Line, lines: Line, k: int) -> None:
    """Make the line what it was at a mark. (Loops, because slices cost more than what there is to copy.)"""
    count = lines.size[k, 0]
    line.size[0] = count
    slots = line.use.shape[1]
    for i in range(count):
        line.time[i] = lines.time[k, i]
        line.after[i] = lines.after[k, i]
        for s in range(slots):
            line.use[i, s] = lines.use[k, i, s]
    for i in range(len(line.table)):
        line.table[i] = lines.table[k, i]
    for i in range(len(line.floor)):
        line.floor[i] = lines.floor[k, i]
    for i in range(len(line.total)):
        line.total[i] = lines.total[k, i]


@njit(cache=True, nogil=True, inline="always")
def _mark(line: Line, lines: Line, k: int) -> None:
    """Note at a mark what the line is."""
    count = line.size[0]
    lines.size[k, 0] = count
    slots = line.use.shape[1]
    for i in range(count):
        lines.time[k, i] = line.time[i]
        lines.after[k, i] = line.after[i]
        for s in range(slots):
            lines.use[k, i, s] = line.use[i, s]
    for i in range(len(line.table)):
        lines.table[k, i] = line.table[i]
    for i in range(len(line.floor)):
        lines.floor[k, i] = line.floor[i]
    for i in range(len(line.total)):
        lines.total[k, i] = line.total[i]


@njit(cache=True, nogil=True, inline="always")
def _room(slots: Slots, use: Int64s, t: int, slot: int) -> int:
    private, limit = 0, UNLIMITED
    while slot >= 0:
        free = slots.local[slot] - use[t, slot]
        if free > 0:
            private += free
            free = 0
        limit = min(limit, private + slots.cap[slot] + free)
        slot = slots.up[slot]
    return limit


@njit(cache=True, nogil=True, inline="always")
def _hold(slots: Slots, use: Int64s, t: int, slot: int, amount: int) -> None:
    while slot >= 0 and amount != 0:
        local = slots.local[slot]
        before = max(0, use[t, slot] - local)
        use[t, slot] += amount
        amount = max(0, use[t, slot] - local) - before
        slot = slots.up[slot]


@njit(cache=True, nogil=True)
def follow(
    board: Board,
    line: Line,
    marks: Marks,
    order: Int64s,
    same: int,
    most: Float64s,
    start: Int64s,
    option: Int32s,
    stop: Flag,
) -> int:
    """Place the rows of an order; how many were placed anew, or −1 − that when the schedule was given up.

    Parameters
    ----------
    line
        Memory; in the end what there is when all is placed.
    marks
        Of an order that begins with the same rows: their places are not looked for again.
    same
        Up to here the order is the one that the marks are of; marks before it are added as it goes by.
    most
        ``float64 [3]``: the schedule is given up as soon as a part of its value is larger.
    start, option
        ``[n]``, filled in for the rows that are placed anew: start in units, −1 for those put back.
    """
    slots, needs, hints, rows = board.slots, board.needs, board.hints, board.rows
    classes = len(hints.duration)
    first = min(same // marks.every, marks.good[0] - 1)
    _restore(line, marks.lines, first)
    time, after, use, total = line.time, line.after, line.use, line.total
    table, floor = line.table, line.floor
    begun = first * marks.every
    for position in range(begun, len(order)):
        if position % POLL == 0 and stop[0] != 0:
            return int(begun - position - 1)
        if position % marks.every == 0 and position <= same and position // marks.every >= marks.good[0]:
            _mark(line, marks.lines, position // marks.every)
            marks.good[0] = position // marks.every + 1
        row = order[position]
        kind = hints.row_class[row]
        earliest = board.begin[row]
        if rows.queue[row] >= 0 and time[floor[rows.queue[row]]] > time[earliest]:
            earliest = floor[rows.queue[row]]
        best, best_option, best_time = -1, -1, NEVER
        for o in range(rows.first[row], rows.last[row]):
            duration, hinted = rows.duration[row] + needs.lead[o], hints.duration[kind] + needs.lead[o]
            latest = min(best_time - 1, board.limit[row] - duration)
            cell = hints.base[o] + kind
            known = table[cell]
            # Two searches in one: for the row, and, while it begins where the table ends, for the hint's own job.
            learn = time[earliest] <= time[known]
            s = known if learn else earliest
            if time[s] > latest:
                continue
            bound, learned, t, until, bound_until = s, not learn, s, time[s] + duration, time[s] + hinted
            while True:
                short, hint_short = False, False
                for k in range(needs.first[o], needs.first[o + 1]):
                    room = max(0, _room(slots, use, t, needs.slot[k]))
                    if needs.amount[k] > room:
                        short = True
                        hint_short |= hints.amount[k] > room
                following = after[t]
                if short:
                    s = following
                    if hint_short and not learned:
                        bound, bound_until = s, time[s] + hinted
                    if time[s] > latest:
                        break
                    until = time[s] + duration
                elif following < 0 or time[following] >= until:
                    best, best_option, best_time = s, o, time[s]
                    break
                if not learned and time[following] >= bound_until:
                    learned = True
                t = following
            if learn and time[bound] > time[known]:
                _raise(table, time, cell, hints.end[o], classes, kind, bound)
        if best < 0:
            start[row] = -1
            if board.must[row]:
                return int(begun - position - 1)
            total[LATE] += board.weight[row]
            if total[LATE] > most[LATE]:
                return int(begun - position - 1)
            continue
        if rows.rather_next[row]:
            best_option = _nearest(board, line, row, best, best_option)
        start[row], option[row] = best_time, best_option
        end = best_time + rows.duration[row] + needs.lead[best_option]
        t = best
        while True:
            following = after[t]
            if following < 0 or time[following] > end:
                new = line.size[0]
                line.size[0] = new + 1
                time[new], after[new], after[t] = end, following, new
                for k in range(use.shape[1]):
                    use[new, k] = use[t, k]
                following = new
            for k in range(needs.first[best_option], needs.first[best_option + 1]):
                _hold(slots, use, t, needs.slot[k], needs.amount[k])
            if time[following] == end:
                break
            t = following
        if rows.queue[row] >= 0:
            floor[rows.queue[row]] = best
        total[STARTS] += board.pull[row] * best_time
        if end > board.due[row]:
            total[LATE] += board.weight[row]
            total[TARDINESS] += board.tardy[row] * (end - board.due[row])
        if total[LATE] > most[LATE] or total[TARDINESS] > most[TARDINESS] or total[STARTS] > most[STARTS]:
            return int(begun - position - 1)
    return int(len(order) - begun)


@njit(cache=True, nogil=True)
def _nearest(board: Board, line: Line, row: int, start: int, option: int) -> int:
    """Of the options with which a row can start at an instant (``option`` is the first), what borrows least far."""
    slots, needs, rows = board.slots, board.needs, board.rows
    best, least = option, NEVER
    for o in range(option, rows.last[row]):
        end = line.time[start] + rows.duration[row] + needs.lead[o]
        far, fits, t = 0, end <= board.limit[row], start
        for k in range(needs.first[o], needs.first[o + 1]):
            far = max(far, distance(slots, line.use[start], needs.slot[k], needs.amount[k]))
        while o > option and fits and t >= 0 and line.time[t] < end:
            for k in range(needs.first[o], needs.first[o + 1]):
                fits = fits and needs.amount[k] <= max(0, _room(slots, line.use, t, needs.slot[k]))
            t = line.after[t]
        if fits and far < least:
            best, least = o, far
    return best


@njit(cache=True, nogil=True, inline="always")
def _raise(table: Int32s, time: Int64s, cell: int, end: int, classes: int, kind: int, bound: int) -> None:
    """Raise a lower bound, and with it those of larger and longer work."""
    while cell < end and time[table[cell]] < time[bound]:
        for k in range(classes - kind):
            if time[table[cell + k]] >= time[bound]:
                break
            table[cell + k] = bound
        cell += classes
