"""The verifier's own reading of quota: the tree, what workloads ask for, and what is in use over time.

Everything here is written from the contract and from Kueue's rules alone; nothing is shared with the planners.
The quota formulas are Kueue 0.17's (``pkg/cache/scheduler/resource_node.go``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from solver.api import planner_pb2 as pb
from solver.verify_nodes import NodeCounts

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LONGEST = 1 << 52
"""Times further than this from now, in milliseconds, and amounts above it are not taken for real."""

UNLIMITED = 1 << 60
"""Stands for an unset limit; larger than any sum of quotas."""

LARGEST_TOTAL = 1 << 58
"""Quotas of one tree that add up to more are not taken for real either."""

DEEPEST = 100
"""Nor are cohorts with more cohorts above them."""

TRIES = 20_000
"""Ways to split an assignment among pod sets that are looked at."""

MOST_PARTS = 256
"""Parts of a request that are looked at; Kueue's own limit on pod sets is far below."""


def ints(column: Any, length: int | None = None, default: int = 0) -> Ints:
    """A column as ``int64``; an empty one is ``length`` times ``default``, a wrong one is cut or filled."""
    values = np.fromiter(column, np.int64, len(column))
    if length is None or len(values) == length:
        return values
    result = np.full(length, default, dtype=np.int64)
    known = min(length, len(values))
    result[:known] = values[:known]
    return result


