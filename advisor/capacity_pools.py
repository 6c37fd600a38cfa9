"""Pools: whose quota, of what, is varied to see how much of it is needed, and what is varied with it.

A pool is one resource in one flavor, of a ClusterQueue that shares with nobody or of a whole cohort tree. More or less
of it is shared out over the queues and cohorts of the tree in proportion to their nominal quotas of today; limits on
borrowing and lending stay as they are. (By itself one ClusterQueue of a tree can be varied, too.) Hardware comes whole:
when a queue gets more than it has today, its other resources of that flavor grow in proportion, and nodes like the
largest are added. Nothing else shrinks. So whatever fits into a pool fits into every larger one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.family import is_gpu
from solver.amounts import MAX_AMOUNT
from solver.api import planner_pb2 as pb
from solver.decode_nodes import MAX_NODES
from solver.decode_quota import decode_quota
from solver.quota import QuotaTree

UNITS = {"cpu": 1000, "memory": 1 << 30, "ephemeral-storage": 1 << 30}
"""Kueue's units to one that quota is counted in here: cores, GiB; everything else in ones."""


class NoPool(ValueError):
    """Nothing has such quota; the message says what there is."""


class _Place(NamedTuple):
    """Where a nominal quota stands in a request."""

    cohort: int
    """Position of the cohort; −1 for a ClusterQueue."""
    queue: int
    group: int
    offer: int
    entry: int

    def offer_in(self, quota: pb.Quota) -> pb.FlavorQuotas:
        if self.cohort >= 0:
            return quota.cohorts[self.cohort].quotas[self.offer]
        return quota.cluster_queues[self.queue].resource_groups[self.group].flavors[self.offer]

    def nominal(self, quota: pb.Quota) -> int:
        return self.offer_in(quota).resources[self.entry].nominal


