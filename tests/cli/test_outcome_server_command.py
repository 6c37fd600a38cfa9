"""``punctual outcome-server``, as a process: over TLS, with a token, until it is told to stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from advisor.api import outcomes_pb2 as pb
from advisor.api import outcomes_pb2_grpc as rpc
from advisor.outcomes_server import Options, Server
from advisor.outcomes_service import Service
from cli.main import app
from scheduler.apiserver import connect
from tests.advisor.fake_verdicts import Verdicts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of a cluster, with a token that it does not know; ``cluster`` beside it."""
    cluster = Verdicts()
    file = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{cluster.port}"}}],
        "users": [{"name": "nobody", "user": {"token": "unknown"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
    }  # fmt: skip
    file.write_text(json.dumps(config))
    yield file
    cluster.stop()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine, and its key."""
    files = folder / "tls.crt", folder / "tls.key"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    out = ("-out", str(files[0]), "-keyout", str(files[1]))
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*command, *names, *out], check=True, capture_output=True)
    return files


def test_the_example_of_the_page(tmp_path: Path, kubeconfig: Path) -> None:
    """What docs/success.md shows is accepted, over TLS."""
    crt, key = certificate(tmp_path)
    server = Server(Options("127.0.0.1:0", crt, key), Service(connect(kubeconfig)))
    server.start()
    try:
        as_shown(server.address, crt, tmp_path)
    finally:
        server.stop(0)


@pytest.mark.long
def test_it_takes_verdicts_over_tls_until_it_is_told_to_stop(tmp_path: Path, kubeconfig: Path) -> None:
    """Only those with a certificate of the CA may call; who they are their token says, not the server's kubeconfig."""
    crt, key = certificate(tmp_path)
    words = ["outcome-server", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), "--tls-cert", str(crt)]
    command = [sys.executable, "-c", "from cli.main import main; main()", *words, "--tls-key", str(key)]
    run = subprocess.Popen([*command, "--client-ca", str(crt)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert line.startswith("taking verdicts at 127.0.0.1:"), line
        address = line.split()[3].rstrip(",")
        request = pb.RecordRequest(namespace="team", name="done", verdict=pb.VERIFIED, reason="score 0.91")
        ca = crt.read_bytes()
        shown = grpc.ssl_channel_credentials(ca, key.read_bytes(), ca)
        for credentials, token, code in (
            (grpc.ssl_channel_credentials(ca), "secret", grpc.StatusCode.UNAVAILABLE),
            (shown, "unknown", grpc.StatusCode.UNAUTHENTICATED),
            (shown, "secret", None),
        ):
            found = None
            bearer = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
            with grpc.secure_channel(address, bearer) as channel:
                try:
                    answer = rpc.OutcomesStub(channel).Record(request, timeout=20)  # type: ignore[no-untyped-call]
                except grpc.RpcError as error:
                    found = error.code()
            assert found is code
        assert (answer.recorded, answer.by) == (True, "carol")
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 0
    finally:
        run.kill()
        run.wait()


def as_shown(address: str, crt: Path, folder: Path) -> None:
    """Run it, with names and places of here."""
    page = (ROOT / "docs" / "success.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "OutcomesStub" in block)
    (folder / "token").write_text("secret")
    for old, new in (
        ("ca.crt", str(crt)),
        ("/var/run/secrets/kubernetes.io/serviceaccount/token", str(folder / "token")),
        ("punctual-outcomes.punctual-system.svc:50052", address),
        ('"vision"', '"team"'),
        ('"train-28901"', '"done"'),
    ):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(code, names)
    assert (names["answer"].recorded, names["answer"].by) == (True, "carol")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "0.0.0.0:0"], "0.0.0.0:0 can be reached by others, and tokens would pass in the clear"),
        (["--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
        (["--client-ca", "x"], "--client-ca needs --tls-cert and --tls-key"),
        (
            ["--listen", "0.0.0.0:0", "--tls-cert", "/no", "--tls-key", "/no"],
            "certificate /no and key /no cannot be used",
        ),
        (["--kubeconfig", "/no"], "no cluster to talk to"),
    ],
)
def test_wrong_options_are_told(kubeconfig: Path, words: list[str], said: str) -> None:
    """Before anything is served."""
    result = CliRunner().invoke(app, ["outcome-server", "--kubeconfig", str(kubeconfig), *words])
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
