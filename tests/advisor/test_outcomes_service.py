"""Verdicts over gRPC: by whom a token belongs to, by the rules of ``punctual outcome``, once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from advisor.api import outcomes_pb2 as pb
from advisor.api import outcomes_pb2_grpc as rpc
from advisor.outcomes_server import Options, Server
from advisor.outcomes_service import Service
from solver.listening import CannotListen
from tests.advisor.fake_verdicts import JOBS, Verdicts
from tests.scheduler.fake_apiserver import Refusal

ROOT = Path(__file__).parents[2]
GENERATED = ("outcomes_pb2.py", "outcomes_pb2.pyi", "outcomes_pb2_grpc.py")
Code = grpc.StatusCode
Call = Callable[..., pb.RecordResponse]


@pytest.fixture
def cluster() -> Iterator[Verdicts]:
    """Where verdicts go."""
    fake = Verdicts()
    yield fake
    fake.stop()


@pytest.fixture
def server(cluster: Verdicts, tmp_path: Path) -> Iterator[Server]:
    """One that runs, and has an identity of its own that the cluster does not know."""
    server = Server(Options(f"unix://{tmp_path / 'socket'}"), Service(cluster.api()))
    server.start()
    yield server
    server.stop(0)


@pytest.fixture
def call(server: Server) -> Iterator[Call]:
    """Calls it: as carol, about ``done``, unless it is said otherwise."""
    with grpc.insecure_channel(server.address) as channel:
        stub = rpc.OutcomesStub(channel)  # type: ignore[no-untyped-call]

        def call(token: str | None = "secret", **changes: object) -> pb.RecordResponse:
            words = {"namespace": "team", "name": "done", "verdict": pb.VERIFIED, "reason": "looked at it", **changes}
            metadata = () if token is None else (("authorization", f"Bearer {token}"),)
            answer: pb.RecordResponse = stub.Record(pb.RecordRequest(**words), metadata=metadata, timeout=20)
            return answer

        yield call


def refused(call: Call, **words: object) -> tuple[grpc.StatusCode, str]:
    """With which status, and what it says."""
    with pytest.raises(grpc.RpcError) as error:
        call(**words)
    return error.value.code(), error.value.details()


def test_a_verdict_is_recorded_once_by_the_callers_name(cluster: Verdicts, call: Call) -> None:
    """The second time it is there already; another verdict comes behind it. The right is the guard's."""
    first = call()
    assert (first.recorded, first.by, first.uid) == (True, "carol", cluster.uid())
    assert cluster.said() == {"verdict": "verified", "verdict-by": "carol", "verdict-reason": "looked at it"}
    assert cluster.reviews == [{"namespace": "team", "verb": "verify", "group": "batch", "resource": "jobs"}]
    assert call().recorded is False
    assert cluster.count("PATCH", f"{JOBS.replace('/jobs', '')}/namespaces/team/jobs/done") == 1
    assert call(verdict=pb.REJECTED, reason="labels were wrong", uid=cluster.uid()).recorded
    assert cluster.said()["verdict"] == "rejected"


