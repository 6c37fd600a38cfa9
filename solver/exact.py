"""Exact starts: rows in a given order, each at the first instant at which Kueue would admit it.

Time goes forward only: a row starts no earlier than the one before it, and of its options it gets the first that fits
then, or the one that borrows least far, which is what Kueue does. So a start is decided against what is in use at that
instant. What lies ahead (reservations, rows that are placed already) is held by a second table: use at each instant at
which something known begins, against which a row must fit as long as it runs.

When rows come in the order of their starts in a schedule that is feasible, and have one option each, no row starts
later than in that schedule: at every instant only a part of what ran there is still running.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from solver.buckets import POLL, Flag, Rows
from solver.heap import pop, push
from solver.problem import NEVER
from solver.quota import Int32s, Int64s
from solver.slots import Held, Needs, Slots, distance, hold, room


@njit(cache=True, nogil=True)
def start_in_order(
    slots: Slots,
    needs: Needs,
    held: Held,
    rows: Rows,
    order: Int64s,
    floor: Int64s,
    start: Int64s,
    option: Int32s,
    stop: Flag,
) -> bool:
    """Start the rows of ``order``; False when ``stop`` was set before all were.

    Parameters
    ----------
    floor
        ``int64 [queues]``: earliest instant for the next row of a strict queue, changed.
    start, option
        ``int64 [n]``, ``int32 [n]``, filled in.
    """
    use = np.zeros(len(slots.up), dtype=np.int64)
    begun = 0
    ends = np.empty(len(held.slot) + len(order), dtype=np.int64)
    holder = np.empty(len(ends), dtype=np.int64)
    waiting = 0
    while begun < len(held.slot) and held.start[begun] <= 0:
        hold(slots, use, held.slot[begun], held.amount[begun])
        push(ends, holder, waiting, held.end[begun], -1 - begun)
        waiting += 1
        begun += 1
    ahead_at, ahead = _ahead(slots, held, begun)
    next_ahead = 0

    now = np.int64(0)
    for position in range(len(order)):
        if position % POLL == 0 and stop[0] != 0:
            return False
        row = order[position]
        now = max(now, rows.release[row])
        if rows.queue[row] >= 0:
            now = max(now, floor[rows.queue[row]])
        while True:
            # What has begun, and then what has ended: time may have jumped over both.
            while begun < len(held.slot) and held.start[begun] <= now:
                hold(slots, use, held.slot[begun], held.amount[begun])
                push(ends, holder, waiting, held.end[begun], -1 - begun)
                waiting += 1
                begun += 1
            while waiting > 0 and ends[0] <= now:
                _give_back(holder[0], slots, needs, held, option, use)
                waiting -= 1
                pop(ends, holder, waiting)
            while next_ahead < len(ahead_at) and ahead_at[next_ahead] <= now:
                next_ahead += 1
            chosen, clear, end = -1, False, now
            for o in range(rows.first[row], rows.last[row]):
                if _fits(slots, needs, use, o):
                    chosen, clear = o, True
                    break
            if clear:
                if rows.rather_next[row]:
                    chosen = _nearest(slots, needs, use, int(chosen), int(rows.last[row]))
                end += rows.duration[row] + needs.lead[chosen]
                for a in range(next_ahead, len(ahead_at)):
                    if ahead_at[a] >= end:
                        break
                    if not _fits(slots, needs, ahead[a], chosen):
                        clear = False
                        break
            if clear:
                start[row], option[row] = now, chosen
                for k in range(needs.first[chosen], needs.first[chosen + 1]):
                    hold(slots, use, needs.slot[k], needs.amount[k])
                push(ends, holder, waiting, int(end), row)
                waiting += 1
                for a in range(next_ahead, len(ahead_at)):
                    if ahead_at[a] >= end:
                        break
                    for k in range(needs.first[chosen], needs.first[chosen + 1]):
                        hold(slots, ahead[a], needs.slot[k], needs.amount[k])
                if rows.queue[row] >= 0:
                    floor[rows.queue[row]] = now
                break
            # Nothing is in use any more and nothing is to come: it would fit, since each option fits an empty tree.
            if waiting == 0:
                now = held.start[begun]
            elif begun < len(held.slot):
                now = min(ends[0], held.start[begun])
            else:
                now = ends[0]
    return True


@njit(cache=True, nogil=True)
def _nearest(slots: Slots, needs: Needs, use: Int64s, first: int, last: int) -> int:
    """Of the options that fit, the one that borrows least far."""
    best, least = first, NEVER
    for o in range(first, last):
        if _fits(slots, needs, use, o):
            far = 0
            for k in range(needs.first[o], needs.first[o + 1]):
                far = max(far, distance(slots, use, needs.slot[k], needs.amount[k]))
            if far < least:
                best, least = o, far
    return best


@njit(cache=True, nogil=True, inline="always")
def _fits(slots: Slots, needs: Needs, use: Int64s, option: int) -> bool:
    for k in range(needs.first[option], needs.first[option + 1]):
        if needs.amount[k] > max(0, room(slots, use, needs.slot[k])):
            return False
    return True


@njit(cache=True, nogil=True)
def _ahead(slots: Slots, held: Held, begun: int) -> tuple[Int64s, Int64s]:
    """Instants at which something known begins, and use of each slot then, ``[A]`` and ``[A, S]``."""
    at = np.unique(held.start[begun:])
    use = np.zeros((len(at), len(slots.up)), dtype=np.int64)
    for k in range(len(held.slot)):
        for a in range(np.searchsorted(at, held.start[k]), np.searchsorted(at, held.end[k])):
            hold(slots, use[a], held.slot[k], held.amount[k])
    return at, use


@njit(cache=True, nogil=True)
def _give_back(who: int, slots: Slots, needs: Needs, held: Held, option: Int32s, use: Int64s) -> None:
    """Give back what somebody holds: a row, or −1 − an entry of ``held``."""
    if who < 0:
        hold(slots, use, held.slot[-1 - who], -held.amount[-1 - who])
    else:
        for k in range(needs.first[option[who]], needs.first[option[who] + 1]):
            hold(slots, use, needs.slot[k], -needs.amount[k])
