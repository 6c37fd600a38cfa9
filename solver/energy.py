"""Parts of the quota tree, and of nodes, how much room × time each has until an instant, and how much work must take.

A *part* is a node of the tree with all below it, and some of its cells: one resource in one flavor, or in all flavors
together. Or it is a limit of what fits onto the nodes of a flavor (:mod:`solver.packing`), which work of all trees
shares. What is held already, and work that is not ours, has its share already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver.problem import Float64s, Problem
from solver.quota import UNLIMITED, Bools, Int64s
from solver.schedule import Scheduler


class Part:
    """All work that shares something.

    Attributes
    ----------
    room
        The most that all of it may hold together.
    least
        ``int64 [pairs]``: what each pair takes of that, whichever option it gets.
    """

    def __init__(self, room: int, least: Int64s, amount: Int64s, start: Int64s, end: Int64s) -> None:
        self.room, self.least = room, least
        self._amount, self._start, self._end = amount, start, end

    def room_until(self, instants: Int64s) -> Float64s:
        """Quota × time that is left between now and each instant."""
        times = np.concatenate([self._start, self._end])
        changes = np.concatenate([self._amount, -self._amount]).astype(np.float64)
        order = np.argsort(times, kind="stable")
        begin = np.concatenate([[0], times[order]])
        held = np.concatenate([[0.0], np.cumsum(changes[order])])
        free = np.maximum(0.0, self.room - held)
        so_far = np.concatenate([[0.0], np.cumsum(free[:-1] * np.diff(begin))])
        step = np.searchsorted(begin, instants, side="right") - 1
        result: Float64s = so_far[step] + free[step] * (instants - begin[step])
        return result


class Parts:
    """The parts of a problem's tree.

    Attributes
    ----------
    under
        ``bool [N, N]``: whether the second node is under the first, or is it.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        problem, fixed = scheduler.problem, scheduler.fixed
        options, busy, tree = problem.options, problem.busy, problem.tree
        self.problem: Problem = problem
        self._scheduler = scheduler
        self._slot_of = scheduler.compact.slot_of
        self._asked = np.unique(options.cell).tolist()
        self.under: Bools = np.zeros((len(tree.parent), len(tree.parent)), dtype=np.bool_)
        for node, above in enumerate(tree.parent.tolist()):
            if above >= 0:
                self.under[:, node] = self.under[:, above]
            self.under[node, node] = True
        self.option_of_need = np.repeat(np.arange(len(options.need) - 1), np.diff(options.need))
        placed = np.flatnonzero(fixed.start >= 0)
        option = fixed.option[placed]
        count = options.need[option + 1] - options.need[option]
        row = np.repeat(placed, count)
        entry = np.arange(len(row)) + np.repeat(options.need[option] - np.cumsum(count) + count, count)
        self.node = np.concatenate([busy.node, options.node[problem.pair[row]]])
        self.cell = np.concatenate([busy.cell, options.cell[entry]])
        self.amount = np.concatenate([busy.amount, options.amount[entry]])
        self.start = np.concatenate([busy.start, fixed.start[row]])
        self.end = np.concatenate([busy.end, (fixed.start + problem.length(fixed.option))[row]])

    def of(self, node: int) -> Iterator[Part]:
        """Parts of a node: each resource, over all flavors together and in each alone, as far as they can run short."""
        tree = self.problem.tree
        _, subtree, local, borrowing = tree.arrays
        # What a node keeps private counts at no node above it, so it comes on top there.
        room = subtree[node] + local[self.under[node]].sum(axis=0) - local[node]
        if tree.parent[node] >= 0:
            room = np.where(borrowing[node] < UNLIMITED, room + borrowing[node], UNLIMITED)
        limited = (room < UNLIMITED) & (self._slot_of[node] >= 0)
        for resource in range(len(tree.resources)):
            cells = [cell for cell in self._asked if cell % len(tree.resources) == resource]
            groups = ([cells] if len(cells) > 1 else []) + [[cell] for cell in cells]
            for group in groups:
                if limited[group].all():
                    yield self._part(node, group, int(room[group].sum()))

    def on_nodes(self) -> Iterator[Part]:
        """Limits of nodes that can run short: those that measure alike, over all flavors together, and each alone."""
        slots, needs, _, _, first, limit = self._scheduler.compact
        held, limits = self._scheduler.held, self.problem.packing.limits
        alike: dict[tuple[int, int, int], list[int]] = {}
        for slot, (cell, parts, unit) in enumerate(
            zip(limits.cell[limit].tolist(), limits.parts[limit].tolist(), limits.unit[limit].tolist(), strict=True),
            first,
        ):
            alike.setdefault((cell % len(self.problem.tree.resources), parts, unit), []).append(slot)
        option = np.repeat(np.arange(len(needs.first) - 1), np.diff(needs.first))
        for together in alike.values():
            for group in ([together] if len(together) > 1 else []) + [[slot] for slot in together]:
                taken = np.zeros(len(needs.first), dtype=np.int64)
                k = np.isin(needs.slot, group)
                np.add.at(taken, option[k], needs.amount[k])
                k = np.isin(held.slot, group)
                yield Part(int(slots.cap[group].sum()), self._least(taken), held.amount[k], held.start[k], held.end[k])

    def _part(self, node: int, cells: list[int], room: int) -> Part:
        options = self.problem.options
        taken = np.zeros(len(options.need), dtype=np.int64)
        k = np.isin(options.cell, cells)
        np.add.at(taken, self.option_of_need[k], options.amount[k])
        least = self._least(taken)
        least[~self.under[node][options.node]] = 0
        k = self.under[node][self.node] & np.isin(self.cell, cells)
        return Part(room, least, self.amount[k], self.start[k], self.end[k])

    def _least(self, taken: Int64s) -> Int64s:
        """By pair, the least of what its options take: ``int64 [options + 1]``; the last pair ends at the one more."""
        least: Int64s = np.minimum.reduceat(taken, self.problem.options.first)[:-1]
        return least
