"""The quota tree reduced to what can bind, in the form in which kernels walk it.

A node of the tree that keeps nothing private (``local`` 0) and has no borrowing limit changes nothing on the way from a
ClusterQueue to its root. A cell can never run short when all work together asks for less than there is, or when another
cell always runs short first (CPUs, where every GPU comes with its share of them). All that is left out. What remains
are *slots*: one for each (node, cell) that can limit something. Each slot has one way ``up``, and the recursion of
:mod:`solver.quota`, unrolled from below, is the same step at every slot, the root's too:

    private += max(0, local − used)
    limit    = min(limit, private + cap − max(0, used − local))

with ``cap = subtree − local + borrowingLimit`` (at a root ``subtree``, and ``local`` 0). ``limit`` at the end is what
is available. Results are exactly those of the full tree.

Where a queue rather takes the next flavor than borrow (``TryNextFlavor``), it depends on what is in use which flavor it
takes. There all nodes on the way up have slots, whether they limit anything or not.

What fits onto nodes at once (:mod:`solver.packing`) is limited in the same form: each limit is one more slot, a root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from solver.choose import heights
from solver.problem import Busy, Problem
from solver.quota import UNLIMITED, Bools, Int32s, Int64s


class Slots(NamedTuple):
    """``[S]`` columns. A slot's way up has a smaller position; −1 at a root."""

    up: Int32s
    local: Int64s
    cap: Int64s
    subtree: Int64s
    height: Int32s
    """Of the node, as in :class:`solver.choose.Queues`."""


class Needs(NamedTuple):
    """What each option of the problem takes: ``amount[k]`` of ``slot[k]`` for ``k`` in ``first[o] … first[o+1]``.

    It takes it for the row's duration and ``lead[o]`` before that.
    """

    first: Int32s
    slot: Int32s
    amount: Int64s
    lead: Int64s


class Held(NamedTuple):
    """What is in use or kept free, by slot, during ``[start, end)``. Parallel columns, by start."""

    slot: Int32s
    amount: Int64s
    start: Int64s
    end: Int64s

    def by_start(self) -> Held:
        """The same, sorted."""
        k = np.argsort(self.start, kind="stable")
        return Held(self.slot[k], self.amount[k], self.start[k], self.end[k])


class Compact(NamedTuple):
    """A problem's quota by slots."""

    slots: Slots
    needs: Needs
    held: Held
    slot_of: Int32s
    """``int32 [N, C]``: where use of a cell by a node counts; −1 where it can never bind."""
    nodes: int
    """Slots from here on are not quota's but limits of nodes."""
    limit: Int64s
    """Which limit each of these is."""


def compact(problem: Problem) -> Compact:
    """Reduce the tree of a problem to what can bind for its work."""
    tree, options, busy = problem.tree, problem.options, problem.busy
    parent, subtree, local, borrowing = tree.arrays
    is_root = (parent < 0)[:, None]
    local = np.where(is_root, 0, local)
    cap = np.where(is_root, subtree, subtree - local + borrowing)
    watched = _watched(problem)
    binding = _not_implied(problem, _binding(problem), local, cap)
    np.logical_or.at(binding, tree.root, watched)
    matters = binding[tree.root] & (is_root | (local > 0) | (borrowing < UNLIMITED) | watched)
    slot_of = np.full(matters.shape, -1, dtype=np.int32)
    slot_of[matters] = np.arange(np.count_nonzero(matters), dtype=np.int32)
    up = np.full(slot_of.shape, -1, dtype=np.int32)
    for node, above in enumerate(parent.tolist()):
        if above >= 0:
            up[node] = slot_of[above]
            slot_of[node] = np.where(matters[node], slot_of[node], slot_of[above])
    height = np.broadcast_to(heights(tree)[:, None], matters.shape)
    slots = Slots(up[matters], local[matters], cap[matters], subtree[matters], height[matters])

    node_of_need = np.repeat(np.repeat(options.node, np.diff(options.first)), np.diff(options.need))
    slot = slot_of[node_of_need, options.cell]
    kept = slot >= 0
    first = np.concatenate([[0], np.cumsum(kept)])[options.need].astype(np.int32)
    needs = Needs(first, slot[kept], options.amount[kept], options.lead)
    return _with_nodes(
        problem, Compact(slots, needs, held(busy, slot_of), slot_of, len(slots.up), np.zeros(0, dtype=np.int64))
    )


