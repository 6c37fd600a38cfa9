"""Parts of the quota tree, how much quota × time each has until an instant, and how much of it work must take.

A *part* is a node with all below it, and some of its cells: one resource in one flavor, or in all flavors together.
What is held already, and work that is not ours, has its share already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solver.problem import Float64s, Problem
from solver.quota import UNLIMITED, Bools, Int64s
from solver.schedule import Scheduler


class Part:
    """All work under a node, for some cells.

    Attributes
    ----------
    node
        The node of the tree.
    room
        The most that all queues under it may hold together, what they keep private included.
    least
        ``int64 [pairs]``: what each pair takes of the part, whichever option it gets.
    """

    def __init__(self, parts: Parts, node: int, cells: list[int], room: int) -> None:
        self.node, self.room = node, room
        options = parts.problem.options
        taken = np.zeros(len(options.need), dtype=np.int64)  # one more, where the last pair ends
        k = np.isin(options.cell, cells)
        np.add.at(taken, parts.option_of_need[k], options.amount[k])
        self.least: Int64s = np.minimum.reduceat(taken, options.first)[:-1]
        self.least[~parts.under[node][options.node]] = 0
        self._parts, self._cells = parts, cells

    def room_until(self, instants: Int64s) -> Float64s:
        """Quota × time that is left between now and each instant."""
        use = self._parts
        k = use.under[self.node][use.node] & np.isin(use.cell, self._cells)
        times = np.concatenate([use.start[k], use.end[k]])
        changes = np.concatenate([use.amount[k], -use.amount[k]]).astype(np.float64)
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
                    yield Part(self, node, group, int(room[group].sum()))
