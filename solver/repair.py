"""Repair: a plan in force, made possible again at once after something has changed, with as few moves as that takes.

The plan is played forward in time: what still fits at its planned start stays there. What does not (something runs
longer than expected, quota was cut, released work takes the room), and what is new, goes into a gap that is left; where
there is none in time, it takes the place of work that is worth less, or late anyway, which then looks for a gap itself.
At last room that is free now is filled, and room that this leaves: first with work that is on time there and would be
late otherwise, then in the order of the plan, with work that starts sooner by more than what a move must gain.

Starts are exact instants. This is no search: with 10,000 rows it takes milliseconds, where one schedule of all work
takes tens of them. It is there to be sent at once, while a better plan is looked for.

All whole numbers are ``int64`` here: each mixture of sizes would be compiled for itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from solver.buckets import Flag
from solver.heap import pop, push
from solver.problem import NEVER, Float64s
from solver.quota import UNLIMITED, Bools, Int64s, inner
from solver.schedule import Scheduler
from solver.slots import Held

MOST_MADE_WAY = 64
"""Rows that make way for others in one repair, at most: then it is for the next full plan to find room."""

MOST_HOLES = 24
"""Places that come free of which each is offered to all other work, at most."""


PUT, TAKE = np.int64(1), np.int64(-1)
"""What is done to use: of a type, unlike numbers that are written in place, so that it is compiled once."""


class Grid(NamedTuple):
    """What slots have, what options take of them, and use over time, as a chain of instants at which it changes."""

    up: Int64s
    local: Int64s
    cap: Int64s
    """``[S]``, as in :class:`solver.slots.Slots`."""
    first: Int64s
    slot: Int64s
    amount: Int64s
    """As in :class:`solver.slots.Needs`."""
    time: Int64s
    after: Int64s
    before: Int64s
    """``[I]``: when an instant is, and the next one and the one before; −1 at the ends."""
    use: Int64s
    """``[S, I]``, from an instant on."""
    size: Int64s
    """``[2]``: instants in use, and how many of them come in the order of time; those behind are found by the chain."""


class Jobs(NamedTuple):
    """The rows of a problem, ``[n]``."""

    first: Int64s
    last: Int64s
    """Options ``first … last − 1``."""
    earliest: Int64s
    duration: Int64s
    due: Int64s
    """When it must end to be on time; ``NEVER`` where that does not count."""
    latest: Int64s
    """Latest start for that with the option that begins soonest; ``NEVER`` likewise."""
    weight: Float64s
    pair: Int64s
    """Rows of one pair ask for the same."""
    lead: Int64s
    """``[options]``, not by row: how long after the start work begins."""


def jobs_of(scheduler: Scheduler) -> Jobs:
    """The rows of a scheduler's problem."""
    problem, rows = scheduler.problem, scheduler.rows
    due = np.where((problem.due < NEVER) & (problem.weight > 0), problem.due, NEVER)
    return Jobs(
        rows.first.astype(np.int64),
        rows.last.astype(np.int64),
        scheduler.earliest(),
        problem.duration,
        due,
        np.where(due < NEVER, due - problem.shortest, NEVER),
        problem.weight,
        problem.pair.astype(np.int64),
        problem.options.lead,
    )


def make_grid(scheduler: Scheduler, instants: int) -> Grid:
    """A grid with memory for so many instants, none of them in use."""
    slots, needs, *_ = scheduler.compact
    return Grid(
        up=slots.up.astype(np.int64),
        local=slots.local,
        cap=slots.cap,
        first=needs.first.astype(np.int64),
        slot=needs.slot.astype(np.int64),
        amount=needs.amount,
        time=np.empty(instants, dtype=np.int64),
        after=np.empty(instants, dtype=np.int64),
        before=np.empty(instants, dtype=np.int64),
        use=np.empty((len(slots.up), instants), dtype=np.int64),
        size=np.zeros(2, dtype=np.int64),
    )


def ahead_of(grid: Grid, held: Held) -> Grid:
    """The instants behind now at which something known begins, and use by what is held then."""
    at = np.unique(held.start[held.start > 0])
    count = len(at)
    chain = np.arange(count, dtype=np.int64)
    use = np.zeros((len(grid.up), count), dtype=np.int64)
    result = grid._replace(
        time=at,
        after=np.where(chain + 1 < count, chain + 1, -1),
        before=chain - 1,
        use=use,
        size=np.full(2, count, dtype=np.int64),
    )
    if count:
        first, last = np.searchsorted(at, held.start), np.searchsorted(at, held.end)
        _hold_all(result, first, last, held.slot.astype(np.int64), held.amount)
    return result


