"""On a real Kueue: whoever does not take part is served no later for our being there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from localcluster.cluster import LocalCluster
from tests.kueue.observer import Observer
from tests.kueue.punctual import Punctual
from tests.kueue.team import KUEUE, Team, wait_for

pytestmark = pytest.mark.kueue

CHANCE = 2.5
"""Kueue brings back what it tried without room once a second, and two runs are not alike to the second (seconds). One
job of ours in front of one of theirs costs those four."""

SEEN = 1.0
"""So long after a Workload appeared, whatever was under way then has come to its end (seconds)."""

DURATION = "punctual.kueue/duration"
PRIORITY = "kueue.x-k8s.io/priority-class"

Guests = Callable[[Team], Team]


@pytest.fixture
def guest(cluster: LocalCluster) -> Iterator[Guests]:
    """Makes namespaces that do not take part, with a LocalQueue to the ClusterQueue of a team that may."""
    made: list[Team] = []

    def make(host: Team) -> Team:
        name = f"{host.name}-guest"
        cluster.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": host.queue}}
        path = f"{KUEUE}/namespaces/{name}/localqueues"
        cluster.api("POST", path, {**queue, "spec": {"clusterQueue": host.name}})
        made.append(Team(cluster, name, host.queue))
        return made[-1]

    yield make
    for team in made:
        team.delete_jobs()
        cluster.api("DELETE", f"/api/v1/namespaces/{team.name}")


@dataclass
class Shared:
    """Quota that two namespaces share."""

    gpus: int
    ours: Team
    theirs: Team


STREAM = (
    *(("ours", 2, 9),) * 2,
    *(("theirs", 2, 2), ("ours", 2, 2)) * 3,
)
"""Whose, GPUs, and seconds that it runs. All are there before the first two end: what comes while Kueue brings back
those that wait is served first, with and without us, and that is chance."""


def submit(shared: list[Shared], observer: Observer) -> None:
    """The stream to each, side by side; returns when all has run."""
    jobs: list[tuple[Team, str]] = []
    for number, (whose, gpus, seconds) in enumerate(STREAM):
        for quota in shared:
            team: Team = getattr(quota, whose)
            team.job(f"job-{number}", gpus=gpus, run_for=seconds, annotations={DURATION: f"{seconds}s"})
            jobs.append((team, f"job-{number}"))
        if number == 1:
            wait_for(lambda: all(observer.run(team.name, job).reserved for team, job in jobs), "the first two to start")
    wait_for(lambda: all(observer.run(team.name, job).finished for team, job in jobs), "all to finish", timeout=90)


def starts(observer: Observer, quota: Shared) -> list[float]:
    """Starts of their jobs, one after another, in seconds since room appeared for the first time."""
    room = min(run.finished for (name, _), run in observer.runs.items() if name == quota.ours.name)
    return sorted(run.reserved - room for (name, _), run in observer.runs.items() if name == quota.theirs.name)


def robbed(observer: Observer, quota: Shared) -> list[str]:
    """Starts of ours that took room in which one of theirs, there before, would have fit."""
    runs = {key: run for key, run in observer.runs.items() if key[0] in (quota.ours.name, quota.theirs.name)}
    found = []
    for (name, job), start in runs.items():
        if name != quota.ours.name:
            continue
        at = start.reserved
        held = sum(run.gpus for run in runs.values() if run.reserved < at and not 0 < run.finished <= at)
        for (other, their_job), their in runs.items():
            waiting = other == quota.theirs.name and their.pending + SEEN < at < their.reserved
            if waiting and held + their.gpus <= quota.gpus < held + their.gpus + start.gpus:
                found.append(f"{job} took the room of {their_job}, which started {their.reserved - at:.2f} s later")
    return [*found, *map(str, sorted(runs.items(), key=lambda run: run[1].reserved))] if found else []


@pytest.mark.long
def test_others_are_served_no_later(
    make_team: Callable[..., Team],
    guest: Guests,
    punctual: Punctual,
    record_property: Callable[[str, object], None],
) -> None:
    """The same stream with and without Punctual, in one ClusterQueue and in a cohort: unmanaged jobs wait no longer."""
    pairs: list[list[Shared]] = []
    for managed in (True, False):
        host = make_team(4, managed=managed)
        cohort = f"turns-{managed}".lower()
        ours = make_team(2, managed=managed, cohort=cohort)
        same_flavor = ours.cluster.api("GET", f"{KUEUE}/clusterqueues/{ours.name}")["spec"]["resourceGroups"]
        theirs = make_team(2, managed=False, cohort=cohort, resourceGroups=same_flavor)
        pairs.append([Shared(4, host, guest(host)), Shared(4, ours, theirs)])
    with_us, plain = pairs
    everything = with_us + plain
    with Observer(with_us[0].ours.cluster) as observer:
        submit(everything, observer)
    for quota, without in zip(with_us, plain, strict=True):
        with_ours, alone = starts(observer, quota), starts(observer, without)
        table = {"with Punctual": [round(at, 2) for at in with_ours], "plain Kueue": [round(at, 2) for at in alone]}
        record_property("starts of unmanaged jobs", table)
        print(f"\n{table}")
        assert robbed(observer, quota) == []
        assert all(mine <= other + CHANCE for mine, other in zip(with_ours, alone, strict=True))


@pytest.fixture
def urgent(cluster: LocalCluster) -> Iterator[str]:
    """A WorkloadPriorityClass above the default."""
    path, name = f"{KUEUE}/workloadpriorityclasses", "urgent"
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": name}}
    cluster.api("POST", path, {**body, "value": 1000})
    yield name
    cluster.api("DELETE", f"{path}/{name}")


def test_those_who_wait_keep_their_turn(
    make_team: Callable[..., Team], guest: Guests, punctual: Punctual, urgent: str
) -> None:
    """Nothing passes the blocked head of a StrictFIFO queue but what Kueue itself would put before it; elsewhere what
    ends in time does; and room that appears goes to theirs by priority, then age, and then to ours."""
    strict, lenient, scarce = make_team(4, queueingStrategy="StrictFIFO"), make_team(4), make_team(2)
    guests = {host.name: guest(host) for host in (strict, lenient, scarce)}
    created: list[tuple[Team, str]] = []

    def job(team: Team, name: str, gpus: int, seconds: int, priority: str = "") -> None:
        labels = {PRIORITY: priority} if priority else {}
        team.job(name, gpus=gpus, run_for=seconds, annotations={DURATION: f"{seconds}s"}, labels=labels)
        created.append((team, name))

    with Observer(strict.cluster) as observer:
        for theirs in guests.values():
            job(theirs, "running", 2, 12)
        wait_for(lambda: all(observer.run(t.name, "running").reserved for t in guests.values()), "the first to run")
        for host in (strict, lenient):
            job(guests[host.name], "head", 4, 1)
        job(scarce, "ours", 2, 1)
        job(guests[scarce.name], "old", 2, 1)
        time.sleep(1.5)  # older by more than creation times can tell
        for host in (strict, lenient):
            job(host, "small", 1, 1)
        job(strict, "urgent", 1, 1, urgent)
        job(guests[scarce.name], "urgent", 2, 1, urgent)
        wait_for(lambda: all(observer.run(t.name, name).finished for t, name in created), "all to finish", timeout=60)

    def start(team: Team, name: str) -> float:
        return observer.run(team.name, name).reserved

    assert start(strict, "urgent") < start(guests[strict.name], "head") < start(strict, "small")
    assert start(lenient, "small") < start(guests[lenient.name], "head")
    for host in (strict, lenient):
        ended = observer.run(guests[host.name].name, "running").finished
        assert start(guests[host.name], "head") - ended < CHANCE
    assert start(guests[scarce.name], "urgent") < start(guests[scarce.name], "old") < start(scarce, "ours")
