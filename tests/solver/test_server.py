"""The planner over gRPC: addresses, TLS, limits, bad input, cancelled calls, and an end in good order."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solver import service as service_module
from solver.api import planner_pb2 as pb
from solver.api.planner_pb2_grpc import PlannerStub
from solver.buckets import Flag
from solver.listening import CannotListen
from solver.plan import Plan
from solver.problem import Problem
from solver.server import Options, Server
from solver.sidecar import SidecarFailed, sidecar
from solver.verify import verify

NOW = 1_790_000_000_000
MIB = 1 << 20


def request(jobs: int = 4, gpus: int = 4) -> pb.PlanRequest:
    """Jobs of 2 GPUs and 10 s each, due when two rounds of them can be through."""
    result = pb.PlanRequest(schema=1, now_ms=NOW)
    result.budget.wall_ms = 50
    result.policy.engine = pb.GREEDY
    result.quota.resources.append("nvidia.com/gpu")
    result.quota.flavors.add(name="a100")
    group = result.quota.cluster_queues.add(name="team").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=gpus)
    result.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[2])
    result.workloads.id.extend(f"ns/job-{k}" for k in range(jobs))
    result.workloads.duration_ms.extend([10_000] * jobs)
    result.workloads.due_ms.extend([NOW + 23_000] * jobs)
    return result


@contextlib.contextmanager
def serving(options: Options, *, warm: bool = True) -> Iterator[Server]:
    server = Server(options)
    server.start()
    if warm:
        server.warm_up()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all that needs nothing special, on a socket and a port."""
    folder = tmp_path_factory.mktemp("s")
    with serving(Options((f"unix://{folder}/s", "127.0.0.1:0"), max_concurrent=2, grace=1)) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.addresses[0], [("grpc.max_send_message_length", -1)]) as channel:
        yield channel


