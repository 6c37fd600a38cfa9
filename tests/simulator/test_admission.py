"""One scheduling cycle of the simulated Kueue."""

import numpy as np

from simulator.admission import Head, Rules, cycle
from solver.api import planner_pb2 as pb
from solver.quota import take


def quota(flavor: int, resource: int, nominal: int, borrowing: int | None, lending: int | None) -> pb.FlavorQuotas:
    """Quota of one resource of a flavor."""
    amounts = pb.ResourceQuota(resource=resource, nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)
    return pb.FlavorQuotas(flavor=flavor, resources=[amounts])


def shared(*nominal: int) -> Rules:
    """Queues q0, q1 … with so many GPUs each, in one cohort."""
    tables = pb.Quota(resources=["gpu"], flavors=[pb.ResourceFlavor(name="a")])
    for number, gpus in enumerate(nominal):
        groups = [pb.ResourceGroup(covered_resources=[0], flavors=[quota(0, 0, gpus, None, None)])]
        tables.cluster_queues.add(name=f"q{number}", cohort="all", resource_groups=groups)
    return Rules.of(tables)


def head(rules: Rules, queue: int, gpus: int, age: str, priority: int = 0) -> Head:
    """The first workload of a queue."""
    shape = pb.RequestShape(pod_sets=[pb.PodSet(count=1, resources=[0], amounts=[gpus])])
    return Head(queue, f"ns/{age}", priority, (age, age), 0, rules.request(shape, ["main"]))


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
    (outcome,) = cycle(rules, rules.tree.no_usage(), [Head(0, "ns/a", 0, ("", ""), 0, rules.request(shape, ["main"]))])
    assert not outcome.admitted
    assert "unavailable in ClusterQueue" in outcome.message


def test_fewer_pods_when_not_all_fit() -> None:
    """A workload with a minimum count is admitted with as many pods as fit, and holds what those take."""
    rules = shared(4)
    shape = pb.RequestShape(pod_sets=[pb.PodSet(count=6, min_count=1, resources=[0], amounts=[1])])
    usage = rules.tree.no_usage()
    (outcome,) = cycle(rules, usage, [Head(0, "ns/a", 0, ("", ""), 0, rules.request(shape, ["main"]))])
    assert [(pods.pods, pods.usage) for pods in outcome.admitted] == [(4, {"gpu": 4})]
    assert usage[int(rules.tree.queue_node[0]), 0] == 4
