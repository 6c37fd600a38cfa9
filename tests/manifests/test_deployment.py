"""The Deployment fits the program that it runs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer.main
import yaml
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from cli.main import app

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMMAND = Path(sys.executable).with_name("punctual")
SOCKET = "unix:///run/punctual/solver.sock"


def containers() -> dict[str, Any]:
    """The pod's containers by name."""
    deployment = yaml.safe_load((MANIFESTS / "controller" / "deployment.yaml").read_text())
    return {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]}


def sweeper() -> dict[str, Any]:
    """The only container of the CronJob that lets work go when no controller runs."""
    job = yaml.safe_load((MANIFESTS / "sweeper" / "cronjob.yaml").read_text())
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("name", ["controller", "solver", "sweeper"])
def test_its_arguments_are_understood(name: str) -> None:
    """Each container's arguments are a command and options that this version has."""
    command, *options = {**containers(), "sweeper": sweeper()}[name]["args"]
    group: Any = typer.main.get_command(app)
    group.commands[command].make_context(command, options)  # raises on an option that does not exist


def test_the_image_is_of_this_version() -> None:
    """Whoever applies the manifests of a release gets its image."""
    assert {each["image"] for each in (*containers().values(), sweeper())} == {
        f"kueue-punctual:{version('kueue-punctual')}"
    }


def test_both_speak_over_the_same_socket() -> None:
    """The controller looks for the planner where that listens, in a volume that both mount."""
    assert all(SOCKET in each["args"] for each in containers().values())
    folder = Path(SOCKET.removeprefix("unix://")).parent
    mounts = [{m["mountPath"]: m["name"] for m in each["volumeMounts"]} for each in containers().values()]
    assert len({mount[str(folder)] for mount in mounts}) == 1


def volumes(file: str) -> dict[str, Any]:
    """The volumes of a Deployment by name."""
    return {
        each["name"]: each
        for each in yaml.safe_load((MANIFESTS / file).read_text())["spec"]["template"]["spec"]["volumes"]
    }


def test_the_ledger_is_in_a_volume() -> None:
    """Its file is where the controller may write; the component that gives it a disk replaces that very volume."""
    controller = containers()["controller"]
    (file,) = (each["value"] for each in controller["env"] if each["name"] == "PUNCTUAL_LEDGER")
    (volume,) = (each["name"] for each in controller["volumeMounts"] if each["mountPath"] == str(Path(file).parent))
    assert volumes("controller/deployment.yaml")[volume]["emptyDir"] == {}
    claim = yaml.safe_load((MANIFESTS / "ledger-volume" / "claim.yaml").read_text())
    patched = volumes("ledger-volume/volume.yaml")[volume]
    assert patched["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert patched["emptyDir"] is None


@pytest.mark.parametrize(
    ("status", "code"), [(HealthCheckResponse.SERVING, 0), (HealthCheckResponse.NOT_SERVING, 3), (None, 3)]
)
def test_the_probe_tells_whether_the_planner_serves(tmp_path: Path, status: Any, code: int) -> None:
    """The planner's probe succeeds when gRPC health says SERVING, and fails otherwise or without an answer."""
    address = f"unix://{tmp_path}/s"
    (probe,) = {tuple(containers()["solver"][kind]["exec"]["command"]) for kind in ("startupProbe", "livenessProbe")}
    assert probe[0] == "punctual"
    server, servicer = grpc.server(ThreadPoolExecutor(2)), health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if status is not None:
        servicer.set("", status)
        server.add_insecure_port(address)
        server.start()
    try:
        done = subprocess.run([COMMAND, *(word.replace(SOCKET, address) for word in probe[1:])], capture_output=True)
    finally:
        server.stop(None)
    assert done.returncode == code
