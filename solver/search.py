"""Search: iterated local search on the order, for a few rows up to some thousand.

A step moves one row of the order (or swaps two), makes the schedule anew from there on, and is kept when the plan is no
worse, or hardly. To make the whole schedule anew is what counts: all that follows moves to the front into the room that
a step makes. When steps have gained nothing for long, some rows are swapped whatever that costs and a new round begins,
from the best order so far: with public instances this finds more optima than annealing does.

Levels are searched one after another: first late weight, then tardiness, then starts; a step that makes a level above
worse is not taken. Schedules are those of :mod:`solver.timeline`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from solver.api import planner_pb2 as pb
from solver.buckets import Flag
from solver.greedy import finish
from solver.limit import Limit
from solver.plan import Plan
from solver.problem import NEVER, Float64s
from solver.quota import Bools, Int32s, Int64s, inner
from solver.rules import Work, weighted_shortest
from solver.schedule import Scheduler
from solver.timeline import LATE, STARTS, TARDINESS, Board, Line, Marks, follow, make_marks
from solver.worth import better, levels

MOST_ROWS = 5_000
"""Most rows of ours that are searched: with more a step takes too long for what it finds."""

UNIT = 1_000
"""Rows placed for one unit of a work limit; about a millisecond."""

CHUNK = 5 * UNIT
"""Rows placed between two looks at the clock."""

STEPS_PER_PAIR = 250
"""Steps on one level for each pair of rows to be moved; more do not pay."""

PATIENCE = 1
"""Steps for each pair of rows, without gain, after which a round is over. (Longer rounds find less.)"""

KICKS = 4, 16
"""Swaps with which a round begins: so many, and one more for so many rows."""

HEAT, LATE_HEAT = 0.02, 0.15
"""How much worse a step may be that is kept about one time in three, in parts of a typical change; for late weight, in
parts of the mean weight."""

SCALE_ROWS, SCALE_SWAPS = 500, 100
"""A typical change is looked for with so many rows, by so many swaps, at most; with more rows there is no heat."""

MARKS, MARKS_BYTES = 24, 1 << 26
"""Places in an order at which a schedule can be taken up again, at most; and the memory for them."""

LATE_SHARE, SHARE = 0.7, 0.5
"""Part of what is left of the budget for late weight, and for a level when others follow."""

Random = npt.NDArray[np.uint64]
"""``uint64 [1]``: where a sequence of random numbers stands."""

LEVELS: Mapping[int, int] = {pb.LATE_WEIGHT: LATE, pb.TARDINESS: TARDINESS, pb.START_TIMES: STARTS}
"""Levels that are searched, and where their values stand."""


def search(
    scheduler: Scheduler, best: Plan, policy: pb.Policy, limit: Limit, seed: int, bound: float
) -> Iterator[Plan]:
    """Plans from the best one so far. They may be worse: a plan is compared by who asks for it.

    Parameters
    ----------
    bound
        With this late weight there is nothing to be gained on that level any more.
    """
    if not 1 < len(scheduler.ours) <= MOST_ROWS:
        return
    work = Work(scheduler.problem, scheduler.ours, policy.ageing_ms)
    hunt = _Search(scheduler, work, policy, seed)
    known: list[int] = []
    searched = [level for level in levels(policy) if level in LEVELS]
    for level in searched:
        known.append(LEVELS[level])
        value = (best.objective.late_weight, best.objective.tardiness, best.objective.start_hours)[LEVELS[level]]
        least = bound + 1e-6 * (1 + bound) if level == pb.LATE_WEIGHT else 0.0
        if value <= least or (level != pb.START_TIMES and not work.counts.any()):
            continue
        if limit.over() or scheduler.stop[0]:
            return
        share = 1.0 if level == searched[-1] else LATE_SHARE if level == pb.LATE_WEIGHT else SHARE
        for plan in hunt.run(best, known, least, limit.part(share)):
            yield plan
            if better(scheduler.problem, plan, best, policy):
                best = plan


class _Round(NamedTuple):
    """Where a search stands; the kernels go on from there."""

    order: Int64s
    value: Float64s
    """``[3]``: what the order is worth."""
    late: Bools
    """``[n]``: which rows are late in the schedule of the order."""
    best_order: Int64s
    best: Float64s
    """The best order of all rounds, and what it is worth."""
    most: Float64s
    """``[3]``: what the parts of a value may be, on the levels above."""
    idle: Int64s
    """``[1]``: steps since the round's last gain."""
    least: Float64s
    """``[1]``: the least of the round on the level in focus."""
    start: Int64s
    option: Int32s
    random: Random
    stop: Flag


