"""Search: simulated annealing on the order, for a few rows up to some thousand.

A step moves one row of the order (or swaps two), makes the whole schedule anew, and keeps the step when the plan is no
worse, or a little worse, the less so the longer the search has gone on. To make the whole schedule anew is what counts:
all that follows moves to the front into the room that a step makes.

Levels are searched one after another: first late weight, then tardiness, then starts; a step that makes a level above
worse is not taken. The schedule of a step is made in time buckets (:mod:`solver.buckets`), coarser ones than those of a
plan, but made exact in the end like any other, by which no start gets later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from solver.api import planner_pb2 as pb
from solver.buckets import Flag, Hints, Rows, make_use, place
from solver.greedy import finish, orders
from solver.limit import Limit
from solver.plan import HOUR, Plan
from solver.problem import NEVER, Float64s
from solver.quota import Bools, Int32s, Int64s, inner
from solver.rules import Work, weighted_shortest
from solver.schedule import Scheduler, edges
from solver.slots import Needs, Slots
from solver.worth import levels

MOST_ROWS = 5_000
"""Most rows of ours that are searched: with more a step takes too long for what it finds."""

BUCKETS = 1_024
"""Time buckets of a step's schedule."""

UNIT = 1_000
"""Rows placed for one unit of a work limit; about a millisecond."""

CHUNK = 5 * UNIT
"""Rows placed between two looks at the clock; the temperature is the same as long."""

STEPS_PER_ROW = 400
"""Steps on one level for each row to be moved; more do not pay."""

LATE_SHARE = 0.7
"""Part of the budget for late weight, when there is any that may be avoidable."""

Random = npt.NDArray[np.uint64]
"""``uint64 [1]``: where a sequence of random numbers stands."""

LEVELS: Mapping[int, int] = {pb.LATE_WEIGHT: 0, pb.TARDINESS: 1, pb.START_TIMES: 2}
"""Levels that are searched, and where their values stand."""


class _Board(NamedTuple):
    """All that a schedule depends on but the order."""

    slots: Slots
    needs: Needs
    hints: Hints
    rows: Rows
    edge: Int64s
    use: Int64s
    floor: Int64s
    tail: Int64s
    """Rows of ours that are placed behind the order, those of the order that would be late included."""


class _Cost(NamedTuple):
    """What a schedule is worth, by row: ``[n]``."""

    limit: Int64s
    """When a row must end lest it be put back; ``NEVER`` for no limit."""
    due: Int64s
    weight: Float64s
    soft: Bools
    pull: Float64s


class _Scratch(NamedTuple):
    """Memory of one schedule."""

    use: Int64s
    floor: Int64s
    table: Int32s
    bucket: Int32s
    option: Int32s
    never: Int64s


def search(
    scheduler: Scheduler, best: Plan, policy: pb.Policy, limit: Limit, seed: int, bound: float
) -> Iterator[Plan]:
    """Plans from the best one so far. They may be worse: a plan is compared by who asks for it.

    Parameters
    ----------
    bound
        With this late weight there is nothing to be gained on that level any more.
    """
    if not 0 < len(scheduler.ours) <= MOST_ROWS:
        return
    work = Work(scheduler.problem, scheduler.ours, policy.ageing_ms)
    hunt = _Search(scheduler, work, policy, seed)
    known: list[int] = []
    for level in levels(policy):
        if level not in LEVELS or limit.over() or scheduler.stop[0]:
            return
        known.append(LEVELS[level])
        value = (best.objective.late_weight, best.objective.tardiness, best.objective.start_hours)[LEVELS[level]]
        least = bound + 1e-6 * (1 + bound) if level == pb.LATE_WEIGHT else 0.0
        if value <= least or (level != pb.START_TIMES and not work.counts.any()):
            continue
        share = LATE_SHARE if level == pb.LATE_WEIGHT else 0.5 if level == pb.TARDINESS else 1.0
        for plan in hunt.run(best, known, limit.part(share)):
            yield plan
            if plan.objective < best.objective or known[0] != 0:
                best = plan


