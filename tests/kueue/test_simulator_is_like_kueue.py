"""The simulator, and what is planned from files, against a real Kueue; and ``punctual plan`` of a live cluster."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from localcluster.cluster import LocalCluster
from scheduler.workloads import workload_for
from simulator import manifests
from simulator.clock import VirtualClock
from simulator.cluster import SimulatedCluster
from tests.kueue.team import KUEUE, Team, wait_for

pytestmark = pytest.mark.kueue

SECOND = 1_000

JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "parallel": {"parallelism": 3},
    "waves": {"parallelism": 3, "spec": {"completions": 7}},
    "fewer": {"parallelism": 3, "spec": {"completions": 2}},
    "prior": {"labels": {"kueue.x-k8s.io/priority-class": "simulated"}},
    "bounded": {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "60"}},
    "partial": {"parallelism": 3, "annotations": {"kueue.x-k8s.io/job-min-parallelism": "2"}},
    "others": {"annotations": {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}},
}


@pytest.fixture(scope="module")
def priority_class(cluster: LocalCluster) -> Iterator[int]:
    """A WorkloadPriorityClass ``simulated``; its value."""
    path = f"{KUEUE}/workloadpriorityclasses"
    named = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "simulated"}}
    cluster.api("POST", path, {**named, "value": 7})
    yield 7
    cluster.api("DELETE", f"{path}/simulated")


def test_the_workload_of_a_job_is_the_one_that_kueue_makes(team: Team, priority_class: int) -> None:
    """Name, owner, gates, queue, priority, limits and pod sets of our Workloads are those of Kueue's."""
    jobs = {name: team.job(name, gpus=1, **how) for name, how in JOBS.items()}
    for name, job in jobs.items():
        real = wait_for(lambda name=name: team.workload_of(name), f"the Workload of {name}")  # type: ignore[misc]
        ours = workload_for(job, {"simulated": priority_class})
        for column in ("name", "namespace", "labels", "ownerReferences"):
            assert ours["metadata"][column] == real["metadata"][column], name
        gates = "kueue.x-k8s.io/admission-gated-by"
        assert ours["metadata"]["annotations"][gates] == real["metadata"]["annotations"][gates], name
        templates = [pod_set.pop("template") for item in (ours, real) for pod_set in item["spec"]["podSets"]]
        assert templates[0]["spec"]["containers"][0]["resources"] == templates[1]["spec"]["containers"][0]["resources"]
        for pod_set in real["spec"]["podSets"]:
            pod_set.pop("topologyRequest", None)  # plays no part here
        assert ours["spec"] == real["spec"], name


@pytest.mark.long
def test_jobs_are_admitted_in_the_order_and_with_the_quota_of_a_real_kueue(make_team: Callable[..., Team]) -> None:
    """Jobs of mixed sizes, one a second, on four GPUs: who is admitted after whom, and what is written, is the same."""
    script = {"first": (4, 7), "a": (3, 3), "b": (2, 3), "c": (1, 3), "d": (4, 2)}
    real = make_team(4, managed=False)
    for name, (gpus, seconds) in script.items():
        real.job(name, gpus=gpus, run_for=seconds)
        time.sleep(1.1)
    wait_for(lambda: all(real.finished(name) for name in script), "all jobs to finish", timeout=60)

    simulated = SimulatedCluster(VirtualClock(1_800_000_000_000), gating=False)
    simulated.create(manifests.flavor(real.name))
    for item in manifests.team(real.name, flavors={real.name: 4}):
        simulated.create(item)
    queue = json.loads(json.dumps(simulated.objects("ClusterQueue")[real.name]))
    queue["spec"]["resourceGroups"] = real.cluster.api("GET", f"{KUEUE}/clusterqueues/{real.name}")["spec"][
        "resourceGroups"
    ]
    simulated.replace(queue)
    for number, name in enumerate(script):
        body = real.job_body(name, gpus=script[name][0], run_for=script[name][1], queue=manifests.QUEUE)
        simulated.clock.after(1_100 * number, lambda body=body: simulated.create(body))  # type: ignore[misc]
    simulated.run()

    order = sorted(script, key=lambda name: real.condition(name, "Admitted")["lastTransitionTime"])
    records = {record.name: record for record in simulated.timeline.records.values()}
    rounds = [(name, real.condition(name, "Admitted")["lastTransitionTime"]) for name in order]
    for (earlier, before), (later, after) in itertools.pairwise(rounds):
        if before < after:
            assert (records[earlier].admitted or 0) < (records[later].admitted or 0), (rounds, records)
    for workload in simulated.objects("Workload").values():
        (owner,) = workload["metadata"]["ownerReferences"]
        assert workload["status"]["admission"] == real.workload_of(owner["name"])["status"]["admission"]


def test_the_plan_of_a_live_cluster_is_by_due_dates(team: Team) -> None:
    """`punctual plan` lists the cluster: gated jobs are planned by their deadlines, what runs is shown as running."""
    team.job("runs", gpus=2, run_for=60, annotations={"punctual.kueue/duration": "1m"})
    wait_for(lambda: team.workload_of("runs"), "its Workload")
    team.release("runs")
    wait_for(lambda: team.admitted("runs"), "the release to be admitted")
    for name, deadline in (("late", "3h"), ("soon", "1h")):
        team.job(name, gpus=2, annotations={"punctual.kueue/duration": "30m", "punctual.kueue/deadline": deadline})
    wait_for(lambda: team.workload_of("soon"), "its Workload")
    result = CliRunner().invoke(app, ["plan", "--kubeconfig", str(team.cluster.kubeconfig), "-o", "json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    ours = {w["name"]: w for w in data["workloads"] if w["namespace"] == team.name}
    assert ours["runs"]["state"] == "running"
    assert [name for name in data["order"] if name.startswith(f"{team.name}/")] == [
        f"{team.name}/soon",
        f"{team.name}/late",
    ]
    assert ours["soon"]["start"] == data["now"]
    assert ours["late"]["start"] == ours["runs"]["finish"]
    assert ours["late"]["onTime"] is True
