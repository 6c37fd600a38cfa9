"""Plans: feasible always, in the order of what counts, and no better than their bound."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import NOW, SECOND, add, request, requests

from solver.api import planner_pb2 as pb
from solver.bound import late_weight_bound
from solver.decode import decode
from solver.encode import encode
from solver.greedy import finish, greedy, rule_plans
from solver.plan import Plan
from solver.planner import plan, plans, warm_up
from solver.problem import Problem
from solver.schedule import Scheduler
from solver.verify import verify
from solver.worth import worth

rule = partial(settings, deadline=None)  # the first call compiles

GREEDY = pb.Policy(engine=pb.GREEDY)
WORK = pb.Budget(work_limit=20)
"""A budget that does not depend on how busy the machine is."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def violations(asked: pb.PlanRequest, problem: Problem, made: Plan) -> list[str]:
    """What the independent checker has to say about a plan."""
    response = encode(problem, made, asked.policy)
    return [violation.message for violation in verify(asked, response.plan, response.objective)]


def seconds(made: Plan) -> list[float]:
    """Planned starts in seconds."""
    return (made.start / SECOND).tolist()


def test_four_jobs_in_two_rounds():
    """Four jobs of 2 GPUs on 4 GPUs: all on time in two rounds, the earlier due dates first, proved optimal."""
    asked = request({"q": 4})
    for due in (23, 13, 23, 13):
        add(asked, 2, 10 * SECOND, due=due * SECOND)
    made = plan(decode(asked), budget=WORK)
    assert seconds(made) == [10, 0, 10, 0]
    assert (made.objective.late_weight, made.bound) == (0, 0)
    assert encode(decode(asked), made).plan.workload == [1, 3, 0, 2]


@rule(max_examples=40)
@given(requests(), st.sampled_from([0, 5]))
def test_every_plan_is_sound(asked, ageing):
    """Each plan of the pipeline passes the independent checker, holds every row, and beats the one before it."""
    asked.policy.ageing_ms = ageing
    problem = decode(asked)
    made = list(plans(problem, asked.policy, pb.Budget(work_limit=20)))
    for one in made:
        assert violations(asked, problem, one) == []
        assert sorted(one.order(problem).tolist()) == list(range(len(problem)))
        assert one.bound <= one.objective.late_weight
    for before, after in itertools.pairwise(made):
        values = (worth(problem, after, asked.policy), -after.bound)
        assert values < (worth(problem, before, asked.policy), -before.bound)
    assert worth(problem, made[-1], asked.policy) <= worth(problem, greedy(problem, asked.policy), asked.policy)


@rule(max_examples=40)
@given(requests(rows=5))
def test_bound_is_below_every_schedule(asked):
    """No order of the rows, decoded, is late by less weight than the bound that is proved in advance, or by CP-SAT."""
    problem = decode(asked)
    scheduler = Scheduler(problem)
    bound = max(late_weight_bound(scheduler), plan(problem, budget=WORK).bound)
    for order in itertools.permutations(scheduler.ours):
        ours = np.array(order, dtype=np.int64)
        for starts in (scheduler.schedule(ours), scheduler.exactly(ours)):
            assert bound <= finish(scheduler, starts, "").objective.late_weight + 1e-9


def test_bound_by_energy():
    """Work that asks for more quota × time than there is until its due date is late: the least of it counts."""
    asked = request({"q": 4})
    add(asked, 4, 10, due=30, times=5, weight=2.0)
    add(asked, 4, 10, due=5, weight=0.5)
    assert late_weight_bound(Scheduler(decode(asked))) == pytest.approx(0.5 + 2 * 2, abs=1e-6)


def test_bound_knows_what_must_have_begun():
    """Work that is due later but must have begun takes its part of what there is until an earlier due date."""
    asked = request({"q": 4})
    add(asked, 4, 10, due=10)
    add(asked, 4, 10, due=15)
    assert late_weight_bound(Scheduler(decode(asked))) == 1.0


