"""Requests are read as they are meant, and what cannot be meant is told where its owner looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from small_requests import NOW, add, request

from solver.api import planner_pb2 as pb
from solver.decode import MAX_DURATION, InvalidRequest, UnknownSchema, decode
from solver.encode import encode
from solver.greedy import greedy
from solver.problem import NEVER
from solver.quota import UNLIMITED
from solver.verify import verify


def three(queues: int = 1) -> pb.PlanRequest:
    """Three rows, the first of a shape of its own, in the first of some queues."""
    result = request({f"q{k}": 4 for k in range(queues)})
    add(result, 2, 10_000)
    add(result, 1, 10_000, times=2, queue=queues - 1)
    return result


def column(name: str, value: object) -> Callable[[pb.PlanRequest], None]:
    """Set a column's first entry."""
    return lambda r: getattr(r.workloads, name).__setitem__(0, value)


def pods(request: pb.PlanRequest) -> pb.PodSet:
    """The first row's pod set."""
    return request.shapes[0].pod_sets[0]


def gpus(request: pb.PlanRequest) -> pb.ResourceQuota:
    """The first queue's quota."""
    return request.quota.cluster_queues[0].resource_groups[0].flavors[0].resources[0]


ROWS = [
    (column("weight", math.nan), "workloads.weight[0]", "is nan"),
    (column("weight", math.inf), "workloads.weight[0]", "is inf"),
    (column("weight", -1.0), "workloads.weight[0]", "is -1.0"),
    (column("weight", 1e13), "workloads.weight[0]", "from 0 to 1e+12"),
    (column("due_ms", -1), "workloads.due_ms[0]", "must not be negative"),
    (column("due_ms", 1 << 62), "workloads.due_ms[0]", "from now"),
    (column("release_ms", -1), "workloads.release_ms[0]", "must not be negative"),
    (column("release_ms", 1 << 62), "workloads.release_ms[0]", "from now"),
    (column("created_ms", -(1 << 63)), "workloads.created_ms[0]", "must not be negative"),
    (column("duration_ms", 0), "workloads.duration_ms[0]", "must be positive"),
    (column("duration_ms", -(1 << 63)), "workloads.duration_ms[0]", "must be positive"),
    (column("duration_ms", MAX_DURATION + 1), "workloads.duration_ms[0]", "ten years"),
    (column("state", 9), "workloads.state[0]", "no state"),
    (column("cluster_queue", 9), "workloads.cluster_queue[0]", "there are 1 queues"),
    (column("shape", 9), "workloads.shape[0]", "there are 2 shapes"),
    (column("state", pb.RUNNING), "workloads.assignment[0]", "there are 0 assignments"),
    (lambda r: pods(r).amounts.__setitem__(0, -1), "shapes[0].pod_sets[0].amounts[0]", "must not be negative"),
    (lambda r: pods(r).amounts.__setitem__(0, 1 << 62), "shapes[0].pod_sets[0].amounts[0]", "the most is"),
    (lambda r: pods(r).amounts.append(1), "shapes[0].pod_sets[0].amounts", "2 entries where resources has 1"),
    (lambda r: pods(r).resources.__setitem__(0, 9), "shapes[0].pod_sets[0].resources[0]", "there are 1 resources"),
    (lambda r: pods(r).excluded_flavors.append(9), "shapes[0].pod_sets[0].excluded_flavors[0]", "there are 1 flavors"),
    (lambda r: setattr(pods(r), "count", -1), "shapes[0].pod_sets[0].count", "must not be negative"),
    (lambda r: setattr(pods(r), "min_count", 3), "shapes[0].pod_sets[0].min_count", "between 0 and count, 2"),
]


@pytest.mark.parametrize(("change", "field", "words"), ROWS, ids=[f"{field} {words}" for _, field, words in ROWS])
def test_row_that_makes_no_sense(change, field, words):
    """A row that cannot be meant is rejected with its field and why; the others are planned, and the checker agrees."""
    asked = three()
    change(asked)
    problem = decode(asked)
    (rejected,) = problem.rejected
    assert (rejected.row, rejected.kind, rejected.field) == (0, pb.INVALID, field)
    assert words in rejected.message
    assert problem.row.tolist() == [1, 2]
    response = encode(problem, greedy(problem))
    assert response.rejections[0].id == "w0"
    assert verify(asked, response.plan, response.objective) == []