@inner
def _hold(grid: Grid, at: int, slot: int, amount: int) -> None:
    """Add to the use of a slot at an instant, and of those above it what is not private (negative: give back)."""
    while slot >= 0 and amount != 0:
        local = grid.local[slot]
        before = max(0, grid.use[slot, at] - local)
        grid.use[slot, at] += amount
        amount = max(0, grid.use[slot, at] - local) - before
        slot = grid.up[slot]


@njit(cache=True, nogil=True)
def _hold_all(grid: Grid, first: Int64s, last: Int64s, slot: Int64s, amount: Int64s) -> None:
    for k in range(len(slot)):
        for at in range(first[k], last[k]):
            _hold(grid, at, slot[k], amount[k])


@inner
def _fits(grid: Grid, option: int, at: int) -> bool:
    """Whether an option has room at an instant."""
    for k in range(grid.first[option], grid.first[option + 1]):
        private, limit, slot = 0, UNLIMITED, grid.slot[k]
        while slot >= 0:
            free = grid.local[slot] - grid.use[slot, at]
            if free > 0:
                private += free
                free = 0
            limit = min(limit, private + grid.cap[slot] + free)
            slot = grid.up[slot]
        if grid.amount[k] > max(0, limit):
            return False
    return True


@inner
def _conflict(grid: Grid, option: int, at: int, end: int) -> int:
    """The first instant from ``at`` on, before ``end``, at which an option does not fit; −1 for none."""
    while at >= 0 and grid.time[at] < end:
        if not _fits(grid, option, at):
            return at
        at = grid.after[at]
    return -1


@inner
def _add(grid: Grid, option: int, at: int, end: int, sign: int) -> None:
    """Put an option in (``sign`` 1), or take it out (−1), from an instant on until ``end``."""
    while at >= 0 and grid.time[at] < end:
        for k in range(grid.first[option], grid.first[option + 1]):
            _hold(grid, at, grid.slot[k], sign * grid.amount[k])
        at = grid.after[at]


@inner
def _at(grid: Grid, when: int) -> int:
    """The last instant that is not later."""
    low, high = 0, int(grid.size[1])
    while high - low > 1:
        middle = (low + high) >> 1
        if grid.time[middle] <= when:
            low = middle
        else:
            high = middle
    while grid.after[low] >= 0 and grid.time[grid.after[low]] <= when:
        low = int(grid.after[low])
    return low


@inner
def _instant(grid: Grid, when: int) -> int:
    """The instant at a time, which is added if there is none."""
    at = int(_at(grid, when))
    if grid.time[at] == when:
        return at
    new, following = int(grid.size[0]), grid.after[at]
    grid.size[0] = new + 1
    grid.time[new], grid.after[new], grid.before[new] = when, following, at
    grid.after[at] = new
    if following >= 0:
        grid.before[following] = new
    for slot in range(len(grid.up)):
        grid.use[slot, new] = grid.use[slot, at]
    return new


@inner
def _change(grid: Grid, option: int, start: int, end: int, sign: int) -> None:
    """Put an option in (``sign`` 1), or take it out (−1), from a time to another."""
    at = _instant(grid, start)
    _instant(grid, end)
    _add(grid, option, at, end, sign)