@pytest.fixture(scope="module")
def planner(channel: grpc.Channel) -> PlannerStub:
    return PlannerStub(channel)


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """The status that a call ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code(), raised.value.details() or ""


def health(channel: grpc.Channel, name: str = "") -> int:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name)).status


def soon(what: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


# What goes well -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [0, 1], ids=["unix socket", "tcp"])
def test_plans_on_every_address(server: Server, address: int) -> None:
    """A plan comes back over a socket and over TCP: verified, valued, timed, and final."""
    with grpc.insecure_channel(server.addresses[address]) as channel:
        response = PlannerStub(channel).Plan(request(), timeout=30)
    assert list(response.plan.tardiness_ms) == [0, 0, 0, 0]
    assert sorted(response.plan.start_ms) == [NOW, NOW, NOW + 10_000, NOW + 10_000]
    assert verify(request(), response.plan, response.objective) == []
    assert response.final
    assert response.objective.engine.startswith("greedy/")
    assert min(getattr(response.timing, f"{part}_us") for part in ("decode", "solve", "verify", "encode")) > 0


def test_streams_plans_and_marks_the_last(planner: PlannerStub) -> None:
    """A stream has verified plans, none worse than the one before; the last, and only it, is final."""
    asked = request(jobs=9)
    asked.policy.engine = pb.ENGINE_UNSPECIFIED
    responses = list(planner.PlanStream(asked, timeout=30))
    assert [response.final for response in responses] == [False] * (len(responses) - 1) + [True]
    late = [response.objective.levels[0].value for response in responses]
    assert late == sorted(late, reverse=True)
    assert all(verify(asked, response.plan, response.objective) == [] for response in responses)


def test_verifies_plans(planner: PlannerStub) -> None:
    """Verify says yes to a sound plan, and what is wrong with another."""
    plan = planner.Plan(request(), timeout=30).plan
    assert planner.Verify(pb.VerifyRequest(request=request(), plan=plan)).valid
    plan.start_ms[-1] -= 10_000
    plan.finish_ms[-1] -= 10_000
    answer = planner.Verify(pb.VerifyRequest(request=request(), plan=plan))
    assert not answer.valid
    assert "starts without quota" in answer.violations[0].message


def test_same_seed_same_plan(planner: PlannerStub) -> None:
    """Two calls with the same request, seed and work limit give the same plan."""
    asked = request(jobs=7)
    asked.policy.engine = pb.ENGINE_UNSPECIFIED
    asked.budget.CopyFrom(pb.Budget(work_limit=1))
    first, second = (planner.Plan(asked, timeout=60).plan for _ in range(2))
    assert first == second


def test_health_and_reflection(server: Server, channel: grpc.Channel) -> None:
    """Health serves under both names, reflection lists the services, an unknown name is not found."""
    assert health(channel) == health(channel, "punctual.planner.v1.Planner") == health_pb2.HealthCheckResponse.SERVING
    assert refusal(lambda: health(channel, "nobody"))[0] == grpc.StatusCode.NOT_FOUND
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]))
    names = {service.name for service in answer.list_services_response.service}
    assert names >= {"punctual.planner.v1.Planner", "grpc.health.v1.Health"}


def test_serves_only_after_warm_up(tmp_path: Path) -> None:
    """Until its kernels are ready a server says NOT_SERVING, and refuses calls as something to try again."""
    with (
        serving(Options((f"unix://{tmp_path}/s",), grace=1), warm=False) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
    ):
        assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert refusal(lambda: PlannerStub(channel).Plan(request()))[0] == grpc.StatusCode.UNAVAILABLE
        server.warm_up()
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        assert PlannerStub(channel).Plan(request(), timeout=30).final


# Bad input ------------------------------------------------------------------------------------------------------------


def test_unknown_schema(planner: PlannerStub) -> None:
    """A revision of the contract that the server does not know is a failed precondition of the field "schema"."""
    asked = request()
    asked.schema = 7
    code, message = refusal(lambda: planner.Plan(asked))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert message.startswith("schema: ")


def google_rpc() -> tuple[Any, Any]:
    """The message types google.rpc.Status and google.rpc.BadRequest, as googleapis has them."""
    file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="google.rpc", syntax="proto3")
    file.dependency.append(any_pb2.DESCRIPTOR.name)
    field = descriptor_pb2.FieldDescriptorProto

    def message(where: Any, name: str, *fields: tuple[str, int, str]) -> Any:
        result = where.add(name=name)
        for number, (field_name, kind, type_name) in enumerate(fields, 1):
            label = field.LABEL_REPEATED if type_name else field.LABEL_OPTIONAL
            result.field.add(name=field_name, number=number, type=kind, type_name=type_name or None, label=label)
        return result

    text = field.TYPE_STRING
    several = (field.TYPE_MESSAGE, ".google.protobuf.Any")
    message(file.message_type, "Status", ("code", field.TYPE_INT32, ""), ("message", text, ""), ("details", *several))
    violations = ("field_violations", field.TYPE_MESSAGE, ".google.rpc.BadRequest.FieldViolation")
    bad_request = message(file.message_type, "BadRequest", violations)
    message(bad_request.nested_type, "FieldViolation", ("field", text, ""), ("description", text, ""))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    names = ("google.rpc.Status", "google.rpc.BadRequest")
    return tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)  # type: ignore


def test_invalid_requests_name_the_field(planner: PlannerStub) -> None:
    """A table that makes no sense: INVALID_ARGUMENT with the field's path, in words and as google.rpc.BadRequest."""
    asked = request()
    asked.workloads.weight.append(1)
    with pytest.raises(grpc.RpcError) as raised:
        planner.Plan(asked)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details().startswith("workloads.weight: ")
    status_type, bad_request_type = google_rpc()
    status = status_type.FromString(dict(raised.value.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], raised.value.details())
    bad_request = bad_request_type()
    assert status.details[0].Unpack(bad_request)
    (violation,) = bad_request.field_violations
    assert violation.field == "workloads.weight"
    assert status.message == f"{violation.field}: {violation.description}"