TABLES = [
    (lambda r: setattr(r, "now_ms", 0), "now_ms"),
    (lambda r: setattr(r, "now_ms", -5), "now_ms"),
    (lambda r: setattr(r, "horizon_ms", -1), "horizon_ms"),
    (lambda r: setattr(r.budget, "wall_ms", -1), "budget.wall_ms"),
    (lambda r: setattr(r.budget, "work_limit", -1), "budget.work_limit"),
    (lambda r: setattr(r.policy, "ageing_ms", -1), "policy.ageing_ms"),
    (lambda r: setattr(r.policy, "stability_threshold", math.nan), "policy.stability_threshold"),
    (lambda r: setattr(r.policy, "engine", 77), "policy.engine"),
    (lambda r: r.policy.objective.append(77), "policy.objective[0]"),
    (lambda r: r.policy.objective.extend([pb.TARDINESS, pb.TARDINESS]), "policy.objective[1]"),
    (lambda r: r.quota.resources.append("nvidia.com/gpu"), "quota.resources[1]"),
    (lambda r: r.quota.resources.append(""), "quota.resources[1]"),
    (lambda r: r.quota.flavors.add(name="gpu"), "quota.flavors[1].name"),
    (lambda r: r.quota.cohorts.add(parent="x"), "quota.cohorts[0].name"),
    (lambda r: r.workloads.due_ms.append(1), "workloads.due_ms"),
    (lambda r: r.workloads.id.__setitem__(2, "w0"), "workloads.id[2]"),
    (lambda r: r.assignments.add(flavors=[0]), "assignments[0]"),
    (lambda r: r.reservations.add(node="nobody", end_ms=NOW), "reservations[0].node"),
    (lambda r: r.reservations.add(node="q0", flavor=9), "reservations[0].flavor"),
    (lambda r: r.reservations.add(node="q0", resource=9), "reservations[0].resource"),
    (lambda r: r.reservations.add(node="q0", amount=-1), "reservations[0].amount"),
    (lambda r: r.reservations.add(node="q0", start_ms=NOW + 1, end_ms=NOW), "reservations[0].end_ms"),
]


@pytest.mark.parametrize(("change", "field"), TABLES, ids=[f"{k}-{field}" for k, (_, field) in enumerate(TABLES)])
def test_table_that_makes_no_sense(change, field):
    """A table that nobody can read refuses the request, with the path of the field."""
    asked = three()
    change(asked)
    with pytest.raises(InvalidRequest) as refused:
        decode(asked)
    assert refused.value.field == field
    assert not isinstance(refused.value, UnknownSchema)


@pytest.mark.parametrize("schema", [0, 2])
def test_unknown_schema(schema):
    """A revision of the contract that the planner does not know is told apart from a bad request."""
    with pytest.raises(UnknownSchema) as refused:
        decode(pb.PlanRequest(schema=schema, now_ms=NOW))
    assert refused.value.field == "schema"


def in_cohorts(*parents: tuple[str, str]) -> Callable[[pb.PlanRequest], None]:
    """Put the first queue into the first of some cohorts, each with its parent."""

    def change(request: pb.PlanRequest) -> None:
        request.quota.cluster_queues[0].cohort = parents[0][0]
        for name, parent in parents:
            request.quota.cohorts.add(name=name, parent=parent)

    return change


def bad_cohort(request: pb.PlanRequest) -> None:
    """Put the first queue under a cohort with a quota that makes no sense."""
    in_cohorts(("a", "b"), ("b", ""))(request)
    request.quota.cohorts[1].quotas.add(flavor=0).resources.add(resource=0, nominal=-1)


def huge_cohort(request: pb.PlanRequest) -> None:
    """Put the first queue under cohorts with more quota than int64 holds."""
    request.quota.cluster_queues[0].cohort = "c0"
    for k in range(100):
        cohort = request.quota.cohorts.add(name=f"c{k}", parent="root")
        cohort.quotas.add(flavor=0).resources.add(resource=0, nominal=1 << 52)