@njit(cache=True, nogil=True)
def play(
    grid: Grid,
    ahead: Grid,
    jobs: Jobs,
    held_slot: Int64s,
    held_amount: Int64s,
    held_start: Int64s,
    held_end: Int64s,
    order: Int64s,
    start: Int64s,
    option: Int64s,
    stop: Flag,
) -> None:
    """Start rows when they are planned to, where that is possible.

    Parameters
    ----------
    grid
        Gets use by what is held and by the rows that start. With memory for two instants only, none is kept.
    ahead
        See :func:`ahead_of`; changed.
    held_slot, held_amount, held_start, held_end
        What is held, by start.
    order
        Rows by planned start; of equal starts the first ones get the room.
    start, option
        Planned start, and option where it is known, else −1: then the first that fits is filled in. Of a row that
        cannot start as planned, ``start`` becomes −1.
    """
    keeps = len(grid.time) > 2
    ends = np.empty(len(held_slot) + len(order) + 1, dtype=np.int64)
    holder = np.empty(len(ends), dtype=np.int64)
    begun, coming, position, count = 0, 0, 0, 0
    waiting, at, now = np.int64(0), np.int64(0), np.int64(0)
    grid.use[:, 0] = 0
    while True:
        while begun < len(held_slot) and held_start[begun] <= now:
            _hold(grid, at, held_slot[begun], held_amount[begun])
            push(ends, holder, waiting, held_end[begun], -1 - begun)
            waiting += 1
            begun += 1
        while waiting > 0 and ends[0] <= now:
            who = holder[0]
            if who < 0:
                _hold(grid, at, held_slot[-1 - who], -held_amount[-1 - who])
            else:
                for k in range(grid.first[option[who]], grid.first[option[who] + 1]):
                    _hold(grid, at, grid.slot[k], -grid.amount[k])
            waiting -= 1
            pop(ends, holder, waiting)
        while coming < len(ahead.time) and ahead.time[coming] <= now:
            coming += 1
        while position < len(order) and start[order[position]] <= now:
            row = order[position]
            position += 1
            chosen, end = np.int64(-1), now
            o, last = jobs.first[row], jobs.last[row]
            if option[row] >= 0:
                o, last = option[row], option[row] + 1
            while o < last and chosen < 0 and now >= jobs.earliest[row] and stop[0] == 0:
                end = now + jobs.duration[row] + jobs.lead[o]
                if _fits(grid, o, at) and (coming >= len(ahead.time) or _conflict(ahead, o, coming, end) < 0):
                    chosen = np.int64(o)
                o += 1
            if chosen < 0:
                start[row] = -1
                continue
            option[row] = chosen
            for k in range(grid.first[chosen], grid.first[chosen + 1]):
                _hold(grid, at, grid.slot[k], grid.amount[k])
            if coming < len(ahead.time):
                _add(ahead, chosen, coming, end, PUT)
            push(ends, holder, waiting, end, row)
            waiting += 1
        following = np.int64(NEVER)
        if begun < len(held_slot):
            following = held_start[begun]
        if waiting > 0:
            following = min(following, ends[0])
        if position < len(order):
            following = min(following, start[order[position]])
        if keeps:
            grid.time[count], grid.after[count], grid.before[count] = now, count + 1, count - 1
            count += 1
            if following < NEVER:
                at = np.int64(count)
                for slot in range(len(grid.up)):
                    grid.use[slot, at] = grid.use[slot, at - 1]
        if following >= NEVER:
            break
        now = following
    if keeps:
        grid.after[count - 1] = -1
    grid.size[0] = grid.size[1] = count


@inner
def _first_gap(grid: Grid, option: int, begin: int, length: int, last: int) -> int:
    """The first instant from ``begin`` on, up to the time ``last``, from which on an option fits; −1 for none.

    Looked at from the end of a gap backwards: where it ends in the way of something, no start before that will do.
    """
    at, clear = begin, grid.time[begin] - 1  # what lies between is known to have room
    while at >= 0 and grid.time[at] <= last:
        t = _at(grid, grid.time[at] + length - 1)
        end, least = grid.time[t], max(grid.time[at], clear + 1)
        while t >= 0 and grid.time[t] >= least and _fits(grid, option, t):
            t = grid.before[t]
        if t < 0 or grid.time[t] < least:
            return at
        at, clear = grid.after[t], end
    return -1


@inner
def _put(grid: Grid, jobs: Jobs, row: int, since: int, due: int, start: Int64s, option: Int64s, end: Int64s) -> bool:
    """Place a row in the first gap from ``since`` on in which it ends by ``due``; False when there is none."""
    best, chosen = np.int64(NEVER), np.int64(-1)
    begin = _instant(grid, max(since, jobs.earliest[row]))
    for o in range(jobs.first[row], jobs.last[row]):
        length = jobs.duration[row] + jobs.lead[o]
        at = _first_gap(grid, o, begin, length, min(best - 1, due - length))
        if at >= 0:
            best, chosen = grid.time[at], np.int64(o)
    if chosen < 0:
        return False
    start[row], option[row], end[row] = best, chosen, best + jobs.duration[row] + jobs.lead[chosen]
    _change(grid, chosen, best, end[row], PUT)
    return True


@inner
def _price(jobs: Jobs, row: int, end: int) -> float:
    """What it costs when a row is late that ends at an instant now: nothing if that is late already."""
    return jobs.weight[row] if end <= jobs.due[row] < NEVER else 0.0


