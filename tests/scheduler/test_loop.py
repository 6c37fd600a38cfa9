"""The control loop on a cluster moved by hand, with the real solver in process and with planners that fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from memory_cluster import START, MemoryCluster

from scheduler.cluster import GATE, Reference, Release, ReleaseResult
from scheduler.letgo import AT_ONCE
from scheduler.loop import FRESH, Loop
from scheduler.metrics import Metrics
from scheduler.planner_client import Answer, InlinePlanner, PlannerUnavailable
from scheduler.settings import HOUR, MINUTE, SECOND, Settings
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan
from solver.problem import State

SETTINGS = Settings(budget_ms=200, engine=pb.GREEDY)


def solve(request: pb.PlanRequest) -> pb.PlanResponse:
    problem = decode(request)
    return encode(problem, plan(problem, request.policy, request.budget, request.seed))


def away(_: pb.PlanRequest) -> pb.PlanResponse:
    raise PlannerUnavailable("unavailable", "nobody there")


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.queue()
    return cluster


def rounds(loop: Loop, cluster: MemoryCluster, seconds: float = 1.0) -> None:
    """Let the loop come round as it wants to for some time."""
    until = cluster.time + round(seconds * SECOND)
    while True:
        step = loop.step()
        if step.pause == 0:
            continue
        if cluster.time >= until:
            return
        cluster.time = min(until, cluster.time + max(1, round(step.pause * SECOND)))


def test_four_jobs_on_four_gpus(cluster: MemoryCluster) -> None:
    """Those due first are released first, together; the others right when the first have finished."""
    for name, deadline in (("late-1", "25s"), ("late-2", "25s"), ("soon-1", "13s"), ("soon-2", "13s")):
        cluster.job(name, duration="10s", deadline=deadline)
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster)
    assert sorted(cluster.released) == ["soon-1", "soon-2"]
    cluster.admit("soon-1")
    cluster.admit("soon-2")
    rounds(loop, cluster, 11)
    assert len(cluster.released) == 2
    cluster.finish("soon-1")
    loop.step()
    assert len(cluster.released) == 3
    cluster.finish("soon-2")
    loop.step()
    assert sorted(cluster.released[2:]) == ["late-1", "late-2"]
    assert cluster.told("WillBeLate") == []


def test_newcomers_wait_for_those_right_behind_them(cluster: MemoryCluster) -> None:
    """A start cannot be taken back: the first of a batch to appear does not take the room of more urgent ones."""
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    for name, deadline in (("late-1", "25s"), ("late-2", "25s"), ("soon-1", "13s"), ("soon-2", "13s")):
        cluster.job(name, duration="10s", deadline=deadline)
        rounds(loop, cluster, 0.2)
    assert cluster.released == []
    rounds(loop, cluster, 1)
    assert sorted(cluster.released) == ["soon-1", "soon-2"]


class Once(InlinePlanner):
    """Plans once. What is asked after that stays without an answer for long."""

    asked = False

    def ask(self, request: pb.PlanRequest) -> None:
        if not self.asked:
            super().ask(request)
        self.asked = True

    def busy(self) -> bool:
        return True


@pytest.mark.parametrize(("gpus", "released"), [(8, ["planned"]), (4, [])])
def test_newcomers_delay_nobody_where_all_fit(gpus: int, released: list[str]) -> None:
    """Where all that waits fits together, nobody waits for a plan that knows the newcomers; only for some quiet."""
    cluster = MemoryCluster()
    cluster.queue(gpus=gpus)
    loop = Loop(cluster, Once(solve), SETTINGS)
    cluster.job("planned", 4, deadline="2h", duration="30m")
    rounds(loop, cluster, 0.1)
    cluster.job("newcomer", 4, deadline="1h", duration="30m")
    rounds(loop, cluster, 0.25)
    assert cluster.released == []
    rounds(loop, cluster, 0.1)
    assert cluster.released[:1] == released


@pytest.mark.parametrize(("due", "released"), [("3h", ["planned"]), ("1h", [])])
def test_newcomers_that_are_due_later_are_no_rivals(due: str, released: list[str]) -> None:
    """What the plan has in time does not wait for a plan that knows newcomers which are due later; else it does."""
    cluster = MemoryCluster()
    cluster.queue()
    loop = Loop(cluster, Once(solve), SETTINGS)
    cluster.job("planned", 4, deadline="2h", duration="30m")
    rounds(loop, cluster, 0.1)
    cluster.job("newcomer", 4, deadline=due, duration="30m")
    rounds(loop, cluster, 0.4)
    assert cluster.released == released


def test_a_stream_of_newcomers_delays_nobody_for_long(cluster: MemoryCluster) -> None:
    """Though more work comes all the time, each is released soon after it came."""
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    cluster.job("first", 1)
    for number in range(15):
        rounds(loop, cluster, 0.2)
        cluster.job(f"next-{number}", 4)
    assert "first" in cluster.released


def test_newcomers_elsewhere_delay_nobody(cluster: MemoryCluster) -> None:
    """Work waits only for newcomers that could compete with it for quota."""
    cluster.queue("other", local="lq2")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    cluster.job("job", 1)
    rounds(loop, cluster, 0.4)
    cluster.job("elsewhere", 1, queue="lq2")
    rounds(loop, cluster, 0.2)
    assert cluster.released == ["job"]


def test_batch_without_a_planner(cluster: MemoryCluster) -> None:
    """Without a planner too, the first of a batch to appear does not take the room of those due sooner."""
    loop = Loop(cluster, InlinePlanner(away), SETTINGS)
    for name, deadline in (("later", "9h"), ("sooner", "8h")):
        cluster.job(name, 4, deadline=deadline)
        rounds(loop, cluster, 0.2)
    rounds(loop, cluster, 1)
    assert cluster.released == ["sooner"]


def test_job_without_annotations_runs(cluster: MemoryCluster) -> None:
    """Work that says nothing is released when there is room."""
    cluster.job("plain")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster)
    assert cluster.released == ["plain"]


def test_planner_away(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Without a planner work is released by due date; that is warned about once, and counted each time."""
    cluster.job("later", 4, deadline="9h")
    cluster.job("sooner", 4, deadline="8h")
    metrics = Metrics()
    loop = Loop(cluster, InlinePlanner(away), SETTINGS, metrics=metrics)
    with caplog.at_level(logging.WARNING, "scheduler.loop"):
        rounds(loop, cluster, 5)
    assert cluster.released == ["sooner"]
    assert len([r for r in caplog.records if "no plan came" in r.message]) == 1
    assert 'punctual_plan_failures_total{reason="unavailable"} ' in metrics.text()
    assert "punctual_planner_up 0.0" in metrics.text()