FROZEN = [
    (lambda r: setattr(gpus(r), "nominal", -3), "nominal quota of -3 for nvidia.com/gpu in flavor gpu"),
    (lambda r: setattr(gpus(r), "nominal", 1 << 62), "is not between 0 and"),
    (lambda r: setattr(gpus(r), "borrowing_limit", -3), "borrowing limit of -3"),
    (lambda r: setattr(gpus(r), "lending_limit", -3), "lending limit of -3"),
    (lambda r: setattr(gpus(r), "resource", 9), "resource 9, but there are 1"),
    (lambda r: setattr(r.quota.cluster_queues[0].resource_groups[0].flavors[0], "flavor", 9), "flavor 9, but"),
    (lambda r: r.quota.cluster_queues[0].resource_groups[0].covered_resources.append(9), "covers resource 9"),
    (lambda r: r.quota.cluster_queues[0].resource_groups[0].covered_resources.append(0), "twice"),
    (lambda r: r.quota.cluster_queues[0].resource_groups[0].covered_resources.pop(), "does not cover"),
    (lambda r: r.quota.cluster_queues[0].resource_groups.add().flavors.add(flavor=0), "lists flavor gpu twice"),
    (
        lambda r: (
            r.quota.cluster_queues[0]
            .resource_groups[0]
            .flavors.append(r.quota.cluster_queues[0].resource_groups[0].flavors[0])
        ),
        "two quotas for nvidia.com/gpu in flavor gpu",
    ),
    (lambda r: r.quota.cluster_queues.add(name="q0"), "2 ClusterQueues named q0"),
    (in_cohorts(("a", "b"), ("b", "a")), "cycle: a -> b -> a"),
    (in_cohorts(("a", "a")), "cycle: a -> a"),
    (in_cohorts(("a", "b"), ("b", "c"), ("c", "b")), "cycle: b -> c -> b"),
    (in_cohorts(("a", ""), ("a", "")), "several Cohorts named a"),
    (in_cohorts(*((f"c{k}", f"c{k + 1}") for k in range(200))), "cohorts deep"),
    (bad_cohort, "Cohort b: nominal quota of -1"),
    (huge_cohort, "add up to more than"),
]


@pytest.mark.parametrize(("change", "words"), FROZEN, ids=[words for _, words in FROZEN])
def test_queue_that_makes_no_sense(change, words):
    """A queue that cannot be meant is frozen and says why; its work is rejected, other queues are planned."""
    asked = three(queues=2)
    change(asked)
    problem = decode(asked)
    assert words in problem.tree.frozen[0]
    assert [(r.row, r.kind) for r in problem.rejected] == [(0, pb.QUEUE_STOPPED)]
    assert words in problem.rejected[0].message
    response = encode(problem, greedy(problem))
    assert response.plan.workload == [1, 2]
    assert words in response.frozen_queues[0].message
    assert verify(asked, response.plan, response.objective) == []


def test_stopped_queue():
    """Work of a stopped queue is rejected as such."""
    asked = three(queues=2)
    asked.quota.cluster_queues[0].stopped = True
    (rejected,) = decode(asked).rejected
    assert (rejected.kind, rejected.message) == (pb.QUEUE_STOPPED, "ClusterQueue q0 is stopped")


def test_request_above_capacity():
    """What no assignment could ever hold is rejected in Kueue's words, flavor by flavor."""
    asked = request({"q": 4})
    add(asked, 9, 1000)
    (rejected,) = decode(asked).rejected
    assert rejected.kind == pb.NEVER_FITS
    assert rejected.message == "insufficient quota for nvidia.com/gpu in flavor gpu: request 9 > maximum capacity 4"
    asked.quota.flavors.add(name="other")
    asked.quota.cluster_queues[0].resource_groups[0].flavors.add(flavor=1).resources.add(resource=0, nominal=8)
    asked.shapes[0].pod_sets[0].excluded_flavors.append(0)
    (rejected,) = decode(asked).rejected
    assert rejected.message == (
        "flavor gpu is ruled out by its node selector or tolerations, "
        "insufficient quota for nvidia.com/gpu in flavor other: request 9 > maximum capacity 8"
    )


