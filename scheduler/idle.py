"""Quota that lies idle although work waits for it."""

from __future__ import annotations

import numpy as np
from numba import njit

from solver.problem import Options, Problem
from solver.quota import Bools, Int32s, Int64s, TreeArrays, available, take_all


def idle(problem: Problem, waiting: Bools) -> dict[tuple[str, str], float]:
    """What is free now of quota that some of the waiting work could take.

    Too little for any one of them counts as well: it is idle. What cannot reach them (another's quota that it does not
    lend, a flavor that they may not use) does not count.

    Parameters
    ----------
    waiting
        For each row whether it would start if it had its quota.

    Returns
    -------
    dict
        By the name of the topmost cohort (of the ClusterQueue, if it has none) and the resource: an amount, in units of
        the resource (CPUs, bytes, GPUs).
    """
    pairs = np.unique(problem.pair[waiting]).astype(np.int32)
    if not len(pairs):
        return {}
    tree, busy = problem.tree, problem.busy
    used = np.where((busy.start <= 0) & (busy.row >= 0), busy.amount, 0)
    usage = tree.no_usage()
    take_all(tree.arrays, usage, busy.node, busy.cell, used)
    free = _free(tree.arrays, problem.options, usage, tree.root, pairs)
    amounts: dict[tuple[str, str], float] = {}
    for node, cell in np.argwhere(free > 0).tolist():
        resource = tree.resources[cell % len(tree.resources)]
        key = tree.names[node], resource
        amounts[key] = amounts.get(key, 0.0) + float(free[node, cell]) / (1000 if resource == "cpu" else 1)
    return amounts


@njit(cache=True, nogil=True)
def _free(
    tree: TreeArrays,
    options: Options,
    usage: Int64s,
    root: Int32s,
    pairs: Int32s,
) -> Int64s:
    """By root and cell: the most that any of these pairs' queues may take."""
    free = np.zeros(usage.shape, dtype=np.int64)
    for pair in pairs:
        at = options.node[pair]
        for k in range(options.need[options.first[pair]], options.need[options.first[pair + 1]]):
            c = options.cell[k]
            free[root[at], c] = max(free[root[at], c], available(tree, usage, at, c))
    return free
