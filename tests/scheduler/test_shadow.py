"""A replay of the past: it knows what could be known, keeps to the quota, and repeats Kueue's order as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.settings import HOUR, MINUTE, SECOND, Settings
from scheduler.shadow import START_LAG, Idle, PastWork, Replay, gpu_seconds, sustained
from scheduler.shadow_history import Past
from scheduler.shadow_report import report
from solver.api import planner_pb2 as pb

T0 = 1_800_000_000_000
GPU = "nvidia.com/gpu"
SETTINGS = Settings()


def quota(gpus: int = 4, queues: Sequence[str] = ("cq",)) -> pb.Quota:
    """ClusterQueues of one cohort that share so many GPUs of one flavor each."""
    made = pb.Quota(resources=[GPU])
    made.flavors.add(name="gpu")
    for name in queues:
        group = made.cluster_queues.add(name=name, cohort="all").resource_groups.add(covered_resources=[0])
        group.flavors.add(flavor=0).resources.add(resource=0, nominal=gpus)
    return made


def work(uid: str, submitted: int, minutes: float, gpus: int = 4, **more: object) -> PastWork:
    """Work that was submitted so many minutes after T0."""
    length = round(minutes * MINUTE)
    known = {"estimate": length, "duration": length, "ours": True, "usage": (("gpu", GPU, gpus),), **more}
    return PastWork(uid=uid, cluster_queue="cq", submitted=T0 + submitted * MINUTE, **known)  # type: ignore[arg-type]


def replay(works: Sequence[PastWork], hours: float = 24, gpus: int = 4, goes_by: Settings = SETTINGS) -> Replay:
    return Replay(quota(gpus), works, goes_by, T0, T0 + round(hours * HOUR))


def minutes(instant: int) -> float:
    return (instant - T0) / MINUTE


def test_urgent_work_goes_first() -> None:
    """What Kueue starts in order of age, plans start by deadline: of two that wait, the later one is on time."""
    works = [work("blocker", 0, 60), work("long", 10, 300), work("urgent", 20, 30, deadline=T0 + 120 * MINUTE)]
    planned, kueue = replay(works).planned(), replay(works).by_kueue()
    assert sorted(kueue.start, key=kueue.start.__getitem__) == ["blocker", "long", "urgent"]
    assert sorted(planned.start, key=planned.start.__getitem__) == ["blocker", "urgent", "long"]
    assert planned.end["urgent"] == planned.start["urgent"] + START_LAG + 30 * MINUTE
    assert planned.end["urgent"] < T0 + 120 * MINUTE < kueue.end["urgent"]


def test_priority_goes_first_with_kueue() -> None:
    """Kueue's order is priority, then age; what fits beside a blocked one starts."""
    works = [
        work("blocker", 0, 60, gpus=3),
        work("wide", 1, 10),
        work("small", 2, 10, gpus=1),
        work("important", 3, 10, priority=5),
    ]
    course = replay(works).by_kueue()
    assert minutes(course.start["small"]) == 2
    assert course.start["important"] < course.start["wide"]


def test_real_history_is_told_as_it_was() -> None:
    """What really happened is what was recorded, whatever a rule would have done."""
    works = [
        work("a", 0, 60, started=T0 + 5 * MINUTE, ended=T0 + 65 * MINUTE),
        work("b", 1, 60, started=T0 + 90 * MINUTE),
        work("never", 2, 60),
    ]
    course = replay(works, hours=2).real()
    assert {uid: minutes(start) for uid, start in course.start.items()} == {"a": 5, "b": 90}
    assert minutes(course.end["a"]) == 65
    # While "a" ran nothing was free; then four GPUs were, until "b" took them.
    assert [(minutes(step.since), step.gpus) for step in course.idle] == [(0, 4), (5, 0), (65, 4), (90, 0)]


def test_what_is_not_ours_stays_where_it_was() -> None:
    """Work that is not ours to start, and what ran before, holds its quota when it really did."""
    works = [
        work("service", 5, 60, gpus=4, ours=False, started=T0 + 10 * MINUTE, ended=T0 + 70 * MINUTE),
        work("before", -30, 35, gpus=4, started=T0 - 30 * MINUTE, ended=T0 + 5 * MINUTE),
        work("ours", 11, 10),
    ]
    for course in (replay(works).planned(), replay(works).by_kueue()):
        assert minutes(course.start["ours"]) == 70
        assert minutes(course.start["service"]) == 10
        assert minutes(course.start["before"]) == -30


def test_wishes_hold() -> None:
    """Nothing starts before its earliest start, nor after it was deleted; what no queue has any more is as it was."""
    later = T0 + 3 * HOUR
    gone_flavor = (("old", GPU, 2),)
    works = [
        work("late", 0, 10, not_before=later),
        work("blocker", 1, 60),
        work("deleted", 2, 10, gone=T0 + 30 * MINUTE),
        work("old", 3, 10, usage=gone_flavor, started=T0 + 20 * MINUTE, ended=T0 + 30 * MINUTE),
    ]
    course = replay(works).planned()
    assert course.start["late"] == later
    assert "deleted" not in course.start
    assert minutes(course.start["old"]) == 20


WORKS = st.lists(
    st.tuples(
        st.integers(0, 120),  # submitted
        st.integers(1, 90),  # minutes
        st.sampled_from([0.3, 1.0, 2.5]),  # estimate / run time
        st.integers(1, 4),  # GPUs
        st.none() | st.integers(10, 300),  # due after
    ),
    min_size=1,
    max_size=6,
)


