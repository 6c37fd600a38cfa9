"""Room on nodes at this moment: whether the pods that Kueue would admit fit onto the nodes of their flavors.

Kueue does not look at nodes: what it admits takes them, whether there is room or not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.choose import Choice, Queues, Shapes
from solver.packing import Packing, share
from solver.problem import NEVER, Problem
from solver.quota import Int64s, inner


class NodeRoom(NamedTuple):
    """What is in use of each limit of nodes, ``[L]``, and since when others wait for it."""

    packing: Packing
    use: Int64s
    waiting: Int64s
    """Earliest planned start of work that waits for nodes."""


def node_room(problem: Problem) -> NodeRoom:
    """With what runs now in use, and nobody waiting."""
    held, limits = problem.packing.held, len(problem.packing.limits.capacity)
    use = np.zeros(limits, dtype=np.int64)
    np.add.at(use, held.limit, held.amount)
    return NodeRoom(problem.packing, use, np.full(limits, NEVER, dtype=np.int64))


@inner
def counts(room: NodeRoom, limit: int, queues: Queues, shapes: Shapes, queue: int, shape: int, choice: Choice) -> int:
    """What the pods that were chosen for a request count towards a limit."""
    limits, total = room.packing.limits, 0
    for pod_set in range(shapes.first[shape], shapes.first[shape + 1]):
        row = pod_set - shapes.first[shape]
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            group = queues.group[queue, shapes.resource[k]]
            if group >= 0:
                flavor = choice.flavor[row, group - queues.first[queue]]
                if flavor * queues.resources + shapes.resource[k] == limits.cell[limit]:
                    size = shapes.amount[k]
                    total += choice.pods[row] * share(int(limits.parts[limit]), limits.unit[limit], size)
    return total


@inner
def fits_on_nodes(
    room: NodeRoom, queues: Queues, shapes: Shapes, queue: int, shape: int, choice: Choice, duration: int
) -> bool:
    """Whether the pods that were chosen fit, and are gone before anyone is planned to start who waits for nodes."""
    for limit in range(len(room.use)):
        amount = counts(room, limit, queues, shapes, queue, shape, choice)
        over = room.use[limit] + amount > room.packing.limits.capacity[limit]
        if amount > 0 and (over or duration > room.waiting[limit]):
            return False
    return True


@inner
def take_nodes(room: NodeRoom, queues: Queues, shapes: Shapes, queue: int, shape: int, choice: Choice) -> None:
    """The pods that were chosen start."""
    for limit in range(len(room.use)):
        room.use[limit] += counts(room, limit, queues, shapes, queue, shape, choice)


@inner
def wait_for_nodes(room: NodeRoom, option: int, start: int) -> None:
    """Remember work that waits: for what it is short of now, if it is for nodes."""
    packing = room.packing
    for k in range(packing.first[option], packing.first[option + 1]):
        limit = packing.limit[k]
        if room.use[limit] + packing.amount[k] > packing.limits.capacity[limit]:
            room.waiting[limit] = min(room.waiting[limit], start)
