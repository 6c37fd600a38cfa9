"""Pools: what is varied with a number of GPUs, and how it is shared out."""

import pytest
from capacity_requests import GPU, queues
from hypothesis import given
from hypothesis import strategies as st

from advisor.capacity_pools import apportion, pools
from solver.api import planner_pb2 as pb


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 300))
def test_shares_are_proportional_exact_and_never_shrink(shares: list[int], amount: int) -> None:
    """All is shared out, today's sum as today, one more takes nothing from anybody, none has 1 + parts too many."""
    if not sum(shares):
        assert apportion(shares, amount) == [0] * len(shares)
        return
    given_out, more = apportion(shares, amount), apportion(shares, amount + 1)
    assert sum(given_out) == amount
    assert apportion(shares, sum(shares)) == shares
    assert all(a <= b for a, b in zip(given_out, more, strict=True))
    for share, has in zip(shares, given_out, strict=True):
        assert abs(has - share * amount / sum(shares)) < len(shares)


def test_a_queue_by_itself_is_a_pool() -> None:
    """Two queues that share with nobody are two pools; so many GPUs in one leave the other as it is."""
    request = queues({"a": 4, "b": 6})
    one, two = pools(request.quota)
    assert [(p.kind, p.name, p.now, p.elsewhere) for p in (one, two)] == [
        ("ClusterQueue", "a", 4, 0),
        ("ClusterQueue", "b", 6, 0),
    ]
    assert _gpus(two.at(request, 9)) == [4, 9]
    assert two.at(request, 6) == request


def test_a_cohort_is_one_pool_shared_out_in_proportion() -> None:
    """Its queues grow and shrink together, a quota of the cohort's own too."""
    request = queues({"a": 4, "b": 8}, "team")
    own = request.quota.cohorts.add(name="team").quotas.add(flavor=0).resources.add(resource=0, nominal=4)
    (pool,) = pools(request.quota)
    assert (pool.kind, pool.name, pool.now, pool.limited) == ("Cohort", "team", 16, False)
    changed = pool.at(request, 8)
    assert [*_gpus(changed), changed.quota.cohorts[0].quotas[0].resources[0].nominal] == [2, 4, 2]
    own.lending_limit = 1
    assert pools(request.quota)[0].limited


def test_one_queue_of_a_cohort_can_be_varied_alone() -> None:
    """Then the others stay, and it is said how much they have."""
    request = queues({"a": 4, "b": 8}, "team")
    (pool,) = pools(request.quota, queue="b")
    assert (pool.kind, pool.name, pool.alone, pool.now, pool.elsewhere) == ("ClusterQueue", "b", True, 8, 4)
    assert pool.queues == {0, 1}
    assert _gpus(pool.at(request, 1)) == [4, 1]


def test_hardware_comes_whole() -> None:
    """More GPUs bring CPUs of the same flavor in proportion, and nodes like the largest; fewer take neither away."""
    request = queues({"a": 8})
    group = request.quota.cluster_queues[0].resource_groups[0]
    group.covered_resources.append(1)
    group.flavors[0].resources.add(resource=1, nominal=64_000)
    nodes = request.quota.flavors[0].nodes
    nodes.add(count=1, resources=[0], amounts=[4])
    nodes.add(count=1, resources=[0], amounts=[2])
    (pool,) = pools(request.quota)

    def at(amount: int) -> tuple[int, list[int]]:
        changed = pool.at(request, amount).quota
        resources = changed.cluster_queues[0].resource_groups[0].flavors[0].resources
        return resources[1].nominal, [each.count for each in changed.flavors[0].nodes]

    assert at(8) == (64_000, [1, 1])
    assert at(13) == (104_000, [3, 1])
    assert at(2) == (64_000, [1, 1])


def test_other_resources_are_asked_for_by_name() -> None:
    """CPUs are counted in cores."""
    (pool,) = pools(queues({"a": 8}, cpu=3).quota, resource="cpu")
    assert (pool.flavor_name, pool.now, pool.unit) == ("plain", 3, 1000)


@pytest.mark.parametrize(
    ("resource", "queue", "told"),
    [
        ("tpu", None, "no queue has quota of tpu; quota there is of: nvidia.com/gpu, cpu"),
        (None, "c", "there is no ClusterQueue c; there are: a"),
        ("tpu", "a", "ClusterQueue a has no quota of tpu; quota there is of: nvidia.com/gpu, cpu"),
    ],
)
def test_what_is_not_there_is_told(resource: str | None, queue: str | None, told: str) -> None:
    """With what there is."""
    with pytest.raises(ValueError, match=told):
        pools(queues({"a": 1}).quota, resource, queue)
    with pytest.raises(ValueError, match="there are no queues"):
        pools(pb.Quota(resources=[GPU]))


def _gpus(request: pb.PlanRequest) -> list[int]:
    return [queue.resource_groups[0].flavors[0].resources[0].nominal for queue in request.quota.cluster_queues]
