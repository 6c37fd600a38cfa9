"""The local cluster itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.components import ORDER
from localcluster.errors import LocalClusterError
from tests.kueue.team import KUEUE, Team, condition_of

pytestmark = pytest.mark.kueue


def status(cluster: LocalCluster, name: str) -> Any:
    """What is known of one process."""
    return next(status for status in cluster.status() if status.name == name)


def test_all_parts_run(cluster: LocalCluster) -> None:
    """Everything that makes a cluster is there, with eight nodes of eight GPUs."""
    assert [status.name for status in cluster.status()] == list(ORDER)
    assert all(status.running and status.usage.rss > 0 for status in cluster.status())
    nodes = cluster.api("GET", "/api/v1/nodes")["items"]
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8"] * 8


def test_jobs_run(team: Team, wait_until: Any) -> None:
    """A released Job is admitted, runs for about as long as its annotation says, and finishes."""
    team.job("one", gpus=2, run_for=2)
    wait_until(lambda: team.condition("one", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    team.release("one")
    wait_until(lambda: team.get_job("one")["status"].get("active"), "a pod")
    wait_until(lambda: team.finished("one"), "the end of the Job")
    assert team.get_job("one")["status"]["succeeded"] == 1


def test_pods_fail_on_request(make_team: Any, wait_until: Any) -> None:
    """A Job that is to fail does."""
    team = make_team(managed=False)
    team.job("bad", run_for=0.1, fails=True)
    wait_until(lambda: team.get_job("bad")["status"].get("failed"), "its failure")
    wait_until(lambda: team.finished("bad"), "the end of the Job")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_kueue_comes_back(cluster: LocalCluster, team: Team, wait_until: Any, end: str) -> None:
    """Kueue stopped or killed is gone at once, another process takes over, and a gated Job is still gated."""
    team.job("waits")
    wait_until(lambda: team.condition("waits", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    before = status(cluster, "kueue").process.pid
    getattr(cluster, end)("kueue")
    assert not status(cluster, "kueue").running
    cluster.start("kueue")
    assert status(cluster, "kueue").running
    assert status(cluster, "kueue").process.pid != before
    assert not team.admitted("waits")
    team.release("waits")
    wait_until(lambda: team.admitted("waits"), "its admission by the new Kueue")


def test_what_runs_is_not_started_twice(cluster: LocalCluster) -> None:
    """Neither a cluster nor one of its parts: the message says what to do."""
    with pytest.raises(LocalClusterError, match=r"a cluster is running in .*`punctual cluster down`"):
        LocalCluster(cluster.folder).up()
    with pytest.raises(LocalClusterError, match="kueue is running already"):
        cluster.start("kueue")
    with pytest.raises(LocalClusterError, match="no process is called kubelet: there are etcd, "):
        cluster.stop("kubelet")
    assert all(status.running for status in cluster.status())


def test_folders_of_others_are_safe(tmp_path: Path) -> None:
    """A folder that holds something else is neither used nor removed."""
    (tmp_path / "thesis.tex").write_text("unique")
    with pytest.raises(LocalClusterError, match="choose another folder"):
        LocalCluster(tmp_path).up()
    with pytest.raises(LocalClusterError, match="choose another folder"):
        LocalCluster(tmp_path).down()
    assert (tmp_path / "thesis.tex").read_text() == "unique"


def test_a_part_that_ends_is_told(tmp_path: Path) -> None:
    """When a part dies at the start, its last words are in the message, nothing is left running, the logs stay."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for component in build.COMPONENTS:
        (cache / build.folder(component).name).symlink_to(build.folder(component))
    etcd = build.binary("etcd", cache)
    etcd.parent.unlink()
    etcd.parent.mkdir()
    etcd.write_text("#!/bin/sh\necho no room for data; exit 1\n")
    etcd.chmod(0o755)
    cluster = LocalCluster(tmp_path / "new", cache=cache)
    with pytest.raises(LocalClusterError, match=r"(?s)etcd has ended .*no room for data.*all of it: .*etcd\.log"):
        cluster.up()
    assert cluster.log("etcd").exists()
    assert [status.name for status in cluster.status() if status.running] == []
    cluster.down()
    assert not cluster.folder.exists()


