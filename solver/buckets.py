"""Serial schedule generation in time buckets: each row, in a given order, at the earliest bucket where it fits.

Time is cut into buckets at ``edge[0] = 0 < edge[1] < …``, fine near now and coarser far away. A row fits at a bucket
when one of its options fits the quota at every bucket until its lead and its duration have passed; these are rounded up
to whole buckets and so is everything that is held, so that what fits here fits in exact time. Use only grows while rows
are placed. So the earliest bucket found for one row is a lower bound for every later row that asks for as much of the
same slots and as long: a table of such bounds saves most of the search without changing any result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from solver.problem import NEVER
from solver.quota import UNLIMITED, Bools, Int32s, Int64s
from solver.slots import Held, Needs, Slots, distance

Flag = npt.NDArray[np.uint8]
"""``uint8 [1]``: becomes 1 when work should stop."""

POLL = 64
"""Rows between two looks at the stop flag."""


class Rows(NamedTuple):
    """Work to place, ``[n]`` columns: options ``first … last − 1``, times from now, queue where its order is strict.

    A row with a ``queue`` ≥ 0 starts no earlier than rows of that queue that were placed before it. Of the options that
    a row may have when it starts, it gets the first; with ``rather_next`` the one that borrows least far.
    """

    first: Int32s
    last: Int32s
    release: Int64s
    duration: Int64s
    queue: Int32s
    rather_next: Bools


class Hints(NamedTuple):
    """How rows share lower bounds.

    Options that take the same slots, with the same lead, form a group; within it they are sorted into ``rank`` by what
    they take. Durations are sorted into classes. The bound of (option ``o``, class ``k``) is ``table[base[o] + k]``;
    the option of the next rank of its group comes ``classes`` entries later, until ``end[o]``. The bound is that of a
    job which takes ``amount[need]`` (as long as ``Needs``) for ``duration[k]``, no more than any of its class or of
    those behind.
    """

    base: Int32s
    end: Int32s
    amount: Int64s
    row_class: Int32s
    duration: Int64s
    size: int


def make_hints(needs: Needs, duration: Int64s) -> Hints:
    """Sort options and durations into classes."""
    options = len(needs.first) - 1
    groups: dict[tuple[tuple[int, ...], int], dict[tuple[int, ...], list[int]]] = {}
    for option in range(options):
        k = slice(needs.first[option], needs.first[option + 1])
        group = groups.setdefault((tuple(needs.slot[k].tolist()), int(needs.lead[option])), {})
        group.setdefault(tuple(needs.amount[k].tolist()), []).append(option)

    # Four classes an octave; of the classes only those that occur.
    quarter = np.floor(4 * np.log2(np.maximum(1, duration))).astype(np.int64)
    if options * 40 > 1 << 20:
        quarter //= 4
    used, row_class = np.unique(quarter, return_inverse=True)
    shortest = np.full(len(used), NEVER, dtype=np.int64)
    np.minimum.at(shortest, row_class, duration)
    classes = len(used)

    base = np.zeros(options, dtype=np.int32)
    end = np.zeros(options, dtype=np.int32)
    amount = needs.amount.copy()
    size = 0
    for group in groups.values():
        ranked = sorted(group)
        least = None
        group_end = size + classes * len(ranked)
        for rank in range(len(ranked) - 1, -1, -1):
            taken = np.array(ranked[rank], dtype=np.int64)
            least = taken if least is None else np.minimum(least, taken)
            for option in group[ranked[rank]]:
                base[option], end[option] = size + rank * classes, group_end
                amount[needs.first[option] : needs.first[option + 1]] = least
        size = group_end
    return Hints(base, end, amount, row_class.astype(np.int32), shortest, size)


def make_use(slots: Slots, held: Held, edge: Int64s) -> Int64s:
    """Use of each slot in each bucket, ``int64 [S, T]``, by what is held already."""
    use = np.zeros((len(slots.up), len(edge) - 1), dtype=np.int64)
    _fill(slots, held, edge, use)
    return use


@njit(cache=True, nogil=True)
def _fill(slots: Slots, held: Held, edge: Int64s, use: Int64s) -> None:
    for k in range(len(held.slot)):
        begin = np.searchsorted(edge, held.start[k], side="right") - 1
        end = np.searchsorted(edge, held.end[k], side="left")
        for t in range(begin, min(end, use.shape[1])):
            _hold(slots, use, held.slot[k], t, held.amount[k])


@njit(cache=True, nogil=True, inline="always")
def _room(slots: Slots, use: Int64s, slot: int, t: int) -> int:
    private, limit = 0, UNLIMITED
    while slot >= 0:
        free = slots.local[slot] - use[slot, t]
        if free > 0:
            private += free
            free = 0
        limit = min(limit, private + slots.cap[slot] + free)
        slot = slots.up[slot]
    return limit


@njit(cache=True, nogil=True, inline="always")
def _hold(slots: Slots, use: Int64s, slot: int, t: int, amount: int) -> None:
    while slot >= 0 and amount != 0:
        local = slots.local[slot]
        before = max(0, use[slot, t] - local)
        use[slot, t] += amount
        amount = max(0, use[slot, t] - local) - before
        slot = slots.up[slot]


@njit(cache=True, nogil=True)
def place(
    slots: Slots,
    needs: Needs,
    hints: Hints,
    rows: Rows,
    edge: Int64s,
    use: Int64s,
    order: Int64s,
    due: Int64s,
    floor: Int64s,
    table: Int32s,
    start: Int32s,
    option: Int32s,
    stop: Flag,
) -> bool:
    """Place the rows of ``order``, one after another; False when ``stop`` was set before all were.

    Parameters
    ----------
    use
        ``int64 [S, T]``, changed.
    due
        ``int64 [n]``: a row that cannot finish by then is not placed (``start`` stays as it was).
    floor
        ``int64 [queues]``: earliest bucket for the next row of a strict queue, changed.
    table
        ``int32 [hints.size]``: lower bounds, zeros at first, changed.
    start, option
        ``int32 [n]``, filled in: bucket (the number of buckets when there is none) and option of each placed row.
    """
    buckets = len(edge) - 1
    classes = len(hints.duration)
    for position in range(len(order)):
        if position % POLL == 0 and stop[0] != 0:
            return False
        row = order[position]
        kind = hints.row_class[row]
        earliest = 0
        if rows.release[row] > 0:
            earliest = int(np.searchsorted(edge, rows.release[row], side="left"))
        if rows.queue[row] >= 0:
            earliest = max(earliest, int(floor[rows.queue[row]]))
        best, best_option = buckets, -1
        for o in range(rows.first[row], rows.last[row]):
            duration, hinted = rows.duration[row] + needs.lead[o], hints.duration[kind] + needs.lead[o]
            latest_start = due[row] - duration
            cell = hints.base[o] + kind
            s = max(earliest, int(table[cell]))
            # While all that is known to be in the way is in the way of the hint's own job too, `bound` follows.
            learn = earliest <= table[cell]
            bound = int(table[cell])
            if s >= best or edge[s] > latest_start:
                continue
            e = np.searchsorted(edge, edge[s] + duration, side="left")
            bound_end = e
            if learn:
                bound_end = np.searchsorted(edge, edge[s] + hinted, side="left")
            clear = s
            while s < best and e <= buckets and edge[s] <= latest_start:
                conflict = -1
                in_way = False
                for t in range(e - 1, max(s, clear) - 1, -1):
                    for k in range(needs.first[o], needs.first[o + 1]):
                        room = max(0, _room(slots, use, needs.slot[k], t))
                        if needs.amount[k] > room:
                            conflict = t
                            in_way |= hints.amount[k] > room
                    if conflict >= 0:
                        break
                if conflict < 0:
                    best, best_option = s, o
                    break
                clear, s = e, conflict + 1
                if learn:
                    learn = in_way and conflict < bound_end
                    if learn:
                        bound = s
                if s >= best:
                    break
                while e <= buckets and edge[e] < edge[s] + duration:
                    e += 1
                if learn:
                    while bound_end < buckets and edge[bound_end] < edge[bound] + hinted:
                        bound_end += 1
            _raise(table, cell, hints.end[o], classes, kind, bound)
        if best_option < 0 and due[row] < NEVER:
            continue
        if rows.rather_next[row] and best_option >= 0:
            best_option = _nearest(slots, needs, rows, edge, use, row, best, best_option, due[row])
        start[row], option[row] = best, best_option
        if best_option < 0:
            continue
        if rows.queue[row] >= 0:
            floor[rows.queue[row]] = best
        e = np.searchsorted(edge, edge[best] + rows.duration[row] + needs.lead[best_option], side="left")
        for k in range(needs.first[best_option], needs.first[best_option + 1]):
            for t in range(best, e):
                _hold(slots, use, needs.slot[k], t, needs.amount[k])
    return True


@njit(cache=True, nogil=True)
def _nearest(
    slots: Slots, needs: Needs, rows: Rows, edge: Int64s, use: Int64s, row: int, start: int, option: int, due: int
) -> int:
    """Of the options with which a row can start in a bucket (``option`` is the first), what borrows least far."""
    best, least = option, NEVER
    now = use[:, start]
    for o in range(option, rows.last[row]):
        length = rows.duration[row] + needs.lead[o]
        end = np.searchsorted(edge, edge[start] + length, side="left")
        far, fits = 0, end < len(edge) and edge[start] + length <= due
        for k in range(needs.first[o], needs.first[o + 1]):
            far = max(far, distance(slots, now, needs.slot[k], needs.amount[k]))
            for t in range(start, end if o > option else start):
                fits = fits and needs.amount[k] <= max(0, _room(slots, use, needs.slot[k], t))
        if fits and far < least:
            best, least = o, far
    return best


@njit(cache=True, nogil=True, inline="always")
def _raise(table: Int32s, cell: int, end: int, classes: int, kind: int, bound: int) -> None:
    """Raise a lower bound, and with it those of larger and longer work."""
    while cell < end and table[cell] < bound:
        for k in range(classes - kind):
            if table[cell + k] >= bound:
                break
            table[cell + k] = bound
        cell += classes
