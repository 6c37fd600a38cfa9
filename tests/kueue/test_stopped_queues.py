"""Queues that stop, vanish or are not supported, on a real Kueue that rewrites the status of gated work there."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from localcluster.rest import Watch
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import GATE, KUEUE, Team, condition_of, gates_of, wait_for

pytestmark = pytest.mark.kueue

WAITS = {"punctual.kueue/earliest-start": "2099-01-01T00:00:00Z"}
QUIET = 3.0
"""Seconds for which writes are counted before and after."""


class Writes:
    """When each Workload was written, by namespace; and when the gate of its Job went off."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.at: dict[str, list[float]] = defaultdict(list)
        self.ungated: dict[str, float] = {}
        self._watches = [cluster.api.watch(path) for path in (f"{KUEUE}/workloads", "/apis/batch/v1/jobs")]
        for watch, note in zip(self._watches, (self._workload, self._job), strict=True):
            threading.Thread(target=self._follow, args=(watch, note), daemon=True).start()

    def between(self, namespace: str, begin: float, end: float) -> int:
        """Writes of a namespace's Workloads in a span of time."""
        return sum(begin <= at < end for at in self.at[namespace])

    def stop(self) -> None:
        for watch in self._watches:
            watch.close()

    def _follow(self, watch: Watch, note: Callable[[dict[str, Any]], None]) -> None:
        for event in watch:
            note(event["object"])

    def _workload(self, workload: dict[str, Any]) -> None:
        self.at[workload["metadata"]["namespace"]].append(time.time())

    def _job(self, job: dict[str, Any]) -> None:
        if not gates_of(job):
            self.ungated.setdefault(job["metadata"]["namespace"], time.time())


@pytest.fixture
def writes(cluster: LocalCluster) -> Iterator[Writes]:
    """Notes writes while the test runs."""
    writes = Writes(cluster)
    yield writes
    writes.stop()


def local_queue(team: Team) -> str:
    return f"{KUEUE}/namespaces/{team.name}/localqueues/{team.queue}"


def cluster_queue(team: Team) -> str:
    return f"{KUEUE}/clusterqueues/{team.name}"


def stop(policy: str) -> dict[str, Any]:
    return {"spec": {"stopPolicy": policy}}


