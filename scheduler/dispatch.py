"""The one rule of the scheduler: what may be released now.

Walk the plan's order. Release what fits now, by Kueue's own arithmetic, and whose not-before time has come. What has to
wait is remembered: work further down that takes quota it waits for may overtake it only if it is expected to end before
the one it overtakes is planned to start. Nothing here asks the planner: room that appears early is used at once.

Before the walk, quota is set aside for what Kueue may admit any moment: work in flight, and work that is not ours and
fits now. So a release never takes room that Kueue would give to somebody else. Nor is anything released behind the
blocked head of a StrictFIFO queue: Kueue would not look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from scheduler.plans import PlanInForce
from solver.api import planner_pb2 as pb
from solver.problem import NEVER, Int8s, Options, Problem, State
from solver.quota import Bools, Int32s, Int64s, TreeArrays, fits, take

_PENDING, _IN_FLIGHT, _FOREIGN = int(State.PENDING), int(State.IN_FLIGHT), int(State.FOREIGN)


class Turns(NamedTuple):
    """What a plan says about the rows of a problem. Instants count from the problem's ``now``."""

    order: Int64s
    """``int64 [n]``: rows in the order of their turns."""
    start: Int64s
    """``int64 [n]``: planned start; −1 where there is none."""
    not_before: Int64s
    """``int64 [n]``: earliest release as a rule; 0 or less where there is none."""


def turns(problem: Problem, plan: PlanInForce | None) -> Turns:
    """The turns of a problem's rows by a plan, which may be older than the problem.

    Rows the plan does not know stand behind all others, by due date, then by age.
    """
    n = len(problem)
    rank = np.full(n, NEVER, dtype=np.int64)
    start = np.full(n, -1, dtype=np.int64)
    not_before = np.zeros(n, dtype=np.int64)
    if plan is not None:
        for position, row in enumerate(problem.row.tolist()):
            placement = plan.placements.get(problem.ids[row])
            if placement is not None:
                rank[position] = placement.rank
                start[position] = max(0, placement.start - problem.now)
                not_before[position] = placement.not_before - problem.now if placement.not_before else 0
    order = np.lexsort((problem.created, problem.due, rank)).astype(np.int64)
    return Turns(order, start, not_before)


class Head(NamedTuple):
    """Work in a StrictFIFO queue that Kueue has already and that can never fit: it holds up all behind it for ever."""

    node: int
    """Of its ClusterQueue in the quota tree."""
    priority: int
    created: int
    """Counts from the problem's ``now``."""


def hopeless_heads(problem: Problem, request: pb.PlanRequest) -> list[Head]:
    """The work that blocks StrictFIFO queues though it is no row of the problem that the request was decoded to."""
    work, tree = request.workloads, problem.tree
    heads = []
    for rejected in problem.rejected:
        row, queue = rejected.row, work.cluster_queue[rejected.row]
        ungated = work.state[row] in (pb.IN_FLIGHT, pb.FOREIGN) and work.release_ms[row] <= problem.now
        if rejected.kind == pb.NEVER_FITS and ungated and tree.strict_fifo[queue]:
            heads.append(Head(int(tree.queue_node[queue]), work.priority[row], work.created_ms[row] - problem.now))
    return heads


def dispatch(
    problem: Problem, turns: Turns, releasable: Sequence[bool] | Bools, heads: Sequence[Head] = ()
) -> list[int]:
    """Rows of the problem to release now, in this order.

    Parameters
    ----------
    releasable
        For each row whether taking our gate off lets it start. Work that somebody else holds as well is passed over.
    heads
        See :func:`hopeless_heads`.
    """
    if not len(problem):
        return []
    tree = problem.tree
    strict = np.zeros(len(tree.parent), dtype=np.bool_)
    strict[tree.queue_node[tree.strict_fifo & (tree.queue_node >= 0)]] = True
    usage, busy = tree.no_usage(), problem.busy
    _use(tree.arrays, usage, busy.node, busy.cell, np.where(busy.start <= 0, busy.amount, 0))
    priority = problem.priority.astype(np.int64)
    kueue = np.lexsort((problem.state == State.PENDING, problem.created, -priority))
    rank = np.empty(len(problem), dtype=np.int64)
    rank[kueue] = np.arange(len(problem))
    shut = np.full(len(tree.parent), NEVER, dtype=np.int64)
    for head in heads:
        ahead = (priority > head.priority) | ((priority == head.priority) & (problem.created < head.created))
        shut[head.node] = min(shut[head.node], np.count_nonzero(ahead) - 1)
    ungated = kueue[problem.state[kueue] != State.PENDING].astype(np.int64)
    ungated = ungated[np.argsort(problem.state[ungated] != State.IN_FLIGHT, kind="stable")]
    # Rules of a plan bind us, not Kueue.
    earliest = np.where(problem.state == State.PENDING, np.maximum(problem.release, turns.not_before), problem.release)
    released = _walk(
        tree.arrays,
        problem.options,
        usage,
        strict,
        shut,
        ungated,
        rank,
        turns.order,
        problem.state,
        problem.pair,
        earliest,
        problem.duration,
        turns.start,
        np.asarray(releasable, dtype=np.bool_),
    )
    return [int(row) for row in released]


