"""``punctual outcome``, on a fake apiserver and on a ledger."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.outcome import outcome
from scheduler.ledger import Ledger, Verdict
from tests.advisor.fake_verdicts import JOBS, WORKLOADS, Verdicts
from tests.advisor.work import work
from tests.scheduler.fake_apiserver import Refusal

app = typer.Typer()
app.command()(outcome)

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-results"


@pytest.fixture
def cluster() -> Iterator[Verdicts]:
    """A finished Job ``done`` and a running one ``runs``, in namespace ``team``."""
    fake = Verdicts()
    yield fake
    fake.stop()


@pytest.fixture
def punctual(cluster: Verdicts, tmp_path: Path) -> Callable[..., Result]:
    """Runs a command on the fake cluster."""
    file = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{cluster.port}"}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "team"}}],
    }
    file.write_text(json.dumps(config))
    return lambda *words: CliRunner().invoke(app, [*words, "--kubeconfig", str(file)], env={"PUNCTUAL_SUCCESS": ""})


def annotations(cluster: Verdicts, name: str = "done") -> dict[str, str]:
    """What is said on a Job."""
    found = cluster.objects[JOBS][f"team/{name}"]["metadata"].get("annotations") or {}
    return {key.removeprefix("punctual.kueue/"): text for key, text in found.items() if "verdict" in key}


def success(folder: Path, program: str, threshold: float = 0.8) -> Path:
    """A success.yaml whose judge is a Python program."""
    (folder / "judge.py").write_text(program)
    judge = {"kind": "command", "command": [sys.executable, str(folder / "judge.py")], "timeout": "5s"}
    task = {"match": {"namespace": "team"}, "quality": {"judge": judge, "threshold": threshold}}
    file = folder / "success.yaml"
    file.write_text(json.dumps({"version": 1, "tasks": {"all": task}}))
    return file


def test_a_verdict_is_written_with_who_and_why(cluster: Verdicts, punctual: Callable[..., Result]) -> None:
    """By the name that the cluster knows us by; saying it again changes nothing."""
    result = punctual("done", "verified", "--reason", "looked at it")
    assert (result.exit_code, result.stdout) == (0, "recorded: team/done verified: looked at it\n"), result.output
    said = {"verdict": "verified", "verdict-by": "carol", "verdict-reason": "looked at it"}
    assert annotations(cluster) == said
    again = punctual("done", "verified", "--reason", "looked at it", "-o", "json")
    assert json.loads(again.stdout)["done"] == "unchanged"
    assert cluster.count("PATCH", "/apis/batch/v1/namespaces/team/jobs/done") == 1
    punctual("done", "rejected", "--reason", "labels were wrong")
    assert annotations(cluster)["verdict"] == "rejected"


def test_who_may_not_is_told(cluster: Verdicts, punctual: Callable[..., Result]) -> None:
    """In the words of the admission policy."""

    def forbid(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refusal(
                403, 'carol may not say whether the result counts (that takes the RBAC verb "verify" on jobs)'
            )

    cluster.hooks.append(forbid)
    result = punctual("done", "verified", "--reason", "mine")
    assert result.exit_code == 1
    assert 'RBAC verb "verify" on jobs' in result.stderr
    assert annotations(cluster) == {}


def test_who_may_not_is_told_without_the_guard_too(cluster: Verdicts, punctual: Callable[..., Result]) -> None:
    """The right is asked for before anything is written."""
    cluster.users["secret"] = ("carol", False)
    result = punctual("done", "verified", "--reason", "mine")
    assert result.exit_code == 1
    assert 'carol may not say whether the result counts (that takes the RBAC verb "verify" on jobs)' in result.stderr
    assert annotations(cluster) == {}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["runs", "verified", "-r", "x"], 1, "Job team/runs has not ended"),
        (["gone", "verified", "-r", "x"], 1, "there is no Job gone in namespace team; of work whose object is gone"),
        (["done"], 2, "say verified or rejected, or let the judge say it"),
        (["done", "verified"], 2, "--reason: say why; it is kept beside the verdict"),
        (["done", "verified", "-r", " "], 2, "--reason: say why; it is kept beside the verdict"),
        (["done", "verified", "-r", "x" * 1001], 2, "at most 1000"),
        (["done", "verified", "--judge"], 2, "not both"),
        (["done", "--judge"], 2, "--success success.yaml"),
        (["done", "verified", "-r", "x", "--kind", "Deployment"], 2, "Deployment is not judged"),
        (["done", "verified", "-r", "x", "--ledger", "ledger.db"], 2, "say the namespace"),
    ],
)
def test_what_cannot_be_judged_is_said(
    cluster: Verdicts, punctual: Callable[..., Result], words: list[str], code: int, said: str
) -> None:
    """And nothing is written."""
    result = punctual(*words)
    assert (result.exit_code, said in result.stderr.replace("\n│ ", "")) == (code, True), result.output
    assert annotations(cluster) == annotations(cluster, "runs") == {}


def test_a_workload_that_only_claims_to_belong_to_it_does_not_end_it(
    cluster: Verdicts, punctual: Callable[..., Result]
) -> None:
    """Anybody can write Kueue's label; what counts is the owner."""
    done, runs = (cluster.objects[JOBS][f"team/{name}"]["metadata"]["uid"] for name in ("done", "runs"))
    (forged,) = (
        item
        for item in cluster.objects[WORKLOADS].values()
        if item["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == done
    )
    labels = {"kueue.x-k8s.io/job-uid": runs}
    metadata = {
        **forged["metadata"],
        "name": "forged",
        "uid": "f",
        "labels": labels,
        "creationTimestamp": "2099-01-01T00:00:00Z",
    }
    cluster.put(WORKLOADS, {**forged, "metadata": metadata})
    assert "has not ended" in punctual("runs", "verified", "-r", "x").stderr


def test_of_a_job_the_job_is_judged_and_of_a_pod_its_workload(
    cluster: Verdicts, punctual: Callable[..., Result]
) -> None:
    """The ledger reads verdicts of kinds that it does not follow on their Workloads."""
    (key,) = (
        key
        for key, item in cluster.objects[WORKLOADS].items()
        if item["metadata"]["ownerReferences"][0]["name"] == "done"
    )
    name = key.partition("/")[2]
    refused = punctual(name, "verified", "-r", "x", "--kind", "workload")
    assert "belongs to Job done: judge that one (--kind Job)" in refused.stderr
    item = cluster.objects[WORKLOADS][key]
    owner = {**item["metadata"]["ownerReferences"][0], "kind": "Pod", "apiVersion": "v1", "name": "chat-0"}
    cluster.put(WORKLOADS, {**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}})
    assert punctual(name, "verified", "-r", "x", "--kind", "workload").exit_code == 0
    assert cluster.objects[WORKLOADS][key]["metadata"]["annotations"]["punctual.kueue/verdict-by"] == "carol"


