"""Scenarios: a cluster, and the jobs that come to it over time; run with plain Kueue or under the control loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scheduler.loop import Loop, Step
from scheduler.planner_client import Answer, InlinePlanner, PlanCall
from scheduler.settings import DAY, HOUR, SECOND, Settings
from simulator.clock import VirtualClock
from simulator.cluster import SimulatedCluster
from simulator.timeline import Timeline

START = 1_798_754_400_000
"""When scenarios begin: 2026-12-31T22:00:00Z, in milliseconds since the Unix epoch."""

Progress = Callable[[int, int], None]
"""Told now and then how many jobs are complete, of how many."""


@dataclass(frozen=True)
class Scenario:
    """A cluster and its jobs."""

    name: str
    queues: tuple[Mapping[str, Any], ...]
    """Manifests of namespaces, flavors, cohorts and queues, in an order in which they can be created."""
    jobs: tuple[tuple[int, Mapping[str, Any]], ...]
    """When each job comes (milliseconds from the start), and its manifest; a job's run time may be in it."""
    gpus: int
    """How many there are."""


def _cluster(scenario: Scenario, settings: Settings, gating: bool) -> SimulatedCluster:
    clock = VirtualClock(START)
    cluster = SimulatedCluster(clock, gating=gating, settings=settings)
    for manifest in scenario.queues:
        cluster.create(manifest)
    for at, manifest in scenario.jobs:
        clock.after(at, partial(_arrive, cluster, manifest))
    return cluster


def _arrive(cluster: SimulatedCluster, manifest: Mapping[str, Any]) -> None:
    cluster.create(manifest)


def run_plain(scenario: Scenario, settings: Settings | None = None) -> Timeline:
    """What plain Kueue makes of it: no gates, no plan."""
    cluster = _cluster(scenario, settings or Settings(), gating=False)
    cluster.run()
    return cluster.timeline


def run_planned(
    scenario: Scenario, call: PlanCall, settings: Settings | None = None, progress: Progress = lambda done, of: None
) -> Timeline:
    """What the control loop makes of it; the clock stands still while a plan is made.

    The loop comes round when something changes or is due. It need not look every second beyond that: nothing else
    happens here, and a night would be 36,000 rounds.

    Raises
    ------
    PlannerError
        If the planner fails: a run without plans would say nothing about plans.
    RuntimeError
        If the work is not over after 90 days.
    """
    settings = replace(settings or Settings(), idle_seconds=HOUR / SECOND, replan_ms=HOUR)
    cluster = _cluster(scenario, settings, gating=True)
    loop = Loop(cluster, _StrictPlanner(call), settings)
    while cluster.now() < START + 90 * DAY:
        step = loop.step()
        done = sum(record.completed is not None for record in cluster.timeline.records.values())
        progress(done, len(scenario.jobs))
        if _over(cluster, step):
            return cluster.timeline
        if step.pause > 0:
            cluster.wait(step.pause)
    raise RuntimeError(f"scenario {scenario.name}: work is not over after 90 days")


class _StrictPlanner(InlinePlanner):
    """Lets a failure through, where the control loop would go on with the plan it has."""

    def answer(self) -> Answer | None:
        answer = super().answer()
        if answer is not None and answer.error is not None:
            raise answer.error
        return answer


def _over(cluster: SimulatedCluster, step: Step) -> bool:
    """Nothing more will happen by itself, and nothing waits that has a place in the plan."""
    if cluster.clock.next() is not None or step.pause == 0:
        return False
    planned = step.plan.placements if step.plan else {}
    return not any(item.uid in planned for item in step.snapshot.items)
