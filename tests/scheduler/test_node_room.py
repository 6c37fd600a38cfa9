"""Nothing is released that nodes have no room for."""

from __future__ import annotations

import numpy as np

from scheduler.dispatch import Turns, dispatch
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.decode_admission import decode_admission

NOW = 1_800_000_000_000


def released(nodes: int, *rows: tuple[int, int, int, int], pods: int = 1, quota: int = 32) -> list[int]:
    """Rows that are released onto nodes of 8 GPUs: (GPUs of a pod, state, duration, planned start) of each."""
    request = pb.PlanRequest(schema=1, now_ms=NOW)
    request.quota.resources.append("gpu")
    request.quota.flavors.add(name="a100").nodes.add(count=nodes, resources=[0], amounts=[8])
    for name in ("even", "odd"):
        group = request.quota.cluster_queues.add(name=name).resource_groups.add(covered_resources=[0])
        group.flavors.add(flavor=0).resources.add(resource=0, nominal=quota)
    for number, (gpus, state, duration, _) in enumerate(rows):
        request.shapes.add().pod_sets.add(count=pods, resources=[0], amounts=[gpus])
        request.assignments.add(flavors=[0], resources=[0], amounts=[gpus * pods], pods=[pods])
        work = request.workloads
        work.id.append(f"w{number}")
        work.cluster_queue.append(number % 2)
        work.shape.append(number)
        work.assignment.append(number)
        work.state.append(pb.WorkloadState.ValueType(state))
        work.duration_ms.append(duration)
    problem = decode(request)
    start = np.array([rows[row][3] for row in problem.row], dtype=np.int64)
    turns = Turns(np.arange(len(problem)), start, np.zeros_like(start))
    due = dispatch(problem, decode_admission(request, problem), turns, np.ones(len(problem), dtype=np.bool_))
    return [int(problem.row[row]) for row, _ in due]


def test_pods_do_not_span_nodes() -> None:
    """Of two pods of 6 GPUs one is released onto one node of 8, whatever the quota, and both onto two."""
    wide = (6, pb.PENDING, 100, 0)
    assert released(1, wide, wide) == [0]
    assert released(2, wide, wide) == [0, 1]
    assert released(3, wide, wide, pods=2) == [0]


def test_what_kueue_admits_takes_nodes() -> None:
    """Running work, and work that Kueue may admit any moment, has its nodes, though Kueue does not look at them."""
    for state in (pb.RUNNING, pb.IN_FLIGHT, pb.FOREIGN):
        assert released(1, (6, state, 100, 0), (6, pb.PENDING, 100, 100)) == []
        assert released(1, (6, state, 100, 0), (6, state, 100, 0), (2, pb.PENDING, 100, 100)) == []
        assert released(1, (6, state, 100, 0), (2, pb.PENDING, 100, 100)) == [1]


def test_overtaking_on_nodes() -> None:
    """Beside work that waits for nodes, of whatever queue, only what ends before its planned start is released."""
    runs, waits = (6, pb.RUNNING, 100, 0), (6, pb.PENDING, 100, 100)
    assert released(1, runs, waits, (2, pb.PENDING, 100, 0)) == [2]
    assert released(1, runs, waits, (2, pb.PENDING, 101, 0)) == []
    assert released(2, runs, (6, pb.RUNNING, 100, 0), waits, (2, pb.PENDING, 100, 0)) == [3]


def test_where_nodes_cannot_run_short_they_change_nothing() -> None:
    """Pods whose sizes divide the node are held up by quota alone."""
    assert released(4, *[(4, pb.PENDING, 100, 0)] * 8, quota=16) == list(range(8))
    assert released(4, *[(4, pb.PENDING, 100, 0)] * 8, quota=8) == list(range(4))
