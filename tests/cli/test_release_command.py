"""``punctual release`` and the usage errors of ``punctual controller``, on a fake apiserver."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from scheduler.cluster import GATE, GATES_ANNOTATION
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
CREATED = "2026-12-01T00:00:00Z"


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """The controller sends all log lines to the standard error of its command, which ends with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def kubeconfig(fake: FakeApiServer, tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    context = {"cluster": "fake", "user": "me", "namespace": "team-a"}
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{fake.port}"}}],
                "users": [{"name": "me", "user": {"token": "secret"}}],
                "contexts": [{"name": "fake", "context": context}],
            }
        )
    )
    return file


@pytest.fixture
def punctual(kubeconfig: Path) -> Callable[..., Result]:
    """Runs a command on the fake cluster."""
    return lambda *words: CliRunner().invoke(app, [*words, "--kubeconfig", str(kubeconfig)])


def put(fake: FakeApiServer, name: str, gates: str | None = GATE, namespace: str = "team-a", due: str = "") -> None:
    job = a_job(name, namespace, gates, creationTimestamp=CREATED)
    if due:
        job["metadata"]["annotations"]["punctual.kueue/deadline"] = due
    fake.put(JOBS, job)


def gates(fake: FakeApiServer, name: str, namespace: str = "team-a") -> str | None:
    gates: str | None = fake.objects[JOBS][f"{namespace}/{name}"]["metadata"]["annotations"].get(GATES_ANNOTATION)
    return gates


