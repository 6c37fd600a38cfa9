"""One scheduling cycle of Kueue: which of the ClusterQueues' heads are admitted, with which flavors, and why not.

Follows Kueue 0.17 without fair sharing (``pkg/scheduler/scheduler.go``): each head is given flavors against the usage
at the start of the cycle, and finds whom to evict for it; then heads go in order of how far they borrow, priority and
age, and what no longer fits is tried again in the next cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solver.api import planner_pb2 as pb
from solver.choose import (
    ATTEMPTS,
    FITS,
    NO_FIT,
    PREEMPTS,
    WAITS,
    Choice,
    Queues,
    Shapes,
    blank,
    claim,
    pack_shapes,
    retry,
)
from solver.decode_admission import decode_queues
from solver.decode_quota import decode_quota
from solver.explain import explain
from solver.preemption import NEVER, Holders
from solver.quota import UNLIMITED, Int64s, QuotaTree, fits, take


class Request(NamedTuple):
    """What a workload asks for, ready for the kernels."""

    shape: pb.RequestShape
    names: tuple[str, ...]
    """Of its pod sets."""
    unknown: bool
    """It asks for a resource that no ClusterQueue covers."""
    shapes: Shapes
    """One shape, number 0."""


class Head(NamedTuple):
    """First workload of a ClusterQueue."""

    queue: int
    """Position of the ClusterQueue in the tree."""
    key: str
    """``namespace/name`` of the workload."""
    priority: int
    age: tuple[str, str]
    """Creation timestamp, then uid: Kueue's order among equals."""
    created: int
    """The same in the unit of those whom it may evict."""
    request: Request


class PodSetAssignment(NamedTuple):
    """What a pod set gets."""

    name: str
    pods: int
    flavors: dict[str, str]
    """Flavor by resource."""
    usage: dict[str, int]
    """By resource, all pods together."""


class Outcome(NamedTuple):
    """What a cycle decided about one head."""

    head: Head
    admitted: tuple[PodSetAssignment, ...]
    """Empty when it was not admitted."""
    again: bool
    """It fitted at the start of the cycle but not after another one: it stays in the queue and is tried at once."""
    message: str
    """Why it was not admitted, in Kueue's words."""
    evicts: tuple[int, ...] = ()
    """Holders that have to go before it is."""


@dataclass(frozen=True)
class Rules:
    """A quota tree with what the kernels need beside it."""

    tree: QuotaTree
    queues: Queues

    @classmethod
    def of(cls, quota: pb.Quota) -> Rules:
        """Prepare the queues of a cluster."""
        tree = decode_quota(quota)
        return cls(tree, decode_queues(quota, tree))

    @property
    def evicts(self) -> bool:
        """Whether some queue may evict somebody."""
        policies = self.queues.policies
        return bool((policies.within_queue != NEVER).any() or (policies.reclaim != NEVER).any())

    def request(self, shape: pb.RequestShape, names: Sequence[str]) -> Request:
        """Prepare a request. A resource that the tree does not know yet is one that no ClusterQueue covers."""
        known = len(self.tree.resources)
        unknown = any(resource >= known for pod_set in shape.pod_sets for resource in pod_set.resources)
        pod_sets: Sequence[Any] = [] if unknown else shape.pod_sets
        shapes = pack_shapes(self.tree, [pod_sets])
        return Request(shape, tuple(names), unknown, shapes)


