"""Why each workload starts when it does."""

from __future__ import annotations

import numpy as np
from numba import njit

from solver.plan import Plan, Reason
from solver.problem import Int8s, Problem, State
from solver.quota import Bools, Int32s, Int64s
from solver.slots import Held, Needs, Slots, compact, hold, room


def reasons(problem: Problem, plan: Plan) -> Int8s:
    """``int8 [n]`` of :class:`~solver.plan.Reason`."""
    late = plan.start + problem.length(plan.option) > problem.due
    hopeless = problem.release + problem.shortest > problem.due
    result = np.full(len(problem), Reason.WAITS_FOR_QUOTA, dtype=np.int8)
    if len(problem.packing.limits.capacity):
        result[_waits_for_nodes(problem, plan)] = Reason.WAITS_FOR_NODES
    result[plan.start == problem.release] = Reason.WAITS_FOR_RELEASE_DATE
    result[plan.start == 0] = Reason.ROOM_NOW
    result[late] = Reason.LATE_NO_ROOM
    result[late & hopeless] = Reason.LATE_ALREADY
    result[problem.state == State.IN_FLIGHT] = Reason.RELEASED
    result[problem.state == State.FOREIGN] = Reason.NOT_OURS
    return result


def _waits_for_nodes(problem: Problem, plan: Plan) -> Bools:
    """Rows that have the quota, but no room on nodes, right before they start: ``bool [n]``."""
    slots, needs, held, _, nodes, _ = compact(problem)
    end = plan.start + problem.length(plan.option)
    by_start, by_end = (np.argsort(instants, kind="stable") for instants in (plan.start, end))
    leaving = np.argsort(held.end, kind="stable")
    short = np.zeros((2, len(problem)), dtype=np.bool_)
    _look(slots, needs, held, leaving, by_start, by_end, plan.start, end, plan.option, nodes, short)
    waits: Bools = short[1] & ~short[0]
    return waits


@njit(cache=True, nogil=True)
def _look(
    slots: Slots,
    needs: Needs,
    held: Held,
    leaving: Int64s,
    by_start: Int64s,
    by_end: Int64s,
    start: Int64s,
    end: Int64s,
    option: Int32s,
    nodes: int,
    short: Bools,
) -> None:
    """Fill in ``short[0]`` (of quota) and ``short[1]`` (of nodes: slots from ``nodes`` on)."""
    use = np.zeros(len(slots.up), dtype=np.int64)
    came, left, begun, ended = 0, 0, 0, 0
    for row in by_start:
        now = start[row]
        while came < len(held.slot) and held.start[came] < now:
            hold(slots, use, held.slot[came], held.amount[came])
            came += 1
        while begun < len(by_start) and start[by_start[begun]] < now:
            o = option[by_start[begun]]
            for k in range(needs.first[o], needs.first[o + 1]):
                hold(slots, use, needs.slot[k], needs.amount[k])
            begun += 1
        while left < len(leaving) and held.end[leaving[left]] < now:
            hold(slots, use, held.slot[leaving[left]], -held.amount[leaving[left]])
            left += 1
        while ended < len(by_end) and end[by_end[ended]] < now:
            o = option[by_end[ended]]
            for k in range(needs.first[o], needs.first[o + 1]):
                hold(slots, use, needs.slot[k], -needs.amount[k])
            ended += 1
        for k in range(needs.first[option[row]], needs.first[option[row] + 1]):
            if needs.amount[k] > max(0, room(slots, use, needs.slot[k])):
                short[1 if needs.slot[k] >= nodes else 0, row] = True