def test_asks_again_after_a_failure(cluster: MemoryCluster) -> None:
    """A planner that comes back is asked within seconds, though nothing has changed meanwhile."""
    cluster.job("running", 4, duration="1h")
    cluster.admit("running")
    cluster.job("waiting", 4)
    calls: list[Callable[[pb.PlanRequest], pb.PlanResponse]] = [away]
    loop = Loop(cluster, InlinePlanner(lambda request: calls[0](request)), SETTINGS)
    rounds(loop, cluster, 3)
    assert loop.plan is None
    calls[0] = solve
    rounds(loop, cluster, 3)
    assert loop.plan is not None


def test_last_plan_goes_on(cluster: MemoryCluster) -> None:
    """A planner that fails later leaves the last plan in force, with newcomers behind it; back again, it plans anew."""
    cluster.job("running", 4, duration="1h")
    cluster.admit("running")
    cluster.job("first", 4, duration="1h", deadline="2h")
    calls: list[Callable[[pb.PlanRequest], pb.PlanResponse]] = [solve]
    loop = Loop(cluster, InlinePlanner(lambda request: calls[0](request)), SETTINGS)
    rounds(loop, cluster)
    assert loop.plan is not None
    calls[0] = away
    cluster.job("urgent", 4, duration="1h", deadline="61m")
    rounds(loop, cluster, 10)
    assert len(loop.plan.placements) == 1
    cluster.finish("running")
    loop.step()
    assert cluster.released == ["first"]
    calls[0] = solve
    rounds(loop, cluster, 5)
    assert len(loop.plan.placements) == 2


