"""Controller and planner as processes of their own, on a real Kueue, with the rights that the manifests give."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from localcluster.rest import ApiError
from scheduler.apiserver import connect
from scheduler.leader import Elector, Timing
from tests.kueue.observer import Observer
from tests.kueue.punctual import Punctual
from tests.kueue.team import GATE, GATES, Team, gates_of, wait_for

pytestmark = pytest.mark.kueue

LEASE = "/apis/coordination.k8s.io/v1/namespaces/punctual-system/leases/punctual-controller"
OTHER_GATE = "budget.example.com/check"


@pytest.fixture
def observer(cluster: LocalCluster) -> Iterator[Observer]:
    """Notes what happens while the test runs."""
    with Observer(cluster) as observer:
        yield observer


def wishes(seconds: float, duration: float) -> dict[str, str]:
    """Annotations: due in so many seconds from now, and how long it takes."""
    due = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()
    return {"punctual.kueue/deadline": due, "punctual.kueue/duration": f"{duration}s"}


def events_of(team: Team, job: str) -> list[tuple[str, str, str]]:
    """Type, reason and message of our Events on a Job."""
    path = f"/api/v1/namespaces/{team.name}/events?fieldSelector=source%3Dpunctual,involvedObject.name%3D{job}"
    return [(event["type"], event["reason"], event["message"]) for event in team.cluster.api("GET", path)["items"]]


def all_finished(observer: Observer, team: Team, jobs: list[str]) -> bool:
    return all(observer.run(team.name, job).finished for job in jobs)


def check_runs(observer: Observer, team: Team, jobs: list[str], gpus: int) -> None:
    """Each ran once, to its end, and never did the team hold more than it may."""
    for job in jobs:
        run = observer.run(team.name, job)
        assert run.ended, f"{job} never ran"
        assert run.evictions == 0, f"{job} was started and interrupted"
    assert observer.peak[team.name] <= gpus


@pytest.mark.long  # test_idle_gap has the same story; this one adds what the owner of a waiting job hears
def test_two_rounds_meet_every_deadline(team: Team, punctual: Punctual, observer: Observer) -> None:
    """Four 2-GPU jobs of 10 s on 4 GPUs, due with 3 s to spare: all on time, in pairs; who waits is told until when."""
    jobs = [f"job-{number}" for number in range(4)]
    begun = time.time()
    for job in jobs:
        team.job(job, gpus=2, run_for=10, annotations=wishes(begun + 25.5 - time.time(), 10))
    wait_for(lambda: sum(observer.run(team.name, job).running > 0 for job in jobs) == 2, "the first pair to run")
    waiting = next(job for job in jobs if not observer.run(team.name, job).running)
    wait_for(lambda: any(reason == "Planned" for _, reason, _ in events_of(team, waiting)), "an Event with its start")
    wait_for(lambda: all_finished(observer, team, jobs), "all four to finish", timeout=60)
    check_runs(observer, team, jobs, gpus=4)
    late = {job: observer.run(team.name, job).finished - begun - 25.5 for job in jobs}
    assert all(seconds <= 0 for seconds in late.values()), f"seconds late: {late}"


def test_a_job_without_annotations_runs(team: Team, punctual: Punctual, observer: Observer) -> None:
    """Nobody has to say anything: a plain Job is gated, released and run like any other."""
    job = team.job("plain", gpus=1, run_for=1)
    assert gates_of(job) == [GATE]
    wait_for(lambda: team.finished("plain"), "the job to finish")
    check_runs(observer, team, ["plain"], gpus=4)
    assert not any(kind == "Warning" for kind, _, _ in events_of(team, "plain"))


def test_a_mistake_is_told_where_its_owner_looks(team: Team, punctual: Punctual) -> None:
    """An unreadable annotation becomes a Warning on the Job, with what to write instead; the Job runs all the same."""
    team.job("typo", gpus=1, run_for=1, annotations={"punctual.kueue/deadline": "2030-01-01T06:00:00"})
    (kind, reason, message), *_ = wait_for(lambda: events_of(team, "typo"), "an Event")
    assert (kind, reason) == ("Warning", "InvalidAnnotation")
    assert "punctual.kueue/deadline" in message
    assert "2030-01-01T06:00:00Z" in message
    wait_for(lambda: team.finished("typo"), "the job to finish")


def test_a_gate_of_somebody_else_stays(team: Team, punctual: Punctual) -> None:
    """While somebody else holds a Job nothing is taken off it; when they let go, Punctual does its part."""
    team.job("held", gpus=1, run_for=1, annotations={GATES: OTHER_GATE})
    team.job("free", gpus=1, run_for=1)
    wait_for(lambda: team.finished("free"), "the other job to finish")
    assert gates_of(team.get_job("held")) == [OTHER_GATE, GATE]
    team.cluster.api("PATCH", f"{team.jobs}/held", {"metadata": {"annotations": {GATES: GATE}}})
    wait_for(lambda: team.finished("held"), "the held job to finish")


def test_an_emergency_is_on_record(team: Team, punctual: Punctual) -> None:
    """Work that passes by the plan starts at once; an Event, the log and a metric say who let it and why."""
    team.job("urgent", gpus=1, run_for=2, annotations={"punctual.kueue/bypass": "search is down"})
    (kind, reason, message), *_ = wait_for(lambda: events_of(team, "urgent"), "an Event")
    assert (kind, reason) == ("Warning", "Bypassed")
    assert message == "passes by the plan, by admin: search is down"
    name = f'punctual_bypassing_workloads{{cluster_queue="{team.name}"}}'
    wait_for(lambda: punctual.metric(name) == 1, "the metric")
    assert "passes by the plan" in punctual.log("controller")
    wait_for(lambda: team.finished("urgent"), "the job to finish")
    wait_for(lambda: punctual.metric(name) is None, "the metric to forget it")


@pytest.mark.parametrize("victim", ["solver", "controller"])
def test_killing_either_loses_nothing(team: Team, punctual: Punctual, observer: Observer, victim: str) -> None:
    """Killed midway and started again later: running work runs on, and all that waited runs, once, within the quota."""
    jobs = [f"job-{number}" for number in range(4)]
    for job in jobs:
        team.job(job, gpus=2, run_for=2, annotations=wishes(30, 2))
    wait_for(lambda: sum(observer.run(team.name, job).running > 0 for job in jobs) == 2, "the first pair to run")
    punctual.kill(victim)
    try:
        team.job("newcomer", gpus=4, run_for=1)
        wait_for(lambda: sum(observer.run(team.name, job).ended > 0 for job in jobs) == 2, "the first pair to end")
        if victim == "solver":  # the controller goes on without it
            wait_for(lambda: sum(observer.run(team.name, job).running > 0 for job in jobs) == 4, "the second pair")
            assert punctual.metric("punctual_planner_up") == 0
        else:
            still = [job for job in jobs if not observer.run(team.name, job).running]
            assert [gates_of(team.get_job(job)) for job in still] == [[GATE], [GATE]]
    finally:
        punctual.start_solver() if victim == "solver" else punctual.start_controller()
    wait_for(lambda: all_finished(observer, team, [*jobs, "newcomer"]), "all to finish", timeout=60)
    check_runs(observer, team, [*jobs, "newcomer"], gpus=4)
    team.job("afterwards", gpus=1, run_for=1)
    wait_for(lambda: punctual.metric("punctual_planner_up") == 1, "a plan that knows the job")


def test_one_of_two_electors_leads(cluster: LocalCluster, punctual_kubeconfig: Path) -> None:
    """On the real apiserver, with the controller's own rights: one leads, and the other when that one is gone."""
    timing = Timing(lease=2, renew=1.5, retry=0.2)
    api = connect(punctual_kubeconfig)
    one, two = (Elector(api, "punctual-system", "test-of-electors", who, timing) for who in ("one", "two"))
    one.start()
    assert one.acquired.wait(10)
    two.start()
    time.sleep(3)
    assert one.may_act()
    assert not two.may_act()
    assert two.holder == "one"
    one.stop()
    assert not one.may_act()
    assert two.acquired.wait(10)
    two.stop()
    lease = cluster.api("GET", LEASE.replace("punctual-controller", "test-of-electors"))
    assert lease["spec"]["leaseTransitions"] >= 1


def test_ends_in_an_orderly_way(cluster: LocalCluster, punctual: Punctual) -> None:
    """SIGTERM: the Lease is given back and the exit code is 0. Losing the Lease: exit code 3."""

    def lease() -> dict[str, Any]:
        return dict(cluster.api("GET", LEASE))

    assert lease()["spec"]["holderIdentity"] == "test"
    assert punctual.terminate("controller") == 0
    assert not lease()["spec"].get("holderIdentity")
    punctual.start_controller()
    assert lease()["spec"]["holderIdentity"] == "test"

    def take_over() -> bool:
        try:
            now = lease()
            cluster.api("PUT", LEASE, {**now, "spec": {**now["spec"], "holderIdentity": "somebody else"}})
        except ApiError:  # it was renewed in between
            return False
        return True

    wait_for(take_over, "the Lease to be taken over")
    assert punctual.wait("controller") == 3
    cluster.api("DELETE", LEASE)
    punctual.start_controller()