def cycle(rules: Rules, usage: Int64s, heads: Sequence[Head], holders: Holders | None = None) -> list[Outcome]:
    """Run one cycle; ``usage`` (``int64 [N, C]``) then includes what was admitted.

    ``holders``: who may be evicted; nobody by default.
    """
    tree = rules.tree
    nominated = []
    for head in heads:
        choice = blank(rules.queues, head.request.shapes, holders)
        mode, level = NO_FIT, 0
        if not head.request.unknown:
            # Kueue makes its further attempts at once, in cycles of their own.
            mode, level, _ = retry(
                tree.arrays,
                rules.queues,
                head.request.shapes,
                usage,
                head.queue,
                0,
                choice,
                ATTEMPTS,
                head.priority,
                head.created,
            )
        nominated.append((0 if mode == NO_FIT else level, -head.priority, head.age, mode, head, choice))
    nominated.sort(key=lambda entry: entry[:3])
    reserved = usage.copy()
    going: set[int] = set()
    outcomes = []
    for level, _, _, mode, head, choice in nominated:
        node = int(tree.queue_node[head.queue])
        admitted: tuple[PodSetAssignment, ...] = ()
        evicts: tuple[int, ...] = ()
        message = ""
        if mode == FITS:
            if _fits(tree, reserved, node, choice.total):
                claim(tree.arrays, reserved, node, choice.total)
                claim(tree.arrays, usage, node, choice.total)
                admitted = _assignments(rules, head, choice)
            else:
                message = "Workload no longer fits after processing another workload"
        elif mode == PREEMPTS:
            victims = [holder for holder in choice.victims.tolist() if holder >= 0]
            if _make_room(tree, reserved, node, choice, [holder for holder in victims if holder not in going]):
                going.update(victims)
                evicts = tuple(victims)
                message = f"{_why(rules, usage, head, choice)}. Pending the preemption of {len(victims)} workload(s)"
            else:
                message = "Workload no longer fits after processing another workload"
        else:
            message = _why(rules, usage, head, choice)
        if mode == WAITS:
            _keep(tree, reserved, node, choice.total, level)
        outcomes.append(Outcome(head, admitted, mode >= PREEMPTS and not admitted, message, evicts))
    return outcomes


def _fits(tree: QuotaTree, usage: Int64s, node: int, total: Int64s) -> bool:
    cells = np.flatnonzero(total).astype(np.int32)
    return fits(tree.arrays, usage, node, cells, total[cells])


def _make_room(tree: QuotaTree, usage: Int64s, node: int, choice: Choice, victims: Sequence[int]) -> bool:
    """Put a request in the place of holders, if they make room for it; else nothing is changed."""
    holders, before = choice.holders, usage.copy()
    for holder in victims:
        for k in range(holders.first[holder], holders.first[holder + 1]):
            take(tree.arrays, usage, int(holders.node[holder]), int(holders.cell[k]), -int(holders.amount[k]))
    fits = _fits(tree, usage, node, choice.total)
    if fits:
        claim(tree.arrays, usage, node, choice.total)
    else:
        usage[:] = before
    return fits


def _keep(tree: QuotaTree, usage: Int64s, node: int, total: Int64s, level: int) -> None:
    """Keep quota until the end of the cycle for a workload that would need others to be gone."""
    for cell in np.flatnonzero(total).tolist():
        amount, own = int(total[cell]), int(tree.nominal[node, cell] - usage[node, cell])
        limit = int(tree.borrowing[node, cell])
        if level == 0:
            amount = max(0, min(amount, own))
        elif limit < UNLIMITED:
            amount = min(amount, own + limit)
        take(tree.arrays, usage, node, cell, amount)


def _assignments(rules: Rules, head: Head, choice: Choice) -> tuple[PodSetAssignment, ...]:
    tree, shapes, result = rules.tree, head.request.shapes, []
    for row, name in enumerate(head.request.names):
        pods = int(choice.pods[row])
        flavors, used = {}, {}
        for k in range(shapes.request_first[row], shapes.request_first[row + 1]):
            resource = int(shapes.resource[k])
            group = int(rules.queues.group[head.queue, resource])
            if group >= 0:
                flavor = int(choice.flavor[row, group - rules.queues.first[head.queue]])
                flavors[tree.resources[resource]] = tree.flavors[flavor]
                used[tree.resources[resource]] = int(shapes.amount[k]) * pods
        result.append(PodSetAssignment(name, pods, flavors, used))
    return tuple(result)


def _why(rules: Rules, usage: Int64s, head: Head, choice: Choice) -> str:
    """Why a request does not fit, as Kueue writes it."""
    if head.request.unknown:
        return "it asks for a resource that is unavailable in ClusterQueue"
    told = explain(rules.tree, rules.queues, head.request.shapes, usage, head.queue, 0, choice)
    against = [(name, ", ".join(reasons)) for name, reasons in zip(head.request.names, told, strict=False) if reasons]
    return "; ".join(f"couldn't assign flavors to pod set {name}: {reasons}" for name, reasons in against)