def test_plan_of_work_that_has_gone(cluster: MemoryCluster) -> None:
    """A plan that comes after some of its work has gone serves for the rest."""
    held: list[Answer] = []

    class Slow(InlinePlanner):
        def answer(self) -> Answer | None:
            if answer := super().answer():
                held.append(answer)
            return held.pop() if self.ready and held else None

        ready = False

    cluster.job("gone", 4, deadline="1h")
    cluster.job("stays", 4, deadline="2h")
    planner = Slow(solve)
    loop = Loop(cluster, planner, SETTINGS)
    loop.step()
    cluster.drop("Workload", cluster.key_of("gone"))
    cluster.drop("Job", "team/gone")
    planner.ready = True
    rounds(loop, cluster, 3)
    assert cluster.released == ["stays"]


def test_restart(cluster: MemoryCluster) -> None:
    """A loop that starts anew sees what the one before released as in flight, and gives its room to nobody."""
    cluster.job("first", 4, deadline="1h")
    cluster.job("second", 4, deadline="2h")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster)
    assert cluster.released == ["first"]
    other = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(other, cluster, 5)
    assert cluster.released == ["first"]
    cluster.admit("first")
    cluster.finish("first")
    rounds(other, cluster)
    assert cluster.released == ["first", "second"]


def test_no_release_without_leave(cluster: MemoryCluster) -> None:
    """A replica that does not lead plans, but releases nothing and tells nobody anything."""
    cluster.job("job", deadline="nonsense")
    leads = [False]
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS, may_act=lambda: leads[0])
    rounds(loop, cluster, 3)
    assert loop.plan is not None
    assert (cluster.released, cluster.events) == ([], [])
    leads[0] = True
    loop.step()
    assert cluster.released == ["job"]


def test_leave_ends_between_two_releases(cluster: MemoryCluster) -> None:
    """Leave is asked for before each release."""
    cluster.job("a", 1)
    cluster.job("b", 1)
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS, may_act=lambda: not cluster.released)
    rounds(loop, cluster, 3)
    assert len(cluster.released) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ReleaseResult(Release.REFUSED, "policy says no"), "ReleaseRefused"),
        (ReleaseResult(Release.GONE), None),
        (ReleaseResult(Release.TRY_AGAIN, "conflict"), None),
        (RuntimeError("boom"), None),
    ],
)
def test_one_release_that_fails(cluster: MemoryCluster, answer: Any, reason: str | None) -> None:
    """A release that fails, however it does, stops no other; who is refused hears why, once."""
    cluster.job("bad", 2, deadline="3h")
    cluster.job("good", 2, deadline="4h")
    cluster.answers["bad"] = answer
    metrics = Metrics()
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS, metrics=metrics)
    rounds(loop, cluster, 5)
    assert cluster.released == ["good"]
    assert [r for _, _, r, _ in cluster.events] == ([reason] if reason else [])
    cluster.answers.clear()
    rounds(loop, cluster, 70)
    assert cluster.released == ["good", "bad"]


def test_room_is_kept_for_what_is_tried_again(cluster: MemoryCluster) -> None:
    """A conflict costs urgent work a second, not its room; only if it fails time and again others take that."""
    cluster.job("urgent", 4, deadline="2m", duration="1m")
    cluster.job("long", 2, deadline="90d", duration="30d")
    cluster.answers["urgent"] = ReleaseResult(Release.TRY_AGAIN, "conflict")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 2.5)
    assert cluster.released == []
    cluster.answers.clear()
    rounds(loop, cluster, 1.5)
    assert cluster.released == ["urgent"]


def test_room_is_not_kept_for_ever(cluster: MemoryCluster) -> None:
    """What can never be released holds up nobody."""
    cluster.job("urgent", 4, deadline="2m", duration="1m")
    cluster.job("long", 2, deadline="90d", duration="30d")
    cluster.answers["urgent"] = ReleaseResult(Release.TRY_AGAIN, "conflict")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster, 10)
    assert cluster.released == ["long"]


def test_what_hangs_takes_nobodys_choice(cluster: MemoryCluster) -> None:
    """What was released may be admitted any moment for a few seconds, then it is thought to wait for others."""
    cluster.job("job", 2)
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 2)
    assert cluster.released == ["job"]
    fresh = []
    for _ in range(2):
        step = loop.step()
        problem = decode(step.snapshot.request)
        fresh.append(loop._fresh(problem, step.snapshot.now).tolist())
        cluster.time += FRESH
    assert fresh == [[True], [False]]


