"""Fast replays: their rule is dispatch's, their starts are possible, and policies do what they are known for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch import Turns, dispatch
from simulator.baselines import CONSERVATIVE, EASY, backfill
from simulator.online import Among, Order, Policy, jobs, replay, score, walk
from simulator.traces.trace import Trace
from simulator.tune import learned, twice
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.decode_admission import decode_admission
from solver.problem import NEVER
from solver.protection import MINUTE, Protection, off, starts

NOW = 1_800_000_000_000


def trace_of(rows: list[tuple[int, ...]], estimate: list[int] | None = None) -> Trace:
    """Jobs of (submit, duration, GPUs, due or 0) in minutes."""
    submit, duration, gpus, due = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    believed = duration if estimate is None else np.array(estimate, dtype=np.int64)
    return Trace(
        "test", submit * MINUTE, duration * MINUTE, gpus, np.where(due > 0, due * MINUTE, NEVER), due > 0,
        believed * MINUTE,
    )  # fmt: skip


def request_of(trace: Trace, free: int) -> pb.PlanRequest:
    """All jobs of a trace in one ClusterQueue with one flavor."""
    request = pb.PlanRequest(schema=1, now_ms=NOW)
    request.quota.resources.append("gpu")
    request.quota.flavors.add(name="gpu")
    group = request.quota.cluster_queues.add(name="queue").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=free)
    n = len(trace)
    for gpus in trace.gpus.tolist():
        request.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[gpus])
    work = request.workloads
    work.id.extend(str(k) for k in range(n))
    work.cluster_queue.extend([0] * n)
    work.shape.extend(range(n))
    work.state.extend([pb.PENDING] * n)
    work.duration_ms.extend(trace.estimate.tolist())
    return request


@st.composite
def queues(draw: Any) -> tuple[Trace, int, list[int], list[bool]]:
    """Waiting jobs that fit an empty pool, what is free of it; an order, and who is held back."""
    free = draw(st.integers(1, 12))
    rows = draw(st.lists(st.tuples(st.just(0), st.integers(1, 9), st.integers(1, free)), min_size=1, max_size=9))
    n = len(rows)
    order = draw(st.permutations(range(n)))
    held = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return trace_of([(*row, 0) for row in rows]), free, order, held


@settings(max_examples=40)
@given(queues())
def test_the_rule_is_that_of_dispatch(case: tuple[Trace, int, list[int], list[bool]]) -> None:
    """On one queue with one flavor, in whatever order, a replay starts what the controller would release."""
    trace, free, order, held = case
    n = len(trace)
    request = request_of(trace, free)
    problem = decode(request)
    start = np.full(n, NEVER, dtype=np.int64)
    not_before = np.where(held, 1, 0).astype(np.int64)
    turns = Turns(np.array(order, dtype=np.int64), start, not_before)
    by_controller = [row for row, _ in dispatch(problem, decode_admission(request, problem), turns, [True] * n)]
    started, left = np.empty(n, np.int64), np.empty(n, np.int64)
    waiting = np.array(order, dtype=np.int64)
    count, rest = walk(free, waiting, jobs(trace), True, np.array(held)[order], started, left)
    assert started[:count].tolist() == by_controller
    assert left[:rest].tolist() == [job for job in order if job not in by_controller]


@st.composite
def traces(draw: Any) -> tuple[Trace, int]:
    """Jobs with wrong estimates, some without due dates, and a pool that each of them fits."""
    capacity = draw(st.integers(1, 12))
    row = st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, capacity), st.integers(0, 99))
    rows = sorted(draw(st.lists(row, min_size=1, max_size=25)), key=lambda r: r[0])
    rows = [(at, length, gpus, at + due if due else 0) for at, length, gpus, due in rows]
    return trace_of(rows, draw(st.lists(st.integers(1, 40), min_size=len(rows), max_size=len(rows)))), capacity


PROTECTION = Protection(0.4, 1.0 * MINUTE, 100.0 * MINUTE, 5 * MINUTE, 0.5, 0.8, 0.5, 0.3, 30 * MINUTE)
POLICIES = [
    *(Policy(order, 1.0, among) for order in (Order.EDF, Order.LEAST_SLACK) for among in Among),
    Policy(Order.FIFO),
    Policy(Order.PROTECTED, protection=PROTECTION),
    Policy(Order.PROTECTED, protection=off()),
]


@settings(max_examples=60)
@given(traces(), st.sampled_from([*POLICIES, EASY, 3, CONSERVATIVE]))
def test_starts_are_possible(case: tuple[Trace, int], policy: Policy | int) -> None:
    """Every job runs, none before its submission, and never more than the pool has."""
    trace, capacity = case
    start = backfill(trace, capacity, policy) if isinstance(policy, int) else replay(trace, capacity, policy)
    assert (start >= trace.submit).all()
    for instant in start.tolist():
        running = (start <= instant) & (start + trace.duration > instant)
        assert trace.gpus[running].sum() <= capacity


@settings(max_examples=20)
@given(traces())
def test_conservative_backfill_delays_nobody(case: tuple[Trace, int]) -> None:
    """With true estimates and reservations for all, a job starts no later for any job that comes after it."""
    trace, capacity = case
    exact = backfill(trace, capacity, CONSERVATIVE, trace.duration)
    for n in range(1, len(trace)):
        first = trace.take(np.arange(n))
        assert (backfill(first, capacity, CONSERVATIVE, first.duration)[-1] == exact[n - 1]) or (
            trace.submit[n] == trace.submit[n - 1]
        )


# A job of 3 of 4 GPUs runs for 10 minutes; then come one that needs all 4, a short one and a long one.
QUEUE = [(0, 10, 3, 0), (1, 10, 4, 0), (2, 5, 1, 0), (2, 50, 1, 0)]


def test_fifo_lets_nobody_pass() -> None:
    """With FIFO what does not fit holds up all behind it."""
    assert (replay(trace_of(QUEUE), 4, Policy(Order.FIFO)) / MINUTE).tolist() == [0, 10, 20, 20]


@pytest.mark.parametrize("depth", [EASY, CONSERVATIVE])
def test_backfill_lets_pass_what_ends_in_time(depth: int) -> None:
    """With backfill the short job goes ahead, because it is over when the first in line can start."""
    assert (backfill(trace_of(QUEUE), 4, depth) / MINUTE).tolist() == [0, 10, 2, 20]


def test_easy_delays_all_but_the_first() -> None:
    """EASY keeps its promise to the first in line only; conservative backfill to all of them."""
    rows = [(0, 10, 2, 0), (1, 10, 3, 0), (1, 10, 4, 0), (2, 25, 1, 0)]
    easy, conservative = (backfill(trace_of(rows), 4, depth)[2] / MINUTE for depth in (EASY, CONSERVATIVE))
    assert (easy, conservative) == (27, 20)


def test_edf_and_least_slack() -> None:
    """EDF takes the earliest due date first, least slack the latest start; hopeless work comes last in both."""
    rows = [(0, 10, 1, 10), (1, 5, 1, 60), (1, 58, 1, 80), (1, 30, 1, 35)]
    trace = trace_of(rows)
    assert np.argsort(replay(trace, 1, Policy(Order.EDF))).tolist() == [0, 1, 2, 3]
    assert np.argsort(replay(trace, 1, Policy(Order.LEAST_SLACK))).tolist() == [0, 2, 1, 3]


def test_protection_keeps_room_for_what_comes() -> None:
    """Long work with slack leaves a share free, in which urgent work starts at once; without protection it is late."""
    rows = [(0, 1000, 1, 9000)] * 4 + [(30, 10, 1, 45)]
    protected = Policy(Order.PROTECTED, protection=PROTECTION._replace(fade=1.0))
    assert score(trace_of(rows), replay(trace_of(rows), 4, Policy(Order.EDF))).missed == pytest.approx(0.2)
    assert score(trace_of(rows), replay(trace_of(rows), 4, protected)).missed == 0


def test_a_replay_is_repeatable_and_refuses_what_never_fits() -> None:
    """The same trace gives the same starts; a job larger than the pool is an error."""
    trace = trace_of(QUEUE)
    policy = Policy(Order.PROTECTED, protection=PROTECTION)
    assert (replay(trace, 4, policy) == replay(trace, 4, policy)).all()
    with pytest.raises(ValueError, match="a job of 4 GPUs in a pool of 3"):
        replay(trace, 3, policy)


def test_score() -> None:
    """Both parts missed, of the jobs that count only; waits of best effort in minutes."""
    trace = trace_of([(0, 10, 1, 10), (0, 30, 2, 35), (0, 10, 1, 0), (0, 10, 1, 0)])
    start = np.array([0, 6, 10, 30]) * MINUTE
    told = score(trace, start)
    assert (told.missed, told.missed_energy) == (0.5, 60 / 70)
    assert (told.wait_median, told.wait_p95) == (20, pytest.approx(29))
    assert score(trace, start, np.array([True, False, True, False])).lost == 0


def history(n: int, seed: int) -> Trace:
    """A busy pool of 8: long work with slack, and now and then short work with none."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 12 * n, size=n))
    urgent = rng.uniform(size=n) < 0.5
    length = np.where(urgent, rng.integers(5, 20, size=n), rng.integers(60, 240, size=n))
    due = at + length + np.where(urgent, 5, 600)
    return trace_of([*zip(at.tolist(), length.tolist(), [1] * n, due.tolist(), strict=True)])


