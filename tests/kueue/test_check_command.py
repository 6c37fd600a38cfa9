"""``punctual check`` on a real cluster: all is well; then something is taken away, and the check says what."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from tests.kueue.conftest import MANIFESTS
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import GATE, KUEUE, Team, gates_of, wait_for

pytestmark = pytest.mark.kueue

SECRET = "hunter2-5up3r-5ecret"


def check(
    cluster: LocalCluster, *words: str | Path, kubeconfig: Path | None = None
) -> tuple[int, dict[str, list[Any]]]:
    """Exit code, and states and messages of the findings by what was looked at."""
    command = [COMMAND, "check", "-o", "json", "--kubeconfig", kubeconfig or cluster.kubeconfig, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, list[Any]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["what"], []).append((each["state"], each["message"], each["fix"]))
    return done.returncode, found


def test_all_is_well(team: Team, punctual: Punctual, tmp_path: Path) -> None:
    """On a cluster where everything is in place nothing fails, and nothing is left behind of what was tried."""
    cluster = team.cluster
    job = team.job_body("train", annotations={"punctual.kueue/earliest-start": "2099-01-01T00:00:00Z"})
    container = job["spec"]["template"]["spec"]["containers"][0]
    container |= {"env": [{"name": "PASSWORD", "value": SECRET}], "args": [SECRET]}
    cluster.api("POST", team.jobs, job)
    secret = {"metadata": {"name": "secret"}, "stringData": {"password": SECRET}}
    cluster.api("POST", f"/api/v1/namespaces/{team.name}/secrets", secret)
    wait_for(lambda: team.workload_of("train"), "its Workload")
    # The first start of a planner compiles its kernels.
    wait_for(lambda: punctual.metric("punctual_planner_up") == 1, "the planner's first answer", timeout=150)
    bundle = tmp_path / "bundle.tar.gz"
    solver, metrics = punctual.address, f"http://127.0.0.1:{punctual.port}/metrics"
    code, found = check(cluster, "--solver", solver, "--metrics", metrics, "--bundle", bundle)
    bad = {what: [each for each in each_of if each[0] == "fail"] for what, each_of in found.items()}
    assert not any(bad.values()), bad
    assert code == 0
    for what in (
        "kubernetes", "clock", "controller's clock", "gates", "guards", "AdmissionGatedBy", "gates act", "guards act",
        "rights", "controller", "metrics", "planner", "sweeper", "kinds",
    ):  # fmt: skip
        assert {state for state, _, _ in found[what]} == {"ok"}, (what, found[what])
    assert any(team.name in message for state, message, _ in found["namespaces"] if state == "ok")
    assert any(team.name in message for state, message, _ in found["queues"] if state == "ok")
    assert gates_of(team.get_job("train")) == [GATE]

    namespaces = cluster.api("GET", "/api/v1/namespaces?labelSelector=punctual.kueue%2Fcheck")["items"]
    assert all(item["metadata"].get("deletionTimestamp") for item in namespaces)
    names = [item["metadata"]["name"] for item in cluster.api("GET", f"{KUEUE}/workloads")["items"]]
    assert "punctual-canary" not in names

    with tarfile.open(bundle) as archive:
        texts = [file.read().decode() for entry in archive.getmembers() if (file := archive.extractfile(entry))]
    assert not any(SECRET in text for text in texts)
    assert sum(f'"name": "{team.name}"' in text for text in texts) >= 1
    assert not any('"missing"' in text for text in texts)


@pytest.fixture
def put_back(cluster: LocalCluster) -> Any:
    """Whatever a test takes away, the manifests are there again after it."""
    yield
    for part in ("guards", "controller/rbac.yaml"):
        path = MANIFESTS / part
        cluster.kubectl("apply", "--server-side", "-k" if path.is_dir() else "-f", path)


@pytest.mark.long
def test_what_is_taken_away_is_missed(make_team: Callable[..., Team], cluster: LocalCluster, put_back: None) -> None:
    """A guard without its binding, a right, a queue, the controller: each is named, with the command that mends it."""
    team = make_team(4)
    cluster.api("PATCH", f"{KUEUE}/clusterqueues/{team.name}", {"spec": {"stopPolicy": "Hold"}})
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    cluster.api("DELETE", f"{bindings}/punctual-guard-ungate")
    cluster.api("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/punctual-controller")
    wait_for(lambda: "fail" in {each[0] for each in check(cluster)[1]["guards act"]}, "the guard to act no more")
    code, found = check(cluster)
    assert code == 1
    ((state, message, fix),) = found["guards"]
    assert (state, "punctual-guard-ungate" in message) == ("fail", True)
    assert fix == "kubectl apply --server-side -k manifests/guards"
    assert "anybody can start before the plan" in found["guards act"][0][1]
    failed = [message for state, message, _ in found["rights"] if state == "fail"]
    assert len(failed) == 1
    assert "ungate jobs.batch" in failed[0]
    held = [fix for state, message, fix in found["queues"] if f"ClusterQueue {team.name}" in message]
    assert held == [f"""kubectl patch clusterqueue {team.name} --type=merge -p '{{"spec":{{"stopPolicy":"None"}}}}'"""]


@pytest.mark.long
def test_who_may_nothing_is_told_so(cluster: LocalCluster, punctual_kubeconfig: Path) -> None:
    """Without rights the check says what it could not see; it does not claim that all is well, nor break."""
    _, found = check(cluster, kubeconfig=punctual_kubeconfig)
    state, message, fix = found["gates and guards"][0]
    assert (state, fix) == ("warn", "run it with the rights of cluster-admin")
    assert "cannot list resource" in message
    assert {state for state, _, _ in found["rights"]} == {"warn"}
    # It may make a canary in its own namespace, and so see the most important thing all the same.
    assert found["AdmissionGatedBy"][0][0] == "ok"
