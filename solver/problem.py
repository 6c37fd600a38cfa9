"""What is to be planned: the quota tree, the work, and what is in use already, as columns.

All times are ``int64`` milliseconds counted from ``now``. Amounts are Kueue's own units. Nothing here is a guess: the
problem is what :mod:`solver.decode` read from a request, checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solver.packing import Packing
from solver.quota import Bools, Int32s, Int64s, QuotaTree

Float64s = npt.NDArray[np.float64]
Int8s = npt.NDArray[np.int8]

NEVER = 1 << 60
"""Stands for "no due date"; later than any instant."""

MAX_TIME = 1 << 52
"""Longest time accepted, in milliseconds."""


EVEN = 0.1
"""Part of the mean start in which each row counts alike; in the rest it counts by its quota × time."""


class State(IntEnum):
    """State of a workload; values are those of the proto's WorkloadState."""

    PENDING = 0
    IN_FLIGHT = 1
    RUNNING = 2
    FOREIGN = 3


class Options(NamedTuple):
    """For each distinct (ClusterQueue, shape) *pair*, the assignments it may get, in Kueue's order of preference.

    Options of pair ``p`` are ``first[p] … first[p+1]``; option ``o`` takes ``amount[k]`` of ``cell[k]`` at ``node[p]``
    for ``k`` in ``need[o] … need[o+1]``, and its work begins ``lead[o]`` milliseconds after the start, which is the
    admission. Options that can never fit are left out; a pair without options never fits.
    """

    node: Int32s
    first: Int32s
    need: Int32s
    cell: Int32s
    amount: Int64s
    lead: Int64s


class Busy(NamedTuple):
    """What is in use or kept free: ``amount`` of ``cell`` at ``node`` during ``[start, end)``. Parallel columns.

    ``row`` is the workload of the request that holds it; −1 for a reservation, which Kueue does not know: nothing but
    the plan keeps it free. ``pods`` says by how many equal pods it is held; 0 where nobody knows.
    """

    node: Int32s
    cell: Int32s
    amount: Int64s
    start: Int64s
    end: Int64s
    row: Int64s
    pods: Int64s


@dataclass(frozen=True)
class Rejected:
    """A row that is not planned, and why. ``kind`` is a RejectionKind of the proto."""

    row: int
    kind: int
    field: str
    message: str


@dataclass(frozen=True)
class Problem:
    """One planning problem.

    Rows are the workloads that are to be placed (pending, in flight, foreign); running ones are in ``busy``.

    Attributes
    ----------
    now
        Milliseconds since the Unix epoch; all other times count from it.
    horizon
        How far ahead starts may be placed, in milliseconds; long enough for everything one after another at worst.
    packing
        What fits onto nodes at once, beside quota.
    row
        ``int64 [n]``: position of each row in the request's workloads.
    state
        ``int8 [n]``, a :class:`State`.
    pair
        ``int32 [n]``, a row of ``options``.
    release, duration, due
        ``int64 [n]``; ``release ≥ 0``, ``duration > 0``, ``due`` may be negative (past) or ``NEVER``.
    hard
        ``bool [n]``: worthless when late.
    weight
        ``float64 [n]``, ≥ 0.
    created
        ``int64 [n]``, usually ≤ 0.
    priority
        ``int32 [n]``, Kueue's.
    previous
        ``int64 [n]``: start in the plan in force, −1 for none.
    previous_option
        ``int32 [n]``: with which of ``options``, −1 where nobody knows.
    notes
        What makes no sense in the plan in force, and was left out.
    """

    now: int
    horizon: int
    tree: QuotaTree
    options: Options
    packing: Packing
    busy: Busy
    ids: tuple[str, ...]
    row: Int64s
    state: Int8s
    pair: Int32s
    release: Int64s
    duration: Int64s
    due: Int64s
    hard: Bools
    weight: Float64s
    created: Int64s
    priority: Int32s
    previous: Int64s
    previous_option: Int32s
    rejected: tuple[Rejected, ...] = field(default=())
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of rows to place."""
        return len(self.row)

    def row_ids(self) -> Iterator[str]:
        """Of the rows to place, in their order: the ids of their workloads."""
        return map(self.ids.__getitem__, self.row.tolist())

    def length(self, option: Int32s) -> Int64s:
        """How long each row holds what it takes with an option: ``int64 [n]``, lead and duration."""
        return self.duration + (self.options.lead[option] if len(self) else 0)

    @cached_property
    def shortest(self) -> Int64s:
        """The same with the option that begins soonest."""
        least = np.minimum.reduceat(np.append(self.options.lead, 0), self.options.first)[:-1]
        return self.duration + least[self.pair]

    @cached_property
    def size(self) -> Float64s:
        """Part of its tree's nominal quota that a row takes, of its scarcest resource, all flavors together.

        ``float64 [n]``. With its most modest option; usually all options take the same.
        """
        return _option_sizes(self.tree, self.options)[self.pair]

    @cached_property
    def pull(self) -> Float64s:
        """How much it counts how early a row starts: ``float64 [n]``, together 1.

        A small part of it is shared out evenly, so that small work does not wait without need; the rest by quota ×
        time, so that quota is in use early. (While all quota is in use, the order of the work makes no difference to
        the rest. Quota that lies idle, and wide work that is left to run alone at the end, do.)
        """
        energy = self.size * self.duration
        even = np.full(len(self), 1 / max(1, len(self)))
        total = float(energy.sum())
        return EVEN * even + (1 - EVEN) * energy / total if total > 0 else even


def _option_sizes(tree: QuotaTree, options: Options) -> Float64s:
    """``Problem.size`` for each pair."""
    if not len(options.node):
        return np.zeros(0)
    resources = max(1, len(tree.resources))
    nominal = np.zeros((len(tree.parent), resources))
    np.add.at(nominal, tree.root, tree.nominal.reshape(len(tree.parent), len(tree.flavors), resources).sum(axis=1))
    asked = np.zeros((len(options.need) - 1, resources))
    option = np.repeat(np.arange(len(asked)), np.diff(options.need))
    np.add.at(asked, (option, options.cell % resources), options.amount)
    root = tree.root[np.repeat(options.node, np.diff(options.first))]
    share = np.append((asked / np.maximum(1, nominal[root])).max(axis=1), 0.0)  # one more, where the last pair ends
    return np.minimum.reduceat(share, options.first)[:-1]