def test_what_is_learned_from_one_history_serves_another() -> None:
    """Levels learned by replay miss less than EDF on jobs that nobody has seen."""
    found = learned(history(400, seed=1), 8)
    other = history(400, seed=2)
    edf = score(other, replay(other, 8, Policy(Order.EDF)))
    protected = score(other, replay(other, 8, Policy(Order.PROTECTED, protection=found)))
    assert edf.lost > 0.02
    assert protected.lost < 0.8 * edf.lost


def test_no_levels_without_history() -> None:
    """With a few jobs, or none that has a due date, there is nothing to learn from, and no levels."""
    assert learned(history(50, seed=1), 8) == off()
    best_effort = trace_of([(k, 10, 1, 0) for k in range(300)])
    assert learned(best_effort, 8) == off()


def test_twice() -> None:
    """The second round of a history follows the first at its own pace, due dates with it."""
    two = twice(trace_of([(0, 5, 1, 9), (10, 5, 1, 0), (20, 5, 1, 30)]))
    assert (two.submit / MINUTE).tolist() == [0, 10, 20, 30, 40, 50]
    assert two.due[3] == 39 * MINUTE
    assert two.due[4] == NEVER


def test_learning_begins_with_levels_for_best_effort_only_where_there_is_any() -> None:
    """Best effort is protected against by every start of learning when a history has some, else by none."""
    energy = np.arange(1, 500)
    assert all(protection.best_effort > 0 for protection in starts(energy, True))
    assert all(protection.best_effort == 0 for protection in starts(energy, False))
