"""Nodes: a pod does not span two of them, so quota for sixteen GPUs may be no room for two pods of six.

Whether a set of pods can be put onto the nodes of a flavor is told by a few sums, each a limit that must not be
exceeded. Each sum measures pods and nodes in its own way, and all of these measures have in common that pods which fit
onto one node never count more than the node. So pods that exceed a limit fit in no way.

* By a *unit*: a pod, or node, of size x counts floor(x / unit). Units are the smallest sizes of which a node holds at
  most k, for k from 0 to 8: so pods larger than a third of a node, and no larger than half, take one of two units that
  it has. The unit 1 is the plain sum.
* By *parts* of the largest node: steps of 1/k, floor((k+1) x) / k where x is a pod's part of the node; but x itself
  where (k+1) x is whole. (The dual feasible functions u(k) of Lueker, 1983; see Fekete & Schepers, "New classes of fast
  lower bounds for bin packing problems", 2001.)

The reverse, that pods within all limits fit, holds where each size divides the next larger one, and nearly always on
nodes of up to eight GPUs. Nobody looks at which pod sits where, and pods that run are not moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numba import njit

from solver.quota import UNLIMITED, Bools, Int32s, Int64s

PARTS = 8
"""Finest steps that are looked at: with more than so many pods to a node, little of it can be lost."""

MOST_SIZES = 4
"""Sizes of nodes that make units, those with the most nodes, the larger ones of equals."""

Pieces = Mapping[tuple[int, int], int]
"""Number of pods by cell (flavor and resource) and by what each of them asks for."""


class Limits(NamedTuple):
    """Sums that must not be exceeded; ``[L]`` columns."""

    cell: Int32s
    """Flavor and resource that it is about."""
    parts: Int32s
    unit: Int64s
    """How it measures pods; see :func:`share`."""
    capacity: Int64s
    """Sum of the shares of all nodes."""


class PodColumns(NamedTuple):
    """Pods: ``pods[k]`` of them ask for ``size[k]`` of ``cell[k]`` each, for ``k`` in ``first[o] … first[o+1]``.

    ``o`` is an option of the problem. Only what counts on nodes that are known is listed.
    """

    first: Int32s
    cell: Int32s
    size: Int64s
    pods: Int64s


class OnNodes(NamedTuple):
    """What counts towards limits, by those who run: ``amount`` of ``limit`` during ``[start, end)``."""

    limit: Int32s
    amount: Int64s
    start: Int64s
    end: Int64s


class Packing(NamedTuple):
    """Limits of nodes that could be exceeded, and what counts towards them. Without limits nothing else is there.

    Option ``o`` of the problem takes ``amount[k]`` of ``limit[k]`` for ``k`` in ``first[o] … first[o+1]``.
    """

    limits: Limits
    first: Int32s
    limit: Int32s
    amount: Int64s
    held: OnNodes
    pods: PodColumns


@njit(cache=True, nogil=True)
def share(parts: int, unit: int, size: int) -> int:
    """What a pod, or node, of some size counts.

    With ``parts`` 0 in units; else ``unit`` is what the largest node has, and it counts in steps of
    1/(parts · (parts + 1)) of that.
    """
    if parts == 0:
        return size // unit
    steps = (parts + 1) * size // unit
    exact = steps * unit == (parts + 1) * size
    return parts * steps if exact else (parts + 1) * steps


@njit(cache=True, nogil=True)
def shares(parts: int, unit: int, size: Int64s) -> Int64s:
    """:func:`share` of each of some sizes."""
    result = np.empty_like(size)
    for k in range(len(size)):
        result[k] = share(parts, unit, size[k])
    return result


class Nodes:
    """The nodes of a request's flavors, as far as they are known.

    Parameters
    ----------
    groups
        By cell (flavor and resource): number of nodes, and what each of them has (more than nothing).
    """

    def __init__(self, groups: Mapping[int, Iterable[tuple[int, int]]]) -> None:
        self._largest: dict[int, int] = {}
        self._limits: dict[int, list[tuple[int, int, int]]] = {}
        for cell, nodes in groups.items():
            count: Counter[int] = Counter()
            for several, size in nodes:
                count[size] += several
            alike = [(size, several) for size, several in count.items() if size > 0 and several > 0]
            if alike:
                self._largest[cell] = largest = max(alike)[0]
                self._limits[cell] = [
                    (parts, unit, min(UNLIMITED, sum(several * share(parts, unit, size) for size, several in alike)))
                    for parts, unit in _measures(largest, alike)
                ]

    def __contains__(self, cell: int) -> bool:
        """Whether the nodes of a cell are known."""
        return cell in self._limits

    def largest(self, cell: int) -> int:
        """What the largest node has."""
        return self._largest[cell]

    def hold(self, pieces: Pieces) -> bool:
        """Whether pods fit when no others are there."""
        if not pieces:
            return True
        taken: Counter[tuple[int, int, int]] = Counter()
        for (cell, size), pods in pieces.items():
            if size > self._largest[cell]:
                return False
            for parts, unit, _ in self._limits[cell]:
                taken[cell, parts, unit] += pods * share(parts, unit, size)
        return all(taken[cell, parts, unit] <= most for cell, ls in self._limits.items() for parts, unit, most in ls)

    def limits(self, pods: PodColumns, running: PodColumns, most: Int64s) -> Limits:
        """Limits that some of these pods could exceed.

        Parameters
        ----------
        pods, running
            Those that are to be placed, and those that run.
        most
            ``int64 [C]``: the most of each cell that can be in use at once.
        """
        kept: list[tuple[int, int, int, int]] = []
        for cell, limits in self._limits.items():
            size = np.unique(np.concatenate([pods.size[pods.cell == cell], running.size[running.cell == cell]]))
            size = size[size > 0]
            weights: dict[tuple[int, int, int], list[int]] = {}
            for parts, unit, capacity in limits:
                weight = shares(parts, unit, size).tolist()
                # Never exceeded where no pod counts more for its amount than nodes have for all that can be in use.
                if any(w * int(most[cell]) > capacity * s for w, s in zip(weight, size.tolist(), strict=True)):
                    weights[parts, unit, capacity] = weight
            kept += [
                (cell, *limit)
                for limit in weights
                if not any(_implied(weights, limit, other) for other in weights if other != limit)
            ]
        columns = np.array(kept, dtype=np.int64).reshape(-1, 4).T
        return Limits(columns[0].astype(np.int32), columns[1].astype(np.int32), columns[2], columns[3])


def _measures(largest: int, alike: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Parts and unit of each limit. ``alike``: sizes of nodes, and how many there are of each."""
    sizes = [size for size, _ in sorted(alike, key=lambda node: (node[1], node[0]), reverse=True)[:MOST_SIZES]]
    units = {1} | {size // (k + 1) + 1 for size in sizes for k in range(PARTS + 1)}
    return [(0, unit) for unit in sorted(units) if unit <= largest] + [(k, largest) for k in range(1, PARTS + 1)]


def _implied(
    weights: Mapping[tuple[int, int, int], list[int]], one: tuple[int, int, int], other: tuple[int, int, int]
) -> bool:
    """Whether no pods can exceed one limit without exceeding another: each counts no more for it, by its capacity."""
    mine = [weight * other[2] for weight in weights[one]]
    its = [weight * one[2] for weight in weights[other]]
    return all(a <= b for a, b in zip(mine, its, strict=True)) and (mine != its or other < one)


def pack(nodes: Nodes, pods: PodColumns, running: PodColumns, end: Int64s, most: Int64s) -> Packing:
    """What counts towards limits of nodes.

    Parameters
    ----------
    pods
        Of each option.
    running
        One entry for each that runs; ``first`` is not looked at.
    end
        ``int64``, until when each entry of ``running`` is there.
    most
        See :meth:`Nodes.limits`.
    """
    limits = nodes.limits(pods, running, most)
    option, limit, amount = _counted(limits, np.repeat(np.arange(len(pods.first) - 1), np.diff(pods.first)), pods)
    # Pods of several sizes, or of several pod sets, add up.
    key, entry = np.unique(option * max(1, len(limits.cell)) + limit, return_inverse=True)
    total = np.zeros(len(key), dtype=np.int64)
    np.add.at(total, entry.reshape(-1), amount)
    option, limit = np.divmod(key, max(1, len(limits.cell)))
    holder, held, taken = _counted(limits, np.arange(len(running.cell)), running)
    return Packing(
        limits=limits,
        first=np.searchsorted(option, np.arange(len(pods.first))).astype(np.int32),
        limit=limit.astype(np.int32),
        amount=total,
        held=OnNodes(held.astype(np.int32), taken, np.zeros(len(held), dtype=np.int64), end[holder]),
        pods=pods,
    )


def _counted(limits: Limits, owner: Int64s, pods: PodColumns) -> tuple[Int64s, Int64s, Int64s]:
    """Owner, limit and amount for each entry of pods that counts towards a limit."""
    found: list[tuple[Int64s, Int64s, Int64s]] = [(owner[:0], owner[:0], owner[:0])]
    for limit in range(len(limits.cell)):
        on: Bools = pods.cell == limits.cell[limit]
        amount = pods.pods[on] * shares(limits.parts[limit], limits.unit[limit], pods.size[on])
        counts = amount > 0
        found.append((owner[on][counts], np.full(np.count_nonzero(counts), limit), amount[counts]))
    owners, numbers, amounts = (np.concatenate(column) for column in zip(*found, strict=True))
    return owners, numbers, amounts