def test_long_names_do_not_burst_the_status(planner: PlannerStub) -> None:
    """However long what is wrong may be, its status fits what a gRPC client takes."""
    asked = request()
    asked.workloads.id[0] = asked.workloads.id[1] = "🚀" * 100_000
    code, message = refusal(lambda: planner.Plan(asked))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("workloads.id[1]: is '🚀🚀🚀")


def test_a_bad_row_does_not_spoil_the_others(planner: PlannerStub) -> None:
    """A weight that is no number, or an absurd duration, rejects its row with the field's path; the rest is planned."""
    asked = request(jobs=5)
    asked.workloads.weight.extend([1, float("nan"), 1, 1, 1])
    asked.workloads.duration_ms[3] = -5
    response = planner.Plan(asked, timeout=30)
    assert sorted(response.plan.workload) == [0, 2, 4]
    fields = [(r.workload, r.id, r.field, r.kind) for r in response.rejections]
    assert fields == [
        (1, "ns/job-1", "workloads.weight[1]", pb.INVALID),
        (3, "ns/job-3", "workloads.duration_ms[3]", pb.INVALID),
    ]


def test_a_message_of_64_mib(planner: PlannerStub) -> None:
    """A message at the limit is refused before it is read, as RESOURCE_EXHAUSTED; one just below it is read."""
    asked = request()
    asked.quota.flavors[0].name = "f" * (64 * MIB - asked.ByteSize() - 12)
    asked.quota.flavors[0].name += "f" * (64 * MIB - asked.ByteSize())
    assert asked.ByteSize() == 64 * MIB
    code, message = refusal(lambda: planner.Plan(asked))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in message
    asked.quota.flavors[0].name = asked.quota.flavors[0].name[1:]
    assert planner.Plan(asked, timeout=60).final


def test_requests_that_are_no_messages(channel: grpc.Channel) -> None:
    """Bytes that cannot be parsed end in a status, and the server goes on."""
    call = channel.unary_unary("/punctual.planner.v1.Planner/Plan", None, None)
    assert refusal(lambda: call(b"\xff\xff\xff"))[0] == grpc.StatusCode.INTERNAL
    assert PlannerStub(channel).Plan(request(), timeout=30).final


# When things go wrong -------------------------------------------------------------------------------------------------


class Endless:
    """A planner that has a first plan at once and then looks for a better one until it is told to stop."""

    def __init__(self) -> None:
        self.started, self.stopped = threading.Event(), threading.Event()
        self.budgets: list[pb.Budget] = []
        self._plans = service_module.plans

    def __call__(self, problem: Problem, policy: pb.Policy, budget: pb.Budget, seed: int, stop: Flag) -> Iterator[Plan]:
        self.budgets.append(budget)
        yield next(iter(self._plans(problem, policy, budget, seed, stop)))
        self.started.set()
        while not stop[0]:
            time.sleep(0.005)
        self.stopped.set()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    planner = Endless()
    monkeypatch.setattr(service_module, "plans", planner)
    return planner


def test_a_cancelled_call_stops_solving(server: Server, planner: PlannerStub, endless: Endless) -> None:
    """When a client goes away its call's stop flag is set, and its place is free again."""
    call = planner.Plan.future(request())
    assert endless.started.wait(30)
    assert server.service.in_flight == 1
    call.cancel()
    assert endless.stopped.wait(10)
    soon(lambda: server.service.in_flight == 0)


def test_a_cancelled_stream_stops_solving(server: Server, planner: PlannerStub, endless: Endless) -> None:
    """The same for a stream whose client has seen enough."""
    call = planner.PlanStream(request())
    assert not next(call).final
    assert endless.started.wait(30)
    call.cancel()
    assert endless.stopped.wait(10)
    soon(lambda: server.service.in_flight == 0)


