"""Request shapes and queues → the assignments that a workload may get, in Kueue's order of preference.

Kueue picks one flavor for each pod set and resource group. An option is one such choice for the whole workload: the
choices of all (pod set, group) pairs combined, in lexicographic order, so that the first option that fits is what Kueue
takes (for more than one pair almost: Kueue never goes back on an earlier pair's choice).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np

from solver.api import planner_pb2 as pb
from solver.problem import Options
from solver.quota import MAX_AMOUNT, Int32s, QuotaTree

MAX_COMBINATIONS = 4096
"""Combinations of flavors that are looked at for one workload, in Kueue's order; further ones are not planned with."""

MAX_OPTIONS = 64
"""Options kept of those that could fit, the first ones in Kueue's order."""

Request = list[tuple[dict[int, int], frozenset[int]]]
"""A shape: for each pod set the total of each resource that it asks for, and the flavors it cannot use."""


class Shapes:
    """The shapes of a request, read when first used. A workload whose shape makes no sense is told why."""

    def __init__(self, shapes: Sequence[pb.RequestShape], tree: QuotaTree) -> None:
        self._shapes, self._tree = shapes, tree
        self._read: dict[int, Request | tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    def request(self, shape: int) -> Request | tuple[str, str]:
        """What a shape asks for, or (path of the field at fault, what is wrong)."""
        if shape not in self._read:
            self._read[shape] = self._decode(shape)
        return self._read[shape]

    def _decode(self, shape: int) -> Request | tuple[str, str]:
        request: Request = []
        resources = self._tree.resources
        for position, pod_set in enumerate(self._shapes[shape].pod_sets):
            path = f"shapes[{shape}].pod_sets[{position}]"
            if pod_set.count < 0:
                return f"{path}.count", f"is {pod_set.count}; must not be negative"
            if not 0 <= pod_set.min_count <= pod_set.count:
                return f"{path}.min_count", f"is {pod_set.min_count}; must be between 0 and count, {pod_set.count}"
            if len(pod_set.resources) != len(pod_set.amounts):
                lengths = f"{len(pod_set.amounts)} entries where resources has {len(pod_set.resources)}"
                return f"{path}.amounts", f"has {lengths}"
            totals: dict[int, int] = {}
            for k, (resource, amount) in enumerate(zip(pod_set.resources, pod_set.amounts, strict=True)):
                if resource >= len(resources):
                    return f"{path}.resources[{k}]", f"is {resource}, but there are {len(resources)} resources"
                if amount < 0:
                    return f"{path}.amounts[{k}]", f"is {amount} {resources[resource]}; must not be negative"
                totals[resource] = total = totals.get(resource, 0) + amount * pod_set.count
                if total > MAX_AMOUNT:
                    return f"{path}.amounts[{k}]", f"makes {total} {resources[resource]}; the most is {MAX_AMOUNT}"
            for k, flavor in enumerate(pod_set.excluded_flavors):
                if flavor >= len(self._tree.flavors):
                    return (
                        f"{path}.excluded_flavors[{k}]",
                        f"is {flavor}, but there are {len(self._tree.flavors)} flavors",
                    )
            totals = {resource: total for resource, total in totals.items() if total > 0}
            request.append((totals, frozenset(pod_set.excluded_flavors)))
        return request


def build_options(
    tree: QuotaTree, queues: Sequence[int], requests: Sequence[Request]
) -> tuple[Options, dict[int, str]]:
    """Options of each pair, and why some pairs have none, in Kueue's words.

    Parameters
    ----------
    queues, requests
        The pairs: position of the ClusterQueue (not a frozen one) and what is asked of it.
    """
    node: list[int] = []
    first = [0]
    need = [0]
    cells: list[int] = []
    amounts: list[int] = []
    never: dict[int, str] = {}
    potential: dict[int, list[int]] = {}
    for pair, (queue, request) in enumerate(zip(queues, requests, strict=True)):
        at = int(tree.queue_node[queue])
        node.append(at)
        if at not in potential:
            potential[at] = tree.potential[at].tolist()
        options, why = _options(tree, queue, request, potential[at])
        for option in options:
            cells += option
            amounts += option.values()
            need.append(len(cells))
        first.append(len(need) - 1)
        if not options:
            never[pair] = why
    return Options(
        node=np.array(node, dtype=np.int32),
        first=_int32(first),
        need=_int32(need),
        cell=_int32(cells),
        amount=np.array(amounts, dtype=np.int64),
    ), never


def _options(tree: QuotaTree, queue: int, request: Request, potential: list[int]) -> tuple[list[dict[int, int]], str]:
    """Distinct options of one pair, or none and why not."""
    parts: list[list[dict[int, int]]] = []
    groups = tree.groups[queue]
    group_of = {resource: g for g, (covered, _) in enumerate(groups) for resource in covered}
    for totals, excluded in request:
        if uncovered := [resource for resource in totals if resource not in group_of]:
            return [], f"resource {tree.resources[uncovered[0]]} unavailable in ClusterQueue"
        for group in dict.fromkeys(group_of[resource] for resource in totals):
            asked = {resource: total for resource, total in totals.items() if group_of[resource] == group}
            choices, refused = [], []
            for flavor in groups[group][1]:
                if flavor in excluded:
                    refused.append(f"flavor {tree.flavors[flavor]} is ruled out by its node selector or tolerations")
                    continue
                choice = {tree.cell(flavor, resource): total for resource, total in asked.items()}
                if lacking := _lacking(tree, choice, potential):
                    refused.append(lacking)
                else:
                    choices.append(choice)
            if not choices:
                return [], ", ".join(refused) or "its resource group has no flavors"
            parts.append(choices)
    options: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    why = ""
    for combination in islice(product(*parts), MAX_COMBINATIONS):
        option: dict[int, int] = {}
        for choice in combination:
            for cell, total in choice.items():
                option[cell] = option.get(cell, 0) + total
        if lacking := _lacking(tree, option, potential):
            why = why or lacking
            continue
        options.setdefault(tuple(sorted(option.items())), option)
        if len(options) == MAX_OPTIONS:
            break
    return list(options.values()), why


def _lacking(tree: QuotaTree, option: dict[int, int], potential: list[int]) -> str:
    """Of what an option asks for more than there could ever be; empty when it could fit."""
    for cell, total in option.items():
        if total > potential[cell]:
            return (
                f"insufficient quota for {tree.cell_name(cell)}: request {total} > maximum capacity {potential[cell]}"
            )
    return ""


def _int32(values: list[int]) -> Int32s:
    return np.array(values, dtype=np.int32)