class _Search:
    def __init__(self, scheduler: Scheduler, work: Work, policy: pb.Policy, seed: int) -> None:
        problem, (slots, needs, *_) = scheduler.problem, scheduler.compact
        self.scheduler, self.work, self.problem = scheduler, work, problem
        edge = edges(problem, scheduler.compact, BUCKETS)
        use = make_use(slots, scheduler.held, edge)
        floor = np.searchsorted(edge, scheduler.floor).astype(np.int64)
        self.board = _Board(slots, needs, scheduler.hints, scheduler.rows, edge, use, floor, work.tail())
        n = len(problem)
        counts = np.zeros(n, dtype=np.bool_)
        counts[work.rows] = work.counts
        put_back = counts if levels(policy)[0] == pb.LATE_WEIGHT else np.zeros_like(counts)
        self.cost = _Cost(
            np.where(put_back, problem.due, NEVER),
            np.where(counts, problem.due, NEVER),
            problem.weight,
            ~problem.hard,
            problem.pull,
        )
        self.scratch = _Scratch(
            use.copy(),
            floor.copy(),
            np.zeros(scheduler.hints.size, dtype=np.int32),
            np.full(n, -1, dtype=np.int32),
            np.full(n, -1, dtype=np.int32),
            np.full(n, NEVER, dtype=np.int64),
        )
        self.random = np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64) | 1], dtype=np.uint64)

    def run(self, best: Plan, known: list[int], limit: Limit) -> Iterator[Plan]:
        """Anneal on the last of the known levels."""
        focus = known[-1]
        everything = focus != 0 or len(known) > 1
        order, fixed = self._order(best, focus), int(self.work.aged.sum())
        value, top = np.zeros(3), np.zeros(3)
        stop = self.scheduler.stop
        _value(self.board, self.cost, self.scratch, order, everything, value, stop)
        if not everything:
            # By coarse buckets, and with several flavors, another order may be the better one to begin with.
            for _, other in orders(self.scheduler, self.work):
                _value(self.board, self.cost, self.scratch, other, False, top, stop)
                if top[0] < value[0]:
                    order, value[0] = other, top[0]
        free = len(order) - fixed
        if free < 2:
            return
        above = np.array(known[:-1], dtype=np.int64)
        step_rows = len(self.board.tail) if everything else len(order)
        steps = max(1, CHUNK // step_rows)
        most = STEPS_PER_ROW * free * step_rows
        most = min(most, limit.work * UNIT) if limit.work else most
        hot, cold = self._temperatures(value, focus)
        late = np.zeros(len(self.problem), dtype=np.bool_)
        _value(self.board, self.cost, self.scratch, order, everything, value, stop)
        _mark_late(self.board, self.cost, self.scratch, order, late)
        top[:], best_order, begun = value, order.copy(), value.copy()
        done, left = 0, limit.seconds_left()
        while True:
            spent = done / most
            if math.isfinite(left):
                spent = max(spent, 1 - limit.seconds_left() / max(left, 1e-9))
            if spent >= 1 or stop[0]:
                break
            heat = hot * (cold / hot) ** spent
            _anneal(
                self.board, self.cost, self.scratch, order, late, fixed, best_order, value, top, above, focus,
                everything, heat, steps, self.random, stop,
            )  # fmt: skip
            done += steps * step_rows
        if top[focus] < begun[focus]:
            yield from self._decoded(best_order)

    def _temperatures(self, value: Float64s, focus: int) -> tuple[float, float]:
        """A step that is worse by so much is kept about one time in three, at the beginning and in the end."""
        work = self.work
        if focus == 0:
            typical = float(work.weight[work.counts].mean())
            return 0.3 * typical, 0.02 * typical
        each = max(float(value[focus]), 1e-9) / len(work.rows)
        return 0.5 * each, 0.005 * each

    def _order(self, best: Plan, focus: int) -> Int64s:
        """The order of a plan's starts; in front what has waited too long, behind it what is late."""
        work, problem = self.work, self.problem
        start = best.start[work.rows]
        late = work.counts & (start + problem.length(best.option)[work.rows] > problem.due[work.rows])
        inside = work.aged | (work.counts & ~work.hopeless)
        if focus != 0:
            inside |= ~work.counts
        if self.cost.limit[work.rows].min() == NEVER:
            inside[:], late[:] = True, False
        key = np.where(late, weighted_shortest(work), start)
        order = np.lexsort((np.where(work.aged, work.created, key), late, ~work.aged))
        return work.rows[order[inside[order]]]

    def _decoded(self, order: Int64s) -> Iterator[Plan]:
        """The plan of an order, exact; and the same once more in finer buckets, moved to the front where it can be."""
        scheduler, bucket = self.scheduler, self.scratch.bucket
        _value(self.board, self.cost, self.scratch, order, True, np.zeros(3), scheduler.stop)
        rows = self.work.rows
        by_bucket = rows[np.lexsort((rows, bucket[rows]))]
        plan = finish(scheduler, scheduler.exactly(by_bucket, self.scratch.option), "search")
        yield plan
        on_time = rows[(plan.start + self.problem.length(plan.option))[rows] <= self.cost.limit[rows]]
        again = on_time[np.lexsort((on_time, plan.start[on_time]))]
        yield finish(scheduler, scheduler.schedule(again, self.board.tail), "search")


@njit(cache=True, nogil=True)
def _value(
    board: _Board, cost: _Cost, scratch: _Scratch, order: Int64s, everything: bool, value: Float64s, stop: Flag
) -> None:
    """Make the schedule of an order, and fill in ``value``: late weight; with ``everything`` tardiness and starts."""
    scratch.use[:] = board.use
    scratch.floor[:] = board.floor
    scratch.table[:] = 0
    scratch.bucket[board.tail] = -1
    place(
        board.slots, board.needs, board.hints, board.rows, board.edge, scratch.use, order, cost.limit, scratch.floor,
        scratch.table, scratch.bucket, scratch.option, stop,
    )  # fmt: skip
    late, tardiness, starts = 0.0, 0.0, 0.0
    if everything:
        waiting = board.tail[scratch.bucket[board.tail] < 0]
        place(
            board.slots, board.needs, board.hints, board.rows, board.edge, scratch.use, waiting, scratch.never,
            scratch.floor, scratch.table, scratch.bucket, scratch.option, stop,
        )  # fmt: skip
        for row in board.tail:
            start = board.edge[scratch.bucket[row]]
            starts += cost.pull[row] * start
            option = scratch.option[row]
            lead = board.needs.lead[option] if option >= 0 else 0
            tardy = start + lead + board.rows.duration[row] - cost.due[row]
            if tardy > 0:
                late += cost.weight[row]
                if cost.soft[row]:
                    tardiness += cost.weight[row] * tardy
    else:
        for row in board.tail:
            if scratch.bucket[row] < 0 and cost.limit[row] < NEVER:
                late += cost.weight[row]
    value[0], value[1], value[2] = late, tardiness / HOUR, starts / HOUR


@inner
def _chance(random: Random) -> float:
    """The next number of a sequence that looks random, in [0, 1) (xorshift64*)."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
def _anneal(
    board: _Board,
    cost: _Cost,
    scratch: _Scratch,
    order: Int64s,
    late: Bools,
    fixed: int,
    best_order: Int64s,
    value: Float64s,
    top: Float64s,
    above: Int64s,
    focus: int,
    everything: bool,
    heat: float,
    steps: int,
    random: Random,
    stop: Flag,
) -> None:
    """Some steps at one temperature; ``order`` and ``value`` go on, the best of them is in ``best_order`` and ``top``.

    ``late``: which rows of the order are put back, because their turn comes too late; goes on with it.
    ``above``: levels that no step may make worse than they are in ``top``.
    """
    free = len(order) - fixed
    trial = np.empty_like(order)
    new = np.zeros(3)
    for _ in range(steps):
        i = fixed + int(_chance(random) * free)
        if focus == 0 and _chance(random) < 0.7:
            for _ in range(free):  # the next that is late
                if late[order[i]]:
                    break
                i = i + 1 if i + 1 < len(order) else fixed
        reach = free if _chance(random) < 0.5 else max(2, free // 16)
        j = i + int((2 * _chance(random) - 1) * reach)
        if late[order[i]]:
            j = fixed + int(_chance(random) * (i - fixed + 1))
        j = min(max(j, fixed), len(order) - 1)
        if i == j:
            continue
        trial[:] = order
        row = order[i]
        if _chance(random) < 0.3:
            trial[i], trial[j] = order[j], row
        elif i < j:
            trial[i:j] = order[i + 1 : j + 1]
            trial[j] = row
        else:
            trial[j + 1 : i + 1] = order[j:i]
            trial[j] = row
        _value(board, cost, scratch, trial, everything, new, stop)
        if stop[0] != 0:
            return
        allowed = True
        for level in above:
            allowed &= new[level] <= top[level] + 1e-9 * (1 + abs(top[level]))
        if not allowed:
            continue
        worse = new[focus] - value[focus]
        if worse > 0 and _chance(random) >= math.exp(-worse / heat):
            continue
        order[:] = trial
        value[:] = new
        _mark_late(board, cost, scratch, order, late)
        if new[focus] < top[focus]:
            top[:] = new
            best_order[:] = order


@njit(cache=True, nogil=True)
def _mark_late(board: _Board, cost: _Cost, scratch: _Scratch, order: Int64s, late: Bools) -> None:
    """Fill in for each row of the order whose schedule was made last whether it is put back."""
    for row in order:
        late[row] = _is_late(board, cost, scratch, row)


@inner
def _is_late(board: _Board, cost: _Cost, scratch: _Scratch, row: int) -> bool:
    bucket, option = scratch.bucket[row], scratch.option[row]
    if bucket < 0 or option < 0:
        return True
    return bool(board.edge[bucket] + board.needs.lead[option] + board.rows.duration[row] > cost.limit[row])
