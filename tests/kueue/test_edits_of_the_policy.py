"""A policy that is edited while work runs and waits, on a real Kueue: no job is lost, none runs twice.

By its name it runs before ``test_manifests.py``, which says why that matters.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from localcluster.rest import ApiError
from tests.kueue.observer import Observer
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import GATE, Team, gates_of, wait_for
from tests.kueue.test_controller import all_finished, check_runs

pytestmark = pytest.mark.kueue

CONFIG_MAPS = "/api/v1/namespaces/punctual-system/configmaps"
MUCH_LATER = {"punctual.kueue/earliest-start": "2099-01-01T00:00:00Z"}


class Written:
    """The ConfigMap with the policy."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def write(self, text: str) -> None:
        """As ``kubectl apply`` would."""
        metadata = {"name": "punctual-policy", "namespace": "punctual-system"}
        body = {"metadata": metadata, "data": {"policy.yaml": text}}
        try:
            self._cluster.api("PATCH", f"{CONFIG_MAPS}/punctual-policy", body)
        except ApiError as error:
            if error.status != 404:
                raise
            self._cluster.api("POST", CONFIG_MAPS, body)

    def mode(self, team: Team, mode: str) -> None:
        """Switch the team's queue, and wait until new work there is admitted so."""
        self.write(f"version: 1\nclusterQueues: {{{team.name}: {{mode: {mode}}}}}\n")
        gated = mode == "enforce"
        wait_for(lambda: bool(gates_of(team.job("probe", dry_run=True))) == gated, f"new work to be admitted in {mode}")

    def said(self, reason: str) -> list[str]:
        """Messages of the Events of a reason on it."""
        query = f"fieldSelector=reason%3D{reason},involvedObject.name%3Dpunctual-policy"
        events = self._cluster.api("GET", f"/api/v1/namespaces/punctual-system/events?{query}")["items"]
        return [event["message"] for event in events]


@pytest.fixture
def policy(cluster: LocalCluster, punctual: Punctual) -> Iterator[Written]:
    """The policy; the defaults again after the test."""
    written = Written(cluster)
    yield written
    written.write("version: 1\n")
    wait_for(lambda: punctual.metric("punctual_policy_valid") == 1, "the defaults to be in force")


@pytest.fixture
def observer(cluster: LocalCluster) -> Iterator[Observer]:
    """Notes what happens while the test runs."""
    with Observer(cluster) as observer:
        yield observer


def run(*words: object) -> dict[str, Any]:
    """What a command of ours prints, as JSON."""
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def events_of(team: Team, job: str, reason: str) -> list[str]:
    path = f"/api/v1/namespaces/{team.name}/events?fieldSelector=reason%3D{reason},involvedObject.name%3D{job}"
    return [event["message"] for event in team.cluster.api("GET", path)["items"]]


@pytest.mark.long
def test_observe_and_enforce_by_one_edit(
    make_team: Callable[..., Team], punctual: Punctual, observer: Observer, policy: Written
) -> None:
    """Enforce, observe, enforce, with work running and waiting: gates go and come, each job runs once, none is lost."""
    team, other = make_team(4), make_team(4)
    jobs = [f"job-{number}" for number in range(4)]
    for job in jobs:
        team.job(job, gpus=2, run_for=1.5, annotations={"punctual.kueue/deadline": "2s"})
    team.job("parked", gpus=1, run_for=1, annotations=MUCH_LATER)
    other.job("parked", gpus=1, run_for=1, annotations=MUCH_LATER)
    wait_for(lambda: sum(observer.run(team.name, job).running > 0 for job in jobs) == 2, "the first pair to run")

    policy.mode(team, "observe")
    assert gates_of(team.job("observed", gpus=1, run_for=1)) == []
    wait_for(lambda: not any(gates_of(team.get_job(job)) for job in [*jobs, "parked"]), "all gates to go")
    (message,) = wait_for(lambda: events_of(team, "parked", "LetGo"), "the Event")
    assert "only observed" in message
    wait_for(lambda: team.admitted("parked"), "what waited for 2099 to start, as Kueue would have it")

    policy.mode(team, "enforce")
    assert gates_of(team.job("enforced", gpus=4, run_for=1)) == [GATE]
    everything = [*jobs, "parked", "observed", "enforced"]
    wait_for(lambda: all_finished(observer, team, everything), "all to finish", timeout=60)
    check_runs(observer, team, everything, gpus=4)
    assert [team.get_job(job)["status"].get("succeeded") for job in everything] == [1] * len(everything)
    assert gates_of(other.get_job("parked")) == [GATE], "another queue's work is none of this"
    told = run("observe", "-o", "json", "--kubeconfig", team.cluster.kubeconfig)
    assert told["workloads"] >= len(everything)
    assert {f"{team.name}/{job}" for job in jobs} <= {fate["name"] for fate in told["jobs"]}
    assert told["real"]["missed"] > 0  # the second pair cannot be done in two seconds


def test_a_bad_policy_leaves_the_last_good_one(team: Team, punctual: Punctual, policy: Written) -> None:
    """What cannot be read is told on the ConfigMap, in the log, by a metric and the command; nothing else changes."""
    policy.mode(team, "observe")
    policy.write("version: 1\nmode: enforced\n")
    wait_for(lambda: punctual.metric("punctual_policy_valid") == 0, "the metric")
    message = wait_for(lambda: policy.said("PolicyRefused"), "the Event")[-1]
    assert "line 2: mode: is 'enforced'; must be 'enforce' or 'observe'" in message
    assert "the policy cannot be read; the last good one goes on" in punctual.log("controller")
    assert gates_of(team.job("free", gpus=1, run_for=1)) == []
    shown = run("policy", "show", "-o", "json", "--kubeconfig", team.cluster.kubeconfig)
    assert shown["policy"]["clusterQueues"][team.name]["mode"] == "observe"
    assert "the last good one goes on" in shown["remarks"][0]

    policy.mode(team, "enforce")
    assert punctual.metric("punctual_policy_valid") == 1
