"""Quota tables of a request → quota tree.

What makes no sense for one queue must not stop the others: a ClusterQueue or Cohort whose quota cannot be meant
*freezes* the queues that depend on it (``QuotaTree.frozen`` says why), and the rest of the tree is planned without
them. Only tables that nobody could read (a resource listed twice) refuse the request as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from solver.api import planner_pb2 as pb
from solver.invalid import InvalidRequest
from solver.quota import MAX_AMOUNT, UNLIMITED, QuotaTree

MAX_TOTAL = 1 << 58
"""Largest sum of nominal quotas of one cell within one tree: far from the edge of int64, with a limit added."""

MAX_DEPTH = 100
"""Most cohorts above a ClusterQueue."""


@dataclass
class _Quotas:
    """Quotas of one node by cell, and what is wrong with them (the first thing found; empty: nothing)."""

    nominal: dict[int, int] = field(default_factory=dict)
    lending: dict[int, int] = field(default_factory=dict)
    borrowing: dict[int, int] = field(default_factory=dict)
    wrong: str = ""


def decode_quota(quota: pb.Quota) -> QuotaTree:
    """Read the quota tables.

    Raises
    ------
    InvalidRequest
        If a table as a whole makes no sense: names missing, or resources or flavors listed twice.
    """
    _check_names(quota)
    frozen: dict[int, str] = {}
    cohorts, wrong_cohorts = _cohorts(quota)
    parents = {name: cohort.parent for name, cohort in cohorts.items()}
    order, depth = _roots_first(parents, wrong_cohorts)
    cohort_quotas = {name: _quotas(quota, cohort.quotas) for name, cohort in cohorts.items()}
    for name in order:
        above = parents[name]
        if name in wrong_cohorts:
            continue
        if cohort_quotas[name].wrong:
            wrong_cohorts[name] = f"Cohort {name}: {cohort_quotas[name].wrong}"
        elif depth[name] > MAX_DEPTH:
            wrong_cohorts[name] = f"Cohort {name} is nested more than {MAX_DEPTH} cohorts deep"
        elif above in wrong_cohorts:
            wrong_cohorts[name] = wrong_cohorts[above]

    count = Counter(queue.name for queue in quota.cluster_queues)
    queue_quotas = [_queue_quotas(quota, queue) for queue in quota.cluster_queues]
    for position, queue in enumerate(quota.cluster_queues):
        if count[queue.name] > 1:
            frozen[position] = f"there are {count[queue.name]} ClusterQueues named {queue.name}"
        elif queue_quotas[position].wrong:
            frozen[position] = queue_quotas[position].wrong
        elif queue.cohort in wrong_cohorts:
            frozen[position] = wrong_cohorts[queue.cohort]

    _freeze_overflowing(quota, order, parents, cohort_quotas, queue_quotas, wrong_cohorts, frozen)
    return _tree(quota, order, parents, cohort_quotas, queue_quotas, wrong_cohorts, frozen)


def _check_names(quota: pb.Quota) -> None:
    tables: Iterable[tuple[str, Iterable[str]]] = (
        ("quota.resources[{}]", quota.resources),
        ("quota.flavors[{}].name", (flavor.name for flavor in quota.flavors)),
    )
    for path, names in tables:
        seen: dict[str, int] = {}
        for position, name in enumerate(names):
            if not name:
                raise InvalidRequest(path.format(position), "has no name")
            if name in seen:
                raise InvalidRequest(path.format(position), f"is {name!r}, which is listed already")
            seen[name] = position
    tables_of_nodes: tuple[tuple[str, Sequence[pb.Cohort | pb.ClusterQueue]], ...] = (
        ("quota.cohorts", quota.cohorts),
        ("quota.cluster_queues", quota.cluster_queues),
    )
    for path, nodes in tables_of_nodes:
        for position, node in enumerate(nodes):
            if not node.name:
                raise InvalidRequest(f"{path}[{position}].name", "is empty")


def _cohorts(quota: pb.Quota) -> tuple[dict[str, pb.Cohort], dict[str, str]]:
    """Cohorts by name, implicit ones included, and why some cannot be used."""
    cohorts: dict[str, pb.Cohort] = {}
    wrong: dict[str, str] = {}
    for cohort in quota.cohorts:
        if cohort.name in cohorts:
            wrong[cohort.name] = f"there are several Cohorts named {cohort.name}"
        cohorts.setdefault(cohort.name, cohort)
    named = [cohort.parent for cohort in quota.cohorts] + [queue.cohort for queue in quota.cluster_queues]
    for name in named:
        if name and name not in cohorts:
            cohorts[name] = pb.Cohort(name=name)
    return cohorts, wrong


def _roots_first(parents: Mapping[str, str], wrong: dict[str, str]) -> tuple[list[str], dict[str, int]]:
    """Cohorts in an order in which parents come first, and their depths (a root has 0). Marks those in a cycle."""
    order: list[str] = []
    depth: dict[str, int] = {}
    for name in parents:
        path: dict[str, None] = {}
        above = name
        while above and above not in depth and above not in wrong and above not in path:
            path[above] = None
            above = parents[above]
        if above in path:
            cycle = list(path)[list(path).index(above) :]
            told = "Cohorts form a cycle: " + " -> ".join([*cycle, above])
            wrong.update((member, told) for member in cycle)
        if above in wrong:
            wrong.update((member, wrong[above]) for member in path if member not in wrong)
            continue
        for member in reversed(path):
            depth[member] = depth[parents[member]] + 1 if parents[member] else 0
            order.append(member)
    return order, depth


def _quotas(quota: pb.Quota, offers: Iterable[pb.FlavorQuotas]) -> _Quotas:
    """Quotas of a list of flavors."""
    result = _Quotas()
    resources, flavors = quota.resources, quota.flavors
    for offer in offers:
        if offer.flavor >= len(flavors):
            result.wrong = f"quota for flavor {offer.flavor}, but there are {len(flavors)} flavors"
            return result
        for amounts in offer.resources:
            if amounts.resource >= len(resources):
                result.wrong = f"quota for resource {amounts.resource}, but there are {len(resources)} resources"
                return result
            what = f"{resources[amounts.resource]} in flavor {flavors[offer.flavor].name}"
            cell = offer.flavor * len(resources) + amounts.resource
            if cell in result.nominal:
                result.wrong = f"two quotas for {what}"
                return result
            result.nominal[cell] = amounts.nominal
            if not 0 <= amounts.nominal <= MAX_AMOUNT:
                result.wrong = f"nominal quota of {amounts.nominal} for {what} is not between 0 and {MAX_AMOUNT}"
                return result
            for limit, given, values in (
                ("borrowing", amounts.HasField("borrowing_limit"), result.borrowing),
                ("lending", amounts.HasField("lending_limit"), result.lending),
            ):
                if given:
                    value = amounts.borrowing_limit if limit == "borrowing" else amounts.lending_limit
                    values[cell] = min(value, UNLIMITED)  # a limit above all there is limits nothing
                    if value < 0:
                        result.wrong = f"{limit} limit of {value} for {what} is negative"
                        return result
    return result


def _queue_quotas(quota: pb.Quota, queue: pb.ClusterQueue) -> _Quotas:
    """Quotas of a ClusterQueue; each resource, and each flavor, may be in one of its resource groups only."""
    result = _quotas(quota, (offer for group in queue.resource_groups for offer in group.flavors))
    if result.wrong:
        return result
    for name in ("within_cluster_queue", "reclaim_within_cohort"):
        if (policy := getattr(queue.preemption, name)) not in pb.PreemptionPolicy.values():
            result.wrong = f"preemption.{name} is {policy}, which is no policy that this planner knows"
    covered = [resource for group in queue.resource_groups for resource in group.covered_resources]
    offered = [offer.flavor for group in queue.resource_groups for offer in group.flavors]
    if unknown := [resource for resource in covered if resource >= len(quota.resources)]:
        result.wrong = f"covers resource {unknown[0]}, but there are {len(quota.resources)} resources"
    elif twice := [resource for resource, times in Counter(covered).items() if times > 1]:
        result.wrong = f"covers {quota.resources[twice[0]]} twice"
    elif twice := [flavor for flavor, times in Counter(offered).items() if times > 1]:
        result.wrong = f"lists flavor {quota.flavors[twice[0]].name} twice"
    for group in queue.resource_groups:
        for offer in group.flavors:
            for amounts in offer.resources:
                if not result.wrong and amounts.resource not in group.covered_resources:
                    result.wrong = (
                        f"quota for {quota.resources[amounts.resource]} in flavor {quota.flavors[offer.flavor].name}, "
                        "which its resource group does not cover"
                    )
    return result


def _freeze_overflowing(
    quota: pb.Quota,
    order: list[str],
    parents: Mapping[str, str],
    cohort_quotas: Mapping[str, _Quotas],
    queue_quotas: list[_Quotas],
    wrong_cohorts: dict[str, str],
    frozen: dict[int, str],
) -> None:
    """Freeze whole trees whose quotas add up to more than arithmetic holds."""
    root = {name: name for name in order}
    total: Counter[tuple[str, int]] = Counter()
    for name in order:
        root[name] = root[parents[name]] if parents[name] else name
        if name not in wrong_cohorts:
            for cell, nominal in cohort_quotas[name].nominal.items():
                total[root[name], cell] += nominal
    for position, queue in enumerate(quota.cluster_queues):
        if position not in frozen and queue.cohort:
            for cell, nominal in queue_quotas[position].nominal.items():
                total[root[queue.cohort], cell] += nominal
    too_large = {name for (name, _), sum_ in total.items() if sum_ > MAX_TOTAL}
    for name in order:
        if root[name] in too_large and name not in wrong_cohorts:
            wrong_cohorts[name] = f"quotas under Cohort {root[name]} add up to more than {MAX_TOTAL}"
    for position, queue in enumerate(quota.cluster_queues):
        if position not in frozen and queue.cohort in wrong_cohorts:
            frozen[position] = wrong_cohorts[queue.cohort]


def _tree(
    quota: pb.Quota,
    order: list[str],
    parents: Mapping[str, str],
    cohort_quotas: Mapping[str, _Quotas],
    queue_quotas: list[_Quotas],
    wrong_cohorts: Mapping[str, str],
    frozen: dict[int, str],
) -> QuotaTree:
    names: list[str] = []
    parent: list[int] = []
    tables: list[_Quotas] = []
    cohort_node: dict[str, int] = {}
    for name in order:
        if name not in wrong_cohorts:
            cohort_node[name] = len(names)
            names.append(name)
            parent.append(cohort_node[parents[name]] if parents[name] else -1)
            tables.append(cohort_quotas[name])
    queue_node = np.full(len(quota.cluster_queues), -1, dtype=np.int32)
    for position, queue in enumerate(quota.cluster_queues):
        if position not in frozen:
            queue_node[position] = len(names)
            names.append(queue.name)
            parent.append(cohort_node[queue.cohort] if queue.cohort else -1)
            tables.append(queue_quotas[position])
    cells = len(quota.flavors) * len(quota.resources)
    nominal = np.zeros((len(names), cells), dtype=np.int64)
    lending = np.full((len(names), cells), UNLIMITED, dtype=np.int64)
    borrowing = np.full((len(names), cells), UNLIMITED, dtype=np.int64)
    for node, table in enumerate(tables):
        for array, values in ((nominal, table.nominal), (lending, table.lending), (borrowing, table.borrowing)):
            array[node, list(values)] = list(values.values())
    return QuotaTree(
        resources=tuple(quota.resources),
        flavors=tuple(flavor.name for flavor in quota.flavors),
        names=tuple(names),
        parent=np.array(parent, dtype=np.int32),
        queue_names=tuple(queue.name for queue in quota.cluster_queues),
        queue_node=queue_node,
        nominal=nominal,
        lending=lending,
        borrowing=borrowing,
        groups=tuple(
            ()
            if position in frozen
            else tuple(
                (tuple(group.covered_resources), tuple(offer.flavor for offer in group.flavors))
                for group in queue.resource_groups
            )
            for position, queue in enumerate(quota.cluster_queues)
        ),
        strict_fifo=np.array([q.queueing_strategy == pb.STRICT_FIFO for q in quota.cluster_queues], dtype=np.bool_),
        try_next_flavor=np.array(
            [q.flavor_fungibility == pb.TRY_NEXT_FLAVOR for q in quota.cluster_queues], dtype=np.bool_
        ),
        stopped=np.array([queue.stopped for queue in quota.cluster_queues], dtype=np.bool_),
        frozen=frozen,
    )