def test_releases_one(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """A named Job of the context's namespace is released, others are not."""
    put(fake, "this")
    put(fake, "that")
    result = punctual("release", "this")
    assert (result.exit_code, result.output) == (0, "released: Job team-a/this\n")
    assert (gates(fake, "this"), gates(fake, "that")) == (None, GATE)


def test_releases_all_in_order(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """--all releases everything in all namespaces, due first, and leaves gates of others alone."""
    put(fake, "whenever")
    put(fake, "later", due="2h")
    put(fake, "soon", due="1h", namespace="team-b", gates=f"{GATE},a.example/b")
    put(fake, "not-ours", gates="a.example/b")
    result = punctual("release", "--all", "-o", "json")
    assert result.exit_code == 0
    answer = json.loads(result.output)
    assert [(each["name"], each["outcome"]) for each in answer["objects"]] == [
        ("soon", "done"),
        ("later", "done"),
        ("whenever", "done"),
    ]
    assert gates(fake, "soon", "team-b") == "a.example/b"
    assert gates(fake, "not-ours") == "a.example/b"
    again = punctual("release", "--all")
    assert (again.exit_code, again.output) == (0, "nothing waits behind our gate\n")


def test_releases_another_kind(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """--kind names what the names are, in whatever case; another object of that name is left alone."""
    path = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
    fake.kinds.add(path)
    put(fake, "this")
    fake.put(path, {**a_job("this", gates=GATE, creationTimestamp=CREATED), "kind": "JobSet"})
    result = punctual("release", "this", "--kind", "jobset")
    assert (result.exit_code, result.output) == (0, "released: JobSet team-a/this\n")
    assert gates(fake, "this") == GATE


def test_releases_all_of_one_namespace(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """--all with -n stays in that namespace."""
    put(fake, "here")
    put(fake, "there", namespace="team-b")
    assert punctual("release", "--all", "-n", "team-b").exit_code == 0
    assert (gates(fake, "here"), gates(fake, "there", "team-b")) == (GATE, None)


def test_a_dry_run_asks_and_changes_nothing(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """--dry-run lets the cluster itself say what would happen: the patch is sent as a dry run."""
    put(fake, "this")
    result = punctual("release", "--all", "--dry-run")
    assert (result.exit_code, result.output) == (0, "would be released: Job team-a/this\n")
    patches = [query for method, _, query in fake.requests if method == "PATCH"]
    assert patches == [{"dryRun": "All"}]


def test_says_what_could_not_be_released(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """One refusal does not stop the others; it is told in the cluster's words, and the exit code is 1."""
    put(fake, "good")
    put(fake, "guarded")

    def refuse(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/guarded"):
            raise Refusal(403, "needs the verb ungate on jobs")

    fake.hooks.append(refuse)
    result = punctual("release", "--all")
    assert result.exit_code == 1
    assert "released: Job team-a/good\n" in result.output
    assert "refused: Job team-a/guarded: needs the verb ungate on jobs\n" in result.output


def test_is_patient_with_a_busy_cluster(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """A release that fails for a moment (Kueue's webhook is restarting, say) is tried again."""
    put(fake, "this")
    answers = iter([500])

    def busy(method: str, path: str) -> None:
        if method == "PATCH" and (status := next(answers, None)):
            raise Refusal(status, "failed calling webhook")

    fake.hooks.append(busy)
    assert punctual("release", "this").exit_code == 0
    assert gates(fake, "this") is None


def test_a_name_that_is_not_there(fake: FakeApiServer, punctual: Callable[..., Result]) -> None:
    """An unknown name is an error that says where it was looked for, and nothing else is released either."""
    put(fake, "this")
    result = punctual("release", "this", "that")
    assert result.exit_code == 1
    assert "there is no Job that in namespace team-a; nothing was released" in result.output
    assert gates(fake, "this") == GATE


@pytest.mark.parametrize(
    "words",
    [
        ("release",),
        ("release", "x", "--all"),
        ("release", "x", "-A"),
        ("release", "--all", "-A", "-n", "y"),
        ("release", "x", "--kind", "Deployment"),
    ],
)
def test_wrong_usage(punctual: Callable[..., Result], words: tuple[str, ...]) -> None:
    """Contradictory options are refused before the cluster is asked anything."""
    assert punctual(*words).exit_code == 2


def test_plan_says_that_no_controller_runs(punctual: Callable[..., Result], fake: FakeApiServer) -> None:
    """On a live cluster: without a Lease, with one that is not held, or not renewed for long; else not a word."""
    leases, nothing = "/apis/coordination.k8s.io/v1/leases", "no controller runs"
    assert "there is no Lease punctual-system/punctual-controller" in punctual("plan").stderr
    now = datetime.now(UTC)
    for holder, renewed, said in (
        ("", now, "nobody holds"),
        ("me", now - timedelta(minutes=2), "last renewed at"),
        ("me", now, ""),
    ):
        spec = {"holderIdentity": holder, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        fake.put(leases, {"metadata": {"name": "punctual-controller", "namespace": "punctual-system"}, "spec": spec})
        result = punctual("plan")
        assert result.exit_code == 0
        assert said in result.stderr
        assert (nothing in result.stderr) == bool(said)


def test_no_cluster(tmp_path: Path) -> None:
    """A kubeconfig that is not there is told with its name, in one line, alike for all commands."""
    missing = str(tmp_path / "missing")
    for words in (["release", "--all"], ["controller", "--solver", "unix:///x", "--http", "127.0.0.1:0"], ["plan"]):
        result = CliRunner().invoke(app, [*words, "--kubeconfig", missing])
        assert result.exit_code == 2
        assert result.output.startswith("error: no cluster to talk to")
        assert missing in result.output


def test_the_controller_refuses_wrong_options(punctual: Callable[..., Result], tmp_path: Path) -> None:
    """A port in use, an address without a port, half a key pair, a missing file and a bad policy all end with 2."""
    bad = tmp_path / "policy.yaml"
    bad.write_text("version: 1\nmodus: observe\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = {
            "cannot listen": ["--http", f"127.0.0.1:{taken.getsockname()[1]}"],
            "HOST:PORT": ["--http", "8080"],
            "belong together": ["--solver-cert", str(tmp_path)],
            "cannot read": ["--solver-ca", str(tmp_path / "missing")],
            "is not known": ["--policy", str(bad)],
            "cannot read ": ["--policy", str(tmp_path / "missing.yaml")],
        }
        for message, words in cases.items():
            result = punctual("controller", "--solver", "unix:///x", *words)
            assert result.exit_code == 2, result.output
            assert message in result.output
