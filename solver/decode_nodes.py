"""Nodes of a request's flavors, and the pods of running work → limits of what fits onto nodes at once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from solver.api import planner_pb2 as pb
from solver.invalid import InvalidRequest
from solver.packing import Nodes, Packing, PodColumns, pack
from solver.problem import Busy
from solver.quota import MAX_AMOUNT, Int64s, QuotaTree

MAX_NODES = 1_000_000
"""Most nodes of one group."""


def decode_nodes(quota: pb.Quota) -> Nodes:
    """Read the nodes of all flavors.

    Raises
    ------
    InvalidRequest
        If a group of nodes makes no sense.
    """
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for position, flavor in enumerate(quota.flavors):
        for number, group in enumerate(flavor.nodes):
            path = f"quota.flavors[{position}].nodes[{number}]"
            if not 0 <= group.count <= MAX_NODES:
                raise InvalidRequest(f"{path}.count", f"is {group.count}; must be between 0 and {MAX_NODES}")
            if len(group.resources) != len(group.amounts):
                lengths = f"{len(group.amounts)} entries where resources has {len(group.resources)}"
                raise InvalidRequest(f"{path}.amounts", f"has {lengths}")
            if len(set(group.resources)) < len(group.resources):
                raise InvalidRequest(f"{path}.resources", "lists a resource twice")
            for k, (resource, amount) in enumerate(zip(group.resources, group.amounts, strict=True)):
                if resource >= len(quota.resources):
                    told = f"is {resource}, but there are {len(quota.resources)} resources"
                    raise InvalidRequest(f"{path}.resources[{k}]", told)
                if not 0 <= amount <= MAX_AMOUNT:
                    raise InvalidRequest(f"{path}.amounts[{k}]", f"is {amount}; must be between 0 and {MAX_AMOUNT}")
                groups[position * len(quota.resources) + resource].append((group.count, amount))
    return Nodes(groups)


def decode_packing(nodes: Nodes, tree: QuotaTree, busy: Busy, pods: PodColumns) -> Packing:
    """Limits that the work of a problem could exceed.

    Parameters
    ----------
    pods
        Of each option of the problem.
    """
    held = np.flatnonzero(np.isin(busy.cell, [cell for cell in range(tree.cells) if cell in nodes]) & (busy.row >= 0))
    # What is not known comes in pieces of one.
    several = np.where(busy.pods[held] > 0, busy.pods[held], busy.amount[held])
    running = PodColumns(pods.first[:0], busy.cell[held], busy.amount[held] // np.maximum(1, several), several)
    return pack(nodes, pods, running, busy.end[held], _most(tree, busy))


def _most(tree: QuotaTree, busy: Busy) -> Int64s:
    """Most of each cell that can be in use at once: ``int64 [C]``.

    In each tree its nominal quota, or what runs there now, if that is more; nothing starts until it is less.
    """
    whole, used = tree.no_usage(), tree.no_usage()
    np.add.at(whole, tree.root, tree.nominal)
    running = busy.row >= 0
    np.add.at(used, (tree.root[busy.node[running]], busy.cell[running]), busy.amount[running])
    most: Int64s = np.maximum(whole, used).sum(axis=0)
    return most