def test_pod_sets_that_only_fit_one_by_one():
    """Pod sets that each fit but never together are rejected too."""
    asked = request({"q": 4})
    add(asked, 3, 1000)
    asked.shapes[0].pod_sets.add(count=2, resources=[0], amounts=[1])
    assert "request 5 > maximum capacity 4" in decode(asked).rejected[0].message


def test_resource_that_the_queue_does_not_cover():
    """A resource that is not in the queue's groups cannot be had, whatever the cohort has; none of it is fine."""
    asked = request({"q": 4})
    asked.quota.resources.append("cpu")
    add(asked, 1, 1000)
    asked.shapes[0].pod_sets[0].resources.append(1)
    asked.shapes[0].pod_sets[0].amounts.append(0)
    assert decode(asked).rejected == ()
    asked.shapes[0].pod_sets[0].amounts[1] = 1
    assert decode(asked).rejected[0].message == "resource cpu unavailable in ClusterQueue"


def test_options_in_order():
    """Options are all combinations of flavors by pod set and group that could fit, in the queue's order, each once."""
    asked = pb.PlanRequest(schema=1, now_ms=NOW)
    asked.quota.resources.extend(["cpu", "gpu"])
    for name in ("x", "a", "b"):
        asked.quota.flavors.add(name=name)
    queue = asked.quota.cluster_queues.add(name="q")
    cpu, gpu = queue.resource_groups.add(covered_resources=[0]), queue.resource_groups.add(covered_resources=[1])
    cpu.flavors.add(flavor=0).resources.add(resource=0, nominal=100)
    for flavor in (2, 1):
        gpu.flavors.add(flavor=flavor).resources.add(resource=1, nominal=5)
    shape = asked.shapes.add()
    shape.pod_sets.add(count=2, resources=[0, 1], amounts=[7, 1])
    shape.pod_sets.add(count=2, resources=[1], amounts=[1])
    shape.pod_sets.add(count=1, resources=[1], amounts=[3], excluded_flavors=[2])
    asked.workloads.id.append("w")
    asked.workloads.duration_ms.append(1)
    problem = decode(asked)
    names = ("x", "a", "b")
    got = []
    for o in range(len(problem.options.need) - 1):
        k = slice(problem.options.need[o], problem.options.need[o + 1])
        cells = zip(problem.options.cell[k].tolist(), problem.options.amount[k].tolist(), strict=True)
        got.append({names[c // 2] + ("cpu", "gpu")[c % 2]: amount for c, amount in cells})
    assert got == [
        {"xcpu": 14, "bgpu": 4, "agpu": 3},
        {"xcpu": 14, "bgpu": 2, "agpu": 5},
    ]


def test_running_work_is_busy():
    """Running rows hold their assignment for the remaining time; without a sound estimate for a minute, and say so."""
    asked = request({"q": 4})
    add(asked, 2, 5000, state=pb.RUNNING)
    add(asked, 1, 0, state=pb.RUNNING)
    add(asked, 1, 1000)
    problem = decode(asked)
    assert problem.busy.amount.tolist() == [2, 1]
    assert problem.busy.end.tolist() == [5000, 60_000]
    assert problem.row.tolist() == [2]
    assert [r.field for r in problem.rejected] == ["workloads.duration_ms[1]"]


def test_running_work_that_holds_what_does_not_exist():
    """An assignment that makes no sense is told on the rows that hold it, and only there."""
    asked = request({"q": 4})
    add(asked, 2, 5000, state=pb.RUNNING)
    add(asked, 2, 5000, state=pb.RUNNING)
    asked.assignments[0].flavors[0] = 9
    problem = decode(asked)
    assert [(r.row, r.field) for r in problem.rejected] == [(0, "assignments[0].flavors[0]")]
    assert problem.busy.amount.tolist() == [2]


def test_running_work_without_an_assignment():
    """A running row must say what it holds."""
    asked = request({"q": 4})
    add(asked, 2, 5000, state=pb.RUNNING)
    del asked.workloads.assignment[:]
    assert "must say what it holds" in decode(asked).rejected[0].message


def test_reservations_are_busy():
    """Reservations are kept from now or their start on, at a queue or a cohort; those that are over are not."""
    asked = request({"q": 4, "r": 4}, cohort="both")
    for node, start, end in (("q", -5, 10), ("both", 5, 10), ("r", -10, 0)):
        asked.reservations.add(node=node, amount=3, start_ms=NOW + start, end_ms=NOW + end)
    busy = decode(asked).busy
    assert [decode(asked).tree.names[node] for node in busy.node] == ["q", "both"]
    assert (busy.start.tolist(), busy.end.tolist(), busy.row.tolist()) == ([0, 5], [10, 10], [-1, -1])


def test_cohorts_without_entries_exist():
    """A cohort that is only named, as a parent or by a queue, is a root without quota."""
    asked = three(queues=2)
    asked.quota.cluster_queues[0].cohort = "implicit"
    asked.quota.cluster_queues[1].cohort = "listed"
    asked.quota.cohorts.add(name="listed", parent="above")
    tree = decode(asked).tree
    parent = {name: tree.names[up] if up >= 0 else "" for name, up in zip(tree.names, tree.parent, strict=True)}
    assert parent == {"implicit": "", "above": "", "listed": "above", "q0": "implicit", "q1": "listed"}
    assert all(up < node for node, up in enumerate(tree.parent))


def test_limits_above_everything_are_no_limits():
    """A borrowing limit beyond all quota is the same as none, and does not overflow."""
    asked = three()
    gpus(asked).borrowing_limit = gpus(asked).lending_limit = (1 << 63) - 1
    tree = decode(asked).tree
    assert tree.borrowing.max() == tree.lending.max() == UNLIMITED


def test_defaults_of_empty_columns():
    """Columns that are left out have their defaults in every row."""
    asked = request({"q": 4})
    asked.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[1])
    asked.workloads.id.extend("ab")
    asked.workloads.duration_ms.extend([1, 2])
    problem = decode(asked)
    assert problem.weight.tolist() == [1, 1]
    assert problem.due.tolist() == [NEVER, NEVER]
    assert problem.created.tolist() == problem.release.tolist() == [0, 0]
    assert problem.previous.tolist() == [-1, -1]


def test_times_count_from_now():
    """Due dates may be past, release dates that have passed are now, and what is released has none."""
    asked = request({"q": 4})
    add(asked, 1, 7, due=-3, release=-4, created=-9, previous=-8)
    add(asked, 1, 7, due=3, release=4, previous=5)
    add(asked, 1, 7, release=4, state=pb.IN_FLIGHT, previous=5)
    problem = decode(asked)
    assert problem.due.tolist() == [-3, 3, NEVER]
    assert problem.release.tolist() == [0, 4, 0]
    assert problem.created.tolist() == [-9, 0, 0]
    assert problem.previous.tolist() == [0, 5, -1]


@pytest.mark.parametrize(("asked_for", "horizon"), [(0, 25 + 3 * 7), (10, 25 + 3 * 7), (1000, 1000)])
def test_horizon_is_long_enough(asked_for, horizon):
    """The horizon has room for everything one after another behind all that is known, or is as long as asked for."""
    asked = request({"q": 4})
    add(asked, 4, 25, state=pb.RUNNING)
    add(asked, 4, 7, times=3)
    asked.horizon_ms = asked_for
    assert decode(asked).horizon == horizon


def test_empty_request():
    """Nothing to plan is a problem too."""
    problem = decode(pb.PlanRequest(schema=1, now_ms=NOW))
    assert len(problem) == 0
    assert encode(problem, greedy(problem)).final


def test_many_distinct_pairs():
    """Pairs of queue and shape are the same whether they are found by a table or by sorting."""
    from solver.decode import _pairs

    rng = np.random.default_rng(0)
    queue, shape = rng.integers(0, 30, 500), rng.integers(0, 20, 500)
    small, pair = _pairs(queue, shape, 20)
    large, other = _pairs(queue, shape + (1 << 20), (1 << 20) + 20)
    assert [(q, s + (1 << 20)) for q, s in small] == large
    assert (pair == other).all()