def test_bound_of_all_parts_together():
    """Two queues that may not borrow: what each of them lacks adds up."""
    asked = request({"q": 2, "r": 2}, cohort="all")
    for queue in asked.quota.cluster_queues:
        queue.resource_groups[0].flavors[0].resources[0].borrowing_limit = 0
    add(asked, 1, 10, due=10, times=3, queue=0)
    add(asked, 1, 10, due=10, times=4, queue=1)
    assert late_weight_bound(Scheduler(decode(asked))) == 3.0


def test_bound_knows_what_is_held():
    """Quota that running work holds until its estimate ends is not there for others."""
    asked = request({"q": 4})
    add(asked, 4, 15, state=pb.RUNNING)
    add(asked, 4, 10, due=30, times=2)
    assert late_weight_bound(Scheduler(decode(asked))) == 1.0


def test_selection_beats_ordering():
    """CP-SAT gives up the one large job that keeps many small ones from being on time, and proves that it must."""
    asked = request({"q": 4}, engine=pb.CP_SAT)
    add(asked, 4, 10, due=10)
    add(asked, 3, 4, due=12, times=2, weight=1.0)
    add(asked, 1, 5, due=10, times=2)
    problem = decode(asked)
    made = plan(problem, asked.policy, WORK)
    assert made.objective.late_weight == made.bound == 1.0
    assert violations(asked, problem, made) == []


def test_cp_sat_finds_what_rules_miss():
    """Two jobs must leave a gap that no priority rule leaves: only CP-SAT has all on time, and says who did it."""
    rng = np.random.default_rng(4)
    asked = request({"q": 8})
    for _ in range(14):
        duration = int(rng.integers(3, 20))
        add(asked, int(rng.integers(1, 6)), duration, due=int(duration + rng.integers(0, 45)))
    problem = decode(asked)
    rules, made = greedy(problem), plan(problem, budget=pb.Budget(work_limit=200))
    assert made.objective.late_weight < rules.objective.late_weight
    assert made.engine == "cpsat"
    assert made.gap(problem) < 0.2


def test_less_tardiness_on_the_second_level():
    """Among plans with the same work on time, the one with less tardiness wins; hard work that is late goes last."""
    asked = request({"q": 1})
    add(asked, 1, 100, due=5, hard=True)
    add(asked, 1, 30, due=5)
    add(asked, 1, 10, due=5)
    add(asked, 1, 10)
    made = plan(decode(asked), budget=WORK)
    assert made.start.tolist() == [50, 10, 0, 40]


def test_work_without_due_date_waits_for_work_with_one():
    """Best effort goes behind work that can be on time, and starts at once where it harms nobody."""
    asked = request({"q": 4})
    add(asked, 4, 10)
    add(asked, 3, 10, due=10)
    add(asked, 1, 10)
    assert plan(decode(asked), budget=WORK).start.tolist() == [10, 0, 0]


def test_ageing():
    """Best effort that has waited for the ageing bound goes first, before that it waits."""
    asked = request({"q": 4})
    add(asked, 4, 10, created=-100)
    add(asked, 4, 10, due=10)
    assert plan(decode(asked), pb.Policy(ageing_ms=101), WORK).start.tolist() == [10, 0]
    assert plan(decode(asked), pb.Policy(ageing_ms=100), WORK).start.tolist() == [0, 10]


def test_released_work_goes_first():
    """Released rows hold their request from now, whatever is due; foreign ones follow in Kueue's order; then ours."""
    asked = request({"q": 4})
    add(asked, 4, 10, due=10)
    add(asked, 4, 10, state=pb.FOREIGN, created=-5)
    add(asked, 4, 10, state=pb.FOREIGN, created=-5, priority=1)
    add(asked, 4, 10, state=pb.IN_FLIGHT)
    made = plan(decode(asked), budget=WORK)
    assert made.start.tolist() == [30, 20, 10, 0]


