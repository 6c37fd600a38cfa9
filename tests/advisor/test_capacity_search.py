"""The least number of GPUs: enough by a plan, not fewer by a bound; what counts, and what is left out."""

from fractions import Fraction
from itertools import pairwise

import pytest
from capacity_requests import HOUR, add, least_late, queues
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.capacity import Capacity, Effort, capacity, prices_per_extra
from advisor.capacity_pools import NoPool
from advisor.capacity_words import details, sentence
from solver.api import planner_pb2 as pb
from tests.solver.small_requests import requests


def ask(request: pb.PlanRequest, **options: object) -> Capacity:
    """The answer for the first flavor; rows are named by their ids."""
    answer, *_ = capacity(request, list(request.workloads.id), effort=Effort(2), **options)  # type: ignore[arg-type]
    return answer


def seed_case(gpus: int = 4) -> pb.PlanRequest:
    """Four jobs of two GPUs, time for two rounds."""
    request = queues({"q": gpus})
    for due in (180, 180, 45, 45):
        add(request, 2, 30 * 60_000, due * 60_000)
    return request


def test_four_jobs_of_two_need_four_not_eight() -> None:
    """Four are enough, eight at once, three cannot do (proved), and the two that are due first set the peak."""
    answer = ask(seed_case())
    assert (answer.least.needed, answer.least.at_least, answer.at_once) == (4, 4, 8)
    assert answer.least.proven
    assert answer.named(answer.least.sets_peak) == ["w2", "w3"]
    assert sentence(answer) == "4 GPUs are enough; 8 would be needed to run all at once; jobs w2 and w3 set the peak."