def test_a_deadline_brings_the_plan_in_time(planner: PlannerStub, endless: Endless) -> None:
    """Solving ends early enough before the call's deadline to verify and send what there is, whatever the budget."""
    asked = request()
    asked.budget.wall_ms = 3_600_000
    assert planner.Plan(asked, timeout=4).plan.workload
    assert endless.stopped.is_set()
    assert 0 < endless.budgets[0].wall_ms <= 4_000


def test_too_many_calls_are_refused(server: Server, planner: PlannerStub, endless: Endless) -> None:
    """Above the limit a call waits for a moment and is then refused, with what to do; the others go on."""
    running = [planner.Plan.future(request()) for _ in range(2)]
    soon(lambda: server.service.in_flight == 2)
    code, message = refusal(lambda: planner.Plan(request()))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2 calls" in message
    assert "--max-concurrent" in message
    server.service.hurry()
    assert all(call.result(30).final for call in running)
    assert planner.Plan(request(), timeout=4).final


def test_a_call_that_waited_gets_its_turn(server: Server, planner: PlannerStub, endless: Endless) -> None:
    """A place that becomes free within the patience goes to who waits for it."""
    running = [planner.Plan.future(request()) for _ in range(2)]
    soon(lambda: server.service.in_flight == 2)
    waiting = planner.Plan.future(request(), timeout=20)
    time.sleep(0.1)
    assert not waiting.done()
    server.service.hurry()
    assert all(call.result(30).final for call in running)
    soon(lambda: server.service.in_flight == 1)
    server.service.hurry()
    assert waiting.result(30).final


def too_early(plan: Plan) -> Plan:
    """A plan that nobody may see: everything starts at once."""
    return replace(plan, start=0 * plan.start)


def test_a_plan_that_fails_the_verifier_is_never_sent(
    server: Server, planner: PlannerStub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a planner goes wrong the plan before it is sent, and the log says so; bad plans are counted."""
    plans = service_module.plans

    def wrong(*args: Any) -> Iterator[Plan]:
        for good in plans(*args):
            yield good
        yield replace(too_early(good), engine="broken")

    monkeypatch.setattr(service_module, "plans", wrong)
    before = server.service.bad_plans
    response = planner.Plan(request(), timeout=30)
    assert verify(request(), response.plan, response.objective) == []
    streamed = list(planner.PlanStream(request(), timeout=30))
    assert [verify(request(), response.plan) for response in streamed] == [[]] * len(streamed)
    assert streamed[-1].final
    assert server.service.bad_plans == before + 2
    (record, _) = (r for r in caplog.records if r.levelname == "ERROR")
    assert record.__dict__["engine"] == "broken"
    assert "starts without quota" in record.__dict__["violations"][0]


def test_a_stream_that_nobody_reads_gives_its_place_back(server: Server, planner: PlannerStub) -> None:
    """A client that goes away between two plans of a stream leaves nothing behind."""
    call = planner.PlanStream(request())
    next(call)
    call.cancel()
    soon(lambda: server.service.in_flight == 0)


@pytest.mark.parametrize("method", ["Plan", "PlanStream"])
def test_without_a_sound_plan_the_call_fails(
    planner: PlannerStub, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """When no plan passes, the status is INTERNAL with what was wrong."""
    plans = service_module.plans
    monkeypatch.setattr(service_module, "plans", lambda *args: (too_early(plan) for plan in plans(*args)))
    call = {"Plan": planner.Plan, "PlanStream": lambda asked: list(planner.PlanStream(asked))}[method]
    code, message = refusal(lambda: call(request()))
    assert code == grpc.StatusCode.INTERNAL
    assert "starts without quota" in message


def test_the_unforeseen_has_an_id_and_a_traceback_in_the_log(
    planner: PlannerStub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a planner is INTERNAL with an id, under which the log has the traceback, and nothing of it leaks."""

    def broken(*_: Any) -> Iterator[Plan]:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(service_module, "plans", broken)
    code, message = refusal(lambda: planner.Plan(request()))
    assert code == grpc.StatusCode.INTERNAL
    assert "secret" not in message
    (record,) = (r for r in caplog.records if r.exc_info)
    assert record.__dict__["id"] in message
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


# Addresses and TLS ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nowhere", "is no address"),
        ("127.0.0.1:99999", "is no address"),
        ("192.0.2.1:1", "cannot listen"),
        ("unix:///no/such/folder/s", "is no directory"),
        ("unix:///tmp/" + "x" * 108, "107 bytes"),
        ("unix://{folder}", "no socket"),
    ],
)
def test_addresses_that_cannot_be_listened_on(tmp_path: Path, address: str, words: str) -> None:
    """Each says what is wrong with it."""
    with pytest.raises(CannotListen, match=words):
        Server(Options((address.format(folder=tmp_path),)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"certificate": "ca.key"}, "certificate .*ca.key and key .*server.key cannot be used"),
        ({"key": "client.key"}, "certificate .*server.crt and key .*client.key cannot be used"),
        ({"client_ca": "ca.key"}, "client CA .*ca.key cannot be used"),
    ],
)
def test_tls_files_that_cannot_be_used(certificates: Certificates, given: dict[str, str], words: str) -> None:
    """A file that is no certificate, or not the key's, is what is said to be wrong, and not the address."""
    files = {"certificate": "server.crt", "key": "server.key", "client_ca": "ca.crt"} | given
    with pytest.raises(CannotListen, match=words):
        Server(Options(("127.0.0.1:0",), **{name: certificates.folder / file for name, file in files.items()}))