def test_refused_work_is_left_alone_for_a_while(cluster: MemoryCluster) -> None:
    """A release that was refused is tried again after 2 s, then less and less often, at last once a minute."""
    tries: list[str] = []

    def refuse(target: Reference) -> ReleaseResult:
        tries.append(target.name)
        return ReleaseResult(Release.REFUSED, "no")

    cluster.job("job")
    cluster.release = refuse  # type: ignore[method-assign]
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 1.5)
    assert len(tries) == 1
    rounds(loop, cluster, 53)
    assert len(tries) == 4
    rounds(loop, cluster, 55)
    assert len(tries) == 5


def test_release_that_the_watch_has_not_seen(cluster: MemoryCluster) -> None:
    """What was released is not released again while the watch lags, and its room is taken."""
    cluster.job("a", 4, deadline="1h")
    cluster.job("b", 4, deadline="2h")
    patches: list[str] = []

    def release(target: Reference) -> ReleaseResult:
        patches.append(target.name)
        return ReleaseResult(Release.DONE)

    cluster.release = release  # type: ignore[method-assign]
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster, 5)
    assert patches == ["a"]


class Slow(MemoryCluster):
    """Releases end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[str, Future[ReleaseResult]] = {}

    def begin_release(self, target: Reference) -> Future[ReleaseResult]:
        return self.under_way.setdefault(target.name, Future())


class EndsMeanwhile(Future[ReleaseResult]):
    """A release that ends right after it was asked whether it had."""

    def done(self) -> bool:
        over = super().done()
        if not over:
            self.set_result(ReleaseResult(Release.TRY_AGAIN, "busy"))
        return over


def test_a_release_that_ends_while_it_is_looked_at_is_not_lost() -> None:
    """One that failed that moment is tried again, also when another one had ended before it."""
    cluster = Slow()
    cluster.queue()
    cluster.job("first", 2, deadline="1h")
    cluster.job("second", 2, deadline="2h")
    cluster.under_way |= {"first": Future(), "second": EndsMeanwhile()}
    cluster.under_way["first"].set_result(ReleaseResult(Release.DONE))
    loop = Loop(cluster, InlinePlanner(away), SETTINGS)
    rounds(loop, cluster, 0.5)
    cluster.under_way["second"] = Future()
    cluster.under_way["second"].set_result(ReleaseResult(Release.DONE))
    releases: list[str] = []
    for _ in range(10):
        cluster.time += SECOND
        releases += [f"{item.root.name} {result.release.value}" for item, result in loop.step().releases]
    assert "second done" in releases


def test_releases_in_the_background() -> None:
    """The loop goes on while releases are under way: they are sent once, in order, and hold their quota meanwhile."""
    cluster = Slow()
    cluster.queue()
    cluster.job("second", 2, deadline="2h")
    cluster.job("first", 2, deadline="1h")
    cluster.job("third", 2, deadline="3h")
    loop = Loop(cluster, InlinePlanner(away), SETTINGS)
    rounds(loop, cluster, 5)
    assert list(cluster.under_way) == ["first", "second"]
    cluster.queue("other", local="lq2")
    cluster.job("elsewhere", 2, queue="lq2")
    rounds(loop, cluster, 3)
    assert list(cluster.under_way) == ["first", "second", "elsewhere"]
    cluster.under_way.pop("first").set_result(ReleaseResult(Release.TRY_AGAIN, "busy"))
    rounds(loop, cluster, 0.5)
    assert list(cluster.under_way) == ["second", "elsewhere"]  # its room is kept
    rounds(loop, cluster, 1)
    assert list(cluster.under_way) == ["second", "elsewhere", "first"]


def test_a_background_release_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """What breaks in the background is an error in the log, and the release is tried again."""
    cluster = Slow()
    cluster.queue()
    cluster.job("job", 2)
    metrics = Metrics()
    loop = Loop(cluster, InlinePlanner(away), SETTINGS, metrics=metrics)
    rounds(loop, cluster, 3)
    cluster.under_way.pop("job").set_exception(RuntimeError("boom"))
    rounds(loop, cluster, 0.5)
    assert "boom" in caplog.text
    assert metrics.registry.get_sample_value("punctual_errors_total", {"where": "release"}) == 1
    rounds(loop, cluster, 3)
    assert list(cluster.under_way) == ["job"]


def test_what_is_let_go_leaves_way_for_what_is_due() -> None:
    """Of thousands that must be let go only so many are under way at once; the next follow when those have ended."""
    cluster = Slow()
    cluster.queue()
    for number in range(2 * AT_ONCE):
        cluster.job(f"lost-{number}", 1, queue="missing")
        cluster.condition(f"lost-{number}", "QuotaReserved", "False", "Inadmissible")
    loop = Loop(cluster, InlinePlanner(away), SETTINGS)
    rounds(loop, cluster, 3)
    assert len(cluster.under_way) == AT_ONCE
    for name in list(cluster.under_way)[:10]:
        cluster.under_way.pop(name).set_result(cluster.release(loop.step().snapshot.stranded[0].item.root))
    cluster.job("due", 1)
    rounds(loop, cluster, 3)
    assert "due" in cluster.under_way
    assert len(cluster.under_way) <= AT_ONCE + 1


def test_waits_for_an_earliest_start(cluster: MemoryCluster) -> None:
    """The loop comes round by itself when a release date has come."""
    cluster.job("job", earliest_start="2027-01-15T08:00:10Z")
    loop = Loop(cluster, InlinePlanner(solve), Settings(budget_ms=200, engine=pb.GREEDY, idle_seconds=3600))
    rounds(loop, cluster, 9)
    assert cluster.released == []
    rounds(loop, cluster, 1.5)
    assert cluster.released == ["job"]


def test_other_gates_hold(cluster: MemoryCluster) -> None:
    """Work that somebody else gates too is not released before that gate is off."""
    cluster.job("job", gates=f"{GATE},budget.example.com/check")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 3)
    assert cluster.released == []
    for kind, key in (("Job", "team/job"), ("Workload", cluster.key_of("job"))):
        gates = {"kueue.x-k8s.io/admission-gated-by": GATE}
        cluster.edit(kind, key, lambda o, gates=gates: o["metadata"]["annotations"].update(gates))
    rounds(loop, cluster, 3)
    assert cluster.released == ["job"]


def test_stopped_queue(cluster: MemoryCluster) -> None:
    """Work of a stopped queue is let go, with a word to its owner; other work is planned on."""
    cluster.queue("other", local="lq2")
    cluster.job("stuck")
    cluster.job("fine", queue="lq2")
    cluster.edit("ClusterQueue", "cq", lambda q: q["spec"].update(stopPolicy="Hold"))
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster, 5)
    assert sorted(cluster.released) == ["fine", "stuck"]
    assert [(event[0].name, event[2]) for event in cluster.events] == [("stuck", "LetGo")]


def test_missing_queue(cluster: MemoryCluster) -> None:
    """A queue that only we do not see is no reason to let work go; with Kueue's word for it, it is."""
    cluster.job("job", queue="nowhere")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 60)
    assert cluster.released == []
    assert cluster.told("UnknownQueue") == ["LocalQueue team/nowhere does not exist"]
    cluster.condition("job", "QuotaReserved", "False", "Inadmissible", "LocalQueue nowhere doesn't exist")
    rounds(loop, cluster, 2)
    assert cluster.released == ["job"]


