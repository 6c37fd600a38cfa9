"""``punctual policy`` and ``punctual plan --policy``: on files, and on a fake cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cli.main import app
from scheduler.apiserver import RESOURCES
from scheduler.cluster import KINDS
from scheduler.policy import read_policy, schema
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal
from tests.scheduler.memory_cluster import MemoryCluster

Run = Callable[..., Result]
CONFIG_MAPS = "/api/v1/configmaps"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """A cluster that ``$KUBECONFIG`` leads to, with a queue and two jobs that wait."""
    server, cluster = FakeApiServer(), MemoryCluster()
    cluster.queue()
    cluster.job("plain")
    cluster.job("greedy", weight="50", deadline="3h")
    for kind in KINDS:
        for item in cluster.objects(kind).values():
            server.put(RESOURCES[kind].path(), dict(item))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    yield server
    server.stop()


def run(*words: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], input=stdin)


@pytest.fixture
def live(fake: FakeApiServer, tmp_path: Path) -> Run:
    """Runs a command on the fake cluster."""
    return lambda *words: run(*words, "--kubeconfig", tmp_path / "kubeconfig")


def write(folder: Path, text: str, name: str = "policy.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def put(fake: FakeApiServer, name: str, text: str) -> None:
    metadata = {"name": name, "namespace": "punctual-system"}
    fake.put(CONFIG_MAPS, {"metadata": metadata, "data": {"policy.yaml": text}})


def test_check(tmp_path: Path) -> None:
    """A good policy is ok (0); of a bad one every mistake is told with file, line and path (1); also for machines."""
    good = run("policy", "check", write(tmp_path, "version: 1\nmode: observe\n"))
    assert (good.exit_code, "mode observe" in good.stdout) == (0, True)
    file = write(tmp_path, "version: 1\nmode: maybe\nageing: 3\n")
    bad = run("policy", "check", file)
    assert bad.exit_code == 1
    assert f"{file}:2: mode: is 'maybe'; must be 'enforce' or 'observe'" in bad.stderr
    assert f'{file}:3: ageing: "3" has no unit' in bad.stderr
    told = json.loads(run("policy", "check", file, "-o", "json").stdout)
    assert [mistake["path"] for mistake in told["mistakes"]] == ["mode", "ageing"]
    assert run("policy", "check", "-", stdin="version: 1").exit_code == 0
    missing = run("policy", "check", tmp_path / "missing")
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (1, True)


def test_the_example_of_the_manifests_is_a_policy() -> None:
    """What ``manifests/policy`` applies can be used, and observes: it is how teams start."""
    result = run("policy", "check", ROOT / "manifests" / "policy" / "policy.yaml")
    assert (result.exit_code, "mode observe" in result.stdout) == (0, True)


def test_schema() -> None:
    """The JSON Schema is printed, and the table of the documentation."""
    assert json.loads(run("policy", "schema").stdout) == schema()
    assert "| `mode` |" in run("policy", "schema", "-o", "markdown").stdout


def test_show_prints_what_is_in_force(fake: FakeApiServer, live: Run) -> None:
    """The defaults; what is written before a controller has read it; what is in force, whatever bad is written."""
    shown = live("policy", "show")
    assert shown.exit_code == 0
    assert "the defaults" in shown.stdout.splitlines()[0]
    assert yaml.safe_load(shown.stdout)["budget"] == "1s"
    metadata = {"name": "punctual-policy", "namespace": "punctual-system"}
    fake.put(CONFIG_MAPS, {"metadata": metadata, "data": {"mine.yaml": "version: 1"}})
    assert "has no key policy.yaml (it has: mine.yaml)" in live("policy", "show").stderr
    put(fake, "punctual-policy", "version: 1\nbudget: 2s\n")
    shown = live("policy", "show")
    assert yaml.safe_load(shown.stdout)["budget"] == "2s"
    assert "no controller has taken it up yet" in shown.stderr
    put(fake, "punctual-in-force", "version: 1\nbudget: 2s\n")
    put(fake, "punctual-policy", "version: 1\nbudget: soon\n")
    told: dict[str, Any] = json.loads(live("policy", "show", "-o", "json").stdout)
    assert told["policy"]["budget"] == "2s"
    assert told["source"] == "ConfigMap punctual-system/punctual-in-force"
    assert "the last good one goes on" in told["remarks"][0]
    assert read_policy(json.dumps(told["policy"]))


def test_show_without_rights(fake: FakeApiServer, live: Run) -> None:
    """Who may not read the ConfigMaps is told so, and sees the defaults."""

    def refuse(method: str, path: str) -> None:
        if "configmaps" in path:
            raise Refusal(403, "you may not")

    fake.hooks.append(refuse)
    shown = live("policy", "show")
    assert shown.exit_code == 0
    assert "you may not" in shown.stderr


def test_diff_of_files(tmp_path: Path) -> None:
    """Two files are compared field by field; 3 on request when something changes."""
    old, new = write(tmp_path, "version: 1"), write(tmp_path, "version: 1\nmode: observe\nweights: {cap: 3}\n", "new")
    compared = run("policy", "diff", new, "--from", old, "--exit-code")
    assert compared.exit_code == 3
    assert compared.stdout.splitlines() == ["mode: enforce -> observe", "weights.cap: 1e+09 -> 3"]
    same = run("policy", "diff", old, "--from", write(tmp_path, "{mode: enforce, version: 1}", "same"), "--exit-code")
    assert (same.exit_code, "says the same" in same.stdout) == (0, True)


def test_diff_says_whom_it_touches(fake: FakeApiServer, live: Run, tmp_path: Path) -> None:
    """Jobs that wait now are named with what changes for them, by queue; so is a queue that is not there."""
    file = write(
        tmp_path,
        "version: 1\nclusterQueues:\n  cq: {weights: {cap: 3}, defaults: {deadline: 8h}}\n  typo: {mode: observe}\n",
    )
    said = live("policy", "diff", file).stdout
    assert "clusterQueues.cq.weights.cap: 3 (was not written)" in said
    assert "ClusterQueue cq: has another weight (1 job: team/greedy: 50 -> 3)" in said
    assert "ClusterQueue cq: has another deadline (1 job: team/plain: none -> 2027-01-15T16:00:00Z)" in said
    assert "ClusterQueue typo: is not in the cluster" in said
    file = write(tmp_path, "version: 1\nmode: observe\n")
    told = json.loads(live("policy", "diff", file, "-o", "json").stdout)
    assert told["changes"] == [{"path": "mode", "old": "enforce", "new": "observe"}]
    assert {touch["what"]: touch["jobs"] for touch in told["touches"]} == {
        "new work does not wait for us any more": [],
        "waiting work is let go at once, Kueue alone decides": ["team/greedy", "team/plain"],
    }
    put(fake, "punctual-in-force", "version: 1\nmode: observe\n")
    assert "says the same" in live("policy", "diff", file).stdout


def test_no_cluster(tmp_path: Path) -> None:
    """Without a cluster that is said, with 2."""
    for words in (["show"], ["diff", write(tmp_path, "version: 1")]):
        result = run("policy", *words, "--kubeconfig", tmp_path / "missing")
        assert result.exit_code == 2
        assert result.stderr.startswith("error: no cluster to talk to")


def test_plan_goes_by_a_policy(fake: FakeApiServer, live: Run, tmp_path: Path) -> None:
    """``plan --policy`` plans by it, enforced; a live cluster's plan by the one in force; a bad one ends with 1."""
    jobs = ROOT / "examples" / "03-mistakes"
    file = write(tmp_path, "version: 1\nmode: observe\ndefaults: {duration: 7m}\n")
    words = ["--effort", 1, "-o", "json", "--now", "2027-01-15T08:00:00Z"]

    def minutes(result: Result) -> set[int]:
        planned = [work for work in json.loads(result.stdout)["workloads"] if work["finish"]]
        return {int(work["finish"][14:16]) - int(work["start"][14:16]) for work in planned}

    assert 7 in minutes(run("plan", "-f", jobs, "--policy", file, *words))
    assert 7 not in minutes(run("plan", "-f", jobs, *words))
    put(fake, "punctual-in-force", "version: 1\ndefaults: {duration: 9m, deadline: 8h}\n")
    seen = live("plan", *words)
    assert minutes(seen) == {9}
    plain = next(work for work in json.loads(seen.stdout)["workloads"] if work["name"] == "plain")
    assert plain["deadline"] == "2027-01-15T16:00:00Z"
    assert minutes(live("plan", "--policy", file, *words)) == {7}
    bad = live("plan", "--policy", write(tmp_path, "version: 2"))
    assert (bad.exit_code, "version: is 2; must be 1" in bad.stderr) == (1, True)