def test_to_ask_whether_it_could_be_records_nothing(cluster: Verdicts, call: Call) -> None:
    """The apiserver is asked to try it."""
    assert call(dry_run=True).recorded
    assert [query for method, _, query in cluster.requests if method == "PATCH"] == [{"dryRun": "All"}]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ({"token": None}, Code.UNAUTHENTICATED, 'send the metadata "authorization: Bearer TOKEN"'),
        ({"token": ""}, Code.UNAUTHENTICATED, "no token"),
        ({"token": "stolen"}, Code.UNAUTHENTICATED, "Unauthorized"),
        ({"token": "mine"}, Code.PERMISSION_DENIED, 'alice may not say .* the RBAC verb "verify" on jobs'),
        ({"name": "runs"}, Code.FAILED_PRECONDITION, "Job team/runs has not ended"),
        ({"name": "gone"}, Code.NOT_FOUND, "there is no Job gone in namespace team"),
        ({"uid": "other"}, Code.FAILED_PRECONDITION, "uid: Job team/done is another object by now"),
        ({"name": ""}, Code.INVALID_ARGUMENT, "^name: '' is no name of Kubernetes"),
        ({"name": "../../secrets"}, Code.INVALID_ARGUMENT, "^name: "),
        ({"name": ".."}, Code.INVALID_ARGUMENT, "^name: "),
        ({"namespace": "Team"}, Code.INVALID_ARGUMENT, "^namespace: 'Team'"),
        ({"kind": "Deployment"}, Code.INVALID_ARGUMENT, "^kind: Deployment is not judged: there are Job, "),
        ({"verdict": 0}, Code.INVALID_ARGUMENT, "^verdict: say VERIFIED or REJECTED"),
        ({"verdict": 7}, Code.INVALID_ARGUMENT, "^verdict: "),
        ({"reason": "  "}, Code.INVALID_ARGUMENT, "^reason: say why"),
        ({"reason": "x" * 1001}, Code.INVALID_ARGUMENT, "^reason: 1001 characters are too many"),
        ({"reason": "x" * 70_000}, Code.RESOURCE_EXHAUSTED, ""),
    ],
)
def test_who_may_not_and_what_makes_no_sense_is_refused(
    cluster: Verdicts, call: Call, words: dict[str, object], code: grpc.StatusCode, said: str
) -> None:
    """With a status that says which, and nothing is written."""
    found, told = refused(call, **words)
    assert found is code, told
    assert re.search(said, told), told
    assert cluster.said() == cluster.said("runs") == {}


def test_what_the_guard_says_is_told(cluster: Verdicts, call: Call) -> None:
    """A cluster may have rules of its own."""

    def forbid(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refusal(403, "not on Sundays")

    cluster.hooks.append(forbid)
    assert refused(call) == (Code.PERMISSION_DENIED, "not on Sundays")


def test_an_apiserver_that_is_gone_may_be_asked_again(cluster: Verdicts, call: Call) -> None:
    """Nobody is told that they may not, or that there is no such work."""
    cluster.stop()
    code, told = refused(call)
    assert (code, "no answer from" in told) == (Code.UNAVAILABLE, True)


def test_a_bug_is_told_as_one(
    cluster: Verdicts, call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its innards, which are in the log, and never a token."""
    monkeypatch.setattr("advisor.outcomes_service.find", lambda *words: 1 / 0)
    code, told = refused(call)
    assert (code, "this is a bug" in told, "division" in told) == (Code.INTERNAL, True, False)
    assert "division by zero" in caplog.text
    assert "secret" not in caplog.text


def test_it_says_that_it_serves(server: Server) -> None:
    """To probes."""
    with grpc.insecure_channel(server.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:0", "tokens would pass in the clear"),
        ("gpu-1:50052", "tokens would pass in the clear"),
        ("127.0.0.1:x", "is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("unix:///no/such/folder/socket", "is no directory"),
    ],
)
def test_where_it_does_not_listen(cluster: Verdicts, listen: str, said: str) -> None:
    """Tokens are not sent in the clear over a network."""
    with pytest.raises(CannotListen, match=said):
        Server(Options(listen), Service(cluster.api()))


def test_a_socket_of_another_stays_its_own(cluster: Verdicts, tmp_path: Path) -> None:
    """Who listens on a socket already goes on doing so, and the second one is told."""
    options = Options(f"unix://{tmp_path}/socket")
    first = Server(options, Service(cluster.api()))
    first.start()
    with pytest.raises(CannotListen, match="another server listens"):
        Server(options, Service(cluster.api()))
    first.stop()


def test_a_certificate_that_is_none_is_told(cluster: Verdicts, tmp_path: Path) -> None:
    """With its file."""
    (tmp_path / "crt").write_text("none")
    with pytest.raises(CannotListen, match=r"crt .*cannot be used"):
        Server(Options("0.0.0.0:0", tmp_path / "crt", tmp_path / "crt"), Service(cluster.api()))


def test_generated_code_is_not_stale(tmp_path: Path) -> None:
    """What is checked in is what ``make api`` makes of proto/outcomes.proto, byte for byte, and no more."""
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iadvisor/api=proto", *outputs, "advisor/api/outcomes.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    fresh = tmp_path / "advisor" / "api"
    assert sorted(file.name for file in fresh.iterdir()) == sorted(GENERATED)
    for name in GENERATED:
        assert (ROOT / "advisor" / "api" / name).read_bytes() == (fresh / name).read_bytes(), "run: make api"
