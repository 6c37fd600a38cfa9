"""What a replay of a plain night says that plans would have brought is what the control loop then brings."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest

from scheduler.settings import MINUTE, SECOND, Settings
from scheduler.shadow_history import past_of
from scheduler.shadow_report import Report, report
from simulator.clock import VirtualClock
from simulator.cluster import SimulatedCluster
from simulator.manifests import flavor, job, team
from simulator.scenario import START, Scenario, run_planned
from simulator.timeline import Timeline
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan

GPUS = 8


def solve(request: pb.PlanRequest) -> pb.PlanResponse:
    problem = decode(request)
    return encode(problem, plan(problem, pb.Policy(engine=pb.GREEDY), pb.Budget(work_limit=20), request.seed))


def night(seed: int, jobs: int = 40) -> Scenario:
    """More work than fits in time; estimates are a fifth off, four jobs of five have a deadline."""
    draw, made = random.Random(seed), []
    for number in range(jobs):
        estimate = round(draw.choice([0.25, 0.5, 1, 2, 4]) * 60) * MINUTE
        comes = round(draw.uniform(0, 14) * 60) * MINUTE
        runs = round(estimate * math.exp(draw.gauss(0, 0.2)) / SECOND) * SECOND
        gpus = draw.choice([1, 2, 4])
        deadline = round(estimate * draw.uniform(1.2, 6) / SECOND) * SECOND if draw.random() < 0.8 else None
        made.append((comes, job(f"job-{number}", gpus, estimate, deadline=deadline, runs=runs)))
    made.sort(key=lambda entry: entry[0])
    return Scenario("a night", (flavor(), *team(gpus=GPUS)), tuple(made), GPUS)


def plain(scenario: Scenario) -> tuple[Timeline, Report]:
    """What plain Kueue makes of it, and what a replay of that says."""
    cluster = SimulatedCluster(VirtualClock(START), gating=False, settings=Settings())
    for manifest in scenario.queues:
        cluster.create(manifest)
    for at, manifest in scenario.jobs:
        cluster.clock.after(at, partial(cluster.create, manifest))
    cluster.run()
    return cluster.timeline, report(past_of(cluster, Settings()), Settings())


def test_one_night() -> None:
    """Told as it was to the job, Kueue's order comes out of its replay, and plans bring what was said, give or take."""
    scenario = night(1, jobs=28)
    timeline, told = plain(scenario)
    planned = run_planned(scenario, solve)
    assert told.real.missed == len(timeline.late())
    assert {fate.name for fate in told.fates if fate.missed} == {record.key for record in timeline.late()}
    assert abs(told.kueue.missed - told.real.missed) <= 1
    assert told.real.idle_gpu_seconds == pytest.approx(timeline.idle(GPUS), rel=0.05)
    assert abs(told.planned.missed - len(planned.late())) <= 2 < told.real.missed - told.planned.missed


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_eight_nights() -> None:
    """Over many nights the errors even out: what a replay says of plans is within a fifth of what they bring."""
    nights = [night(seed) for seed in range(1, 9)]
    told = [plain(scenario)[1] for scenario in nights]
    late = [len(run_planned(scenario, solve).late()) for scenario in nights]
    said = sum(report.planned.missed for report in told)
    print("missed", sum(r.real.missed for r in told), "replayed", sum(r.kueue.missed for r in told), said, sum(late))
    assert sum(r.kueue.missed for r in told) == pytest.approx(sum(r.real.missed for r in told), rel=0.05)
    assert said == pytest.approx(sum(late), rel=0.2)