def test_never_fits(cluster: MemoryCluster) -> None:
    """A request beyond all quota is told its owner once, and holds nobody up."""
    cluster.job("giant", 5, deadline="1h")
    cluster.job("normal", 4, deadline="2h")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster, 5)
    assert cluster.released == ["normal"]
    (message,) = cluster.told("NeverFits")
    assert "maximum capacity 4" in message


def test_what_breaks_a_limit_range_stays(cluster: MemoryCluster) -> None:
    """Work that Kueue refuses for a LimitRange is not released, its owner is told which rule it breaks, and once that
    has changed it goes."""
    limits = [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]
    cluster.put({"kind": "LimitRange", "metadata": {"name": "l", "namespace": "team"}, "spec": {"limits": limits}})
    cluster.job("large", 2)
    cluster.job("small", 1)
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 5)
    assert cluster.released == ["small"]
    (message,) = cluster.told("NeverFits")
    assert message == "can never be admitted: a container requests more nvidia.com/gpu than its limit"
    cluster.drop("LimitRange", "team/l")
    rounds(loop, cluster, 5)
    assert cluster.released == ["small", "large"]


def test_complaints_once(cluster: MemoryCluster) -> None:
    """The same complaint is made once per object; another one is made too."""
    cluster.job("job", 4, duration="1h")
    cluster.admit("job")
    cluster.job("typo", duration="soon")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 120)
    assert len(cluster.told("InvalidAnnotation")) == 1
    cluster.edit("Job", "team/typo", lambda j: j["metadata"]["annotations"].update({"punctual.kueue/duration": "-1h"}))
    rounds(loop, cluster, 120)
    assert len(cluster.told("InvalidAnnotation")) == 2


