"""What became of work, as the metrics count it: through the loop, on a cluster moved by hand."""

from __future__ import annotations

import pytest
from memory_cluster import MemoryCluster

from scheduler.cluster import Reference, Release, ReleaseResult
from scheduler.loop import Loop
from scheduler.metrics import Metrics
from scheduler.planner_client import InlinePlanner
from scheduler.settings import MINUTE, SECOND, Settings
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan

SETTINGS = Settings(budget_ms=100, engine=pb.GREEDY, settle_ms=0, newcomer_wait_ms=0)


def solve(request: pb.PlanRequest) -> pb.PlanResponse:
    problem = decode(request)
    return encode(problem, plan(problem, request.policy, request.budget, request.seed))


class Watched:
    """A cluster with a loop, whose metrics are read."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.seconds = 0.0
        self.metrics = Metrics(clock=lambda: self.seconds)
        self.loop = self.new_loop()

    def new_loop(self) -> Loop:
        """A controller that has just started."""
        return Loop(self.cluster, InlinePlanner(solve), SETTINGS, metrics=self.metrics)

    def after(self, milliseconds: int) -> None:
        """Let time pass, then come round (twice: a plan that was asked for is adopted)."""
        self.cluster.time += milliseconds
        self.seconds += milliseconds / SECOND
        self.loop.step()
        self.loop.step()

    def value(self, name: str, **labels: str) -> float:
        """A metric; 0 for one that is not there."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def deadlines(self, outcome: str, priority_class: str = "") -> float:
        """Deadlines met or missed so far."""
        return self.value(
            "punctual_deadlines_total", cluster_queue="cq", priority_class=priority_class, outcome=outcome
        )


@pytest.fixture
def watched() -> Watched:
    cluster = MemoryCluster()
    cluster.queue()
    return Watched(cluster)


def test_deadlines_are_counted_when_work_finishes(watched: Watched) -> None:
    """Met or missed by queue and class, once each; what is only late so far counts as overdue."""
    cluster = watched.cluster
    cluster.job("in-time", 2, deadline="1m", duration="30s")
    cluster.job("late", 2, deadline="1m", duration="30s")
    cluster.edit("Workload", cluster.key_of("late"), lambda w: w["spec"].update(priorityClassRef={"name": "gold"}))
    watched.after(0)
    cluster.admit("in-time")
    cluster.admit("late")
    watched.after(30 * SECOND)
    cluster.finish("in-time")
    watched.after(0)
    assert (watched.deadlines("met"), watched.deadlines("missed", "gold")) == (1, 0)
    watched.after(60 * SECOND)
    assert watched.value("punctual_overdue_workloads", cluster_queue="cq") == 1
    cluster.finish("late")
    watched.after(0)
    watched.after(10 * SECOND)
    assert (watched.deadlines("met"), watched.deadlines("missed", "gold")) == (1, 1)
    assert watched.value("punctual_overdue_workloads", cluster_queue="cq") == 0


def test_a_restart_counts_nothing_twice(watched: Watched) -> None:
    """A controller that starts anew does not count what had finished before, nor what is deleted unfinished."""
    watched.cluster.job("done", 2, deadline="1m", duration="30s")
    watched.cluster.job("dropped", 2, deadline="1m", duration="30s")
    watched.after(0)
    watched.cluster.admit("done")
    watched.after(SECOND)
    watched.cluster.finish("done")
    watched.after(SECOND)
    watched.loop = watched.new_loop()
    watched.after(SECOND)
    watched.cluster.drop("Workload", watched.cluster.key_of("dropped"))
    watched.after(SECOND)
    assert (watched.deadlines("met"), watched.deadlines("missed")) == (1, 0)