@settings(max_examples=4)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)), min_size=2, max_size=4),
    st.integers(0, 8),
    st.sampled_from([100, 50]),
)
def test_the_answer_is_the_least_of_all(rows: list[tuple[int, int, int]], today: int, percent: int) -> None:
    """What today's quota is does not matter; a proved answer is what trying everything finds, any answer is enough."""
    request = queues({"q": today})
    whole = [(gpus, length, length + slack, 0) for gpus, length, slack in rows]
    for gpus, length, due, _ in whole:
        add(request, gpus, length, due)
    answer = ask(request, share=Fraction(percent, 100))
    allowed = len(rows) - -(-len(rows) * percent // 100)
    largest = max(gpus for gpus, *_ in rows)  # whatever is to run at all needs as much
    best = next(gpus for gpus in range(largest, 13) if least_late(whole, gpus) <= allowed)
    assert answer.least.at_least <= best <= answer.least.needed
    assert answer.least.needed == best or not answer.least.proven
    for point in answer.least.curve:
        late = least_late(whole, point.amount)
        assert point.met <= len(rows) - late <= point.at_most


def test_a_job_larger_than_the_quota_is_part_of_the_answer() -> None:
    """Also one without a deadline: all that is to run must have room."""
    request = seed_case()
    add(request, 16, HOUR)
    answer = ask(request)
    assert (answer.least.needed, answer.least.proven) == (16, True)
    assert "job w4 sets the peak" in sentence(answer)
    assert "Fewer than 16 cannot do: not every job could run at all." in details(answer)
    assert answer.now == 4


def test_a_job_that_is_too_short_of_time_never_hides_the_answer() -> None:
    """It is named, and the others' answer is as without it."""
    request = seed_case()
    add(request, 2, HOUR, 30 * 60_000)
    answer = ask(request)
    assert (answer.least.needed, answer.deadlines) == (4, 4)
    assert answer.named(answer.cut.too_short) == ["w4"]
    assert any("job w4" in line for line in details(answer))


def test_running_work_keeps_its_quota() -> None:
    """With six GPUs in use until after the deadlines ten are needed; with nothing else to do, the six."""
    request = seed_case()
    add(request, 6, 5 * HOUR, state=pb.RUNNING)
    answer = ask(request)
    assert (answer.held, answer.least.needed, answer.at_once, answer.least.proven) == (6, 10, 14, True)
    alone = queues({"q": 8})
    add(alone, 6, 5 * HOUR, state=pb.RUNNING)
    answer = ask(alone)
    assert answer.least.needed == 6
    assert sentence(answer).endswith("6 GPUs all the same: what runs, or is kept free, takes 6 GPUs.")


def test_what_gpus_do_not_help() -> None:
    """Two jobs that need all CPUs: one is late with any number of GPUs, is named, and the other's answer stands."""
    request = queues({"q": 1}, cpu=4)
    for _ in range(2):
        add(request, 1, HOUR, HOUR + 1, cpu=4)
    add(request, 1, HOUR, HOUR, cpu=9)
    answer = ask(request)
    assert (answer.least.needed, answer.least.reachable) == (1, 1)
    assert len(answer.least.stuck) == 1
    assert answer.cut.never[2].startswith("insufficient quota for cpu in flavor plain")
    assert "would be late with any number" in sentence(answer)


def test_work_without_a_deadline_asks_for_nothing_but_is_told() -> None:
    """Its GPU-hours, and what is left for them until the last deadline."""
    request = seed_case()
    add(request, 2, 8 * HOUR)
    answer = ask(request)
    assert (answer.least.needed, answer.at_once) == (4, 8)
    assert (answer.best_effort.jobs, answer.best_effort.hours, answer.best_effort.room) == (1, 16, 8)
    assert any("not enough for all of them" in line for line in details(answer))


def test_a_cohort_is_asked_as_a_whole_and_one_queue_alone() -> None:
    """Two queues that lend: four in all. Alone, the second needs what the first cannot lend it."""
    request = queues({"a": 3, "b": 3}, "team")
    for due in (180, 180, 45, 45):
        add(request, 2, 30 * 60_000, due * 60_000, queue=1)
    whole, alone = ask(request), ask(request, queue="b")
    assert (whole.least.needed, whole.at_once, whole.pool.now) == (4, 8, 6)
    assert (alone.least.needed, alone.at_once, alone.pool.now) == (1, 5, 3)
    assert any("it may borrow what it may today" in line for line in details(alone))
    assert alone.best_effort.room == whole.best_effort.room  # four in all either way


def test_a_limit_on_borrowing_counts() -> None:
    """In the proportions of today, a queue that may not borrow needs twice as much in all."""
    request = queues({"a": 3, "b": 3}, "team")
    for queue in request.quota.cluster_queues:
        queue.resource_groups[0].flavors[0].resources[0].borrowing_limit = 0
    for due in (180, 180, 45, 45):
        add(request, 2, 30 * 60_000, due * 60_000, queue=1)
    answer = ask(request)
    assert answer.least.needed in (7, 8)  # 4 for b, and as much but for rounding for a
    assert answer.least.proven


def test_other_flavors_stay_as_they_are() -> None:
    """Jobs that may use two flavors: what one has is not needed of the other."""
    request = seed_case()
    request.quota.flavors.add(name="old")
    request.quota.cluster_queues[0].resource_groups[0].flavors.add(flavor=2).resources.add(resource=0, nominal=2)
    new, old = capacity(request, list(request.workloads.id), effort=Effort(2))
    assert (new.least.needed, old.least.needed) == (2, 0)
    assert sentence(new, alone=False).startswith("Flavor gpu of ClusterQueue q: 2 GPUs are enough; 6 would be needed")


def test_prices_per_extra_deadline() -> None:
    """From two to four GPUs, three hours until the last deadline, at 5 an hour: 30 for one more. No price, no guess."""
    answer = ask(seed_case())
    extra = dict(zip((p.amount for p in answer.least.curve), prices_per_extra(answer, 5.0), strict=True))
    assert (extra[4], extra[3]) == (30.0, None)
    assert extra[2] == pytest.approx(10)  # two GPUs meet three
    assert set(prices_per_extra(answer, None)) == {None}


def test_the_request_stays_as_it_was() -> None:
    """Asking changes nothing."""
    request = seed_case()
    before = request.SerializeToString(deterministic=True)
    ask(request)
    assert request.SerializeToString(deterministic=True) == before


@pytest.mark.long
@settings(max_examples=60)
@given(requests(rows=8), st.booleans())
def test_any_request_has_an_answer(request: pb.PlanRequest, alone: bool) -> None:
    """Whatever trees, flavors, nodes and states: what is said hangs together, and the request stays as it was."""
    before = request.SerializeToString(deterministic=True)
    queue = request.quota.cluster_queues[0].name if alone else None
    try:
        answers = capacity(request, list(request.workloads.id), resource="gpu", queue=queue, effort=Effort(2))
    except NoPool:
        return
    finally:
        assert request.SerializeToString(deterministic=True) == before
    for answer in answers:
        found = answer.least
        assert answer.held <= found.at_least <= found.needed <= answer.at_once
        assert all(point.met <= point.at_most for point in found.curve)
        assert all(a.met <= b.met and a.at_most <= b.at_most for a, b in pairwise(found.curve))
        assert next(p.met for p in found.curve if p.amount == found.needed) >= found.required
        assert sentence(answer).endswith(".")
        assert all(details(answer))