def _with_nodes(problem: Problem, quota: Compact) -> Compact:
    """The limits of nodes added, as far as they can bind, each as a root without children."""
    packing, slots, needs = problem.packing, quota.slots, quota.needs
    number = np.full(len(packing.limits.capacity), -1, dtype=np.int32)
    binding = _short_of_nodes(problem)
    number[binding] = len(slots.up) + np.arange(np.count_nonzero(binding), dtype=np.int32)
    if not binding.any():
        return quota
    alone = np.full(np.count_nonzero(binding), -1, dtype=np.int32)
    slots = Slots(
        np.concatenate([slots.up, alone]),
        np.concatenate([slots.local, np.zeros(len(alone), dtype=np.int64)]),
        np.concatenate([slots.cap, packing.limits.capacity[binding]]),
        np.concatenate([slots.subtree, packing.limits.capacity[binding]]),
        np.concatenate([slots.height, np.zeros(len(alone), dtype=np.int32)]),
    )
    of_quota = np.repeat(np.arange(len(needs.first) - 1), np.diff(needs.first))
    of_nodes = np.repeat(np.arange(len(needs.first) - 1), np.diff(packing.first))
    counts = binding[packing.limit]
    option = np.concatenate([of_quota, of_nodes[counts]])
    order = np.argsort(option, kind="stable")
    needs = Needs(
        np.searchsorted(option[order], np.arange(len(needs.first))).astype(np.int32),
        np.concatenate([needs.slot, number[packing.limit[counts]]])[order],
        np.concatenate([needs.amount, packing.amount[counts]])[order],
        needs.lead,
    )
    there = packing.held
    counts = binding[there.limit]
    taken = Held(number[there.limit[counts]], there.amount[counts], there.start[counts], there.end[counts])
    joined = Held(*(np.concatenate([a, b]) for a, b in zip(quota.held, taken, strict=True))).by_start()
    return quota._replace(slots=slots, needs=needs, held=joined, limit=np.flatnonzero(binding))


def _watched(problem: Problem) -> Bools:
    """Cells of nodes whose use decides which flavor a queue takes: ``bool [N, C]``."""
    tree, options = problem.tree, problem.options
    result = np.zeros(tree.nominal.shape, dtype=np.bool_)
    option = np.repeat(rather_next(problem), np.diff(options.first))
    node_of_option = np.repeat(options.node, np.diff(options.first))
    need = np.repeat(option, np.diff(options.need))
    result[np.repeat(node_of_option, np.diff(options.need))[need], options.cell[need]] = True
    for node in range(len(tree.parent) - 1, -1, -1):
        if tree.parent[node] >= 0:
            result[tree.parent[node]] |= result[node]
    return result


def rather_next(problem: Problem) -> Bools:
    """Pairs that have a choice, of which their queue takes the one that borrows least far: ``bool [pairs]``.

    The others take the first.
    """
    tree, options = problem.tree, problem.options
    nodes = np.zeros(len(tree.parent), dtype=np.bool_)
    nodes[tree.queue_node[tree.try_next_flavor & (tree.queue_node >= 0)]] = True
    return nodes[options.node] & (np.diff(options.first) > 1)


def _short_of_nodes(problem: Problem) -> Bools:
    """Limits of nodes that would be exceeded if all work ran at once: ``bool [L]``."""
    packing, options = problem.packing, problem.options
    limits = len(packing.limits.capacity)
    total = np.bincount(packing.held.limit, weights=packing.held.amount, minlength=limits)
    rows = np.bincount(problem.pair, minlength=len(options.node))
    most = np.zeros((len(options.node), limits))
    pair_of_option = np.repeat(np.arange(len(options.node)), np.diff(options.first))
    np.maximum.at(most, (np.repeat(pair_of_option, np.diff(packing.first)), packing.limit), packing.amount)
    # Sums of floats: one part in 2^52 more or less decides nothing but whether a limit is kept.
    return np.asarray((total + rows @ most) * (1 + 1e-12) > packing.limits.capacity)


def held(busy: Busy, slot_of: Int32s) -> Held:
    """What is busy, by slot."""
    slot = slot_of[busy.node, busy.cell]
    kept = slot >= 0
    return Held(slot[kept], busy.amount[kept], busy.start[kept], busy.end[kept]).by_start()


def _binding(problem: Problem) -> Bools:
    """Cells that could run short: ``bool [N, C]``, told at roots. The others have room even if all ran at once."""
    tree, options, busy = problem.tree, problem.options, problem.busy
    parent, subtree, local, borrowing = tree.arrays
    rows = np.bincount(problem.pair, minlength=len(options.node))
    use = tree.no_usage()
    most = np.zeros((len(options.node), tree.cells), dtype=np.int64)  # of each cell, over the options of a pair
    pair_of_need = np.repeat(np.repeat(np.arange(len(options.node)), np.diff(options.first)), np.diff(options.need))
    np.maximum.at(most, (pair_of_need, options.cell), options.amount)
    # Floats, because a sum over all rows may leave int64; one part in 2^52 more or less decides nothing here but
    # whether a cell is kept, and 1 is added for it.
    total = use.astype(np.float64)
    np.add.at(total, options.node, most * (rows[:, None] * (1 + 1e-12)))
    np.add.at(total, (busy.node, busy.cell), busy.amount)
    for node in range(len(parent) - 1, -1, -1):
        if parent[node] >= 0:
            total[parent[node]] += np.maximum(0, total[node] - local[node])
    room = np.zeros_like(total)
    short = np.zeros(total.shape, dtype=np.bool_)
    for node, above in enumerate(parent.tolist()):
        if above < 0:
            room[node] = subtree[node] - total[node]
        else:
            own = np.maximum(0, local[node] - total[node])
            shared = (subtree[node] - local[node]) - np.maximum(0, total[node] - local[node]) + borrowing[node]
            room[node] = own + np.minimum(room[above], shared)
        short[tree.root[node]] |= room[node] < 0
    asked = np.zeros(tree.cells, dtype=np.bool_)
    asked[options.cell] = True
    return short & asked