@pytest.mark.parametrize(("score", "verdict", "code"), [(0.8, "verified", 0), (0.79, "rejected", 3)])
def test_the_judge_says_it_by_the_threshold(
    cluster: Verdicts, punctual: Callable[..., Result], tmp_path: Path, score: float, verdict: str, code: int
) -> None:
    """It reads the work as the ledger exports it; what it gives is recorded with its score."""
    program = f"import json, sys\nassert json.loads(sys.stdin.readline())['name'] == 'done'\nprint({score})\n"
    result = punctual("done", "--judge", "--success", str(success(tmp_path, program)))
    assert result.exit_code == code, result.output
    assert annotations(cluster) == {
        "verdict": verdict,
        "verdict-by": "carol",
        "verdict-reason": f"score {score:g}, threshold 0.8 (task all)",
    }


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('no model')", "failed with exit code 1: no model; nothing is recorded"),
        ("print('good')", "a score is a number from 0 to 1; nothing is recorded"),
        ("print(1.5)", "a score is a number from 0 to 1"),
        ("print('nan')", "a score is a number from 0 to 1"),
        ("pass", "wrote 0 scores"),
    ],
)
def test_a_judge_that_does_not_judge_has_not_judged(
    cluster: Verdicts, punctual: Callable[..., Result], tmp_path: Path, program: str, said: str
) -> None:
    """Nothing is recorded, and it is said why."""
    result = punctual("done", "--judge", "--success", str(success(tmp_path, program)))
    assert (result.exit_code, said in result.stderr) == (1, True), result.output
    assert annotations(cluster) == {}


def test_work_whose_object_is_gone_is_judged_in_the_ledger(tmp_path: Path) -> None:
    """By who can write to it; the newest of that name; what has not ended is not judged."""
    dsn = str(tmp_path / "ledger.db")
    first, second = work("a", ((0, 1),)), replace(work("a", ((2, 3),)), uid="second")
    with Ledger(dsn).open() as ledger:
        ledger.write([first, second, work("b", ((0, None),), outcome=None)])

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--ledger", dsn, "-n", "team"], env={"PUNCTUAL_SUCCESS": ""})

    assert run("a", "verified", "-r", "fine", "--dry-run").stdout == "would be recorded: team/a verified: fine\n"
    assert run("a", "verified", "-r", "fine").stdout == "recorded: team/a verified: fine\n"
    assert run("a", "verified", "-r", "fine").stdout == "said before: team/a verified: fine\n"
    assert "team/b has not ended" in run("b", "verified", "-r", "x").stderr
    assert "nothing of the name c" in run("c", "verified", "-r", "x").stderr
    with Ledger(dsn).open_for_reading() as ledger:
        said = {entry.uid: entry.judgements for entry in ledger.recent(details=True)}
    (judgement,) = said["second"]
    assert (judgement.verdict, judgement.reason) == (Verdict.VERIFIED, "fine")
    assert judgement.by.startswith("ledger:")
    assert said[first.uid] == ()


def test_the_example_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/05-results: its judge finds the artefact of the work by its name, and verifies it."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with Ledger("ledger.db").open() as ledger:
        ledger.write([work("eval-11f3", namespace="speech", stem="eval")])
    words = ["eval-11f3", "-n", "speech", "--judge", "--success", "success.yaml", "--ledger", "ledger.db"]
    result = CliRunner().invoke(app, words)
    assert result.stdout == "recorded: speech/eval-11f3 verified: score 0.93, threshold 0.9 (task evaluation)\n", (
        result.output
    )
