"""Compiling the kernels of a round ahead of the first one, which would come seconds late otherwise."""

from __future__ import annotations

import numpy as np

from scheduler.dispatch import dispatch, turns
from scheduler.idle import idle
from solver.api import planner_pb2 as pb
from solver.decode import SCHEMA, decode
from solver.decode_admission import decode_admission


def warm_up() -> None:
    """Compile, or load from numba's cache, all that stands between a change and a release.

    Raises
    ------
    RuntimeError
        numba finds no folder that it may write to; ``NUMBA_CACHE_DIR`` can name one.
    """
    request = pb.PlanRequest(schema=SCHEMA, now_ms=1)
    request.quota.resources.append("gpu")
    request.quota.flavors.add(name="gpu").nodes.add(count=1, resources=[0], amounts=[3])
    group = request.quota.cluster_queues.add(name="queue").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=4)
    request.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[1])
    request.assignments.add(flavors=[0], resources=[0], amounts=[1])
    states = [pb.RUNNING, pb.IN_FLIGHT, pb.FOREIGN, pb.PENDING]
    request.workloads.id.extend(str(row) for row in range(len(states)))
    request.workloads.state.extend(states)
    request.workloads.duration_ms.extend([1] * len(states))
    problem = decode(request)
    dispatch(problem, decode_admission(request, problem), turns(problem, None), [False] * len(problem))
    idle(problem, np.ones(len(problem), dtype=np.bool_))