def test_forecasts_and_estimates_are_held_against_what_happened(watched: Watched) -> None:
    """Forecast at 30 s, finished after 45: an error of 15 s, a lateness of 5 s that was −10 s by the forecast, ×1.5."""
    cluster = watched.cluster
    cluster.job("job", 4, deadline="40s", duration="30s")
    watched.after(0)
    cluster.admit("job")
    watched.after(45 * SECOND)
    assert watched.value("punctual_overrunning_workloads", cluster_queue="cq") == 1
    assert watched.value("punctual_overruns_total", cluster_queue="cq") == 1
    cluster.finish("job")
    watched.after(0)

    def within(name: str, low: str, high: str, **labels: str) -> float:
        return watched.value(f"{name}_bucket", le=high, **labels) - watched.value(f"{name}_bucket", le=low, **labels)

    assert within("punctual_forecast_error_seconds", "0.0", "60.0") == 1
    assert within("punctual_lateness_seconds", "0.0", "60.0", reading="actual") == 1
    assert within("punctual_lateness_seconds", "-60.0", "0.0", reading="predicted") == 1
    assert within("punctual_estimate_ratio", "1.25", "1.5", source="punctual.kueue/duration") == 1
    assert watched.value("punctual_overrunning_workloads", cluster_queue="cq") == 0
    assert watched.value("punctual_overruns_total", cluster_queue="cq") == 1


def test_released_work_that_is_not_admitted_is_stuck(watched: Watched) -> None:
    """In flight for as long as the warning takes: stuck, until it is admitted."""
    watched.cluster.job("job", 2)
    watched.after(0)
    watched.after(0)
    assert watched.value("punctual_in_flight_workloads", cluster_queue="cq") == 1
    assert watched.value("punctual_stuck_workloads", cluster_queue="cq") == 0
    watched.after(MINUTE)
    assert watched.value("punctual_stuck_workloads", cluster_queue="cq") == 1
    watched.cluster.admit("job")
    watched.after(SECOND)
    assert watched.value("punctual_stuck_workloads", cluster_queue="cq") == 0


def test_idle_quota_counts_only_while_work_waits_for_it(watched: Watched) -> None:
    """Two GPUs free for 10 s beside a job that needs four: 20 GPU-seconds. Nothing before it came or after it went."""
    cluster = watched.cluster
    cluster.job("runs", 2, duration="1h")
    watched.after(0)
    cluster.admit("runs")
    watched.after(10 * SECOND)
    assert watched.value("punctual_idle_resource_seconds_total", cohort="cq", resource="nvidia.com/gpu") == 0
    cluster.job("waits", 4)
    watched.after(0)
    watched.after(10 * SECOND)
    assert watched.value("punctual_idle_resource_seconds_total", cohort="cq", resource="nvidia.com/gpu") == 20
    cluster.drop("Workload", cluster.key_of("waits"))
    watched.after(0)
    watched.after(10 * SECOND)
    assert watched.value("punctual_idle_resource_seconds_total", cohort="cq", resource="nvidia.com/gpu") == 20


def test_release_latency_counts_from_the_event_that_made_room() -> None:
    """A release into room that came free is timed from the change that ended the wait; no other release is."""

    class Stamped(MemoryCluster):
        woken_by: float | None = 100.0
        changing = False

        def release(self, target: Reference) -> ReleaseResult:
            super().release(target)
            return ReleaseResult(Release.DONE, sent=100.25, seconds=0.01)

    cluster = Stamped()
    cluster.queue()
    watched = Watched(cluster)
    cluster.job("first", 4, deadline="1m", duration="30s")
    cluster.job("second", 4, deadline="2m", duration="30s")
    watched.after(0)
    assert cluster.released == ["first"]
    assert watched.value("punctual_release_latency_seconds_count") == 0
    cluster.admit("first")
    watched.after(SECOND)
    cluster.finish("first")
    watched.after(0)
    assert cluster.released == ["first", "second"]
    assert watched.value("punctual_release_latency_seconds_sum") == 0.25
    assert watched.value("punctual_release_duration_seconds_sum") == pytest.approx(0.02)
