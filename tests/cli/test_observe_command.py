"""``punctual observe`` on a fake cluster: one line that says it, a table, and the same for machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from scheduler.apiserver import RESOURCES
from scheduler.cluster import KINDS
from scheduler.settings import HOUR, MINUTE
from tests.scheduler.fake_apiserver import FakeApiServer
from tests.scheduler.memory_cluster import MemoryCluster

Run = Callable[..., Result]


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    """Six hours of one queue: a long job went before an urgent one, as Kueue has it, and the urgent one was late."""
    server, cluster = FakeApiServer(), MemoryCluster()
    now = int(time.time()) * 1000
    cluster.time = now - 6 * HOUR
    cluster.queue()
    cluster.job("blocker", 4, gates="")
    cluster.admit("blocker")
    cluster.time += 10 * MINUTE
    cluster.job("long", 4, gates="", duration="2h")
    cluster.time += 10 * MINUTE
    cluster.job("urgent", 4, gates="", deadline="90m", duration="30m")
    cluster.time += 40 * MINUTE
    for job, hours in (("blocker", 0), ("long", 2), ("urgent", 0.5)):
        if job != "blocker":
            cluster.admit(job)
        cluster.time += round(hours * HOUR)
        cluster.finish(job)
    for kind in KINDS:
        for item in cluster.objects(kind).values():
            server.put(RESOURCES[kind].path(), dict(item))
    yield server
    server.stop()


@pytest.fixture
def observe(fake: FakeApiServer, tmp_path: Path) -> Run:
    """Runs ``punctual observe`` on it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{fake.port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    return lambda *words: CliRunner().invoke(app, ["observe", "--kubeconfig", str(file), *map(str, words)])


def test_one_line_and_a_table(observe: Run) -> None:
    """What was missed, what would have been, and how far a replay can be trusted."""
    result = observe()
    assert result.exit_code == 0, result.output
    line, *table = result.stdout.splitlines()
    assert line == "last 6 hours: 1 deadline missed, 0 would have been; 0 GPUs idle at the worst time"
    assert any(row.split() == ["deadlines", "missed,", "of", "1", "1", "0", "1"] for row in table)
    assert any(row.split() == ["cq:", "missed,", "of", "1", "1", "0"] for row in table)
    assert "team/urgent" not in result.stdout
    (row,) = (row for row in observe("-o", "wide").stdout.splitlines() if row.startswith("team/"))
    assert row.split()[:2] == ["team/urgent", "cq"]
    assert row.count("LATE") == 1
    assert "no queue is observed" in result.stderr
    assert "name the ledger with --ledger" in result.stderr


def test_for_machines(observe: Run, tmp_path: Path) -> None:
    """The same as JSON; by a policy of a file too, whose defaults count."""
    told = json.loads(observe("-o", "json").stdout)
    assert (told["deadlines"], told["real"]["missed"], told["planned"]["missed"]) == (1, 1, 0)
    (job,) = told["jobs"]
    assert (job["name"], job["clusterQueue"], job["missed"], job["missedByPlan"]) == ("team/urgent", "cq", True, False)
    assert job["endedByPlan"] < job["deadline"] < job["ended"]
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nmode: observe\ndefaults: {deadline: 65m}\n")
    told = json.loads(observe("-o", "json", "--policy", policy).stdout)
    assert (told["deadlines"], told["real"]["missed"]) == (3, 2)
    assert not any("no queue is observed" in remark for remark in told["remarks"])


def test_a_shorter_window(observe: Run) -> None:
    """Deadlines before the window do not count."""
    told = json.loads(observe("-o", "json", "--window", "1h").stdout)
    assert told["deadlines"] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--window", "7"], 2, "has no unit"),
        (["--ledger", "/no/such/file"], 1, "there is no ledger at /no/such/file"),
        (["--policy", "/no/such/file"], 1, "cannot be read"),
    ],
)
def test_wrong_usage(observe: Run, words: list[str], code: int, message: str) -> None:
    """What cannot be read is said."""
    result = observe(*words)
    assert (result.exit_code, message in result.stderr) == (code, True)


def test_no_cluster(tmp_path: Path) -> None:
    """Without a cluster that is said, with 2."""
    result = CliRunner().invoke(app, ["observe", "--kubeconfig", str(tmp_path / "missing")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no cluster to talk to")