def test_order_of_equal_starts():
    """Work that starts together is admitted what is not ours first, then by due date."""
    asked = request({"q": 4})
    for due in (None, 30, 20):
        add(asked, 1, 10, due=due)
    add(asked, 1, 10, state=pb.FOREIGN)
    problem = decode(asked)
    assert encode(problem, plan(problem, budget=WORK)).plan.workload == [3, 2, 1, 0]


def test_room_in_front_of_foreign_work():
    """What ends before foreign work can start may go first; what would delay it may not."""
    asked = request({"q": 4})
    add(asked, 2, 10, state=pb.RUNNING)
    add(asked, 4, 10, state=pb.FOREIGN)
    add(asked, 2, 11, due=11)
    add(asked, 2, 10)
    made = plan(decode(asked), budget=WORK)
    assert made.start.tolist() == [10, 20, 0]


def test_blocked_head_of_a_strict_queue():
    """Behind foreign work that waits in a StrictFIFO queue, nothing of that queue starts; another queue's work does."""
    asked = request({"q": 4, "r": 1}, cohort="both")
    asked.quota.cluster_queues[0].queueing_strategy = pb.STRICT_FIFO
    add(asked, 3, 10, state=pb.RUNNING)
    add(asked, 3, 10, state=pb.FOREIGN)
    add(asked, 1, 5, due=5)
    add(asked, 1, 5, queue=1)
    assert plan(decode(asked), budget=WORK).start.tolist() == [10, 10, 0]


def test_release_dates_and_reservations_are_rules():
    """Nothing starts before its release date or in reserved room; only these two make a rule of not starting early."""
    asked = request({"q": 4})
    add(asked, 1, 5, release=7)
    add(asked, 4, 20)
    add(asked, 4, 3)
    add(asked, 1, 4, due=400)
    asked.reservations.add(node="q", amount=4, start_ms=NOW + 10, end_ms=NOW + 50)
    problem = decode(asked)
    made = plan(problem, budget=WORK)
    assert violations(asked, problem, made) == []
    assert made.start.tolist() == [70, 50, 0, 3]
    assert made.not_before.tolist() == [50, 50, 0, 0]
    response = encode(problem, made)
    assert dict(zip(response.plan.workload, response.plan.not_before_ms, strict=True))[0] == NOW + 50


def test_plan_in_force_stays():
    """Starts stay when moving them gains nothing, or no more than the threshold; newcomers go around them."""
    asked = request({"q": 1})
    add(asked, 1, 10, due=1000, previous=20)
    add(asked, 1, 10, due=1000, previous=10)
    add(asked, 1, 10, due=1000, previous=0)
    problem = decode(asked)
    made = plan(problem, budget=WORK)
    assert made.start.tolist() == [20, 10, 0]
    assert made.engine == "previous"
    add(asked, 1, 10)
    assert plan(decode(asked), budget=WORK).start.tolist() == [20, 10, 0, 30]