def test_planned_start_is_told(cluster: MemoryCluster) -> None:
    """Owners of work that waits hear when it is to start, on the Job, again only when that moves noticeably."""
    cluster.job("running", 4, duration="2h")
    cluster.admit("running")
    cluster.job("waiting", 4, duration="1h", deadline="4h")
    settings = Settings(budget_ms=200, engine=pb.GREEDY, annotate=True)
    loop = Loop(cluster, InlinePlanner(solve), settings)
    rounds(loop, cluster, 600)
    assert cluster.told("Planned") == [
        "planned to start at 2027-01-15T10:00:00Z and to finish by 2027-01-15T11:00:00Z, "
        "1h before its deadline 2027-01-15T12:00:00Z"
    ]
    assert str(cluster.events[0][0]) == "Job team/waiting"
    annotations = cluster.objects("Job")["team/waiting"]["metadata"]["annotations"]
    assert annotations["punctual.kueue/planned-start"] == "2027-01-15T10:00:00Z"
    cluster.edit(
        "Job", "team/running", lambda j: j["metadata"]["annotations"].update({"punctual.kueue/duration": "4h"})
    )
    rounds(loop, cluster, 1)
    (late,) = cluster.told("WillBeLate")
    assert late == (
        "planned to start at 2027-01-15T12:00:00Z and to finish by 2027-01-15T13:00:00Z, "
        "1h after its deadline 2027-01-15T12:00:00Z: work that weighs more or is due sooner needs the quota"
    )


def test_start_at_once_is_no_news(cluster: MemoryCluster) -> None:
    """Work that starts at once costs no Event."""
    cluster.job("job")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster)
    assert cluster.events == []


def test_not_admitted(cluster: MemoryCluster) -> None:
    """Released work that Kueue does not admit is warned about with Kueue's own words, once, and never taken back."""
    cluster.job("job", 4)
    cluster.job("next", 4)
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster)
    cluster.condition("job", "QuotaReserved", "False", "Pending", "untolerated taint")
    rounds(loop, cluster, 50)
    assert cluster.told("NotAdmitted") == []
    rounds(loop, cluster, 30)
    assert cluster.told("NotAdmitted") == ["released, but Kueue has not admitted it yet: untolerated taint"]
    assert cluster.released == ["job"]


def test_overrun_moves_the_plan(cluster: MemoryCluster) -> None:
    """When running work outlives its estimate, a new plan is asked for although no object has changed."""
    cluster.job("running", 4, duration="10s")
    cluster.admit("running")
    cluster.job("waiting", 4, duration="10s")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 5)
    assert loop.plan is not None
    (before,) = [p.start for p in loop.plan.placements.values()]
    assert before == START + 10 * SECOND
    rounds(loop, cluster, 10)
    (after,) = [p.start for p in loop.plan.placements.values()]
    assert after > START + 13 * SECOND


def test_asks_only_when_something_matters(cluster: MemoryCluster) -> None:
    """The planner is asked when something has changed, and now and then; not on each round."""
    cluster.job("running", 4, duration="2h")
    cluster.admit("running")
    cluster.job("waiting", 4)
    asked: list[int] = []

    def call(request: pb.PlanRequest) -> pb.PlanResponse:
        asked.append(request.now_ms)
        return solve(request)

    loop = Loop(cluster, InlinePlanner(call), SETTINGS)
    rounds(loop, cluster, 50)
    assert len(asked) == 1
    cluster.job("another", 4)
    rounds(loop, cluster, 5)
    assert len(asked) == 2
    rounds(loop, cluster, 150)
    assert len(asked) in (4, 5)


