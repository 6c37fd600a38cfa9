"""In which order Kueue comes to what is on its way: whether that matters to anybody.

Kueue tries heads of queues by priority and age, not in the order of the plan. What could have another flavor, or more
pods, if it came first may then leave nothing to others whose turn it was: an older job for either kind of GPU takes the
only kind that an urgent one may have. Such work is kept back until the others hold their quota.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.backfill import Course
from solver.choose import ATTEMPTS, FITS, Choice, Queues, Shapes, claim, retry
from solver.problem import Int8s, State
from solver.quota import Bools, Int32s, Int64s, TreeArrays, inner

PENDING = int(State.PENDING)


class Rows(NamedTuple):
    """What the walk reads of each row; ``[n]`` columns."""

    state: Int8s
    pair: Int32s
    queue: Int32s
    shape: Int32s
    priority: Int64s
    created: Int64s
    earliest: Int64s
    duration: Int64s
    shortest: Int64s
    """With the option that begins soonest."""
    due: Int64s
    start: Int64s
    releasable: Bools
    alike: Int64s
    """Number of a group of rows of which Kueue would say the same."""
    several: Bools
    """Whether there is more than one way to admit it: other flavors, fewer pods."""
    fresh: Bools
    """See :func:`scheduler.dispatch.dispatch`."""


@inner
def ask(
    tree: TreeArrays, queues: Queues, shapes: Shapes, usage: Int64s, choice: Choice, rows: Rows, row: int
) -> tuple[int, bool]:
    """Whether Kueue would admit a row now, and whether it would go on trying for ever."""
    mode, _, attempts = retry(
        tree, queues, shapes, usage, int(rows.queue[row]), int(rows.shape[row]), choice, ATTEMPTS, rows.priority[row],
        rows.created[row],
    )  # fmt: skip
    return mode, attempts > ATTEMPTS


@inner
def depends_on_order(
    tree: TreeArrays, queues: Queues, shapes: Shapes, held: Int64s, choice: Choice, rows: Rows, row: int
) -> bool:
    """Whether Kueue would choose something else for a row if it came before all that are on their way."""
    total = choice.total.copy()
    ask(tree, queues, shapes, held, choice, rows, row)
    return bool((choice.total != total).any())


@inner
def in_any_order(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    held: Int64s,
    to_come: Course,
    choice: Choice,
    rows: Rows,
    moving: Bools,
    depends: Bools,
    rank: Int64s,
    released: Int64s,
    count: int,
) -> int:
    """Keep back what depends on who comes first, where somebody would come away empty-handed; how many are left.

    Tried are Kueue's order, and what is released before what Kueue has already: that may be parked for a moment.
    """
    kueue = np.empty(len(rank), dtype=np.int64)
    kueue[rank] = np.arange(len(rank))
    fails = np.zeros(len(held), dtype=np.bool_)
    for released_first in range(2):
        usage = held.copy()
        for turn in range(1 + released_first):
            for row in kueue:
                own = rows.state[row] == PENDING
                root = to_come.root[queues.node[rows.queue[row]]]
                if not moving[row] or fails[root] or (released_first == 1 and own != (turn == 0)):
                    continue
                mode, _ = ask(tree, queues, shapes, usage, choice, rows, row)
                if mode < FITS:
                    fails[root] = True
                else:
                    claim(tree, usage, queues.node[rows.queue[row]], choice.total)
    kept = 0
    for k in range(count):
        row = released[k]
        if not (depends[row] and fails[to_come.root[queues.node[rows.queue[row]]]]):
            released[kept] = row
            kept += 1
    return kept