class _Search:
    """Searches for one problem, level by level."""

    def __init__(self, scheduler: Scheduler, work: Work, policy: pb.Policy, seed: int) -> None:
        problem = scheduler.problem
        self.scheduler, self.work, self.problem = scheduler, work, problem
        self.late_first = levels(policy)[0] == pb.LATE_WEIGHT
        self.board, self.line = scheduler.line()
        self.due = self.board.due
        self.never = np.full(len(problem), NEVER, dtype=np.int64)
        most = MARKS_BYTES // max(1, self.line.use.nbytes)
        self.marks = make_marks(self.line, len(work.rows), max(1, min(MARKS, most)))
        self.start = np.full(len(problem), -1, dtype=np.int64)
        self.option = np.full(len(problem), -1, dtype=np.int32)
        self.random = np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64) | 1], dtype=np.uint64)

    def run(self, best: Plan, known: Sequence[int], least: float, limit: Limit) -> Iterator[Plan]:
        """Search on the last of the known levels, until its value is the least that there can be."""
        focus, stop = known[-1], self.scheduler.stop
        begin = self._begin(best, known)
        if begin is None:
            return
        board, order, value = begin
        fixed = int(self.work.aged.sum())
        free = len(order) - fixed
        if free < 2:
            return
        most = np.full(3, np.inf)
        for level in known[:-1]:
            most[level] = value[level] + 1e-9 * (1 + abs(value[level]))
        if focus == LATE:  # what is late and not in the order is late in any case
            late = best.start + self.problem.length(best.option) > self.problem.due
            late[order] = False
            least -= float(self.problem.weight[late].sum())
        heat = (LATE_HEAT if focus == LATE else HEAT) * self._scale(board, order, fixed, focus)
        begun, value = value[focus], self._value(board, order)
        round_ = _Round(
            order, value, self._late(board, order), order.copy(), value.copy(), most, np.zeros(1, dtype=np.int64),
            np.full(1, np.inf), self.start, self.option, self.random, stop,
        )  # fmt: skip
        patience, kicks = PATIENCE * free * free // 2, KICKS[0] + free // KICKS[1]
        enough = STEPS_PER_PAIR * free * free // 2 * len(order)
        done = swaps = 0
        while done < enough and not limit.over() and not stop[0] and round_.best[focus] > least:
            rows = int(min(CHUNK, enough - done, limit.work_left() * UNIT + 1))
            placed = _descend(board, self.line, self.marks, round_, fixed, focus, heat, rows, patience, swaps)
            swaps = 0
            if round_.idle[0] >= patience:
                if value[focus] > round_.best[focus]:
                    order[:], value[:] = round_.best_order, round_.best
                self.marks.good[0], round_.idle[0], round_.least[0] = 1, 0, np.inf
                swaps = kicks
            done += placed
            limit.spend(placed / UNIT)
        if round_.best[focus] < begun or focus == LATE:
            yield from self._decoded(board, round_.best_order)

    def _begin(self, best: Plan, known: Sequence[int]) -> tuple[Board, Int64s, Float64s] | None:
        """What limits there are on a level, the order to begin with, and what it is worth."""
        work, problem, rows = self.work, self.problem, self.work.rows
        late = work.counts & ((best.start + problem.length(best.option))[rows] > problem.due[rows])
        begin = best.start[rows]
        if len(known) == 1 and self.late_first:
            board = self.board._replace(limit=self.due)
            able = work.aged | (work.counts & ~work.hopeless)
            key = np.where(late, weighted_shortest(work), begin)
            order = np.lexsort((np.where(work.aged, work.created, key), late, ~work.aged))
            order = rows[order[able[order]]]
            return board, order, self._value(board, order)
        order = rows[np.lexsort((np.where(work.aged, work.created, begin), ~work.aged))]
        board = self.board
        if self.late_first:
            on_time = np.zeros(len(problem), dtype=np.bool_)
            on_time[rows] = work.counts & ~late
            for _ in range(3):  # with other options than the plan's, a row in front may be in the way
                board = board._replace(limit=np.where(on_time, self.due, NEVER))
                self._value(board, order)
                if (self.start[order] >= 0).all():
                    break
                on_time[order[self.start[order] < 0]] = False
            else:
                return None
            board = board._replace(must=on_time)
        return board, order, self._value(board, order)

    def _value(self, board: Board, order: Int64s) -> Float64s:
        """What the schedule of an order is worth."""
        self.marks.good[0] = 1
        follow(board, self.line, self.marks, order, 0, np.full(3, np.inf), self.start, self.option, self.scheduler.stop)
        return self.line.total.copy()

    def _late(self, board: Board, order: Int64s) -> Bools:
        late = np.zeros(len(self.problem), dtype=np.bool_)
        start = self.start[order]
        late[order] = (start < 0) | (start + board.rows.duration[order] > board.due[order])
        return late

    def _scale(self, board: Board, order: Int64s, fixed: int, focus: int) -> float:
        """Typical change of the value in focus when two rows that follow each other are swapped; or the mean weight."""
        if focus == LATE:
            return float(self.work.weight[self.work.counts].mean())
        if len(order) > SCALE_ROWS:
            return 0.0
        value = float(self._value(board, order)[focus])
        swaps = []
        trial = order.copy()
        for k in range(fixed, len(order) - 1, -(-len(order) // SCALE_SWAPS)):
            trial[k], trial[k + 1] = order[k + 1], order[k]
            swaps.append(abs(self._value(board, trial)[focus] - value))
            trial[k], trial[k + 1] = order[k], order[k + 1]
        changes = np.array(swaps)
        changes = changes[(changes > 0) & (changes < np.inf)]
        return float(np.median(changes)) if len(changes) else 0.0

    def _decoded(self, board: Board, order: Int64s) -> Iterator[Plan]:
        """The plan of an order; behind it what is not in it, or late."""
        scheduler, rows = self.scheduler, self.work.rows
        self._value(board, order)
        placed = order[self.start[order] >= 0]
        rest = self.work.tail()
        rest = rest[~np.isin(rest, placed)]
        limit = self.never.copy()
        limit[placed] = board.limit[placed]
        self._value(board._replace(limit=limit), np.concatenate([placed, rest]))
        by_start = rows[np.lexsort((rows, self.start[rows]))]
        yield finish(scheduler, scheduler.exactly(by_start, self.option), "search")


@inner
def _chance(random: Random) -> float:
    """The next number of a sequence that looks random, in [0, 1) (xorshift64*)."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) / 9007199254740992.0


@inner
def _near(position: int, reach: int, random: Random) -> int:
    """A position no further away than ``reach``."""
    return position - reach + int(_chance(random) * (2 * reach + 1))


@njit(cache=True, nogil=True)
def _move(order: Int64s, i: int, j: int, swap: bool) -> None:
    """Swap two rows of an order, or move the one at ``i`` to ``j``."""
    row = order[i]
    if swap:
        order[i], order[j] = order[j], row
        return
    step = 1 if i < j else -1
    while i != j:
        order[i] = order[i + step]
        i += step
    order[j] = row


@njit(cache=True, nogil=True)
def _descend(
    board: Board,
    line: Line,
    marks: Marks,
    at: _Round,
    fixed: int,
    focus: int,
    heat: float,
    enough: int,
    patience: int,
    kicks: int,
) -> int:
    """Steps until ``enough`` rows are placed, or a little more, or until nothing is gained; how many were placed.

    Parameters
    ----------
    fixed
        So many rows stay in front.
    heat
        A step that is worse by so much is kept about one time in three.
    patience
        Steps without gain after which a round is over.
    kicks
        Before that so many rows are swapped with others nearby, whatever that costs on the level in focus.
    """
    order, value, late, random = at.order, at.value, at.late, at.random
    free = len(order) - fixed
    done = 0
    while done < enough and at.idle[0] < patience:
        if kicks > 0:
            kicks -= 1
            i = fixed + int(_chance(random) * free)
            j = min(max(_near(i, max(2, free // 5), random), fixed), len(order) - 1)
            at.most[focus] = np.inf
            if i != j:
                placed = _try(board, line, marks, at, i, j, True)
                done += abs(placed)
                if placed > 0:
                    value[:] = line.total
            if kicks > 0 and at.stop[0] == 0:
                continue
        at.idle[0] += 1
        i = fixed + int(_chance(random) * free)
        if focus == LATE and _chance(random) < 0.7:
            for _ in range(free):  # the next that is late
                if late[order[i]]:
                    break
                i = i + 1 if i + 1 < len(order) else fixed
        j = fixed + int(_chance(random) * free)
        if _chance(random) < 0.5:
            j = _near(i, max(2, free // 16), random)
        if focus == LATE and late[order[i]]:
            j = fixed + int(_chance(random) * (i - fixed + 1))
        j = min(max(j, fixed), len(order) - 1)
        if i == j:
            done += 1
            continue
        swap = _chance(random) < 0.3
        at.most[focus] = value[focus] - heat * math.log(max(_chance(random), 1e-300))
        placed = _try(board, line, marks, at, i, j, swap)
        done += abs(placed)
        if placed < 0:
            if at.stop[0] != 0:
                return done
            continue
        value[:] = line.total
        if value[focus] < at.least[0]:
            at.idle[0], at.least[0] = 0, value[focus]
        if value[focus] < at.best[focus]:
            at.best[:] = value
            at.best_order[:] = order
    return done


@njit(cache=True, nogil=True)
def _try(board: Board, line: Line, marks: Marks, at: _Round, i: int, j: int, swap: bool) -> int:
    """Make a step, and take it back when its value is more than it may be; rows placed, negative when taken back."""
    order = at.order
    _move(order, i, j, swap)
    same = min(i, j)
    marks.good[0] = min(marks.good[0], same // marks.every + 1)
    placed = int(follow(board, line, marks, order, same, at.most, at.start, at.option, at.stop))
    if placed < 0:
        _move(order, j, i, swap)
        return placed
    for k in range(len(order) - placed, len(order)):
        row = order[k]
        at.late[row] = at.start[row] < 0 or at.start[row] + board.rows.duration[row] > board.due[row]
    return placed