def test_no_address_is_taken_from_another_server(server: Server) -> None:
    """A port and a socket on which somebody listens are not taken over."""
    for address in server.addresses:
        with pytest.raises(CannotListen, match=r"taken|another server"):
            Server(Options((address,)))


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """What a killed server left in the file system does not keep the next one from starting."""
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "s"))
    with (
        serving(Options((f"unix://{tmp_path}/s",), grace=1)) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
    ):
        assert PlannerStub(channel).Plan(request(), timeout=30).final


class Certificates:
    """A CA and what it signed, made by openssl. ``other`` is signed by itself alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        self._openssl("req", "-x509", "-subj", "/CN=other", "-keyout", "other.key", "-out", "other.crt")
        for name in ("server", "client"):
            names = ["-addext", "subjectAltName=DNS:localhost"]
            signed = ["-CA", "ca.crt", "-CAkey", "ca.key"]
            out = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
            self._openssl("req", "-x509", "-subj", f"/CN={name}", *names, *signed, *out)

    def _openssl(self, *arguments: str) -> None:
        options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command = ["openssl", *arguments, *options]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def channel(self, address: str, who: str | None) -> grpc.Channel:
        """A channel of who shows this certificate, or none."""
        pair = [(self.folder / f"{who}.{end}").read_bytes() if who else None for end in ("key", "crt")]
        credentials = grpc.ssl_channel_credentials((self.folder / "ca.crt").read_bytes(), *pair)
        return grpc.secure_channel(address.replace("127.0.0.1", "localhost"), credentials)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_tls(certificates: Certificates) -> None:
    """With a certificate the server speaks TLS, and not without."""
    folder = certificates.folder
    options = Options(("127.0.0.1:0",), certificate=folder / "server.crt", key=folder / "server.key", grace=1)
    with serving(options) as server:
        with certificates.channel(server.addresses[0], None) as channel:
            assert PlannerStub(channel).Plan(request(), timeout=30).final
        with grpc.insecure_channel(server.addresses[0]) as channel:
            assert refusal(lambda: PlannerStub(channel).Plan(request(), timeout=5))[0] == grpc.StatusCode.UNAVAILABLE


def test_mtls(certificates: Certificates) -> None:
    """With a client CA only its own clients are served: not those without a certificate, nor with another's."""
    folder = certificates.folder
    options = Options(
        ("127.0.0.1:0",),
        certificate=folder / "server.crt",
        key=folder / "server.key",
        client_ca=folder / "ca.crt",
        grace=1,
    )
    with serving(options) as server:
        with certificates.channel(server.addresses[0], "client") as channel:
            assert PlannerStub(channel).Plan(request(), timeout=30).final
        for who in (None, "other"):
            with certificates.channel(server.addresses[0], who) as channel:
                code, _ = refusal(lambda: PlannerStub(channel).Plan(request(), timeout=5))
                assert code == grpc.StatusCode.UNAVAILABLE