@dataclass(frozen=True)
class Pool:
    """A pool of a request. Amounts are counted in ``unit``.

    Attributes
    ----------
    kind, name
        ``ClusterQueue`` or ``Cohort`` (the root), and its name.
    flavor, resource
        Positions in the request's tables.
    queues
        Positions of the ClusterQueues whose work counts: all of the tree.
    alone
        Whether only one ClusterQueue of the tree is varied.
    limited
        Whether something in the tree has a limit on borrowing or lending, so that it matters who has how much.
    now, elsewhere
        Nominal quota today, in the pool, and in its tree outside of the pool.
    """

    kind: str
    name: str
    flavor: int
    resource: int
    flavor_name: str
    resource_name: str
    queues: frozenset[int]
    alone: bool
    limited: bool
    unit: int
    now: int
    elsewhere: int
    places: tuple[_Place, ...]
    shares: tuple[int, ...]
    """Of each place: its nominal quota today; where nobody has any, one each."""

    def at(self, base: pb.PlanRequest, amount: int) -> pb.PlanRequest:
        """The request with so much in the pool; the same, but for what the pool's file says, if it has that much."""
        changed = pb.PlanRequest()
        changed.CopyFrom(base)
        for place, share, units in zip(self.places, self.shares, apportion(self.shares, amount), strict=True):
            offer = place.offer_in(changed.quota)
            nominal = offer.resources[place.entry].nominal
            more = min(MAX_AMOUNT, units * self.unit)
            if amount == self.now:
                more = nominal  # which may have a part of a unit
            elif units > share and nominal > 0:
                for entry, other in enumerate(offer.resources):
                    if entry != place.entry:
                        other.nominal = min(MAX_AMOUNT, max(other.nominal, -(-other.nominal * more // nominal)))
            offer.resources[place.entry].nominal = more
        self._add_nodes(changed.quota.flavors[self.flavor], amount)
        return changed

    def asked_by(self, request: pb.PlanRequest, row: int) -> int:
        """How much a row asks for that the pool could give, in Kueue's unit."""
        shape = request.shapes[request.workloads.shape[row] if request.workloads.shape else 0]
        return sum(
            pod_set.count * amount
            for pod_set in shape.pod_sets
            if self.flavor not in pod_set.excluded_flavors
            for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True)
            if resource == self.resource
        )

    def held_by(self, request: pb.PlanRequest, row: int) -> bool:
        """Whether a running row holds some of it."""
        if not request.workloads.assignment:
            return False  # it does not say what it holds, so it is rejected
        held = request.assignments[request.workloads.assignment[row]]
        return (self.flavor, self.resource) in zip(held.flavors, held.resources, strict=True)

    def _add_nodes(self, flavor: pb.ResourceFlavor, amount: int) -> None:
        """Nodes like the largest for what is more than today."""
        groups: dict[int, list[pb.NodeGroup]] = {}
        for group in flavor.nodes:
            for resource in group.resources:
                groups.setdefault(resource, []).append(group)

        def size(group: pb.NodeGroup, resource: int) -> int:
            return group.amounts[list(group.resources).index(resource)]

        largest = max((size(group, self.resource) for group in groups.get(self.resource, ())), default=0)
        if amount <= self.now or largest <= 0:
            return
        nodes = -(-(amount - self.now) * self.unit // largest)
        grown = {
            id(group): group
            for resource, alike in groups.items()
            for group in [max(alike, key=lambda group, r=resource: size(group, r))]  # type: ignore[misc]
        }
        for group in grown.values():
            group.count = min(MAX_NODES, group.count + nodes)


def apportion(shares: Sequence[int], amount: int) -> list[int]:
    """Share out ``amount`` in proportion to ``shares`` (by Sainte-Laguë's divisors); at their sum exactly the shares.

    The more there is, the more (or as much) each gets: no other way of rounding has that and stays proportional.
    """
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    # Never above what the divisors give; the rest follows one by one.
    given = [max(0, share * amount // total - len(shares) - 1) for share in shares]
    turns = [((2 * has + 1) / share, k) for k, (has, share) in enumerate(zip(given, shares, strict=True)) if share]
    heapq.heapify(turns)
    for _ in range(amount - sum(given)):
        _, k = heapq.heappop(turns)
        given[k] += 1
        heapq.heappush(turns, ((2 * given[k] + 1) / shares[k], k))
    return given


def pools(quota: pb.Quota, resource: str | None = None, queue: str | None = None) -> list[Pool]:
    """The pools of a request's quota.

    Parameters
    ----------
    resource
        Name of the resource; None: all that are GPUs.
    queue
        Name of a ClusterQueue: only that is varied.

    Raises
    ------
    NoPool
        If nothing has such quota, or there is no such ClusterQueue.
    """
    tree = decode_quota(quota)
    names = list(quota.resources)
    wanted = [k for k, name in enumerate(names) if (is_gpu(name) if resource is None else name == resource)]
    if queue is not None and queue not in tree.queue_names:
        there = ", ".join(tree.queue_names) or "none"
        raise NoPool(f"there is no ClusterQueue {queue}; there are: {there}")
    found = [
        pool
        for root in dict.fromkeys(tree.root[tree.queue_node[q]] for q in _sound(tree))
        for wish in wanted
        for flavor in range(len(quota.flavors))
        if (pool := _pool(quota, tree, int(root), flavor, wish, queue)) is not None
    ]
    if not found:
        what = "GPUs" if resource is None else resource
        where = f"ClusterQueue {queue}" if queue else "no queue" if _sound(tree) else "there are no queues, so nothing"
        listed = ", ".join(names) or "nothing"
        raise NoPool(f"{where} has {'no ' if queue else ''}quota of {what}; quota there is of: {listed}")
    return found


def _sound(tree: QuotaTree) -> list[int]:
    """Positions of the ClusterQueues that are in the tree."""
    return [q for q, node in enumerate(tree.queue_node.tolist()) if node >= 0]


def _pool(quota: pb.Quota, tree: QuotaTree, root: int, flavor: int, resource: int, queue: str | None) -> Pool | None:
    members = frozenset(q for q in _sound(tree) if tree.root[tree.queue_node[q]] == root)
    alone = [q for q in members if tree.queue_names[q] == queue]
    if queue is not None and not alone:
        return None
    cohorts = {
        tree.names[node] for node in range(len(tree.names)) if tree.root[node] == root and node not in tree.queue_node
    }
    everywhere = list(_places(quota, sorted(members), cohorts, flavor, resource))
    places = [place for place in everywhere if queue is None or place.queue in alone]
    if not places:
        return None
    unit = UNITS.get(quota.resources[resource], 1)
    nominal = [-(-place.nominal(quota) // unit) for place in places]
    entries = [place.offer_in(quota).resources[place.entry] for place in everywhere]
    shared = len(members) > 1 or bool(cohorts)
    whole = queue is None and shared
    return Pool(
        kind="Cohort" if whole else "ClusterQueue",
        name=tree.names[root] if whole else queue or tree.queue_names[min(members)],
        flavor=flavor,
        resource=resource,
        flavor_name=quota.flavors[flavor].name,
        resource_name=quota.resources[resource],
        queues=members,
        alone=queue is not None and shared,
        limited=any(each.HasField("borrowing_limit") or each.HasField("lending_limit") for each in entries),
        unit=unit,
        now=sum(nominal),
        elsewhere=sum(place.nominal(quota) for place in everywhere if place not in places) // unit,
        places=tuple(places),
        shares=tuple(nominal) if sum(nominal) else (1,) * len(places),
    )


def _places(quota: pb.Quota, queues: Sequence[int], cohorts: set[str], flavor: int, resource: int) -> Iterator[_Place]:
    def entries(offer: pb.FlavorQuotas) -> Iterator[int]:
        if offer.flavor == flavor:
            yield from (k for k, entry in enumerate(offer.resources) if entry.resource == resource)

    for position, cohort in enumerate(quota.cohorts):
        if cohort.name in cohorts:
            for k, offer in enumerate(cohort.quotas):
                yield from (_Place(position, -1, -1, k, entry) for entry in entries(offer))
    for position in queues:
        for g, group in enumerate(quota.cluster_queues[position].resource_groups):
            for k, offer in enumerate(group.flavors):
                yield from (_Place(-1, position, g, k, entry) for entry in entries(offer))