Offer = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""What a ClusterQueue offers: for each resource group its resources, and its flavors."""


class Tree:
    """The quota tree of a request.

    Nodes are numbered parents first. Cohorts and queues whose quota cannot be meant have no place in the tree, nor has
    what is below them: a queue without a place has node −1.
    """

    def __init__(self, quota: pb.Quota) -> None:
        self.resources = list(quota.resources)
        self.flavors = [flavor.name for flavor in quota.flavors]
        self.cells = len(self.resources) * len(self.flavors)
        self.nodes = NodeCounts(quota, offset=self.cells)
        """What pods count on nodes. These counts are numbered as if they were further cells."""
        offers = [_offer(queue) for queue in quota.cluster_queues]
        self.offers = list(dict.fromkeys(offers))
        """What queues offer, each kind once."""
        self.offer = np.array([self.offers.index(offer) for offer in offers], dtype=np.int64)
        """Kind of offer of each queue."""

        above = {cohort.name: cohort.parent for cohort in reversed(quota.cohorts)}
        for name in [*above.values(), *(queue.cohort for queue in quota.cluster_queues)]:
            if name:
                above.setdefault(name, "")
        named = Counter(cohort.name for cohort in quota.cohorts)
        doubtful = {c.name for c in quota.cohorts if named[c.name] > 1 or not self._meant(c.quotas)}
        depth = {name: _depth(name, above, doubtful) for name in above} | {"": -1}
        nodes = [(d, f"Cohort {name}", above[name], -1) for name, d in depth.items() if name and d is not None]
        queues = Counter(queue.name for queue in quota.cluster_queues)
        for position, queue in enumerate(quota.cluster_queues):
            d = depth[queue.cohort]
            if d is not None and queues[queue.name] == 1 and self._queue_meant(queue):
                nodes.append((d + 1, f"ClusterQueue {queue.name}", queue.cohort, position))
        nodes.sort(key=lambda node: node[0])
        self.names = [name for _, name, _, _ in nodes]
        self._number = {name: node for node, name in enumerate(self.names)}
        self.depth = np.array([d for d, _, _, _ in nodes], dtype=np.int64)
        self.parent = np.array([self._number.get(f"Cohort {up}", -1) for _, _, up, _ in nodes], dtype=np.int64)
        self.queue = np.full(len(quota.cluster_queues), -1, dtype=np.int64)
        for node, (_, _, _, position) in enumerate(nodes):
            if position >= 0:
                self.queue[position] = node
        self._read_quotas(quota)

    def _meant(self, offers: Iterable[pb.FlavorQuotas]) -> bool:
        """Whether quotas are for what exists, each once, and neither negative nor absurd."""
        seen: set[int | None] = {None}
        for offer in offers:
            if offer.flavor >= len(self.flavors):
                return False
            for amount in offer.resources:
                cell = self.cell(offer.flavor, amount.resource)
                limits = min(amount.borrowing_limit, amount.lending_limit)
                if cell in seen or not 0 <= amount.nominal <= LONGEST or limits < 0:
                    return False
                seen.add(cell)
        return True

    def _queue_meant(self, queue: pb.ClusterQueue) -> bool:
        """The same for a queue, whose resources and flavors must each be in one group only."""
        groups = queue.resource_groups
        resources = [resource for group in groups for resource in group.covered_resources]
        flavors = [offer.flavor for group in groups for offer in group.flavors]
        outside = [
            amount
            for group in groups
            for offer in group.flavors
            for amount in offer.resources
            if amount.resource not in group.covered_resources
        ]
        return (
            self._meant(offer for group in groups for offer in group.flavors)
            and len(set(resources)) == len(resources)
            and len(set(flavors)) == len(flavors)
            and max(resources, default=-1) < len(self.resources)
            and not outside
        )

    def _read_quotas(self, quota: pb.Quota) -> None:
        shape = (len(self.names), self.cells)
        nominal = np.zeros(shape, dtype=np.int64)
        lending = np.full(shape, UNLIMITED, dtype=np.int64)
        borrowing = np.full(shape, UNLIMITED, dtype=np.int64)
        given = [(self._number.get(f"Cohort {cohort.name}", -1), cohort.quotas) for cohort in quota.cohorts]
        for at, queue in zip(self.queue.tolist(), quota.cluster_queues, strict=True):
            given += [(at, group.flavors) for group in queue.resource_groups]
        for node, quotas in given:
            for offer in quotas if node >= 0 else ():
                for amount in offer.resources:
                    cell = offer.flavor * len(self.resources) + amount.resource
                    nominal[node, cell] = amount.nominal
                    if amount.HasField("borrowing_limit"):
                        borrowing[node, cell] = min(amount.borrowing_limit, UNLIMITED)
                    if amount.HasField("lending_limit"):
                        lending[node, cell] = min(amount.lending_limit, UNLIMITED)

        total = nominal.astype(np.float64)
        for node, up in reversed(list(enumerate(self.parent.tolist()))):
            if up >= 0:
                total[up] += total[node]
        self._absurd = np.any(total > LARGEST_TOTAL, axis=1)
        """Nodes of trees whose quotas add up to more than can be meant: ``bool [N]``."""
        for node, up in enumerate(self.parent.tolist()):
            if up >= 0:
                self._absurd[node] = self._absurd[up]
        placed = np.flatnonzero(self.queue >= 0)
        self.queue[placed[self._absurd[self.queue[placed]]]] = -1

        self.whole = nominal.reshape(len(self.names), len(self.flavors), len(self.resources)).sum(axis=1, dtype=float)
        """Nominal quota of the whole tree that a node is in, of each resource, ``[N, R]``."""
        for node, up in reversed(list(enumerate(self.parent.tolist()))):
            if up >= 0:
                self.whole[up] += self.whole[node]
        for node, up in enumerate(self.parent.tolist()):
            if up >= 0:
                self.whole[node] = self.whole[up]

        subtree = nominal
        self.local = np.zeros(shape, dtype=np.int64)
        """What a node lends to nobody, ``[N, C]``."""
        for node, up in reversed(list(enumerate(self.parent.tolist()))):
            self.local[node] = np.where(lending[node] < UNLIMITED, np.maximum(0, subtree[node] - lending[node]), 0)
            if up >= 0:
                subtree[up] += subtree[node] - self.local[node]
        self.limit = subtree + np.where(self.parent[:, None] >= 0, borrowing, 0)
        """Most that a node may hold, ``[N, C]``: what its subtree has and, below a root, what it may borrow."""

    def cell(self, flavor: int, resource: int) -> int | None:
        """Number of a cell, or nothing when the request has no such flavor or resource."""
        if flavor < len(self.flavors) and resource < len(self.resources):
            return flavor * len(self.resources) + resource
        return None

    def cell_name(self, cell: int) -> str:
        """As Kueue's messages have it."""
        flavor, resource = divmod(cell, len(self.resources))
        return f"{self.resources[resource]} in flavor {self.flavors[flavor]}"

    def reserved_node(self, name: str, queues: Collection[str]) -> int:
        """Node that a reservation names: a ClusterQueue or else a Cohort; −1 when it has no place in the tree."""
        node = self._number.get(f"{'ClusterQueue' if name in queues else 'Cohort'} {name}", -1)
        return -1 if node < 0 or self._absurd[node] else node

    @cached_property
    def empty(self) -> Ints:
        """What would be available at each node if nothing were in use, ``[N, C]``: more never fits."""
        result = self.limit.copy()
        for node, up in enumerate(self.parent.tolist()):
            if up >= 0:
                result[node] = np.minimum(result[node], self.local[node] + result[up])
        return result