@inner
def _make_way(
    grid: Grid,
    jobs: Jobs,
    row: int,
    movable: Bools,
    start: Int64s,
    option: Int64s,
    end: Int64s,
    out: Int64s,
    most: int,
) -> int:
    """Let a row start in time in the place of others that are worth less together; how many, −1 if there are none.

    They are noted in ``out``; their starts become −2 − start, their ends stay. When it fails, all is as it was.
    """
    o, worth = jobs.first[row], jobs.weight[row]
    for other in range(jobs.first[row], jobs.last[row]):  # the one that begins soonest, in Kueue's order
        if jobs.lead[other] < jobs.lead[o]:
            o = other
    if grid.first[o] == grid.first[o + 1]:
        return -1
    length, main = jobs.duration[row] + jobs.lead[o], grid.first[o]
    begin, least = np.int64(-1), worth
    for other in range(len(start)):
        s = max(jobs.earliest[row], start[other])
        if start[other] < 0 or s > jobs.latest[row] or end[other] < s + length or not movable[other]:
            continue
        price, p = _price(jobs, other, end[other]), option[other]
        for k in range(grid.first[p], grid.first[p + 1]):
            if price < least and grid.slot[k] == grid.slot[main] and grid.amount[k] >= grid.amount[main]:
                begin, least = s, price
        if least == 0:
            break
    if begin < 0:
        return -1
    at, until, count, cost = _instant(grid, begin), begin + length, 0, 0.0
    while cost < worth:
        at = _conflict(grid, o, at, until)
        if at < 0:
            break
        now, victim, least = grid.time[at], np.int64(-1), np.inf
        for other in range(len(start)):
            if start[other] < 0 or start[other] > now or end[other] <= now or not movable[other]:
                continue
            price, p = _price(jobs, other, end[other]), option[other]
            for k in range(grid.first[p], grid.first[p + 1]):
                if price < least and grid.slot[k] == grid.slot[main]:
                    victim, least = np.int64(other), price
        cost += least
        if victim < 0 or count >= most:
            cost = np.inf
            break
        _change(grid, option[victim], start[victim], end[victim], TAKE)
        out[count], start[victim] = victim, -2 - start[victim]
        count += 1
    if cost < worth:
        start[row], option[row], end[row] = begin, o, until
        _change(grid, o, begin, until, PUT)
        return count
    for k in range(count):
        start[out[k]] = -2 - start[out[k]]
        _change(grid, option[out[k]], start[out[k]], end[out[k]], PUT)
    return -1


@njit(cache=True, nogil=True)
def weave(
    grid: Grid,
    jobs: Jobs,
    todo: Int64s,
    since: Int64s,
    movable: Bools,
    start: Int64s,
    option: Int64s,
    most: int,
    stop: Flag,
) -> None:
    """Place rows that have no place, on time where possible.

    Parameters
    ----------
    todo
        Rows to place (``start`` is −1), in the order in which those go that cannot be on time.
    since
        ``int64 [n]``: no gap is looked for before that. Changed.
    movable
        ``bool [n]``: rows that may have to make way, ``most`` of them at most.
    """
    waiting = np.empty(len(todo) + most, dtype=np.int64)
    rest = np.empty(len(todo) + most, dtype=np.int64)
    out = np.empty(most + 1, dtype=np.int64)
    end = np.empty(len(start), dtype=np.int64)
    for row in range(len(start)):
        end[row] = -1
        if start[row] >= 0:
            end[row] = start[row] + jobs.duration[row] + jobs.lead[option[row]]
    for k in range(len(todo)):
        waiting[k] = todo[k]
    count, late, left = len(todo), 0, most
    while count > 0:
        first = 0
        for k in range(1, count):  # the least slack goes first
            if jobs.latest[waiting[k]] < jobs.latest[waiting[first]]:
                first = k
        row = waiting[first]
        count -= 1
        for k in range(first, count):
            waiting[k] = waiting[k + 1]
        moved = -1
        if jobs.latest[row] < NEVER and jobs.latest[row] >= jobs.earliest[row] and stop[0] == 0:
            if _put(grid, jobs, row, since[row], jobs.due[row], start, option, end):
                continue
            longest = 0
            for o in range(jobs.first[row], jobs.last[row]):
                longest = max(longest, jobs.lead[o])
            since[row] = max(since[row], jobs.due[row] - jobs.duration[row] - longest)  # there is no gap before
            moved = _make_way(grid, jobs, row, movable, start, option, end, out, left)
        if moved < 0:
            rest[late] = row
            late += 1
            continue
        for k in range(moved):
            other = out[k]
            if _price(jobs, other, end[other]) > 0:
                since[other] = 0
                waiting[count] = other
                count += 1
            else:
                since[other] = -2 - start[other]
                rest[late] = other
                late += 1
            start[other] = end[other] = -1
        left -= moved
    for k in range(late):
        _put(grid, jobs, rest[k], since[rest[k]], NEVER << 1, start, option, end)


