"""Small planning requests about GPUs, and their best answer by trying everything."""

from __future__ import annotations

from itertools import product

from solver.api import planner_pb2 as pb

NOW = 1_800_000_000_000
HOUR = 3_600_000
GPU = "nvidia.com/gpu"


def queues(nominal: dict[str, int], cohort: str = "", *, cpu: int | None = None) -> pb.PlanRequest:
    """ClusterQueues with so many GPUs of one flavor each; with ``cpu`` also so many CPUs each, of another flavor."""
    request = pb.PlanRequest(schema=1, now_ms=NOW)
    request.quota.resources.extend([GPU, "cpu"])
    request.quota.flavors.add(name="gpu")
    request.quota.flavors.add(name="plain")
    for name, gpus in nominal.items():
        queue = request.quota.cluster_queues.add(name=name, cohort=cohort)
        queue.resource_groups.add(covered_resources=[0]).flavors.add(flavor=0).resources.add(resource=0, nominal=gpus)
        if cpu is not None:
            group = queue.resource_groups.add(covered_resources=[1])
            group.flavors.add(flavor=1).resources.add(resource=1, nominal=cpu * 1000)
    return request


def add(
    request: pb.PlanRequest,
    gpus: int,
    duration: int,
    due: int | None = None,
    *,
    queue: int = 0,
    state: int = pb.PENDING,
    release: int = 0,
    cpu: int = 0,
) -> None:
    """One more row; times count from now."""
    work = request.workloads
    work.id.append(f"w{len(work.id)}")
    work.cluster_queue.append(queue)
    work.state.append(state)
    work.created_ms.append(NOW)
    work.release_ms.append(NOW + release if release else 0)
    work.duration_ms.append(duration)
    work.due_ms.append(0 if due is None else NOW + due)
    work.shape.append(len(request.shapes))
    work.assignment.append(len(request.assignments))
    request.shapes.add().pod_sets.add(count=1, resources=[0, 1], amounts=[gpus, cpu * 1000])
    request.assignments.add(flavors=[0], resources=[0], amounts=[gpus])


def least_late(rows: list[tuple[int, int, int, int]], gpus: int) -> int:
    """The fewest late of rows (GPUs, duration, due date, release date), by trying all starts that make it in time."""
    best = len(rows)
    for on in product([False, True], repeat=len(rows)):
        chosen = [row for row, is_on in zip(rows, on, strict=True) if is_on]
        if len(rows) - len(chosen) < best and any(
            all(
                sum(need for (need, length, *_), start in zip(chosen, starts, strict=True)
                    if start <= instant < start + length) <= gpus
                for instant in starts
            )
            for starts in product(*(range(release, due - length + 1) for _, length, due, release in chosen))
        ):  # fmt: skip
            best = len(rows) - len(chosen)
    return best