def _offer(queue: pb.ClusterQueue) -> Offer:
    return tuple(
        (tuple(group.covered_resources), tuple(offer.flavor for offer in group.flavors))
        for group in queue.resource_groups
    )


def _depth(name: str, above: Mapping[str, str], doubtful: Collection[str]) -> int | None:
    """Cohorts between this one and its root; nothing when there are too many (a cycle too) or one is doubtful."""
    depth = 0
    while name not in doubtful:
        if not above[name]:
            return depth
        name = above[name]
        depth += 1
        if depth > DEEPEST:
            break
    return None


class Columns(NamedTuple):
    """What kinds of assignments hold: kind ``k`` has the entries ``first[k] … first[k+1]`` of the other two."""

    first: Ints
    cell: Ints
    amount: Ints


class Amounts:
    """A table of assignments. Many may be the same, so each *kind* is read once.

    Kind ``k`` holds ``totals[k]`` (amount by cell, counts on nodes included), or nothing that makes sense.
    """

    def __init__(self, assignments: Sequence[pb.Assignment], tree: Tree) -> None:
        kinds: dict[bytes, int] = {}
        self.totals: list[dict[int, int] | None] = []
        self.kind = np.zeros(len(assignments), dtype=np.int64)
        """Kind of each assignment of the table."""
        for position, assignment in enumerate(assignments):
            kind = kinds.setdefault(assignment.SerializeToString(), len(kinds))
            if kind == len(self.totals):
                self.totals.append(_totals(assignment, tree))
            self.kind[position] = kind
        self.sound = np.array([total is not None for total in self.totals], dtype=np.bool_)
        """Kinds that make sense: ``bool [kinds]``."""
        self.quota = self._columns(lambda cell: cell < tree.cells)
        """What each kind takes of quota."""
        self.on_nodes = self._columns(lambda cell: cell >= tree.cells)
        """What each kind counts on nodes."""

    def _columns(self, wanted: Callable[[int], bool]) -> Columns:
        entries = [[(cell, x) for cell, x in (total or {}).items() if wanted(cell)] for total in self.totals]
        first = np.concatenate(([0], np.cumsum([len(of_kind) for of_kind in entries], dtype=np.int64)))
        cell, amount = np.array([e for of_kind in entries for e in of_kind], dtype=np.int64).reshape(-1, 2).T
        return Columns(first, cell, amount)


