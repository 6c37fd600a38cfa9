"""One scheduling cycle of the simulated Kueue."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.admission import Head, Rules, assign, cycle
from solver.api import planner_pb2 as pb
from solver.choose import Mode, blank, choose
from solver.decode_quota import decode_quota
from solver.quota import take

GPU, CPU = 0, 1
small = st.integers(0, 6)
limit = st.none() | small


def quota(flavor: int, resource: int, nominal: int, borrowing: int | None, lending: int | None) -> pb.FlavorQuotas:
    """Quota of one resource of a flavor."""
    amounts = pb.ResourceQuota(resource=resource, nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)
    return pb.FlavorQuotas(flavor=flavor, resources=[amounts])


@st.composite
def quotas(draw: st.DrawFn) -> pb.Quota:
    """Three queues with GPUs of two flavors and, in a group of its own, CPUs; alone or in up to three cohorts."""
    result = pb.Quota(resources=["gpu", "cpu"], flavors=[pb.ResourceFlavor(name=name) for name in "abc"])
    names = ["root", "left", "right"]
    for name in names:
        parent = draw(st.sampled_from(["", "root"])) if name != "root" else ""
        limits = (draw(limit), draw(limit)) if parent else (None, None)
        result.cohorts.add(name=name, parent=parent, quotas=[quota(0, GPU, draw(small), *limits)])
    for number in range(3):
        cohort = draw(st.sampled_from(["", *names]))
        limits = [(draw(limit), draw(limit)) if cohort else (None, None) for _ in range(3)]
        order = draw(st.permutations([0, 1]))
        gpus = [quota(flavor, GPU, draw(small), *limits[flavor]) for flavor in order]
        groups = [pb.ResourceGroup(covered_resources=[GPU], flavors=gpus)]
        if draw(st.booleans()):
            cpus = [quota(2, CPU, draw(small), *limits[2])]
            groups.append(pb.ResourceGroup(covered_resources=[CPU], flavors=cpus))
        fungibility = draw(st.sampled_from([pb.MAY_STOP_SEARCH, pb.TRY_NEXT_FLAVOR]))
        result.cluster_queues.add(
            name=f"q{number}", cohort=cohort, resource_groups=groups, flavor_fungibility=fungibility
        )
    return result


pod_sets = st.builds(
    lambda count, gpu, cpu, excluded: (
        pb.PodSet(
            count=count,
            resources=[GPU, CPU][: 1 + (cpu is not None)],
            amounts=[gpu, cpu or 0],
            excluded_flavors=excluded,
        )
        if cpu is not None
        else pb.PodSet(count=count, resources=[GPU], amounts=[gpu], excluded_flavors=excluded)
    ),
    st.integers(1, 3),
    st.integers(0, 3),
    st.none() | st.integers(0, 2),
    st.sets(st.integers(0, 1), max_size=1).map(sorted),
)
requests = st.lists(pod_sets, min_size=1, max_size=3).map(lambda sets: pb.RequestShape(pod_sets=sets))


@given(quotas(), requests, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), small), max_size=5))
@settings(deadline=None, max_examples=150)
def test_flavors_are_chosen_as_the_kernel_of_kueues_rules_chooses(
    tables: pb.Quota, shape: pb.RequestShape, used: list[tuple[int, int, int]]
) -> None:
    """Whatever the tree and its use, debts included: mode, borrowing, flavors and totals are those of solver.choose."""
    rules = Rules.of(decode_quota(tables))
    request = rules.request(shape, ["set"] * len(shape.pod_sets))
    usage = rules.tree.no_usage()
    for queue, cell, amount in used:
        take(rules.tree.arrays, usage, int(rules.tree.queue_node[queue]), cell, amount)
    for queue in range(3):
        expected, choice = blank(rules.queues, request.shapes), blank(rules.queues, request.shapes)
        mode, level = choose(rules.tree.arrays, rules.queues, request.shapes, usage, queue, 0, expected)
        got, got_level = assign(rules, usage, queue, request, choice)
        assert got == mode
        if mode != Mode.NO_FIT:
            assert got_level == level
            assert (choice.total == expected.total).all()
            assert (choice.flavor == expected.flavor).all()
            assert (choice.pods == expected.pods).all()


def shared(*nominal: int) -> Rules:
    """Queues q0, q1 … with so many GPUs each, in one cohort."""
    tables = pb.Quota(resources=["gpu"], flavors=[pb.ResourceFlavor(name="a")])
    for number, gpus in enumerate(nominal):
        groups = [pb.ResourceGroup(covered_resources=[0], flavors=[quota(0, 0, gpus, None, None)])]
        tables.cluster_queues.add(name=f"q{number}", cohort="all", resource_groups=groups)
    return Rules.of(decode_quota(tables))


def head(rules: Rules, queue: int, gpus: int, age: str, priority: int = 0) -> Head:
    """The first workload of a queue."""
    shape = pb.RequestShape(pod_sets=[pb.PodSet(count=1, resources=[0], amounts=[gpus])])
    return Head(queue, f"ns/{age}", priority, (age, age), rules.request(shape, ["main"]))


def admitted(rules: Rules, usage: np.ndarray, *heads: Head) -> dict[str, bool]:
    """Who is admitted in a cycle, by name."""
    return {outcome.head.key[3:]: bool(outcome.admitted) for outcome in cycle(rules, usage, heads)}


def test_who_does_not_borrow_goes_before_who_does() -> None:
    """A head within its own quota is admitted before an older one that would have to borrow."""
    rules = shared(2, 4)
    outcome = admitted(rules, rules.tree.no_usage(), head(rules, 0, 4, "older"), head(rules, 1, 4, "younger"))
    assert outcome == {"younger": True, "older": False}


def test_priority_goes_before_age() -> None:
    """Of two that borrow equally far, the one with the higher priority is admitted."""
    rules = shared(1, 1, 4)
    heads = head(rules, 0, 4, "older"), head(rules, 1, 4, "younger", priority=1)
    assert admitted(rules, rules.tree.no_usage(), *heads) == {"younger": True, "older": False}


def test_what_no_longer_fits_is_tried_again_at_once() -> None:
    """A head that fitted at the start of the cycle but not any more stays in its queue."""
    rules = shared(1, 1, 4)
    first, second = cycle(rules, rules.tree.no_usage(), (head(rules, 0, 4, "older"), head(rules, 1, 4, "younger")))
    assert (first.head.key, bool(first.admitted), first.again) == ("ns/older", True, False)
    assert (second.head.key, bool(second.admitted), second.again) == ("ns/younger", False, True)
    assert second.message == "Workload no longer fits after processing another workload"


def test_quota_of_one_that_waits_for_its_own_is_kept_to_the_end_of_the_cycle() -> None:
    """Somebody borrows what a queue is entitled to: while it waits, nobody else may borrow the rest of it."""
    rules = shared(4, 1)
    usage = rules.tree.no_usage()
    take(rules.tree.arrays, usage, int(rules.tree.queue_node[1]), 0, 3)  # q1 borrows two of q0's four
    assert admitted(rules, usage, head(rules, 1, 2, "borrows")) == {"borrows": True}
    usage = rules.tree.no_usage()
    take(rules.tree.arrays, usage, int(rules.tree.queue_node[1]), 0, 3)
    outcome = admitted(rules, usage, head(rules, 1, 2, "borrows"), head(rules, 0, 4, "owner"))
    assert outcome == {"owner": False, "borrows": False}
    assert usage[int(rules.tree.queue_node[1]), 0] == 3


def test_a_resource_nobody_has_is_told() -> None:
    """A request for a resource that no queue covers is refused with a message."""
    rules = shared(4)
    shape = pb.RequestShape(pod_sets=[pb.PodSet(count=1, resources=[1], amounts=[1])])
    (outcome,) = cycle(rules, rules.tree.no_usage(), [Head(0, "ns/a", 0, ("", ""), rules.request(shape, ["main"]))])
    assert not outcome.admitted
    assert "unavailable in ClusterQueue" in outcome.message
