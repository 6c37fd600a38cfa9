"""A pod does not span two nodes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_nodes import by_parts, placed
from small_requests import NOW, SECOND

from solver.api import planner_pb2 as pb
from solver.bound import late_weight_bound
from solver.decode import decode
from solver.encode import encode
from solver.greedy import finish
from solver.invalid import InvalidRequest
from solver.packing import PARTS, share
from solver.plan import Plan
from solver.planner import plan, plans
from solver.rules import Work
from solver.schedule import Scheduler
from solver.selection import Selection, Taste
from solver.slots import compact
from solver.verify import verify

rule = partial(settings, deadline=None)  # the first call compiles

WORK = pb.Budget(work_limit=20)


def gpus(quota: int, nodes: dict[int, int], queues: int = 1) -> pb.PlanRequest:
    """Queues that share nothing, with so many GPUs each, on nodes of one flavor: number by GPUs of each."""
    result = pb.PlanRequest(schema=1, now_ms=NOW)
    result.quota.resources.append("nvidia.com/gpu")
    flavor = result.quota.flavors.add(name="a100")
    for size, count in nodes.items():
        flavor.nodes.add(count=count, resources=[0], amounts=[size])
    for k in range(queues):
        group = result.quota.cluster_queues.add(name=f"q{k}").resource_groups.add(covered_resources=[0])
        group.flavors.add(flavor=0).resources.add(resource=0, nominal=quota)
    return result


def add(
    request: pb.PlanRequest,
    size: int,
    *,
    pods: int = 1,
    seconds: int = 10,
    queue: int = 0,
    state: int = pb.PENDING,
    due: int = 0,
) -> None:
    """A row of some pods that ask for so many GPUs each."""
    work = request.workloads
    request.shapes.add().pod_sets.add(count=pods, resources=[0], amounts=[size])
    request.assignments.add(flavors=[0], resources=[0], amounts=[size * pods], pods=[pods])
    work.id.append(f"w{len(work.id)}")
    work.cluster_queue.append(queue)
    work.shape.append(len(request.shapes) - 1)
    work.assignment.append(len(request.assignments) - 1)
    work.state.append(state)
    work.duration_ms.append(seconds * SECOND)
    work.due_ms.append(NOW + due * SECOND if due else 0)


def starts(request: pb.PlanRequest) -> list[float]:
    """Planned starts in seconds, of a plan that the verifier lets pass."""
    problem = decode(request)
    made = plan(problem, request.policy, WORK)
    response = encode(problem, made)
    assert [v.message for v in verify(request, response.plan, response.objective)] == []
    return (made.start / SECOND).tolist()


@given(st.integers(0, PARTS), st.integers(1, 10_000), st.data())
def test_shares_never_add_up_to_more(parts, unit, data):
    """Two pods count no more than one that asks for as much as both; each counts what the contract says."""
    most = unit if parts else 10 * unit
    size = data.draw(st.integers(0, most))
    other = data.draw(st.integers(0, most - size))
    assert share(parts, unit, size) + share(parts, unit, other) <= share(parts, unit, size + other)
    assert share(parts, unit, size) == (by_parts(size, unit, parts) * parts * (parts + 1) if parts else size // unit)


def test_two_pods_of_six_need_two_nodes():
    """Two pods of 6 GPUs follow each other on one node of 8, whatever the quota, and run at once on two."""
    for nodes, second in ((1, 10), (2, 0)):
        request = gpus(16, {8: nodes})
        add(request, 6, due=10)
        add(request, 6)
        assert starts(request) == [0, second]


def test_small_pods_go_into_the_gaps():
    """Beside a pod of 6 GPUs there is room for one of 2, and not for one of 3."""
    request = gpus(16, {8: 1})
    add(request, 6, due=10)
    add(request, 3, seconds=20)
    add(request, 2, due=10)
    assert starts(request) == [0, 10, 0]


def test_queues_of_all_trees_share_the_nodes():
    """Nodes are not quota: queues that share no quota share them."""
    request = gpus(8, {8: 1}, queues=2)
    add(request, 6, due=10)
    add(request, 6, queue=1)
    assert starts(request) == [0, 10]


def test_running_pods_have_their_nodes():
    """What runs takes nodes until its estimate ends; without its pods told, only by its amount."""
    request = gpus(16, {8: 2})
    add(request, 5, pods=2, state=pb.RUNNING)
    add(request, 6)
    assert starts(request) == [10]
    del request.assignments[0].pods[:]
    assert starts(request) == [0]
    request.assignments[0].amounts[0] = 11
    assert starts(request) == [10]


def test_gangs_that_fit_no_nodes_never_fit():
    """Pods larger than every node, and more large pods than nodes, are told to whom they belong."""
    request = gpus(64, {8: 4, 4: 2})
    add(request, 9)
    add(request, 6, pods=5)
    add(request, 3, pods=10)
    add(request, 3, pods=11)
    problem = decode(request)
    assert {r.row: r.message for r in problem.rejected} == {
        0: "a pod asks for 9 nvidia.com/gpu in flavor a100, and the largest node has 8",
        1: "5 pods of 6 nvidia.com/gpu in flavor a100 do not fit onto its nodes together",
        3: "11 pods of 3 nvidia.com/gpu in flavor a100 do not fit onto its nodes together",
    }
    assert {r.kind for r in problem.rejected} == {pb.NEVER_FITS}
    assert starts(request) == [0]


def test_the_reason_says_nodes():
    """What has the quota and waits for nodes says so; what lacks both, or quota alone, waits for quota."""
    request = gpus(16, {8: 2})
    add(request, 6, pods=2, due=10)
    add(request, 3, seconds=20)
    problem = decode(request)
    response = encode(problem, plan(problem, budget=WORK))
    assert list(response.plan.reason) == [pb.ROOM_NOW, pb.WAITS_FOR_NODES]
    request.quota.cluster_queues[0].resource_groups[0].flavors[0].resources[0].nominal = 14
    problem = decode(request)
    response = encode(problem, plan(problem, budget=WORK))
    assert list(response.plan.reason) == [pb.ROOM_NOW, pb.WAITS_FOR_QUOTA]


def test_the_verifier_refuses_what_nodes_cannot_hold():
    """Two pods of 6 GPUs at once: refused on one node of 8, taken on two; and so are pods told as smaller ones."""
    request = gpus(16, {8: 2})
    add(request, 6)
    add(request, 6)
    problem = decode(request)
    both = encode(problem, plan(problem, budget=WORK)).plan
    assert list(both.start_ms) == [NOW, NOW]
    request.quota.flavors[0].nodes[0].count = 1
    told = [violation.message for violation in verify(request, both)]
    wants = "starts without room on nodes for its pods' nvidia.com/gpu in flavor a100"
    assert told == [f"workload 'w{k}': {wants}" for k in (0, 1)]
    request.quota.flavors[0].nodes[0].count = 2
    for assignment in both.assignments:
        assignment.pods[0] = 6
    assert "held by as many pods" in verify(request, both)[0].message


def test_without_nodes_or_where_they_cannot_bind_nothing_is_kept():
    """Sizes that divide the node, on nodes for all the quota, cost the kernels nothing."""
    sizes = (1, 2, 4, 8)
    for nodes, limits in (({}, 0), ({8: 4}, 0), ({8: 4, 4: 2}, 0), ({8: 3}, 1), ({8: 3, 4: 2}, 1)):
        request = gpus(32, nodes)
        for size in 4 * sizes:
            add(request, size, pods=8 // size)
        problem = decode(request)
        assert len(problem.packing.limits.capacity) == limits, nodes
        assert len(compact(problem).slots.up) == 1 + limits
    request = gpus(32, {8: 4})
    add(request, 3)
    assert len(compact(decode(request)).slots.up) == 0  # it could not run short if all ran at once


def test_what_nodes_cannot_hold_in_time_is_late():
    """The bound and the selection of what to have on time reckon with nodes: a node has room for one pod of 6 GPUs."""
    request = gpus(32, {8: 2}, queues=2)
    for k in range(5):
        add(request, 6, due=20, queue=k % 2)
    add(request, 2, seconds=20, due=20)
    problem = decode(request)
    scheduler = Scheduler(problem)
    assert late_weight_bound(scheduler) == 1
    selection = Selection(scheduler, Work(problem, scheduler.ours))
    order = selection.order(Taste(1.0, 1))
    made = finish(scheduler, scheduler.schedule(order, Work(problem, scheduler.ours).tail()), "selection")
    assert made.objective.late_weight == 1
    assert plan(problem, pb.Policy(engine=pb.CP_SAT), WORK).objective.late_weight == 1


def test_bad_nodes():
    """Nodes that cannot be meant refuse the request, with the path of the field."""
    for change, field in (
        ({"count": -1}, "count"),
        ({"resources": [1]}, "resources[0]"),
        ({"amounts": []}, "amounts"),
        ({"amounts": [-1]}, "amounts[0]"),
        ({"resources": [0, 0], "amounts": [1, 1]}, "resources"),
    ):
        request = gpus(8, {})
        request.quota.flavors[0].nodes.add(**{"count": 1, "resources": [0], "amounts": [8], **change})
        with pytest.raises(InvalidRequest) as refused:
            decode(request)
        assert refused.value.field == f"quota.flavors[0].nodes[0].{field}"


def on_nodes(request: pb.PlanRequest, made: Plan) -> list[list[int]]:
    """Sizes of all pods that run at the start of each row."""
    work, problem = request.workloads, decode(request)
    begin = dict(zip(problem.row.tolist(), made.start.tolist(), strict=True))
    return [
        [
            pod_set.amounts[0]
            for row, start in begin.items()
            if start <= now < start + work.duration_ms[row]
            for pod_set in request.shapes[work.shape[row]].pod_sets
            for _ in range(pod_set.count)
        ]
        for now in made.start.tolist()
    ]


@rule(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(1, 4)), max_size=7),
    st.lists(st.sampled_from([8, 4, 6]), min_size=1, max_size=3),
    st.integers(1, 2),
)
def test_where_sizes_divide_there_is_a_node_for_each_pod(rows, nodes, queues):
    """Whenever a plan starts something, all pods that run then can be put onto nodes: found by trying all ways."""
    request = gpus(30, Counter(nodes), queues)
    for k, (size, pods, seconds) in enumerate(rows):
        add(request, size, pods=pods, seconds=seconds, queue=k % queues, due=4 * (k % 3))
    problem = decode(request)
    for made in plans(problem, request.policy, WORK):
        response = encode(problem, made)
        assert [v.message for v in verify(request, response.plan, response.objective)] == []
        for sizes in on_nodes(request, made):
            assert placed(sizes, nodes)


@rule(max_examples=60)
@given(st.lists(st.integers(1, 8), max_size=9), st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_what_can_be_placed_is_never_refused(sizes, nodes):
    """A set of pods for which there are nodes exceeds no limit; and one that starts alone is not held up."""
    request = gpus(100, Counter(nodes))
    request.policy.engine = pb.GREEDY
    fitting = [size for size in sizes if size <= max(nodes)]
    for size in fitting:
        add(request, size)
    limits = decode(request).packing.limits
    counts = [[share(parts, unit, size) for size in fitting] for parts, unit in zip(*limits[1:3], strict=True)]
    fit = all(sum(count) <= most for count, most in zip(counts, limits.capacity, strict=True))
    assert fit or not placed(fitting, nodes)
    assert starts(request) == [0] * len(fitting) or not placed(fitting, nodes)
