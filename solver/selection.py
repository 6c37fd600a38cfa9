"""Which work to have on time when not all can be: Moore and Hodgson's rule, over quota × time.

In the order of due dates, work is accepted; whenever a part of the tree would need more quota × time than it has until
then, what is worth least for its quota × time is given up. What is accepted is scheduled first, what is given up
behind it. This is worth more than any ordering rule: a rule gives up whatever its order happens to leave too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit

from solver.energy import Part, Parts
from solver.problem import Float64s
from solver.quota import Bools, Int64s
from solver.rules import Work, weighted_shortest
from solver.schedule import Scheduler


class Taste(NamedTuple):
    """How much to accept, and in which order to place it."""

    fill: float
    """Part of the quota × time that is counted on: not every gap can be filled."""
    lead: float
    """Accepted work goes by due date − lead × duration."""


TASTES = tuple(
    Taste(fill, lead)
    for fill, lead in ((0.93, 1), (0.9, 1), (0.96, 1), (0.98, 0.9), (0.98, 1), (0.85, 1), (0.8, 1), (0.96, 0.75))
)
"""The best on average first, on backlogs of 200 to 10,000 rows at loads of 0.9 to 1.3."""


class _Share(NamedTuple):
    """Rows that share a part of the tree, by due date: what each takes, and what there is until each is due."""

    members: Int64s
    energy: Float64s
    room: Float64s


class Selection:
    """Selects among the work of one problem, to different tastes."""

    def __init__(self, scheduler: Scheduler, work: Work) -> None:
        self._work = work
        self._able = work.counts & ~work.hopeless
        self._shares = list(_shares(scheduler, work, np.flatnonzero(self._able)))

    def order(self, taste: Taste) -> Int64s:
        """Rows to be placed so as to be on time: those that have waited too long, what is accepted, then the rest."""
        work = self._work
        accepted = self._able.copy()
        for members, energy, room in self._shares:
            _give_up(accepted, members, energy, work.weight, room * taste.fill)
        key = np.where(accepted, work.due - taste.lead * work.duration, weighted_shortest(work))
        rank = np.where(work.aged, 0, np.where(accepted, 1, 2))
        order = np.lexsort((np.where(work.aged, work.created, key), rank))
        return work.rows[order[(work.aged | self._able)[order]]]


def _shares(scheduler: Scheduler, work: Work, able: Int64s) -> Iterator[_Share]:
    """Parts that cannot hold all of their work: of the tree from the queues up to the roots, then of nodes."""
    problem, parts = scheduler.problem, Parts(scheduler)
    least_fill = min(taste.fill for taste in TASTES)
    by_due = able[np.argsort(work.due[able], kind="stable")]
    queue = problem.options.node[problem.pair[work.rows[by_due]]]

    def share(inside: Int64s, part: Part) -> Iterator[_Share]:
        least = part.least[problem.pair[work.rows[inside]]]
        members, least = inside[least > 0], least[least > 0]
        energy: Float64s = work.duration[members] * least
        room = part.room_until(problem.due[work.rows[members]])
        if (np.cumsum(energy) > least_fill * room).any():
            yield _Share(members, energy, room)

    for node in reversed(np.argsort(parts.under.sum(axis=0), kind="stable").tolist()):
        inside = by_due[parts.under[node][queue]]
        for part in parts.of(node) if len(inside) else ():
            yield from share(inside, part)
    for part in parts.on_nodes():
        yield from share(by_due, part)


@njit(cache=True, nogil=True)
def _give_up(accepted: Bools, members: Int64s, energy: Float64s, weight: Float64s, room: Float64s) -> None:
    """Take rows out of ``accepted``, so that the energy of the members ``0 … k`` still in it is at most ``room[k]``."""
    total = 0.0
    heap = [(0.0, 0)]
    heap.clear()
    for k in range(len(members)):
        if accepted[members[k]]:
            heappush(heap, (weight[members[k]] / energy[k], k))
            total += energy[k]
        while total > room[k] and len(heap) > 0:
            _, least = heappop(heap)
            total -= energy[least]
            accepted[members[least]] = False
