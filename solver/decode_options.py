"""Request shapes and queues → the assignments that a workload may get, in Kueue's order of preference.

Kueue picks one flavor for each pod set and resource group. An option is one such choice for the whole workload: the
choices of all (pod set, group) pairs combined, in lexicographic order, so that the first option that fits is what Kueue
takes (for more than one pair almost: Kueue never goes back on an earlier pair's choice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from solver.api import planner_pb2 as pb
from solver.packing import Nodes, PodColumns
from solver.problem import Options
from solver.quota import MAX_AMOUNT, Int64s, QuotaTree

MAX_COMBINATIONS = 4096
"""Combinations of flavors that are looked at for one workload, in Kueue's order; further ones are not planned with."""

MAX_OPTIONS = 64
"""Options kept of those that could fit, the first ones in Kueue's order."""


class Asked(NamedTuple):
    """What one pod set asks for."""

    totals: dict[int, int]
    """Of each resource, all pods together."""
    excluded: frozenset[int]
    """Flavors that it cannot use."""
    pods: int
    spare: int
    """Pods that it can do without."""

    def reduced(self, step: int, steps: int) -> Asked:
        """With fewer pods, as Kueue reduces all pod sets together in ``steps`` from nothing to all they can spare."""
        pods = self.pods - self.spare * step // steps
        return self._replace(totals={r: t // self.pods * pods for r, t in self.totals.items() if pods}, pods=pods)


Request = list[Asked]
"""A shape: its pod sets."""

Groups = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Resource groups of a queue: resources, and flavors in Kueue's order."""


class Option(NamedTuple):
    """One way to hold a request."""

    amounts: Mapping[int, int]
    """Of each cell."""
    pieces: Mapping[tuple[int, int], int]
    """Pods by cell and by what each asks for, where nodes are known."""


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
                return f"{path}.count", f"asks for {pod_set.count} pods; must not be negative"
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
                    return f"{path}.amounts[{k}]", f"asks for {amount} {resources[resource]}; must not be negative"
                totals[resource] = total = totals.get(resource, 0) + amount * pod_set.count
                if total > MAX_AMOUNT:
                    return f"{path}.amounts[{k}]", f"asks for {total} {resources[resource]}; the most is {MAX_AMOUNT}"
            for k, flavor in enumerate(pod_set.excluded_flavors):
                if flavor >= len(self._tree.flavors):
                    return (
                        f"{path}.excluded_flavors[{k}]",
                        f"is {flavor}, but there are {len(self._tree.flavors)} flavors",
                    )
            totals = {resource: total for resource, total in totals.items() if total > 0}
            spare = pod_set.count - pod_set.min_count if pod_set.min_count else 0
            request.append(Asked(totals, frozenset(pod_set.excluded_flavors), pod_set.count, spare))
        return request


def build_options(
    tree: QuotaTree, queues: Sequence[int], requests: Sequence[Request], nodes: Nodes, lead: Sequence[int]
) -> tuple[Options, PodColumns, dict[int, str]]:
    """Options of each pair, the pods of each option, and why some pairs have none, in Kueue's words.

    What can never be there with all its pods, but with fewer (partial admission), has the options of the most pods that
    can. Anything else is planned with all its pods.

    Parameters
    ----------
    queues, requests
        The pairs: position of the ClusterQueue (not a frozen one) and what is asked of it.
    lead
        Of each flavor, how long after the admission work begins.
    """
    first, need, piece = [0], [0], [0]
    cells: list[int] = []
    amounts: list[int] = []
    pieces: list[tuple[int, int, int]] = []
    never: dict[int, str] = {}
    places = tree.queue_node[list(queues)]
    potential = {int(node): tree.potential[node].tolist() for node in np.unique(places)}
    # Queues that offer the same have the same combinations for the same request; only how much fits differs.
    combined: dict[tuple[Groups, int], list[Option]] = {}
    for pair, (queue, place, request) in enumerate(zip(queues, places.tolist(), requests, strict=True)):
        most = potential[place]
        key = tree.groups[queue], id(request)
        if key not in combined:
            combined[key] = _combinations(tree, key[0], request, nodes)
        found = _fitting(combined[key], most)
        if not found and any(asked.spare for asked in request):
            found = _reduced(tree, key[0], request, nodes, most)
        for option in found:
            cells += option.amounts
            amounts += option.amounts.values()
            need.append(len(cells))
            pieces += ((cell, size, pods) for (cell, size), pods in option.pieces.items())
            piece.append(len(pieces))
        if not found:
            never[pair] = _why_never(tree, tree.groups[queue], request, most, nodes)
        first.append(len(need) - 1)
    options = Options(
        node=places,
        first=np.array(first, dtype=np.int32),
        need=np.array(need, dtype=np.int32),
        cell=np.array(cells, dtype=np.int32),
        amount=np.array(amounts, dtype=np.int64),
        lead=_leads(lead, np.array(cells, dtype=np.int64) // max(1, len(tree.resources)), need),
    )
    cell, size, pods = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return options, PodColumns(np.array(piece, dtype=np.int32), cell.astype(np.int32), size, pods), never


def _leads(lead: Sequence[int], flavor: Int64s, need: Sequence[int]) -> Int64s:
    """Lead of each option: the longest of its flavors; 0 of an option that takes nothing."""
    option = np.repeat(np.arange(len(need) - 1), np.diff(need))
    result = np.zeros(len(need) - 1, dtype=np.int64)
    np.maximum.at(result, option, np.array(lead, dtype=np.int64)[flavor])
    return result


def _fitting(options: Iterable[Option], most: list[int]) -> list[Option]:
    """Those that could ever be there, the first ones."""
    fit = (option for option in options if all(total <= most[cell] for cell, total in option.amounts.items()))
    return list(islice(fit, MAX_OPTIONS))


def _reduced(tree: QuotaTree, groups: Groups, request: Request, nodes: Nodes, most: list[int]) -> list[Option]:
    """Options with the most pods that fit; none when not even the fewest do."""
    found: list[Option] = []
    steps = sum(asked.spare for asked in request)
    low, high = 1, steps + 1
    while low < high:
        step = (low + high) // 2
        less = [asked.reduced(step, steps) for asked in request]
        if options := _fitting(_combinations(tree, groups, less, nodes), most):
            found, high = options, step
        else:
            low = step + 1
    return found


class _Part(NamedTuple):
    """What one pod set asks of one resource group."""

    totals: dict[int, int]
    flavors: list[int]
    """That it may be in."""
    excluded: list[int]
    pods: int


def _parts(groups: Groups, request: Request) -> Iterator[_Part]:
    """For each pod set and resource group what is asked."""
    group_of = {resource: group for group, (covered, _) in enumerate(groups) for resource in covered}
    for asked in request:
        for group in dict.fromkeys(group_of[resource] for resource in asked.totals):
            totals = {resource: total for resource, total in asked.totals.items() if group_of[resource] == group}
            flavors = groups[group][1]
            yield _Part(
                totals,
                [f for f in flavors if f not in asked.excluded],
                [f for f in flavors if f in asked.excluded],
                asked.pods,
            )


def _combinations(tree: QuotaTree, groups: Groups, request: Request, nodes: Nodes) -> list[Option]:
    """All ways to hold a request that nodes allow, each once, in Kueue's order; none if the queue does not cover it."""
    covered = {resource for resources, _ in groups for resource in resources}
    if any(resource not in covered for asked in request for resource in asked.totals):
        return []
    choices = [
        [({tree.cell(flavor, r): total for r, total in part.totals.items()}, part.pods) for flavor in part.flavors]
        for part in _parts(groups, request)
    ]
    options: dict[tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[int, int], int], ...]], Option] = {}
    for combination in islice(product(*choices), MAX_COMBINATIONS):
        amounts: dict[int, int] = {}
        pieces: dict[tuple[int, int], int] = {}
        for choice, pods in combination:
            for cell, total in choice.items():
                amounts[cell] = amounts.get(cell, 0) + total
                if cell in nodes:
                    piece = cell, total // pods
                    pieces[piece] = pieces.get(piece, 0) + pods
        options.setdefault((tuple(sorted(amounts.items())), tuple(sorted(pieces.items()))), Option(amounts, pieces))
    return [option for option in options.values() if nodes.hold(option.pieces)]