@njit(cache=True, nogil=True)
def fill(
    grid: Grid, jobs: Jobs, order: Int64s, late: int, start: Int64s, option: Int64s, pairs: int, least: int, most: int
) -> int:
    """Move rows forward into room that is free now, and into room that this leaves; how many.

    Parameters
    ----------
    order
        Rows by the right to it; the first ``late`` of them only if that makes them be on time.
    pairs
        So many pairs there are.
    least
        By how much a start must move at least, in milliseconds.
    most
        Places that are filled at most.
    """
    holes = np.zeros(most + 1, dtype=np.int64)
    shut = np.empty(pairs, dtype=np.int64)
    count, moved, hole = 1, 0, 0
    while hole < count:
        now = holes[hole]
        hole += 1
        at = _instant(grid, now)
        shut[:] = NEVER  # of each pair: work that goes on beyond this instant does not fit
        for position in range(len(order)):
            row = order[position]
            was, rescued, pair = start[row], position < late, jobs.pair[row]
            if (
                was - now <= (0 if rescued else least)
                or now < jobs.earliest[row]
                or (rescued and now > jobs.latest[row])
            ):
                continue
            if now + jobs.duration[row] > shut[pair]:
                continue
            mine = option[row]
            finish = was + jobs.duration[row] + jobs.lead[mine]
            chosen, blocked, end = np.int64(-1), np.int64(0), now
            o = jobs.first[row]
            while o < jobs.last[row] and chosen < 0:
                end = now + jobs.duration[row] + jobs.lead[o]
                bad = _conflict(grid, o, at, min(end, was))
                if bad < 0 and was < end:  # from there on it may be in its own way
                    _change(grid, mine, was, finish, TAKE)
                    bad = _conflict(grid, o, _instant(grid, was), end)
                    _change(grid, mine, was, finish, PUT)
                if bad >= 0:
                    blocked = max(blocked, grid.time[bad] - jobs.lead[o])
                elif rescued and end > jobs.due[row]:
                    blocked = np.int64(NEVER)
                else:
                    chosen = np.int64(o)
                o += 1
            if chosen < 0:
                shut[pair] = min(shut[pair], max(now, blocked))
                continue
            if grid.size[0] + 4 > len(grid.time):
                return moved
            _change(grid, mine, was, finish, TAKE)
            if count < len(holes):
                holes[count] = was
                count += 1
            start[row], option[row] = now, chosen
            _change(grid, chosen, now, end, PUT)
            moved += 1
    return moved


@njit(cache=True, nogil=True)
def put_back(
    grid: Grid,
    jobs: Jobs,
    order: Int64s,
    wanted: Int64s,
    wanted_option: Int64s,
    start: Int64s,
    option: Int64s,
    stop: Flag,
) -> int:
    """Move rows, one after another, to where they were wanted, if there is room as all others are; how many.

    Parameters
    ----------
    order
        Rows to move.
    wanted, wanted_option
        ``[n]``: where they should start, and with which option.
    """
    back = 0
    for row in order:
        if stop[0] != 0 or grid.size[0] + 4 > len(grid.time):
            break
        o, then, now, mine = wanted_option[row], wanted[row], start[row], option[row]
        until, end = then + jobs.duration[row] + jobs.lead[o], now + jobs.duration[row] + jobs.lead[mine]
        # Where both places overlap it is only in its own way, with one option.
        first, last = then, until
        if o == mine and then > now:
            first = max(then, end)
        elif o == mine:
            last = min(now, until)
        if o != mine:
            _change(grid, mine, now, end, TAKE)
        bad = _conflict(grid, o, _instant(grid, first), last)
        if o != mine:
            _change(grid, mine, now, end, PUT)
        if bad >= 0:
            continue
        _change(grid, mine, now, end, TAKE)
        start[row], option[row] = then, o
        _change(grid, o, then, until, PUT)
        back += 1
    return back
