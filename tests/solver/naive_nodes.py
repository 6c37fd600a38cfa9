"""Pods and nodes restated: what the contract counts, and the search for a node for each pod."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from solver.api import planner_pb2 as pb
from solver.problem import Problem

Pods = Counter[tuple[int, int]]
"""Number of pods by cell (flavor and resource) and by what each of them asks for."""


def nodes_of(quota: pb.Quota, cell: int) -> list[int]:
    """What each node has of a cell; none when nodes are not known."""
    flavor, resource = divmod(cell, len(quota.resources))
    return [
        amount
        for group in quota.flavors[flavor].nodes
        for which, amount in zip(group.resources, group.amounts, strict=True)
        for _ in range(group.count)
        if which == resource and amount
    ]


def by_parts(size: int, largest: int, k: int) -> Fraction:
    """What the contract says that a pod counts, in parts of the largest node."""
    share = Fraction(size, largest)
    return share if ((k + 1) * share).denominator == 1 else Fraction(math.floor((k + 1) * share), k)


def within_counts(quota: pb.Quota, pods: Pods, mine: Iterable[tuple[int, int]]) -> bool:
    """Whether no count that one of ``mine`` takes part in is exceeded."""
    for cell, size in mine:
        nodes = nodes_of(quota, cell)
        if not nodes:
            continue
        largest = max(nodes)
        if size > largest:
            return False
        usual = sorted(set(nodes), key=lambda node: (nodes.count(node), node))[-4:]
        units = {1, *(node // (k + 1) + 1 for node in usual for k in range(9))}
        counts: list[Callable[[int], Fraction | int]] = [
            lambda x, unit=unit: x // unit for unit in units if unit <= largest
        ]
        counts += [lambda x, k=k, largest=largest: by_parts(x, largest, k) for k in range(1, 9)]
        for count in counts:
            total = sum(n * count(s) for (c, s), n in pods.items() if c == cell)
            if count(size) > 0 and total > sum(map(count, nodes)):
                return False
    return True


def pods_of_option(problem: Problem, option: int) -> Pods:
    """Pods that an option puts onto nodes that are known."""
    pods = problem.packing.pods
    k = slice(pods.first[option], pods.first[option + 1])
    return Counter({(int(c), int(s)): int(n) for c, s, n in zip(pods.cell[k], pods.size[k], pods.pods[k], strict=True)})


def pods_of_assignment(quota: pb.Quota, held: pb.Assignment) -> Pods:
    """Pods that hold an assignment; what is not known comes in pieces of one."""
    pods: Pods = Counter()
    for k, (flavor, resource, amount) in enumerate(zip(held.flavors, held.resources, held.amounts, strict=True)):
        several = held.pods[k] if held.pods and held.pods[k] else amount
        if amount and nodes_of(quota, cell := flavor * len(quota.resources) + resource):
            pods[cell, amount // several] += several
    return pods


def placed(sizes: Sequence[int], nodes: Sequence[int]) -> bool:
    """Whether there is a node for each pod: all ways are tried, the largest pods first."""
    hopeless: set[tuple[int, tuple[int, ...]]] = set()
    order = sorted(sizes, reverse=True)

    def place(first: int, free: tuple[int, ...]) -> bool:
        if first == len(order):
            return True
        if (first, free) in hopeless:
            return False
        for k, room in enumerate(free):
            if room >= order[first] and room not in free[:k]:
                rest = tuple(sorted((*free[:k], room - order[first], *free[k + 1 :])))
                if place(first + 1, rest):
                    return True
        hopeless.add((first, free))
        return False

    return place(0, tuple(sorted(nodes)))