# The end --------------------------------------------------------------------------------------------------------------


def test_a_stop_lets_calls_under_way_finish(tmp_path: Path, endless: Endless) -> None:
    """A server that stops takes no more calls, and has those under way send what they have before the grace ends."""
    with (
        serving(Options((f"unix://{tmp_path}/s",), grace=2)) as server,
        grpc.insecure_channel(server.addresses[0]) as channel,
        ThreadPoolExecutor(1) as thread,
    ):
        call = PlannerStub(channel).Plan.future(request())
        assert endless.started.wait(30)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stopping = thread.submit(server.stop)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert refusal(lambda: PlannerStub(channel).Plan(request()))[0] == grpc.StatusCode.UNAVAILABLE
        assert call.result(30).final
        stopping.result(30)


def test_the_process(tmp_path: Path) -> None:
    """``punctual solver`` says where it is ready, plans, logs JSON, and ends with 0 when told to."""
    command = [sys.executable, "-c", "from cli.main import main; main()", "solver", "--log-format", "json"]
    process = subprocess.Popen(
        [*command, "--listen", f"unix://{tmp_path}/s", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"punctual solver: ready on unix://{tmp_path}/s 127.0.0.1:")
    with grpc.insecure_channel(line.split()[-1]) as channel:
        assert PlannerStub(channel).Plan(request(), timeout=30).final
    check = [*command[:-2], "--check"]
    assert subprocess.run([*check, f"unix://{tmp_path}/s"], check=False).returncode == 0
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    planned = next(line for line in lines if line["message"] == "planned")
    assert planned["workloads"] == 4
    assert planned["ms"].keys() == {"decode", "solve", "verify", "encode"}
    assert not (tmp_path / "s").exists()
    assert subprocess.run([*check, f"unix://{tmp_path}/s"], check=False).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nowhere"], "is no address"),
        (["--tls-cert", "/dev/null"], "belong together"),
        (["--client-ca", "/dev/null"], "needs --tls-cert"),
        (["--tls-cert", "/no/such", "--tls-key", "/no/such"], "cannot read /no/such"),
    ],
)
def test_wrong_options_are_told(arguments: list[str], words: str) -> None:
    """A solver that cannot start says why, in one line, with exit code 2."""
    with pytest.raises(SidecarFailed, match=words) as raised, sidecar(*arguments):
        pass
    assert "ended with 2" in str(raised.value)
    assert "Traceback" not in str(raised.value)


# Anything at all ------------------------------------------------------------------------------------------------------

INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_ENUM: (-1, 9),
}


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of one field: sensible ones often, the edges of its type now and then."""
    if field.type in INTEGERS:
        low, high = INTEGERS[field.type]
        near = st.integers(NOW - 10_000, NOW + 10_000) if field.name.endswith("_ms") else st.integers(0, 3)
        edges = st.sampled_from([0, 1, low, high, 1 << 20, min(high, 1 << 52)])
        return st.integers(max(low, 0), 3) | near.filter(lambda x: low <= x <= high) | edges
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return st.sampled_from([0.0, 1.0, 2.5, -1.0, float("nan"), float("inf"), 1e308])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    return st.sampled_from(["", "a", "b", "team", "ünïcode", "x" * 300])


@st.composite
def mangled(draw: st.DrawFn) -> pb.PlanRequest:
    """A sound request with a bit of everything, in which anything may have been put into any field."""
    rows = draw(st.integers(0, 6))
    result = request(jobs=rows)
    result.budget.wall_ms = 20
    quota, work = result.quota, result.workloads
    quota.cohorts.add(name="a")
    quota.cohorts.add(name="b", parent="a").quotas.add(flavor=0).resources.add(resource=0, nominal=1)
    quota.cluster_queues[0].cohort = "b"
    quota.cluster_queues.add(name="other", cohort="a").CopyFrom(quota.cluster_queues[0])
    quota.cluster_queues[1].name = "other"
    quota.cluster_queues[1].resource_groups[0].flavors[0].resources[0].borrowing_limit = 2
    result.assignments.add(flavors=[0], resources=[0], amounts=[2])
    result.reservations.add(node="team", amount=1, start_ms=NOW, end_ms=NOW + 5_000)
    work.cluster_queue.extend(k % 2 for k in range(rows))
    work.state.extend([pb.RUNNING, pb.PENDING, pb.IN_FLIGHT, pb.FOREIGN, pb.PENDING, pb.PENDING][:rows])
    work.assignment.extend([0] * rows)
    for _ in range(draw(st.integers(1, 4))):
        mangle(draw, result)
    result.budget.wall_ms = max(-1, min(result.budget.wall_ms, 50))
    result.budget.work_limit = min(result.budget.work_limit, 10)
    return result


def mangle(draw: st.DrawFn, message: Message) -> None:
    """Change one field somewhere in a message."""
    field = draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
    here = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if not field.is_repeated:
            mangle(draw, here)
        elif here and draw(st.integers(0, 3)):
            mangle(draw, here[draw(st.integers(0, len(here) - 1))])
        elif here and draw(st.booleans()):
            here.append(here[0])
        else:
            mangle(draw, here.add())
    elif not field.is_repeated:
        setattr(message, field.name, draw(values(field)))
    elif here and draw(st.integers(0, 3)):
        here[draw(st.integers(0, len(here) - 1))] = draw(values(field))
    else:
        # Columns of the workloads keep their length now and then.
        rows = len(getattr(message, "id", here)) if draw(st.booleans()) else draw(st.integers(0, 3))
        here[:] = draw(st.lists(values(field), min_size=rows, max_size=rows))


def answer(call: Callable[[], Any]) -> Any:
    """What a call returns; nothing when it ends with a status that says which field is at fault."""
    try:
        return call()
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), (code, details)
    assert ": " in details
    return None


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=mangled())
def test_whatever_is_asked_there_is_an_answer(server: Server, planner: PlannerStub, asked: pb.PlanRequest) -> None:
    """Any request gets a verified plan or a status that says what is wrong with it, before the deadline; no crash."""
    before = server.service.bad_plans
    response = answer(lambda: planner.Plan(asked, timeout=20))
    if response is None:
        return
    assert verify(asked, response.plan, response.objective) == []
    assert server.service.bad_plans == before
    planned, rejected = set(response.plan.workload), {r.workload for r in response.rejections}
    running = {row for row, state in enumerate(asked.workloads.state) if state == pb.RUNNING}
    assert not planned & rejected
    assert planned | rejected | running == set(range(len(asked.workloads.id)))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=mangled(), data=st.data())
def test_whatever_is_to_be_verified_there_is_an_answer(
    planner: PlannerStub, asked: pb.PlanRequest, data: st.DataObject
) -> None:
    """Any plan for any request gets a verdict, or a status that says what is wrong with the request."""
    plan = planner.Plan(request(), timeout=20).plan
    for _ in range(data.draw(st.integers(0, 3))):
        mangle(data.draw, plan)
    verdict = answer(lambda: planner.Verify(pb.VerifyRequest(request=asked, plan=plan), timeout=20))
    assert verdict is None or verdict.valid == (not verdict.violations)
