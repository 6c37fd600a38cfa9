"""Request of the contract → what Kueue's own choice depends on beside a problem: who asks, and who may be evicted.

Only whoever releases work needs it; planners do not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from solver.api import planner_pb2 as pb
from solver.choose import Queues, Shapes, pack_queues, pack_shapes
from solver.preemption import Holders, Preemption, Whom, going_order
from solver.problem import Problem
from solver.quota import Int32s, Int64s, QuotaTree


@dataclass(frozen=True)
class Admission:
    """What :func:`solver.choose.choose` reads. Instants are milliseconds since the Unix epoch.

    Attributes
    ----------
    queue, shape
        ``int32 [n]``, for each row of the problem: its ClusterQueue in ``queues``, and what it asks for in ``shapes``.
    created
        ``int64 [n]``, in the unit of ``holders``.
    holders
        Work that holds quota, in the order in which Kueue lets it go.
    holder
        ``int64 [W]``: row of the request of each holder.
    """

    queues: Queues
    shapes: Shapes
    queue: Int32s
    shape: Int32s
    created: Int64s
    holders: Holders
    holder: Int64s


def decode_admission(request: pb.PlanRequest, problem: Problem) -> Admission:
    """Read it from the request that a problem was decoded from."""
    work = request.workloads
    queue = _column(work.cluster_queue, len(problem.ids))[problem.row]
    used, shape = np.unique(_column(work.shape, len(problem.ids))[problem.row], return_inverse=True)
    holders, holder = _holders(request, problem)
    return Admission(
        queues=decode_queues(request.quota, problem.tree),
        shapes=pack_shapes(problem.tree, [request.shapes[k].pod_sets for k in used.tolist()]),
        queue=queue.astype(np.int32),
        shape=shape.astype(np.int32).reshape(-1),
        created=problem.created + problem.now,
        holders=holders,
        holder=holder,
    )


def decode_queues(quota: pb.Quota, tree: QuotaTree) -> Queues:
    """The ClusterQueues of a tree, with what each may do to others."""
    return pack_queues(
        tree,
        [
            Preemption() if position in tree.frozen else _preemption(queue)
            for position, queue in enumerate(quota.cluster_queues)
        ],
    )


def _preemption(queue: pb.ClusterQueue) -> Preemption:
    policy = queue.preemption
    return Preemption(
        within_queue=Whom(policy.within_cluster_queue),
        reclaim=Whom(policy.reclaim_within_cohort),
        borrowing=policy.borrow_within_cohort,
        threshold=policy.max_priority_threshold if policy.HasField("max_priority_threshold") else None,
        stop_search=policy.stop_search,
        rather_preempt=policy.over_borrowing,
    )


def _holders(request: pb.PlanRequest, problem: Problem) -> tuple[Holders, Int64s]:
    """Rows that hold quota, and their positions in the request."""
    work, busy, n = request.workloads, problem.busy, len(problem.ids)
    entry = np.flatnonzero(busy.row >= 0)
    holder, position, count = np.unique(busy.row[entry], return_inverse=True, return_counts=True)
    priority = _column(work.priority, n)[holder]
    reserved = _column(work.reserved_ms, n)[holder] // 1000
    order = going_order(priority, reserved, [problem.ids[row] for row in holder.tolist()])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entry = entry[np.argsort(place[position.reshape(-1)], kind="stable")]
    first = np.concatenate([[0], np.cumsum(count[order])]).astype(np.int32)
    created = _column(work.created_ms, n)[holder]
    holders = Holders(
        node=busy.node[entry][first[:-1]],
        priority=priority[order],
        created=np.where(created == 0, problem.now, created)[order],
        evicted=_column(work.evicted, n)[holder][order] != 0,
        first=first,
        cell=busy.cell[entry],
        amount=busy.amount[entry],
    )
    return holders, holder[order]


def _column(column: Collection[int], n: int) -> Int64s:
    """A column of the workloads; zeros where it is left out."""
    return np.fromiter(column, np.int64, n) if len(column) else np.zeros(n, dtype=np.int64)