def _why_never(tree: QuotaTree, groups: Groups, request: Request, potential: list[int], nodes: Nodes) -> str:
    """Why none of a pair's options could ever fit: the first thing that Kueue would stumble over, or nodes would."""
    covered = {resource for resources, _ in groups for resource in resources}
    for asked in request:
        if uncovered := [resource for resource in asked.totals if resource not in covered]:
            return f"resource {tree.resources[uncovered[0]]} unavailable in ClusterQueue"
    before: dict[int, int] = {}
    there: dict[tuple[int, int], int] = {}
    for part in _parts(groups, request):
        refused = [f"flavor {tree.flavors[f]} is ruled out by its node selector or tolerations" for f in part.excluded]
        for flavor in part.flavors:
            sums = {(cell := tree.cell(flavor, r)): total + before.get(cell, 0) for r, total in part.totals.items()}
            pieces = {(cell := tree.cell(flavor, r), total // part.pods): part.pods for r, total in part.totals.items()}
            pieces = {
                (cell, size): pods + there.get((cell, size), 0)
                for (cell, size), pods in pieces.items()
                if cell in nodes
            }
            lacking = [
                f"insufficient quota for {tree.cell_name(cell)}: request {total} > maximum capacity {potential[cell]}"
                for cell, total in sums.items()
                if total > potential[cell]
            ]
            lacking += [
                f"a pod asks for {size} {tree.cell_name(cell)}, and the largest node has {nodes.largest(cell)}"
                for cell, size in pieces
                if size > nodes.largest(cell)
            ]
            lacking += [
                f"{pods} pods of {size} {tree.cell_name(cell)} do not fit onto its nodes together"
                for (cell, size), pods in pieces.items()
                if not nodes.hold({(cell, size): pods})
            ]
            if not lacking:
                before.update(sums)
                there.update(pieces)
                break
            refused.append(lacking[0])
        else:
            return ", ".join(refused) or "its resource group has no flavors"
    return f"none of the first {MAX_COMBINATIONS} combinations of flavors could ever hold all pod sets"
