"""Kueue's quota tree: who may use how much of what, computed exactly as Kueue computes it.

A *cell* is one (flavor, resource) pair; all arithmetic is per cell. Nodes are ClusterQueues and Cohorts. What a node
does not lend (``local``) is private to it; only use above it counts at the parent. The formulas are those of Kueue
0.17 (``pkg/cache/scheduler/resource_node.go``), in its v1beta2 terms:

    subtree(ClusterQueue) = nominal; subtree(Cohort) = nominal + Σ (child.subtree − child.local)
    local                 = max(0, subtree − lendingLimit), 0 when lendingLimit is unset
    usage(Cohort)         = Σ max(0, child.usage − child.local)
    available(root)       = subtree − usage
    available(node)       = max(0, local − usage)
                          + min(available(parent), subtree − local − max(0, usage − local) + borrowingLimit)

``available`` of a parent is never clamped at zero: a cohort in debt (its quota was cut below its use) eats the private
quota of its children. Only the final result for a ClusterQueue is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from solver.amounts import MAX_AMOUNT as MAX_AMOUNT

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
"""Compiles a function that only kernels call: without wrappers for Python and C that takes half as long."""

UNLIMITED = 1 << 60
"""Stands for an unset borrowingLimit; larger than any sum of amounts."""


class TreeArrays(NamedTuple):
    """The tree as kernels read it; ``[N]`` nodes, ``[N, C]`` nodes × cells. Parents come before their children."""

    parent: Int32s
    subtree: Int64s
    local: Int64s
    borrowing: Int64s


@dataclass(frozen=True)
class QuotaTree:
    """ClusterQueues and Cohorts with their quotas.

    Attributes
    ----------
    resources, flavors
        Names. Cell ``c`` is flavor ``c // len(resources)``, resource ``c % len(resources)``.
    names
        Node names, ``[N]``; the name of a ClusterQueue and of a Cohort may be equal.
    parent
        ``int32 [N]``, −1 for a root. A parent's position is smaller than its children's.
    queue_node
        ``int32 [Q]``: node of each ClusterQueue, in the order of the request; −1 for a frozen queue.
    nominal, lending, borrowing
        ``int64 [N, C]``, in Kueue's units; ``UNLIMITED`` where a limit is unset.
    groups
        For each ClusterQueue its resource groups: ``(resources, flavors in Kueue's order)``.
    strict_fifo, try_next_flavor, stopped
        ``bool [Q]``.
    frozen
        Why a ClusterQueue cannot be planned, by position.
    """

    resources: tuple[str, ...]
    flavors: tuple[str, ...]
    names: tuple[str, ...]
    parent: Int32s
    queue_names: tuple[str, ...]
    queue_node: Int32s
    nominal: Int64s
    lending: Int64s
    borrowing: Int64s
    groups: tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...]
    strict_fifo: Bools
    try_next_flavor: Bools
    stopped: Bools
    frozen: dict[int, str] = field(default_factory=dict)
    arrays: TreeArrays = field(init=False)
    root: Int32s = field(init=False)
    potential: Int64s = field(init=False)
    """Most that could ever be available at a node: ``int64 [N, C]``. A request above it never fits."""

    def __post_init__(self) -> None:
        subtree = self.nominal.copy()
        local = np.zeros_like(subtree)
        for node in range(len(self.parent) - 1, -1, -1):
            limited = self.lending[node] < UNLIMITED
            local[node] = np.where(limited, np.maximum(0, subtree[node] - self.lending[node]), 0)
            if self.parent[node] >= 0:
                subtree[self.parent[node]] += subtree[node] - local[node]
        potential = subtree.copy()
        root = np.arange(len(self.parent), dtype=np.int32)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                root[node] = root[parent]
                potential[node] = np.minimum(local[node] + potential[parent], subtree[node] + self.borrowing[node])
        arrays = TreeArrays(self.parent, subtree, local, self.borrowing)
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "potential", potential)

    @property
    def cells(self) -> int:
        """Number of (flavor, resource) pairs."""
        return len(self.flavors) * len(self.resources)

    def cell(self, flavor: int, resource: int) -> int:
        """The cell of a flavor and a resource, by position."""
        return flavor * len(self.resources) + resource

    def cell_name(self, cell: int) -> str:
        """``resource in flavor f``, as Kueue's own messages have it."""
        flavor, resource = divmod(cell, len(self.resources))
        return f"{self.resources[resource]} in flavor {self.flavors[flavor]}"

    def no_usage(self) -> Int64s:
        """A fresh usage table, ``int64 [N, C]``, with nothing in use."""
        return np.zeros((len(self.parent), self.cells), dtype=np.int64)


@njit(cache=True, nogil=True)
def available(tree: TreeArrays, usage: Int64s, node: int, cell: int) -> int:
    """What a node may still take of a cell; negative when it, or a cohort above it, is in debt."""
    # The recursion of the formula, unrolled from below: private room adds up on the way to the root, and each node's
    # limit on what comes from above it caps the sum so far.
    private, limit = 0, UNLIMITED
    while tree.parent[node] >= 0:
        used, local = usage[node, cell], tree.local[node, cell]
        private += max(0, local - used)
        shared = tree.subtree[node, cell] - local - max(0, used - local) + tree.borrowing[node, cell]
        limit = min(limit, private + shared)
        node = tree.parent[node]
    return int(min(limit, private + tree.subtree[node, cell] - usage[node, cell]))


@njit(cache=True, nogil=True)
def take(tree: TreeArrays, usage: Int64s, node: int, cell: int, amount: int) -> None:
    """Add ``amount`` (negative: give back) to a ClusterQueue's use; only what is not private counts above it."""
    while node >= 0 and amount != 0:
        local = tree.local[node, cell]
        before = max(0, usage[node, cell] - local)
        usage[node, cell] += amount
        amount = max(0, usage[node, cell] - local) - before
        node = tree.parent[node]


@njit(cache=True, nogil=True)
def take_all(tree: TreeArrays, usage: Int64s, node: Int32s, cell: Int32s, amount: Int64s) -> None:
    """Take each ``amount`` of ``cell`` at ``node``: parallel columns, as those of :class:`solver.problem.Busy`."""
    for k in range(len(node)):
        take(tree, usage, node[k], cell[k], amount[k])


@njit(cache=True, nogil=True)
def fits(tree: TreeArrays, usage: Int64s, node: int, cells: Int32s, amounts: Int64s) -> bool:
    """Whether a ClusterQueue may take all amounts now. ``cells`` are distinct."""
    for k in range(len(cells)):  # noqa: SIM110  (numba has no generators in all())
        if amounts[k] > max(0, available(tree, usage, node, cells[k])):
            return False
    return True
