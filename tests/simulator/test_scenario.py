"""Scenarios run under plain Kueue and under the real control loop."""

import pytest

from scheduler.planner_client import PlannerUnavailable
from scheduler.settings import HOUR, MINUTE
from simulator import manifests
from simulator.scenario import START, Scenario, run_plain, run_planned
from simulator.scenarios import four_jobs, fuller_morning
from solver.api import planner_pb2 as pb
from solver.decode import decode


def due_first(request: pb.PlanRequest) -> pb.PlanResponse:
    """A planner without ideas: everything now, in the order of due dates. The control loop does the rest."""
    problem, response = decode(request), pb.PlanResponse()
    response.plan.assignments.add(flavors=[0], resources=[0], amounts=[1])
    for row in sorted(range(len(problem)), key=lambda row: (problem.due[row], problem.created[row], row)):
        response.plan.workload.append(problem.row[row])
        response.plan.start_ms.append(request.now_ms)
        response.plan.finish_ms.append(request.now_ms + problem.duration[row])
        response.plan.not_before_ms.append(0)
        response.plan.tardiness_ms.append(0)
        response.plan.reason.append(pb.WAITS_FOR_QUOTA)
        response.plan.assignment.append(0)
    for rejected in problem.rejected:
        response.rejections.add(workload=rejected.row, message=rejected.message)
    return response


def test_the_seed_example_is_late_plain_and_on_time_planned() -> None:
    """Four jobs on four GPUs: in the order in which they came two are late, in the order of due dates none is."""
    scenario = four_jobs()
    plain, planned = run_plain(scenario), run_planned(scenario, due_first)
    assert [record.name for record in plain.late()] == ["eval-c", "eval-d"]
    assert planned.late() == []
    assert plain.peak() == planned.peak() == 4


def test_every_job_of_a_night_runs_once_either_way() -> None:
    """Under the real control loop as under plain Kueue all jobs come at their time and run once."""
    scenario = fuller_morning()
    plain, planned = run_plain(scenario), run_planned(scenario, due_first)
    comes = {manifest["metadata"]["name"]: START + at for at, manifest in scenario.jobs}
    for run in (plain, planned):
        assert {record.name: record.created for record in run.records.values()} == comes
        assert {record.starts for record in run.records.values()} == {1}
        assert all(record.finished is not None for record in run.records.values())
        assert run.peak() <= scenario.gpus
    spans = [
        {key: (record.ended or 0) - (record.started or 0) for key, record in run.records.items()}
        for run in (plain, planned)
    ]
    assert spans[0] == spans[1]


def test_a_run_under_the_control_loop_can_be_repeated() -> None:
    """Same scenario and same planner: the same timeline to the millisecond."""
    assert run_planned(fuller_morning(2), due_first) == run_planned(fuller_morning(2), due_first)


def test_other_seeds_are_other_nights() -> None:
    """The seed decides when jobs come and how long they run."""
    assert fuller_morning(1) == fuller_morning(1)
    assert fuller_morning(1) != fuller_morning(2)


def test_a_job_that_never_fits_does_not_hold_up_the_run() -> None:
    """The run ends although a job can never start; that job is late."""
    jobs = ((0, manifests.job("big", 9, HOUR, deadline=2 * HOUR)), (MINUTE, manifests.job("small", 1, HOUR)))
    scenario = Scenario("too big", (manifests.flavor(), *manifests.team()), jobs, 4)
    planned = run_planned(scenario, due_first)
    assert [record.name for record in planned.late()] == ["big"]
    assert planned.records["research/small"].finished is not None


def test_an_earliest_start_is_kept() -> None:
    """Nothing happens by itself until then, yet the loop comes round in time."""
    wish = {"punctual.kueue/earliest-start": "2027-01-01T03:00:00Z"}
    scenario = Scenario(
        "later", (manifests.flavor(), *manifests.team()), ((0, manifests.job("a", 1, HOUR, annotations=wish)),), 4
    )
    record = run_planned(scenario, due_first).records["research/a"]
    assert record.released == START + 5 * HOUR


def test_a_planner_that_fails_ends_the_run() -> None:
    """A run without plans would say nothing about plans, so the failure is not passed over."""

    def away(request: pb.PlanRequest) -> pb.PlanResponse:
        raise PlannerUnavailable("unavailable", "gone")

    with pytest.raises(PlannerUnavailable, match="gone"):
        run_planned(four_jobs(), away)


def test_progress_is_told_to_the_end() -> None:
    """The last thing told is that all jobs are complete."""
    told: list[tuple[int, int]] = []
    run_planned(four_jobs(), due_first, progress=lambda done, of: told.append((done, of)))
    assert told[0] == (0, 4)
    assert told[-1] == (4, 4)