def _not_implied(problem: Problem, binding: Bools, local: Int64s, cap: Int64s) -> Bools:
    """``binding`` without the cells that another cell of the same flavor implies.

    When no request asks for more than ``ratio`` times as much of one cell as of another, and each node has at least
    ``ratio`` times as much of it (private quota exactly so), then by induction along the tree so it is with what is
    available; what fits the other cell fits this one.
    """
    tree, options, busy = problem.tree, problem.options, problem.busy
    resources = len(tree.resources)
    root = tree.root
    option_of_need = np.repeat(np.arange(len(options.need) - 1), np.diff(options.need))
    option_root = root[np.repeat(options.node, np.diff(options.first))]
    holders, holder = np.unique(np.stack([busy.node, busy.start, busy.end]), axis=1, return_inverse=True)
    user_root = np.concatenate([option_root, root[holders[0]]])

    def asked(cell: int) -> Int64s:
        """How much of a cell each option, and each holder, takes."""
        amount = np.zeros(len(user_root), dtype=np.int64)
        k = options.cell == cell
        amount[option_of_need[k]] = options.amount[k]
        k = busy.cell == cell
        np.add.at(amount, len(option_root) + holder.reshape(-1)[k], busy.amount[k])
        return amount

    result = binding.copy()
    for flavor in range(len(tree.flavors)):
        cells = [c for c in range(flavor * resources, (flavor + 1) * resources) if binding[:, c].any()]
        amounts = {cell: asked(cell) for cell in cells}
        for less in cells:
            for cell in cells:
                both = result[:, cell] & result[:, less] & (cell != less)
                if not both.any():
                    continue
                mine, other = amounts[cell], amounts[less]
                used = mine > 0
                ratio = np.zeros(len(binding), dtype=np.int64)
                np.maximum.at(ratio, user_root[used], -(-mine[used] // np.maximum(1, other[used])))
                implied = both.copy()
                np.logical_and.at(implied, user_root[used], other[used] > 0)
                sane = ratio[root] * cap[:, less].astype(np.float64) < UNLIMITED
                enough = (cap[:, cell] >= UNLIMITED >> 1) | (sane & (cap[:, cell] >= ratio[root] * cap[:, less]))
                np.logical_and.at(implied, root, enough & (local[:, cell] == ratio[root] * local[:, less]))
                result[implied, cell] = False
    return result


@njit(cache=True, nogil=True, inline="always")
def room(slots: Slots, use: Int64s, slot: int) -> int:
    """What may still be taken of a slot, given the use of each; negative in debt."""
    private, limit = 0, UNLIMITED
    while slot >= 0:
        free = slots.local[slot] - use[slot]
        if free > 0:
            private += free
            free = 0
        limit = min(limit, private + slots.cap[slot] + free)
        slot = slots.up[slot]
    return limit


@njit(cache=True, nogil=True, inline="always")
def distance(slots: Slots, use: Int64s, slot: int, amount: int) -> int:
    """How far up ``amount`` more of a slot would be borrowed; as :func:`solver.choose.choose` has it.

    The slot, and those above it, must be those of all nodes on the way from a ClusterQueue to its root.
    """
    if slots.up[slot] < 0 or use[slot] + amount <= slots.subtree[slot]:
        return 0
    while slots.up[slot] >= 0:
        amount -= max(0, slots.local[slot] - use[slot])
        slot = slots.up[slot]
        if use[slot] + amount <= slots.subtree[slot]:
            break
    return int(slots.height[slot])


@njit(cache=True, nogil=True)
def hold(slots: Slots, use: Int64s, slot: int, amount: int) -> None:
    """Add to the use of a slot (negative: give back), and of those above it what is not private."""
    while slot >= 0 and amount != 0:
        local = slots.local[slot]
        before = max(0, use[slot] - local)
        use[slot] += amount
        amount = max(0, use[slot] - local) - before
        slot = slots.up[slot]
