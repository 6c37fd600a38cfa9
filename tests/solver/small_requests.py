"""Requests to test with: a short way to write one down, and random small ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from solver.api import planner_pb2 as pb

NOW = 1_800_000_000_000
SECOND = 1_000
STATES = (pb.PENDING, pb.PENDING, pb.PENDING, pb.IN_FLIGHT, pb.RUNNING, pb.FOREIGN)


def request(queues: dict[str, int | None] | None = None, cohort: str = "", **policy: Any) -> pb.PlanRequest:
    """Queues with so many GPUs each, all in one cohort or alone."""
    result = pb.PlanRequest(schema=1, now_ms=NOW, policy=pb.Policy(**policy))
    result.quota.resources.append("nvidia.com/gpu")
    result.quota.flavors.add(name="gpu")
    for name, gpus in ({"q": 4} if queues is None else queues).items():
        group = result.quota.cluster_queues.add(name=name, cohort=cohort).resource_groups.add(covered_resources=[0])
        group.flavors.add(flavor=0).resources.add(resource=0, nominal=gpus or 0)
    return result


def add(
    request: pb.PlanRequest,
    gpus: int,
    duration: int,
    *,
    due: int | None = None,
    queue: int = 0,
    state: int = pb.PENDING,
    release: int = 0,
    weight: float = 1.0,
    hard: bool = False,
    created: int = 0,
    priority: int = 0,
    times: int = 1,
    previous: int | None = None,
) -> None:
    """Append rows; times count from now."""
    work = request.workloads
    for _ in range(times):
        if state == pb.RUNNING:
            request.assignments.add(flavors=[0], resources=[0], amounts=[gpus])
        shape = pb.RequestShape(pod_sets=[pb.PodSet(count=gpus, resources=[0], amounts=[1])])
        if shape not in request.shapes:
            request.shapes.append(shape)
        if previous is not None:
            request.previous.workload.append(len(work.id))
            request.previous.start_ms.append(NOW + previous)
        work.id.append(f"w{len(work.id)}")
        work.cluster_queue.append(queue)
        work.shape.append(list(request.shapes).index(shape))
        work.state.append(state)
        work.created_ms.append(NOW + created)
        work.release_ms.append(NOW + release if release else 0)
        work.duration_ms.append(duration)
        work.due_ms.append(0 if due is None else NOW + due)
        work.hard.append(hard)
        work.weight.append(weight)
        work.priority.append(priority)
        work.assignment.append(max(0, len(request.assignments) - 1))


limits = st.one_of(st.none(), st.integers(0, 6))
times = st.integers(0, 30)


@st.composite
def quotas(draw: st.DrawFn) -> pb.Quota:
    """Trees up to three cohorts deep with one or two resources and one to three flavors."""
    quota = pb.Quota(resources=["gpu", "cpu"][: draw(st.integers(1, 2))])
    for k in range(draw(st.integers(1, 3))):
        flavor = quota.flavors.add(name=f"f{k}", lead_ms=draw(st.sampled_from([0, 0, 0, 3])))
        for size in draw(st.sampled_from([(), (2,), (3,), (3, 2), (0, 4)])):
            flavor.nodes.add(count=draw(st.integers(1, 2)), resources=[0], amounts=[size])
    cohorts = ["a", "b", "c"][: draw(st.integers(0, 3))]
    resources, flavors = range(len(quota.resources)), range(len(quota.flavors))

    def amounts(offer: pb.FlavorQuotas, *, limited: bool) -> None:
        for resource in resources:
            amount = offer.resources.add(resource=resource, nominal=draw(st.integers(0, 6)))
            if limited and (limit := draw(limits)) is not None:
                amount.borrowing_limit = limit
            if limited and (limit := draw(limits)) is not None:
                amount.lending_limit = limit

    for k, name in enumerate(cohorts):
        cohort = quota.cohorts.add(name=name, parent=draw(st.sampled_from(["", *cohorts[:k]])))
        for flavor in flavors:
            if draw(st.booleans()):
                amounts(cohort.quotas.add(flavor=flavor), limited=bool(cohort.parent))
    for k in range(draw(st.integers(1, 4))):
        queue = quota.cluster_queues.add(name=f"q{k}", cohort=draw(st.sampled_from(["", *cohorts])))
        queue.queueing_strategy = draw(st.sampled_from([pb.BEST_EFFORT_FIFO, pb.BEST_EFFORT_FIFO, pb.STRICT_FIFO]))
        if draw(st.integers(0, 2)) == 0:
            queue.flavor_fungibility = pb.TRY_NEXT_FLAVOR
        group = queue.resource_groups.add(covered_resources=resources)
        for flavor in draw(st.permutations(list(flavors)))[: draw(st.integers(1, 3))]:
            amounts(group.flavors.add(flavor=flavor), limited=bool(queue.cohort))
    return quota


@st.composite
def requests(draw: st.DrawFn, rows: int = 12, states: tuple[int, ...] = STATES) -> pb.PlanRequest:
    """Small requests that make sense: any states, due dates, release dates, reservations."""
    result = pb.PlanRequest(schema=1, now_ms=NOW, quota=draw(quotas()))
    queues, resources, flavors = (
        len(result.quota.cluster_queues),
        len(result.quota.resources),
        len(result.quota.flavors),
    )
    for _ in range(draw(st.integers(1, 4))):
        shape = result.shapes.add()
        for _ in range(draw(st.sampled_from([1, 1, 2]))):
            pod_set = shape.pod_sets.add(count=draw(st.integers(1, 3)))
            pod_set.resources.extend(range(resources))
            pod_set.amounts.extend(draw(st.integers(0, 2)) for _ in range(resources))
            if draw(st.integers(0, 3)) == 0:
                pod_set.min_count = draw(st.integers(1, pod_set.count))
            if draw(st.integers(0, 3)) == 0:
                pod_set.excluded_flavors.append(draw(st.integers(0, flavors - 1)))
    work = result.workloads
    for k in range(draw(st.integers(0, rows))):
        state = draw(st.sampled_from(states))
        work.id.append(f"w{k}")
        work.cluster_queue.append(draw(st.integers(0, queues - 1)))
        work.shape.append(draw(st.integers(0, len(result.shapes) - 1)))
        work.state.append(state)
        work.created_ms.append(NOW - draw(times))
        work.release_ms.append(draw(st.sampled_from([0, 0, NOW + draw(times)])))
        work.duration_ms.append(draw(st.integers(1, 12)))
        work.due_ms.append(draw(st.sampled_from([0, NOW - 5 + draw(times)])))
        work.hard.append(draw(st.booleans()))
        work.weight.append(draw(st.sampled_from([0.0, 1.0, 1.0, 2.5])))
        work.priority.append(draw(st.integers(0, 1)))
        work.assignment.append(len(result.assignments))
        if state == pb.RUNNING:
            result.assignments.add(
                flavors=[draw(st.integers(0, flavors - 1))] * resources,
                resources=range(resources),
                amounts=[draw(st.integers(0, 4)) for _ in range(resources)],
                pods=draw(st.sampled_from([[], [1] * resources, [2] * resources])),
            )
    nodes = [queue.name for queue in result.quota.cluster_queues] + [c.name for c in result.quota.cohorts]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        start = NOW - 3 + draw(times)
        result.reservations.add(
            node=draw(st.sampled_from(nodes)),
            flavor=draw(st.integers(0, flavors - 1)),
            resource=draw(st.integers(0, resources - 1)),
            amount=draw(st.integers(0, 4)),
            start_ms=start,
            end_ms=start + draw(times),
        )
    return result