def test_broken_workload_stops_nobody(cluster: MemoryCluster) -> None:
    """Among broken objects the healthy work is planned and released."""
    cluster.job("good")
    cluster.put({"kind": "Workload", "metadata": {"name": "broken", "namespace": "team"}, "spec": {"podSets": 3}})
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster)
    assert cluster.released == ["good"]
    assert len(cluster.told("Unreadable")) == 1


def test_numbers(cluster: MemoryCluster) -> None:
    """Each ClusterQueue's gated, running, in-flight and late work is counted."""
    cluster.job("running", 4, duration="2h")
    cluster.admit("running")
    cluster.job("late", 4, duration="1h", deadline="2h")
    metrics = Metrics()
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS, metrics=metrics), cluster)
    for name in ("gated", "running", "late_forecast"):
        assert f'punctual_{name}_workloads{{cluster_queue="cq"}} 1.0' in metrics.text()


def test_release_is_logged(cluster: MemoryCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A release is a structured record: what, where, with which outcome, planned for when."""
    cluster.job("job", deadline="1h")
    with caplog.at_level(logging.INFO, "scheduler.loop"):
        rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster)
    (record,) = [vars(r) for r in caplog.records if r.message == "release"]
    assert (record["outcome"], record["root"], record["cluster_queue"]) == ("done", "Job team/job", "cq")
    assert (record["deadline_ms"], record["planned_start_ms"]) == (START + HOUR, START)


def test_run_until_told_to_stop(cluster: MemoryCluster) -> None:
    """The loop comes round until told to stop, and survives a round that fails."""
    cluster.job("job", 4, duration="1h")
    stop = threading.Event()
    wait, objects, failures = cluster.wait, cluster.objects, [1]

    def paused(seconds: float) -> bool:
        if cluster.released or cluster.time > START + MINUTE:
            stop.set()
        return wait(seconds)

    def flaky(kind: str) -> Any:
        if failures:
            failures.pop()
            raise ConnectionError("apiserver away")
        return objects(kind)

    cluster.wait, cluster.objects = paused, flaky  # type: ignore[method-assign]
    Loop(cluster, InlinePlanner(solve), Settings(budget_ms=200, engine=pb.GREEDY, idle_seconds=0.01)).run(stop)
    assert cluster.released == ["job"]


def test_queues_that_make_no_sense(cluster: MemoryCluster) -> None:
    """A frozen queue holds up only its own work, and its owners are told."""
    cluster.queue("loop", local="lq2", cohortName="a")
    cluster.put({"kind": "Cohort", "metadata": {"name": "a"}, "spec": {"parentName": "b"}})
    cluster.put({"kind": "Cohort", "metadata": {"name": "b"}, "spec": {"parentName": "a"}})
    cluster.job("frozen", queue="lq2")
    cluster.job("fine")
    rounds(Loop(cluster, InlinePlanner(solve), SETTINGS), cluster, 3)
    assert cluster.released == ["fine"]
    assert len(cluster.told("QueueStopped")) == 1


def test_states_are_all_known() -> None:
    """Counting knows every state there is."""
    assert {int(state) for state in State} == {0, 1, 2, 3}


@pytest.mark.parametrize("minutes", [5, -5])
def test_the_clock_is_set(cluster: MemoryCluster, minutes: int) -> None:
    """However the wall clock is set, what waits, what comes and what must be let go is not held up by it."""
    cluster.job("first", 4, deadline="1h", duration="1m")
    cluster.job("second", 4, deadline="2h", duration="1m")
    loop = Loop(cluster, InlinePlanner(solve), SETTINGS)
    rounds(loop, cluster, 3)
    cluster.admit("first")
    cluster.job("nowhere", 1, queue="missing")
    cluster.condition("nowhere", "QuotaReserved", "False", "Inadmissible")
    rounds(loop, cluster, 0.5)
    cluster.time += minutes * MINUTE
    cluster.finish("first")
    rounds(loop, cluster, 3)
    assert cluster.released == ["first", "second", "nowhere"]
    cluster.admit("second")
    cluster.job("third", 4, deadline="3h", duration="1m")
    cluster.finish("second")
    rounds(loop, cluster, 3)
    assert cluster.released[3:] == ["third"]
