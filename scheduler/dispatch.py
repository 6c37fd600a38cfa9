"""The one rule of the scheduler: what may be released now.

Walk the plan's order. Release what fits now, by Kueue's own arithmetic, and whose not-before time has come. What has to
wait is remembered: work further down that takes quota it waits for may overtake it only if that makes it no later, as
far as estimates tell: the first ones that wait book the room they are expected to get (:mod:`scheduler.backfill`), and
who overtakes leaves them that; behind all others it ends before their planned start. Nothing here asks the planner:
room that appears early is used at once.

What fits is what Kueue would admit, with the flavors and the number of pods that it would choose
(:mod:`solver.choose`). It also fits when Kueue would evict others for it, as its ClusterQueue is entitled to: then it
is released if the policy honours that, and waiting for its planned start would not do.

Before the walk, quota is set aside for what Kueue may admit any moment: work in flight, and work that is not ours and
fits now. So a release never takes room that Kueue would give to somebody else. Nor is anything released behind the
blocked head of a StrictFIFO queue, or behind work that Kueue tries for ever: Kueue would not look at it. Nor is
anything released whose pods have no room on nodes, as far as these are known: it would hold quota and stand still.

Kueue tries what is released together in an order of its own: what could take another flavor, or more pods, if it came
first, and so leave less than they need to others that are on their way, is released when these hold their quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numba import njit

from scheduler.any_order import PENDING, Rows, ask, depends_on_order, in_any_order
from scheduler.backfill import CLOSED, Course, book, change, course, first_room
from scheduler.node_room import NodeRoom, fits_on_nodes, node_room, take_nodes, wait_for_nodes
from scheduler.plans import PlanInForce
from solver.api import planner_pb2 as pb
from solver.choose import NO_FIT, PREEMPTS, Choice, Queues, Shapes, blank, claim
from solver.decode_admission import Admission
from solver.preemption import LOWER_OR_NEWER, Holders, evict
from solver.preemption import NEVER as NOBODY
from solver.problem import NEVER, Options, Problem, State
from solver.quota import Bools, Int64s, TreeArrays, inner, take_all

_IN_FLIGHT, _FOREIGN = int(State.IN_FLIGHT), int(State.FOREIGN)


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
    if plan is not None and n:
        planned = plan.columns
        place = np.fromiter(map(planned.place.get, problem.row_ids(), repeat(-1)), np.int64, n)
        known = place >= 0
        place = place[known]
        rank[known] = planned.rank[place]
        start[known] = np.maximum(0, planned.start[place] - problem.now)
        rule = planned.not_before[place]
        not_before[known] = np.where(rule > 0, rule - problem.now, 0)
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


class Due(NamedTuple):
    """Work to release now."""

    row: int
    """Of the problem."""
    evicts: tuple[int, ...]
    """Whom Kueue is expected to evict for it: rows of the request."""


def dispatch(
    problem: Problem,
    admission: Admission,
    turns: Turns,
    releasable: Sequence[bool] | Bools,
    heads: Sequence[Head] = (),
    honour: bool = True,
    fresh: Bools | None = None,
) -> list[Due]:
    """What to release now, in this order.

    Parameters
    ----------
    admission
        See :func:`solver.decode_admission.decode_admission`.
    releasable
        For each row whether taking our gate off lets it start. Work that somebody else holds as well is passed over.
    heads
        See :func:`hopeless_heads`.
    honour
        Whether work is released that Kueue would admit by evicting others, if waiting would make it late or if it has
        no due date.
    fresh
        For each row that Kueue has already whether it may be about to be admitted; by default all that are in flight.
        The others are thought to hold their quota when Kueue comes to what is released.
    """
    if not len(problem):
        return []
    tree, queues = problem.tree, admission.queues
    strict = np.zeros(len(tree.parent), dtype=np.bool_)
    strict[tree.queue_node[tree.strict_fifo & (tree.queue_node >= 0)]] = True
    usage, busy = tree.no_usage(), problem.busy
    take_all(tree.arrays, usage, busy.node, busy.cell, np.where(busy.start <= 0, busy.amount, 0))
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
    rows = Rows(
        state=problem.state,
        pair=problem.pair,
        queue=admission.queue,
        shape=admission.shape,
        priority=priority,
        created=admission.created,
        # Rules of a plan bind us, not Kueue.
        earliest=np.where(
            problem.state == State.PENDING, np.maximum(problem.release, turns.not_before), problem.release
        ),
        duration=problem.duration,
        shortest=problem.shortest,
        due=problem.due,
        start=turns.start,
        releasable=np.asarray(releasable, dtype=np.bool_),
        alike=_alike(problem, admission),
        several=_several(problem, admission),
        fresh=problem.state == State.IN_FLIGHT if fresh is None else fresh,
    )
    # Who goes holds nothing any more: amounts are set to 0 on the way.
    holders = admission.holders._replace(amount=admission.holders.amount.copy())
    choice = blank(queues, admission.shapes, holders)
    released, evictor = _walk(
        tree.arrays, problem.options, queues, admission.shapes, usage, node_room(problem), course(problem), choice,
        rows, strict, shut, ungated, rank, turns.order, honour,
    )  # fmt: skip
    going = np.flatnonzero(evictor >= 0)
    return [Due(row, tuple(admission.holder[going[evictor[going] == row]].tolist())) for row in released.tolist()]


def _alike(problem: Problem, admission: Admission) -> Int64s:
    """Rows that ask the same of the same queue with one priority; and of one age, where that makes a difference."""
    priorities, priority = np.unique(problem.priority, return_inverse=True)
    alike = problem.pair.astype(np.int64) * len(priorities) + priority.reshape(-1)
    policies = admission.queues.policies
    by_age = (policies.within_queue == LOWER_OR_NEWER) | (policies.reclaim == LOWER_OR_NEWER)
    alone = by_age[admission.queue]
    alike[alone] = len(problem.options.node) * len(priorities) + np.arange(np.count_nonzero(alone))
    return alike


def _several(problem: Problem, admission: Admission) -> Bools:
    """Rows that Kueue could admit in more than one way."""
    shapes, first = admission.shapes, problem.options.first
    spare = np.append(np.cumsum(shapes.min_pods < shapes.pods), 0)
    cut = spare[shapes.first[1:] - 1] > spare[shapes.first[:-1] - 1]
    several: Bools = (np.diff(first) > 1)[problem.pair] | cut[admission.shape]
    return several


@njit(cache=True, nogil=True)
def _walk(
    tree: TreeArrays,
    options: Options,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    room: NodeRoom,
    to_come: Course,
    choice: Choice,
    rows: Rows,
    strict: Bools,
    shut: Int64s,
    ungated: Int64s,
    rank: Int64s,
    order: Int64s,
    honour: bool,
) -> tuple[Int64s, Int64s]:
    """Rows to release, and for each holder the row that is released into its quota (−1: none).

    ``ungated``: rows Kueue has already, those in flight first; ``rank``: of all rows in Kueue's order; ``order``: all
    rows, by their turns; ``shut``: by quota node the rank of the blocked head, behind which nothing is admitted.
    """
    n = len(order)
    # By quota node and cell: the earliest planned start of work that waits for quota there; of all, and of those that
    # have booked nothing.
    waiting = np.full((2, *usage.shape), NEVER, dtype=np.int64)
    placed = np.zeros(n, dtype=np.bool_)
    evictor = np.full(len(choice.victims), -1, dtype=np.int64)
    # What is in use by those that hold it already; who is on the way to more, by root; who depends on that.
    held, coming = usage.copy(), np.zeros(len(usage), dtype=np.int64)
    moving, depends = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for row in ungated:
        node = queues.node[rows.queue[row]]
        if rows.earliest[row] > 0:
            continue  # Kueue itself leaves it alone until then
        mode, endless = NO_FIT, False
        if rank[row] <= shut[node]:
            mode, endless = ask(tree, queues, shapes, usage, choice, rows, row)
        if mode >= PREEMPTS:
            length = _stretched(options, choice, rows, row) + _later(options, choice, rows, row)
            _admit(tree, choice, usage, node, to_come, length)
            take_nodes(room, queues, shapes, int(rows.queue[row]), int(rows.shape[row]), choice)
            placed[row] = True
            if rows.fresh[row]:
                moving[row] = True
                coming[to_come.root[node]] += 1
            else:
                claim(tree, held, node, choice.total)
        else:
            if strict[node] or endless:
                shut[node] = min(shut[node], rank[row])
            if rows.state[row] == _IN_FLIGHT:
                _wait(tree, options, usage, waiting, room, to_come, rows, row)
    released = np.empty(n, dtype=np.int64)
    count = 0
    # What did not fit does not fit another one of its kind as long as nothing changes; nor, where nobody can be evicted
    # for it, when more is taken.
    in_vain = np.full(rows.alike.max() + 1, -1, dtype=np.int64)
    # Nor may what takes longer pass where one of its kind might not: from that length on, while so many were released.
    too_long, while_released = np.full(len(in_vain), NEVER, dtype=np.int64), np.full(len(in_vain), -1, dtype=np.int64)
    policies, evictions = queues.policies, 0
    for row in order:
        node = queues.node[rows.queue[row]]
        if rows.state[row] != PENDING:
            if rows.state[row] == _FOREIGN and not placed[row]:
                _wait(tree, options, usage, waiting, room, to_come, rows, row)
            continue
        if not rows.releasable[row] or rank[row] > shut[node]:
            continue
        mode = NO_FIT
        evicts = policies.within_queue[rows.queue[row]] != NOBODY or policies.reclaim[rows.queue[row]] != NOBODY
        changes = count if evicts else evictions
        if rows.earliest[row] <= 0 and in_vain[rows.alike[row]] < changes:
            mode, _ = ask(tree, queues, shapes, usage, choice, rows, row)
            if mode < PREEMPTS:
                in_vain[rows.alike[row]] = changes
        length, alike = _stretched(options, choice, rows, row), rows.alike[row]
        holds = length + _later(options, choice, rows, row)
        passes = mode >= PREEMPTS and (while_released[alike] < count or holds < too_long[alike])
        if passes and not _may_pass(tree, usage, waiting, to_come, node, choice.total, holds, mode == PREEMPTS):
            passes, too_long[alike], while_released[alike] = False, holds, count
        if (
            passes
            and _worth_it(rows, row, mode == PREEMPTS, length, honour)
            # Who is evicted leaves nodes as well; which, nobody knows.
            and (
                mode == PREEMPTS
                or fits_on_nodes(room, queues, shapes, int(rows.queue[row]), int(rows.shape[row]), choice, holds)
            )
        ):
            for holder in choice.victims:
                if holder >= 0:
                    evictor[holder] = row
                    evictions += 1
            _admit(tree, choice, usage, node, to_come, holds)
            take_nodes(room, queues, shapes, int(rows.queue[row]), int(rows.shape[row]), choice)
            released[count] = row
            count += 1
            if rows.several[row] and mode != PREEMPTS and coming[to_come.root[node]] > 0:
                depends[row] = depends_on_order(tree, queues, shapes, held, choice, rows, row)
            moving[row] = True
            coming[to_come.root[node]] += 1
        else:
            _wait(tree, options, usage, waiting, room, to_come, rows, row)
    if depends.any():
        count = in_any_order(tree, queues, shapes, held, to_come, choice, rows, moving, depends, rank, released, count)
    return released[:count], evictor


@inner
def _admit(tree: TreeArrays, choice: Choice, usage: Int64s, node: int, to_come: Course, length: int) -> None:
    """Take what was chosen, for so long, from those who go for it first."""
    holders: Holders = choice.holders
    change(to_come, int(length), int(node), choice.total, -1)
    for holder in choice.victims:
        if holder >= 0:
            to_come.booked[to_come.root[node]] = CLOSED
            evict(tree, holders, usage, holder, 1)
            holders.amount[holders.first[holder] : holders.first[holder + 1]] = 0
    claim(tree, usage, node, choice.total)


@inner
def _stretched(options: Options, choice: Choice, rows: Rows, row: int) -> int:
    """How long a row runs with what was chosen: the less than a plan counts on, the longer."""
    planned, option = 0, options.first[rows.pair[row]]
    for k in range(options.need[option], options.need[option + 1]):
        planned += options.amount[k]
    given = choice.total.sum()
    if given >= planned:
        return int(rows.shortest[row])
    return int(min(rows.shortest[row] * (planned / max(1, given)), float(NEVER >> 1)))


@inner
def _later(options: Options, choice: Choice, rows: Rows, row: int) -> int:
    """How much later than in the flavor that begins soonest work begins in what was chosen."""
    first, last = options.first[rows.pair[row]], options.first[rows.pair[row] + 1]
    least, chosen, most = options.lead[first], np.int64(-1), np.int64(0)
    for option in range(first, last):
        least, most = min(least, options.lead[option]), max(most, options.lead[option])
        same = chosen < 0
        for k in range(options.need[option], options.need[option + 1]):
            same = same and (options.amount[k] == 0 or choice.total[options.cell[k]] > 0)
        if same:
            chosen = options.lead[option]
    return int((most if chosen < 0 else chosen) - least)


@inner
def _worth_it(rows: Rows, row: int, evicts: bool, length: int, honour: bool) -> bool:
    """Whether a start now is better than waiting for the planned one.

    With fewer pods: if it ends no later than planned. Into quota that others hold: if the policy honours that, and it
    would be late otherwise, or has no due date.
    """
    start = rows.start[row]
    if start >= 0 and length > start + rows.shortest[row]:
        return False
    in_time = rows.due[row] < NEVER and start >= 0 and start + rows.shortest[row] <= rows.due[row]
    return not evicts or (honour and not in_time)


@inner
def _wait(
    tree: TreeArrays,
    options: Options,
    usage: Int64s,
    waiting: Int64s,
    room: NodeRoom,
    to_come: Course,
    rows: Rows,
    row: int,
) -> None:
    """Remember work that waits, for quota wherever it could get it, or for nodes."""
    pair, start = rows.pair[row], max(0, rows.start[row], rows.earliest[row])
    booked = book(tree, to_come, options, usage, pair, start, rows.duration[row])
    start = max(start, booked)
    wait_for_nodes(room, options.first[pair], start)
    node = options.node[pair]
    while node >= 0:
        for k in range(options.need[options.first[pair]], options.need[options.first[pair + 1]]):
            cell = options.cell[k]
            waiting[0, node, cell] = min(waiting[0, node, cell], start)
            if booked < 0:
                waiting[1, node, cell] = min(waiting[1, node, cell], start)
        node = tree.parent[node]


@inner
def _may_pass(
    tree: TreeArrays,
    usage: Int64s,
    waiting: Int64s,
    to_come: Course,
    node: int,
    total: Int64s,
    length: int,
    entitled: bool,
) -> bool:
    """Whether what it takes makes nobody later who waits for it.

    What a queue is entitled to, others wait for in vain: then only work of its own counts.
    """
    closed = to_come.booked[to_come.root[node]] >= CLOSED
    who = 0 if entitled or closed else 1
    for cell in range(len(total)):
        amount, at = total[cell], node
        while at >= 0 and amount > 0:
            if length > waiting[who, at, cell]:
                return False
            # Only what exceeds a node's private quota is felt above it.
            used, local = usage[at, cell], tree.local[at, cell]
            amount = 0 if entitled else max(0, used + amount - local) - max(0, used - local)
            at = tree.parent[at]
    return who == 0 or first_room(tree, to_come, usage, node, total, 0, 0, length) == 0