def test_threshold_of_stability():
    """Hours of tardiness up to the threshold for each start do not move any, more do, and a missed due date always."""
    hour = 3600 * SECOND
    asked = request({"q": 1}, objective=[pb.LATE_WEIGHT, pb.TARDINESS, pb.STABILITY])
    add(asked, 1, 2 * hour, due=hour, previous=0)
    add(asked, 1, hour, due=hour // 2, previous=2 * hour)
    levels = asked.policy.objective
    for threshold, starts in ((0.51, [0, 2 * hour]), (0.49, [hour, 0])):  # an hour is gained, two starts move
        policy = pb.Policy(stability_threshold=threshold, objective=levels)
        assert plan(decode(asked), policy, WORK).start.tolist() == starts
    asked.workloads.due_ms[1] = NOW + hour
    assert plan(decode(asked), pb.Policy(stability_threshold=100), WORK).start.tolist() == [hour, 0]


def test_previous_start_that_is_not_possible_any_more():
    """A plan in force that has become impossible is repaired."""
    asked = request({"q": 4})
    add(asked, 4, 30, state=pb.RUNNING)
    add(asked, 4, 10, previous=10)
    assert plan(decode(asked), budget=WORK).start.tolist() == [30]


def test_levels_of_the_policy():
    """A policy that counts start times only gets short work first, whatever is due."""
    asked = request({"q": 1})
    add(asked, 1, 100, due=100)
    add(asked, 1, 10)
    problem = decode(asked)
    assert plan(problem, budget=WORK).start.tolist() == [0, 100]
    early = pb.Policy(objective=[pb.START_TIMES])
    best = plan(problem, early, WORK)
    assert best.start.tolist() == [10, 0]
    levels = encode(problem, best, early).objective.levels
    # A tenth of the mean is plain, the rest by quota × time: 100 and 10 of 110.
    assert [(level.level, level.value) for level in levels] == [
        (pb.START_TIMES, pytest.approx((0.1 / 2 + 0.9 * 100 / 110) * 10 / 3_600_000))
    ]


def test_peak_and_moves_are_valued():
    """Peak is the largest part of a tree's quota in use at once, moves the hours that planned starts move."""
    asked = request({"q": 4, "r": 4}, cohort="both", objective=[pb.PEAK, pb.STABILITY])
    add(asked, 2, 10, state=pb.RUNNING)
    add(asked, 4, 10, previous=3_600_000)
    add(asked, 1, 10, release=10)
    problem = decode(asked)
    made = greedy(problem, asked.policy)
    assert worth(problem, made, asked.policy) == (6 / 8, 1.0)


def test_nothing_to_plan():
    """No rows, and rows that cannot be planned, have a plan too."""
    assert len(plan(decode(pb.PlanRequest(schema=1, now_ms=NOW))).start) == 0
    asked = request({"q": 4})
    add(asked, 5, 10)
    assert len(plan(decode(asked)).start) == 0


def test_everything_is_late():
    """Work that is past due is planned all the same, what is worth most for its time first."""
    asked = request({"q": 4})
    for weight in (1.0, 3.0, 2.0):
        add(asked, 4, 10, due=-5, weight=weight)
    made = plan(decode(asked), budget=WORK)
    assert made.start.tolist() == [20, 0, 10]
    assert made.objective.late_weight == made.bound == 6.0


def test_days_beside_seconds():
    """Work of three months does not make the short work beside it late, although both share the time grid."""
    asked = request({"q": 4}, engine=pb.GREEDY)
    day = 24 * 3600 * SECOND
    add(asked, 2, 90 * day, times=3)
    add(asked, 1, SECOND, due=30 * SECOND, times=100)
    problem = decode(asked)
    made = plan(problem, asked.policy)
    assert made.objective.late_weight == 0
    assert violations(asked, problem, made) == []


def test_equal_rows():
    """100,000 equal rows are planned round by round."""
    asked = request({"q": 1000}, engine=pb.GREEDY)
    add(asked, 1, 10 * SECOND, due=500 * SECOND)
    work = asked.workloads
    n = 100_000
    for _, values in work.ListFields():
        if values and not isinstance(values[0], str):
            values.extend(list(values) * (n - 1))
    work.id.extend(str(k) for k in range(1, n))
    made = plan(decode(asked), asked.policy)
    assert np.unique(made.start, return_counts=True)[1].tolist() == [1000] * 100
    assert made.objective.late_weight == made.bound == 50_000


def test_stopped_at_once():
    """A stop flag that is set from the beginning still leaves a feasible plan."""
    asked = request({"q": 4})
    add(asked, 3, 10, due=50, times=200, release=3)
    add(asked, 3, 10, state=pb.IN_FLIGHT)
    problem = decode(asked)
    made = plan(problem, stop=np.ones(1, dtype=np.uint8))
    assert violations(asked, problem, made) == []


def test_stop_ends_cp_sat():
    """Setting the flag from another thread ends a long solve within moments, and the best plan so far is there."""
    rng = np.random.default_rng(0)
    asked = request({"q": 16})
    for _ in range(120):
        add(asked, int(rng.integers(1, 9)), int(rng.integers(10, 99)), due=int(rng.integers(60, 700)))
    problem = decode(asked)
    stop = np.zeros(1, dtype=np.uint8)
    threading.Timer(1.0, lambda: stop.__setitem__(0, 1)).start()
    began = time.monotonic()
    made = plan(problem, budget=pb.Budget(wall_ms=120_000), stop=stop)
    assert time.monotonic() - began < 60
    assert violations(asked, problem, made) == []


@pytest.mark.parametrize("rows", [12, 60])
def test_same_input_same_plan(rows):
    """With a work limit the same request and seed give the same plan."""
    rng = np.random.default_rng(1)
    asked = request({"q": 8})
    for _ in range(rows):
        add(asked, int(rng.integers(1, 6)), int(rng.integers(3, 40)), due=int(rng.integers(20, 300)))
    problem = decode(asked)
    first, second = (plan(problem, budget=WORK, seed=3) for _ in range(2))
    assert (first.start == second.start).all()
    assert (first.option == second.option).all()
    assert (first.bound, first.engine) == (second.bound, second.engine)


def test_greedy_stays_alone_when_asked():
    """With the greedy engine no other takes part, and every rule has had its turn."""
    asked = request({"q": 4})
    for due in (30, 11, 45):
        add(asked, 3, 10, due=due)
    problem = decode(asked)
    engines = {made.engine for made in plans(problem, GREEDY)}
    assert all(engine.startswith("greedy/") for engine in engines)
    assert len(list(rule_plans(Scheduler(problem), GREEDY))) > 1


def test_response_columns():
    """One entry for each planned row, in the order of admission, with finish, tardiness, flavor and reason."""
    asked = request({"q": 4})
    add(asked, 5, 10)
    add(asked, 3, 10, due=25)
    add(asked, 2, 10, due=5)
    add(asked, 2, 20, state=pb.RUNNING)
    problem = decode(asked)
    response = encode(problem, plan(problem, budget=WORK), timing=pb.Timing(decode_us=7))
    out = response.plan
    assert list(out.workload) == [2, 1]
    assert [t - NOW for t in out.start_ms] == [0, 20]
    assert [t - NOW for t in out.finish_ms] == [10, 30]
    assert list(out.tardiness_ms) == [5, 5]
    assert list(out.reason) == [pb.LATE_ALREADY, pb.LATE_NO_ROOM]
    held = [out.assignments[k] for k in out.assignment]
    assert [(list(a.flavors), list(a.resources), list(a.amounts)) for a in held] == [([0], [0], [2]), ([0], [0], [3])]
    assert response.objective.levels[0] == pb.ObjectiveValue(level=pb.LATE_WEIGHT, value=2.0)
    assert response.objective.bound == 2.0
    assert [(r.workload, r.kind) for r in response.rejections] == [(0, pb.NEVER_FITS)]
    assert response.timing.decode_us == 7


def test_work_that_never_fits_with_all_its_pods_is_planned_with_as_many_as_can_be() -> None:
    """Six pods, two at least, where there are four GPUs: planned with four; and verified, which five would not be."""
    r = request({"q": 4})
    r.shapes.add(pod_sets=[pb.PodSet(count=6, min_count=2, resources=[0], amounts=[1])])
    r.shapes.add(pod_sets=[pb.PodSet(count=6, min_count=5, resources=[0], amounts=[1])])
    for shape in (0, 1):
        r.workloads.id.append(f"w{shape}")
        r.workloads.shape.append(shape)
        r.workloads.duration_ms.append(SECOND)
    problem = decode(r)
    answer = encode(problem, plan(problem, r.policy, r.budget, r.seed))
    assert [list(held.amounts) for held in answer.plan.assignments] == [[4]]
    assert [(rejection.id, rejection.kind) for rejection in answer.rejections] == [("w1", pb.NEVER_FITS)]
    assert verify(r, answer.plan) == []
    answer.plan.assignments[0].amounts[0] = 5
    assert verify(r, answer.plan)