@njit(cache=True, nogil=True)
def _use(tree: TreeArrays, usage: Int64s, node: Int32s, cell: Int32s, amount: Int64s) -> None:
    for k in range(len(node)):
        take(tree, usage, node[k], cell[k], amount[k])


@njit(cache=True, nogil=True)
def _walk(
    tree: TreeArrays,
    options: Options,
    usage: Int64s,
    strict: Bools,
    shut: Int64s,
    ungated: Int64s,
    rank: Int64s,
    order: Int64s,
    state: Int8s,
    pair: Int32s,
    earliest: Int64s,
    duration: Int64s,
    start: Int64s,
    releasable: Bools,
) -> Int64s:
    """Rows to release.

    ``ungated``: rows Kueue has already, those in flight first; ``rank``: of all rows in Kueue's order; ``order``: all
    rows, by their turns; ``shut``: by quota node the rank of the blocked head, behind which nothing is admitted.
    """
    n = len(order)
    # By quota node and cell: the earliest planned start of work that waits for quota there.
    waiting = np.full(usage.shape, NEVER, dtype=np.int64)
    placed = np.zeros(n, dtype=np.bool_)
    for row in ungated:
        node = options.node[pair[row]]
        if earliest[row] > 0:
            continue  # Kueue itself leaves it alone until then
        option = -1 if rank[row] > shut[node] else _first_fit(tree, options, usage, pair[row])
        if option >= 0:
            _take(tree, options, usage, node, option)
            placed[row] = True
        else:
            if strict[node]:
                shut[node] = min(shut[node], rank[row])
            if state[row] == _IN_FLIGHT:
                _wait(tree, options, waiting, pair[row], max(0, start[row]))
    released = np.empty(n, dtype=np.int64)
    count = 0
    for row in order:
        node = options.node[pair[row]]
        if state[row] != _PENDING:
            if state[row] == _FOREIGN and not placed[row]:
                _wait(tree, options, waiting, pair[row], max(0, start[row], earliest[row]))
            continue
        if not releasable[row] or rank[row] > shut[node]:
            continue
        option = _first_fit(tree, options, usage, pair[row]) if earliest[row] <= 0 else -1
        if option >= 0 and _may_pass(tree, options, usage, waiting, node, option, duration[row]):
            _take(tree, options, usage, node, option)
            released[count] = row
            count += 1
        else:
            _wait(tree, options, waiting, pair[row], max(0, start[row], earliest[row]))
    return released[:count]


@njit(cache=True, nogil=True)
def _first_fit(tree: TreeArrays, options: Options, usage: Int64s, pair: int) -> int:
    """The option that Kueue would choose now; −1 when none fits."""
    for option in range(options.first[pair], options.first[pair + 1]):
        need = slice(options.need[option], options.need[option + 1])
        if fits(tree, usage, options.node[pair], options.cell[need], options.amount[need]):
            return option
    return -1


@njit(cache=True, nogil=True)
def _take(tree: TreeArrays, options: Options, usage: Int64s, node: int, option: int) -> None:
    for k in range(options.need[option], options.need[option + 1]):
        take(tree, usage, node, options.cell[k], options.amount[k])


@njit(cache=True, nogil=True)
def _wait(tree: TreeArrays, options: Options, waiting: Int64s, pair: int, start: int) -> None:
    """Remember work that waits for quota, wherever it could get it."""
    node = options.node[pair]
    while node >= 0:
        for k in range(options.need[options.first[pair]], options.need[options.first[pair + 1]]):
            waiting[node, options.cell[k]] = min(waiting[node, options.cell[k]], start)
        node = tree.parent[node]


@njit(cache=True, nogil=True)
def _may_pass(
    tree: TreeArrays, options: Options, usage: Int64s, waiting: Int64s, node: int, option: int, duration: int
) -> bool:
    """Whether an option is free again before anyone is planned to start who waits for quota that it takes."""
    for k in range(options.need[option], options.need[option + 1]):
        cell, amount, at = options.cell[k], options.amount[k], node
        while at >= 0 and amount > 0:
            if duration > waiting[at, cell]:
                return False
            # Only what exceeds a node's private quota is felt above it.
            used, local = usage[at, cell], tree.local[at, cell]
            amount = max(0, used + amount - local) - max(0, used - local)
            at = tree.parent[at]
    return True