def _totals(assignment: pb.Assignment, tree: Tree) -> dict[int, int] | None:
    columns = assignment.flavors, assignment.resources, assignment.amounts, assignment.pods or assignment.amounts
    if len({len(column) for column in columns}) > 1:
        return None
    totals: dict[int, int] = defaultdict(int)
    for k, (flavor, resource, amount, _) in enumerate(zip(*columns, strict=True)):
        cell, pods = tree.cell(flavor, resource), assignment.pods[k] if assignment.pods else 0
        if cell is None or not 0 <= amount <= LONGEST or not 0 <= pods <= LONGEST:
            return None
        totals[cell] += amount
        for number, count in tree.nodes.counted(cell, *((amount // pods, pods) if pods else (1, amount))).items():
            totals[number] += count
    return {cell: amount for cell, amount in totals.items() if amount > 0}


class Use(NamedTuple):
    """``amount`` of ``cell`` held at ``node`` during ``[start, end)``, positions of instants. Parallel columns."""

    node: Ints
    cell: Ints
    amount: Ints
    start: Ints
    end: Ints

    def joined(self, other: Use) -> Use:
        return Use(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def held_by(node: Ints, start: Ints, end: Ints, kind: Ints, held: Columns) -> tuple[Use, Ints]:
    """What rows hold at their nodes, by cell, and to which row each entry belongs."""
    sizes = held.first[kind + 1] - held.first[kind]
    row = np.repeat(np.arange(len(node)), sizes)
    entry = np.arange(len(row)) + np.repeat(held.first[kind] - np.cumsum(sizes) + sizes, sizes)
    return Use(node[row], held.cell[entry], held.amount[entry], start[row], end[row]), row


class Steps:
    """Use of every node and cell as step functions of time.

    A step has a *key*: node, cell and instant, packed in that order into one integer, so that one sorted array holds
    all functions. Everything that is taken is given back, so each function ends at 0 and a running sum over all keys
    needs no borders.
    """

    def __init__(self, tree: Tree, use: Use, instants: int) -> None:
        self.tree, self.instants = tree, instants
        key = (use.node * tree.cells + use.cell) * instants
        keys = np.concatenate((key + use.start, key + use.end))
        amount: npt.NDArray[Any] = use.amount
        if amount.sum(dtype=np.float64) >= UNLIMITED:  # exact all the same, with Python's integers
            amount = amount.astype(object)
        keys, changes = _summed(keys, np.concatenate((amount, -amount)))
        # Nodes are numbered by depth, so each level of the tree is a slice of the keys.
        levels = int(tree.depth.max(initial=-1)) + 1
        bounds = np.searchsorted(keys, np.searchsorted(tree.depth, np.arange(levels + 1)) * (tree.cells * instants))
        found: list[tuple[Ints, npt.NDArray[Any]]] = []
        passed_keys, passed = keys[:0], changes[:0]
        for level in reversed(range(levels)):
            here = slice(bounds[level], bounds[level + 1])
            level_keys, level_changes = keys[here], changes[here]
            if len(passed):
                level_keys, level_changes = _summed(
                    np.concatenate((level_keys, passed_keys)), np.concatenate((level_changes, passed))
                )
            level_use = np.cumsum(level_changes)
            found.append((level_keys, level_use))
            group = level_keys // max(1, instants)
            passed = np.diff(np.maximum(0, level_use - tree.local.reshape(-1)[group]), prepend=0)
            moved = np.flatnonzero(passed)
            node = group[moved] // max(1, tree.cells)
            up = tree.parent[node]
            passed_keys = level_keys[moved] + (up - node) * (tree.cells * instants)
            passed, passed_keys = passed[moved][up >= 0], passed_keys[up >= 0]
        self._keys = np.concatenate([np.full(1, -1), *(k for k, _ in reversed(found))])
        self._use = np.concatenate([np.zeros(1, dtype=changes.dtype), *(u for _, u in reversed(found))])

    def use(self, node: Ints, cell: Ints, instant: Ints) -> npt.NDArray[Any]:
        """Use right after all changes at an instant."""
        key = (node * self.tree.cells + cell) * self.instants + instant
        return self._use[np.searchsorted(self._keys, key, side="right") - 1]

    def over(self) -> Bools:
        """Cells of which some node holds more than its limit at some instant: ``bool [C]``. The others are fine."""
        group = self._keys[1:] // self.instants
        result = np.zeros(self.tree.cells, dtype=np.bool_)
        result[group[self._use[1:] > self.tree.limit.reshape(-1)[group]] % self.tree.cells] = True
        return result

    def available(self, node: Ints, cell: Ints, instant: Ints) -> tuple[npt.NDArray[Any], Ints]:
        """What is left at each (node, cell, instant), and which node of its path to the root leaves no more.

        Kueue's recursion, written out: no node on the way up may hold more than its limit, but what is private below it
        and not in use yet comes on top, because using that takes nothing from it. Negative: more is held than Kueue
        would grant.
        """
        tree = self.tree
        left: npt.NDArray[Any] = np.full(len(node), UNLIMITED << 1, dtype=self._use.dtype)
        private: npt.NDArray[Any] = np.zeros_like(left)
        tightest = node.copy()
        on = np.arange(len(node))
        while len(on):
            of = cell[on]
            used = self.use(node, of, instant[on])
            here = tree.limit[node, of] - used + private[on]
            less = here < left[on]
            left[on[less]], tightest[on[less]] = here[less], node[less]
            private[on] += np.maximum(0, tree.local[node, of] - used)
            node = tree.parent[node]
            on, node = on[node >= 0], node[node >= 0]
        return left, tightest

    def shortage(self, node: int, cell: int, instant: int) -> str:
        """Which node of the tree has too little at an instant, in plain words."""
        at = np.array([node]), np.array([cell]), np.array([instant])
        tight = self.available(*at)[1]
        limit, used = self.tree.limit[tight[0], cell], self.use(tight, *at[1:])[0]
        borrowed = " with all it may borrow" if self.tree.parent[tight[0]] >= 0 else ""
        what = self.tree.cell_name(cell)
        return f"{self.tree.names[tight[0]]} has {limit} of {what}{borrowed} and {used} would be in use"


def distinct(values: Ints) -> Ints:
    """Sorted, each once. (``np.unique`` hashes integers, which is several times slower.)"""
    values = np.sort(values)
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def _summed(keys: Ints, values: npt.NDArray[Any]) -> tuple[Ints, npt.NDArray[Any]]:
    """Distinct keys in order, and the sum of the values of each."""
    if not len(keys):
        return keys, values
    order = np.argsort(keys)
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(values[order], first)


def shape_meant(shape: pb.RequestShape, resources: int, flavors: int) -> bool:
    """Whether a shape asks for what exists, and neither for less than nothing nor for absurd amounts."""
    for pod_set in shape.pod_sets:
        if not 0 <= pod_set.min_count <= pod_set.count or len(pod_set.resources) != len(pod_set.amounts):
            return False
        total: dict[int, int] = defaultdict(int)
        for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True):
            total[resource] += amount * pod_set.count
            if resource >= resources or amount < 0 or total[resource] > LONGEST:
                return False
        if max(pod_set.excluded_flavors, default=-1) >= flavors:
            return False
    return True


def _way(sizes: Mapping[int, int], pods: int, nodes: NodeCounts) -> dict[int, int]:
    """What pods take, by what one of them asks of each cell."""
    way = {cell: size * pods for cell, size in sizes.items()}
    for cell, size in sizes.items():
        way.update(nodes.counted(cell, size, pods))
    return way


class TooMany(Exception):
    """A request of so many parts that the ways to split an assignment cannot all be looked at."""


def reductions(shape: pb.RequestShape) -> int:
    """How many numbers of pods a (sound) shape can be admitted with, besides all of them."""
    return sum(pod_set.count - pod_set.min_count for pod_set in shape.pod_sets if pod_set.min_count)


def reduction(shape: pb.RequestShape, amount: int) -> int:
    """How far a (sound) shape is reduced when it holds so much, all resources added up; 0 when no reduction does."""

    def given_back(less: int) -> int:
        """Less is negative, so that it grows with the reduction."""
        steps = max(1, reductions(shape))
        return -sum(
            (pod_set.count - (pod_set.count - pod_set.min_count if pod_set.min_count else 0) * less // steps)
            * sum(pod_set.amounts)
            for pod_set in shape.pod_sets
        )

    less = bisect_left(range(reductions(shape) + 1), -amount, key=given_back)
    return less if less <= reductions(shape) and given_back(less) == -amount else 0


class Demand:
    """What a workload of a (sound) shape asks of a queue: parts that must each be held in one flavor.

    A part is what one pod set asks of one resource group. With ``less``, from 0 to :func:`reductions`, each pod set is
    without its share of the pods that all of them can spare, rounded down.
    """

    def __init__(self, shape: pb.RequestShape, offer: Offer, tree: Tree, less: int = 0) -> None:
        self.parts: list[list[dict[int, int]]] = []
        """For each part, for each flavor it may be held in, the amount of each cell, and what it counts on nodes."""
        self.covered = True
        """Whether the queue offers all that is asked for."""
        group_of = {resource: group for group, (resources, _) in enumerate(offer) for resource in resources}
        for pod_set in shape.pod_sets:
            pods = pod_set.count
            if less and pod_set.min_count:
                pods -= (pods - pod_set.min_count) * less // reductions(shape)
            asked: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
            for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True):
                if amount * pods == 0:
                    continue
                if resource not in group_of:
                    self.covered = False
                    continue
                asked[group_of[resource]][resource] += amount
            for group, sizes in asked.items():
                flavors = [f for f in offer[group][1] if f not in pod_set.excluded_flavors]
                by_cell = [
                    {cell: x for r, x in sizes.items() if (cell := tree.cell(f, r)) is not None} for f in flavors
                ]
                self.parts.append(
                    [
                        _way(each, pods, tree.nodes)
                        for each in by_cell
                        if not any(tree.nodes.too_large(cell, size) for cell, size in each.items())
                    ]
                )

    def split(self, room: Mapping[int, int], *, all_of_it: bool) -> bool:
        """Whether the parts can be held in ``room`` (amount by cell), using up ``all_of_it``.

        Raises
        ------
        TooMany
            Above ``MOST_PARTS`` parts, or after ``TRIES`` steps.
        """
        if not self.covered:
            return False
        if len(self.parts) > MOST_PARTS:
            raise TooMany
        steps = 0
        hopeless: set[tuple[int, tuple[int, ...]]] = set()
        left = dict(room)

        def place(part: int) -> bool:
            nonlocal steps
            if part == len(self.parts):
                return not all_of_it or not any(left.values())
            seen = (part, tuple(left.values()))
            if seen in hopeless:
                return False
            steps += 1
            if steps > TRIES:
                raise TooMany
            for way in self.parts[part]:
                if all(left.get(cell, 0) >= amount for cell, amount in way.items()):
                    for cell, amount in way.items():
                        left[cell] -= amount
                    if place(part + 1):
                        return True
                    for cell, amount in way.items():
                        left[cell] += amount
            hopeless.add(seen)
            return False

        return place(0)
