"""The verifier's own reading of nodes: what pods count on them.

Written from the contract alone (``ResourceFlavor.nodes``), in fractions; nothing is shared with the planners.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import floor

from solver.api import planner_pb2 as pb

FINEST = 8
SIZES = 4

Measure = Callable[[int], int]
"""What a pod or node of some size counts."""


class NodeCounts:
    """How pods count on the nodes of a request's flavors.

    Each flavor and resource whose nodes are known has some *counts*, numbered from ``offset`` on, which pods that run
    at once must not exceed. Counts are whole numbers here: parts of a node are told times k(k+1).
    """

    def __init__(self, quota: pb.Quota, offset: int) -> None:
        self.roof: dict[int, int] = {}
        """What all nodes come to, by number of the count."""
        self.largest: dict[int, int] = {}
        """What the largest node has, by cell."""
        self.cell: dict[int, int] = {}
        """Flavor and resource that each count is about."""
        self._measures: dict[int, list[tuple[int, Measure]]] = defaultdict(list)
        self._counted: dict[tuple[int, int], list[tuple[int, int]]] = {}
        nodes: dict[int, Counter[int]] = defaultdict(Counter)
        for flavor, entry in enumerate(quota.flavors):
            for group in entry.nodes:
                for resource, amount in zip(group.resources, group.amounts, strict=True):
                    if group.count > 0 and amount > 0:
                        nodes[flavor * len(quota.resources) + resource][amount] += group.count
        for cell, count in nodes.items():
            self.largest[cell] = max(count)
            for measure in _measures(count):
                number = offset + len(self.roof)
                self.roof[number] = sum(several * measure(size) for size, several in count.items())
                self.cell[number] = cell
                self._measures[cell].append((number, measure))

    def counted(self, cell: int, size: int, pods: int) -> dict[int, int]:
        """What pods of one size count, by number; nothing where nodes are not known."""
        if cell not in self._measures:
            return {}
        if (cell, size) not in self._counted:
            parts = [(number, measure(size)) for number, measure in self._measures[cell]]
            self._counted[cell, size] = [(number, part) for number, part in parts if part > 0]
        return {number: pods * part for number, part in self._counted[cell, size] if pods > 0}

    def too_large(self, cell: int, size: int) -> bool:
        """Whether no node has room for a pod."""
        return size > self.largest.get(cell, size)


def _measures(count: Counter[int]) -> list[Measure]:
    largest = max(count)
    most = sorted(count, key=lambda size: (-count[size], -size))[:SIZES]
    units = {floor(Fraction(size, k + 1)) + 1 for size in most for k in range(FINEST + 1)} | {1}
    by_unit: list[Measure] = [partial(_units, unit) for unit in units if unit <= largest]
    return by_unit + [partial(_parts, largest, k) for k in range(1, FINEST + 1)]


def _units(unit: int, size: int) -> int:
    return floor(Fraction(size, unit))


def _parts(largest: int, k: int, size: int) -> int:
    part = Fraction(size, largest)
    steps = (k + 1) * part
    counted = part if steps.denominator == 1 else Fraction(floor(steps), k)
    return int(counted * k * (k + 1))