def made(drawn: list[tuple[int, int, float, int, int | None]]) -> list[PastWork]:
    return [
        work(
            str(k),
            submitted,
            length,
            gpus,
            estimate=max(1, round(length * wrong * MINUTE)),
            deadline=None if due is None else T0 + (submitted + due) * MINUTE,
        )
        for k, (submitted, length, wrong, gpus, due) in enumerate(drawn)
    ]


@given(WORKS)
@settings(max_examples=8, deadline=None)
def test_it_keeps_to_the_quota_and_starts_everything(drawn: list[tuple[int, int, float, int, int | None]]) -> None:
    """Never more GPUs than there are; nothing before it was submitted; all of it in the end, for as long as it ran."""
    works = made(drawn)
    for course in (replay(works, 48).planned(), replay(works, 48).by_kueue()):
        assert course.start.keys() == {each.uid for each in works}
        for each in works:
            assert course.start[each.uid] >= each.submitted
            assert course.end[each.uid] - course.start[each.uid] == each.duration + START_LAG
        for at in course.start.values():
            assert sum(w.gpus for w in works if course.start[w.uid] <= at < course.end[w.uid]) <= 4


@given(WORKS, st.integers(0, 5), st.integers(1, 300))
@settings(max_examples=8, deadline=None)
def test_it_knows_no_run_time_before_the_end(
    drawn: list[tuple[int, int, float, int, int | None]], which: int, length: int
) -> None:
    """How long something really runs changes nothing until it has ended: a replay has no second sight."""
    works = made(drawn)
    which %= len(works)
    changed = [*works]
    changed[which] = replace(works[which], duration=length * MINUTE)
    one, two = replay(works, 48).planned(), replay(changed, 48).planned()
    until = min(one.end[str(which)], two.end[str(which)])
    before = [{uid: start for uid, start in course.start.items() if start < until} for course in (one, two)]
    assert before[0] == before[1]


@given(WORKS)
@settings(max_examples=8, deadline=None)
def test_kueues_order_repeats_itself(drawn: list[tuple[int, int, float, int, int | None]]) -> None:
    """A past that was Kueue's own order comes out of the replay of that order as it was."""
    works = made(drawn)
    first = replay(works, 48).by_kueue()
    past = [
        replace(each, started=first.start[each.uid], ended=first.end[each.uid], duration=each.duration)
        for each in works
    ]
    again, real = replay(past, 48), replay(past, 48).real()
    assert again.by_kueue().start == first.start
    assert real.end == first.end
    assert real.idle == first.idle


def naive_sustained(steps: list[Idle], until: int, at_least: int) -> float:
    ends = [*(step.since for step in steps[1:]), until]
    best = 0.0
    for i in range(len(steps)):
        for j in range(i, len(steps)):
            if ends[j] - steps[i].since >= at_least:
                best = max(best, min(step.gpus for step in steps[i : j + 1]))
    return best


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8)), max_size=12), st.integers(1, 60))
def test_idle_for_a_while(drawn: list[tuple[int, int]], at_least: int) -> None:
    """The worst time is the most that was idle for long enough, also over several changes; the sum is an area."""
    at, steps = 0, []
    for length, gpus in drawn:
        steps.append(Idle(at, gpus))
        at += length
    assert sustained(steps, at, at_least) == naive_sustained(steps, at, at_least)
    assert gpu_seconds(steps, at) == pytest.approx(sum(length * gpus for length, gpus in drawn) / SECOND)


def test_the_report_in_one_line() -> None:
    """Deadlines of ours that fell into the time and count: missed really, by plan, by Kueue's order replayed."""
    due = T0 + 120 * MINUTE
    first = T0 + 60 * MINUTE + START_LAG
    works = (
        work("blocker", 0, 60, started=T0, ended=first),
        work("long", 10, 300, started=first, ended=first + 300 * MINUTE),
        work("urgent", 20, 30, deadline=due, started=first + 300 * MINUTE, ended=first + 330 * MINUTE),
        work("failed", 30, 1, deadline=due, started=first + 330 * MINUTE, ended=first + 331 * MINUTE, counts=False),
    )
    past = Past(T0 + 10 * HOUR, quota(), works, frozenset({"cq"}))
    told = report(past, SETTINGS)
    assert told.line == "last 10 hours: 1 deadline missed, 0 would have been; 0 GPUs idle at the worst time"
    assert (told.deadlines, told.real.missed, told.planned.missed, told.kueue.missed) == (1, 1, 0, 1)
    assert told.queues == {"cq": (1, 1, 0)}
    assert told.as_data()["clusterQueues"] == {"cq": {"deadlines": 1, "missed": 1, "missedByPlan": 0}}
    none = report(replace(past, work=()), SETTINGS)
    assert none.line == "last 7 days: no work that could have been planned"
    undated = report(replace(past, work=works[:1]), SETTINGS)
    assert "no job had a deadline" in undated.line


def test_waiting_work_that_is_late_already_is_missed() -> None:
    """What waits still counts by what it asks for; its deadline is missed once it has passed."""
    shape = pb.RequestShape(pod_sets=[pb.PodSet(count=1, resources=[0], amounts=[4])])
    waits = work("waits", 5, 30, usage=(), shape=shape, deadline=T0 + 60 * MINUTE)
    works = (work("runs", 0, 600, started=T0), waits)
    told = report(Past(T0 + 2 * HOUR, quota(), works, frozenset({"cq"})), SETTINGS)
    assert (told.real.missed, told.planned.missed) == (1, 1)  # nobody knew of it when "runs" was started