def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path, wait_until: Any) -> None:
    """A cluster tied to a process goes with it, even when that is killed half-way through the start."""
    program = (
        "import sys; from pathlib import Path; from localcluster.cluster import LocalCluster; "
        "cluster = LocalCluster(Path(sys.argv[1])); cluster.stop_with_me(); cluster.up()"
    )
    cluster = LocalCluster(tmp_path / "new")
    with subprocess.Popen(
        [sys.executable, "-c", program, cluster.folder], cwd=Path(build.__file__).parents[1]
    ) as tests:
        wait_until(lambda: len(cluster.status()) >= 3, "some processes")
        os.kill(tests.pid, signal.SIGKILL)
    processes = [status.process for status in cluster.status()]
    wait_until(lambda: not cluster.folder.exists(), "the folder to go")
    assert not [process for process in processes if process.running()]


def test_the_examples_to_play_with(cluster: LocalCluster, wait_until: Any) -> None:
    """What ``punctual cluster up`` applies, and the jobs that it suggests: gated in team-a."""
    queues, jobs = (Path(build.__file__).with_name(f"example-{name}.yaml") for name in ("queues", "jobs"))
    cluster.kubectl("apply", "-f", queues)
    try:
        wait_until(lambda: cluster.kubectl("create", "-f", jobs, "--dry-run=server"), "the namespace to take Jobs")
        cluster.kubectl("create", "-f", jobs)
        workloads = wait_until(lambda: _gated(cluster, "team-a", 4), "four gated Workloads")
        assert all(workload["spec"]["queueName"] == "default" for workload in workloads)
        cluster.kubectl("delete", "jobs", "-n", "team-a", "--all")
        wait_until(lambda: not cluster.api("GET", f"{KUEUE}/namespaces/team-a/workloads")["items"], "an empty queue")
    finally:
        cluster.kubectl("delete", "-f", queues, "--wait=false")


def _gated(cluster: LocalCluster, namespace: str, count: int) -> list[Any]:
    items = cluster.api("GET", f"{KUEUE}/namespaces/{namespace}/workloads")["items"]
    waiting = [item for item in items if condition_of(item, "QuotaReserved").get("reason") == "AdmissionGated"]
    return waiting if len(waiting) == count else []


def test_status_tells_people_and_machines(cluster: LocalCluster) -> None:
    """``punctual cluster status`` lists every process, with exit code 0 while all run."""
    said = CliRunner().invoke(app, ["cluster", "status", "--dir", str(cluster.folder), "-o", "json"])
    assert said.exit_code == 0
    assert {row["name"]: row["running"] for row in json.loads(said.stdout)["processes"]} == dict.fromkeys(ORDER, True)
    said = CliRunner().invoke(app, ["cluster", "status", "--dir", str(cluster.folder)])
    assert f"export KUBECONFIG={cluster.kubeconfig}" in said.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["status"], 3, "no cluster in"),
        (["down"], 0, "no cluster in"),
        (["start", "kueue"], 1, "error: there is no local cluster in"),
        (["stop", "kubelet"], 1, "error: no process is called kubelet"),
        (["up", "--feature-gate", "AdmissionGatedBy"], 2, "want NAME=true or NAME=false"),
    ],
)
def test_commands_say_what_is_wrong(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    """Without a cluster, or with a wrong name, a message and an exit code; never a traceback."""
    said = CliRunner().invoke(app, ["cluster", *words, "--dir", str(tmp_path / "none")])
    assert said.exit_code == code
    assert message in said.output
    assert "Traceback" not in said.output


@pytest.mark.long
def test_up_and_down(tmp_path: Path) -> None:
    """``punctual cluster up`` prints one line for the shell, a second one finds it up; ``down`` leaves nothing."""
    folder = tmp_path / "new"
    cluster = LocalCluster(folder)
    try:
        for _ in range(2):
            said = CliRunner().invoke(app, ["cluster", "up", "--dir", str(folder)])
            assert said.exit_code == 0, said.output
            assert said.stdout == f"export KUBECONFIG={cluster.kubeconfig}\n"
            assert "punctual plan" in said.stderr
        processes = [status.process for status in cluster.status()]
        said = CliRunner().invoke(app, ["cluster", "down", "--dir", str(folder)])
        assert said.exit_code == 0
        assert not any(process.running() for process in processes)
        assert not folder.exists()
    finally:
        cluster.down()