def without_flavor(team: Team) -> dict[str, Any]:
    groups = team.cluster.api("GET", cluster_queue(team))["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["name"] = "no-such-flavor"
    return {"spec": {"resourceGroups": groups}}


def checked(name: str) -> dict[str, Any]:
    return {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": name}]}}}


CAUSES: dict[str, Callable[[Team], Any]] = {
    "LocalQueue missing": lambda team: team.cluster.api("DELETE", local_queue(team)),
    "LocalQueue held": lambda team: team.cluster.api("PATCH", local_queue(team), stop("Hold")),
    "ClusterQueue missing": lambda team: team.cluster.api("DELETE", cluster_queue(team)),
    "ClusterQueue held": lambda team: team.cluster.api("PATCH", cluster_queue(team), stop("Hold")),
    "ClusterQueue drained": lambda team: team.cluster.api("PATCH", cluster_queue(team), stop("HoldAndDrain")),
    "flavor missing": lambda team: team.cluster.api("PATCH", cluster_queue(team), without_flavor(team)),
    "admission check missing": lambda team: team.cluster.api("PATCH", cluster_queue(team), checked("no-such-check")),
}


def let_go(team: Team, job: str) -> list[str]:
    """What the owner of a Job heard of its being let go."""
    path = f"/api/v1/namespaces/{team.name}/events?fieldSelector=reason%3DLetGo,involvedObject.name%3D{job}"
    return [event["message"] for event in team.cluster.api("GET", path)["items"]]


def test_the_hazard_never_lasts(
    make_team: Callable[..., Team],
    punctual: Punctual,
    writes: Writes,
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever stops a queue: writes are none before, many until our gate is off, which is soon, and none after."""
    teams = {cause: make_team(4) for cause in CAUSES}
    brief = make_team(4)
    everyone = [*teams.values(), brief]
    for team in everyone:
        team.job("waits", gpus=1, annotations=WAITS)
    wait_for(
        lambda: all(condition_of(team.workload_of("waits"), "QuotaReserved") for team in everyone), "gated Workloads"
    )
    time.sleep(1)
    begun = time.time()
    time.sleep(QUIET)
    assert [writes.between(team.name, begun, begun + QUIET) for team in everyone] == [0] * len(everyone)

    stopped = {}
    for cause, team in teams.items():
        stopped[cause] = time.time()
        CAUSES[cause](team)
    wait_for(lambda: all(team.name in writes.ungated for team in teams.values()), "the gates to go", every=0.2)
    brief.cluster.api("PATCH", cluster_queue(brief), stop("Hold"))
    time.sleep(0.3)
    brief.cluster.api("PATCH", cluster_queue(brief), stop("None"))
    time.sleep(2.5)  # the queue's own last words
    after = time.time()
    time.sleep(QUIET)

    table = {
        cause: {
            "seconds": round(writes.ungated[team.name] - stopped[cause], 2),
            "writes": writes.between(team.name, stopped[cause], after),
            "after": writes.between(team.name, after, after + QUIET),
        }
        for cause, team in teams.items()
    }
    record_property("stopped queues", table)
    print("", *(f"{cause}: {row}" for cause, row in table.items()), sep="\n")
    assert all(row["after"] == 0 for row in table.values())
    assert sum(row["writes"] for row in table.values()) > 20, "the hazard did not show: what did this test?"
    assert all(row["seconds"] < 5 for row in table.values())
    for team in teams.values():
        assert condition_of(team.workload_of("waits"), "QuotaReserved")["reason"] == "Inadmissible"
        assert len(wait_for(lambda team=team: let_go(team, "waits"), "the Event")) == 1  # type: ignore[misc]
    # One that was stopped for a moment only is as before.
    assert gates_of(brief.get_job("waits")) == [GATE]
    assert writes.between(brief.name, after, after + QUIET) == 0

    # Open again: what was let go runs, what comes is planned as ever.
    team = teams["ClusterQueue held"]
    team.job("late", gpus=1, run_for=1)
    wait_for(lambda: let_go(team, "late"), "the newcomer of a stopped queue to be let go")
    team.cluster.api("PATCH", cluster_queue(team), stop("None"))
    wait_for(lambda: team.admitted("waits") and team.admitted("late"), "the work to start")
    assert gates_of(team.job("next", gpus=1, run_for=1)) == [GATE]
    wait_for(lambda: team.finished("next"), "the next job to finish")
    assert let_go(team, "next") == []


@pytest.fixture
def check(cluster: LocalCluster) -> Iterator[str]:
    """An active AdmissionCheck that nobody ever answers."""
    name, path = "nobody-answers", f"{KUEUE}/admissionchecks"
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": "example.com/none"},
    }
    cluster.api("POST", path, body)
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": None}
    active["lastTransitionTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    cluster.api("PATCH", f"{path}/{name}/status", {"status": {"conditions": [active]}})
    yield name
    cluster.api("DELETE", f"{path}/{name}")


def test_unsupported_queues_are_left_to_kueue(make_team: Callable[..., Team], punctual: Punctual, check: str) -> None:
    """Admission checks, admission fair sharing: gates go off, work takes Kueue's own way, and everybody can see why."""
    fair = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
    teams = {"AdmissionChecks": make_team(4, **checked(check)["spec"]), "AdmissionFairSharing": make_team(4, **fair)}
    for team in teams.values():
        assert gates_of(team.job("job", gpus=1, run_for=1)) == [GATE]
    asked, plain = teams.values()
    wait_for(lambda: asked.condition("job", "QuotaReserved").get("status") == "True", "quota")
    assert not asked.admitted("job")
    wait_for(lambda: plain.finished("job"), "the job to finish")
    shown = subprocess.run(
        [COMMAND, "plan", "-o", "json", "--kubeconfig", asked.cluster.kubeconfig], capture_output=True, text=True
    )
    remarks = {remark["place"]: remark["message"] for remark in json.loads(shown.stdout)["remarks"]}
    for cause, team in teams.items():
        (message,) = wait_for(lambda team=team: let_go(team, "job"), "the Event")  # type: ignore[misc]
        assert "is not supported" in message
        assert "is not supported" in remarks[f"ClusterQueue {team.name}"]
        metric = f'punctual_unsupported_cluster_queues{{cause="{cause}",cluster_queue="{team.name}"}}'
        assert punctual.metric(metric) == 1
        path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{team.name}"
        assert wait_for(lambda path=path: asked.cluster.api("GET", path)["items"], "an Event")  # type: ignore[misc]
