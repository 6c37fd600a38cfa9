"""The Deployment that takes verdicts over gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main
import yaml

from cli.main import app
from tests.manifests.test_deployment import containers

FOLDER = Path(__file__).parents[2] / "manifests" / "outcomes"


def objects() -> dict[str, Any]:
    """All objects of the folder, by kind."""
    found = [
        each for file in ("deployment", "service") for each in yaml.safe_load_all((FOLDER / f"{file}.yaml").read_text())
    ]
    return {each["kind"]: each for each in found}


def test_it_runs_this_version_with_options_that_it_has() -> None:
    """And speaks TLS, with files of the volume that it mounts, at the port of its Service."""
    pod = objects()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == containers()["controller"]["image"]
    command, *options = container["args"]
    group: Any = typer.main.get_command(app)
    said = group.commands[command].make_context(command, list(options)).params
    (mount,) = container["volumeMounts"]
    assert said["tls_cert"].parent == said["tls_key"].parent == Path(mount["mountPath"])
    assert [volume["name"] for volume in pod["volumes"] if "secret" in volume] == [mount["name"]]
    (port,) = container["ports"]
    assert said["listen"].rpartition(":")[2] == str(port["containerPort"])
    assert [each["targetPort"] for each in objects()["Service"]["spec"]["ports"]] == [port["name"]]


def test_it_has_no_rights_and_is_reached() -> None:
    """No role is bound to its account, and the Service selects its pods."""
    found = objects()
    assert set(found) == {"ServiceAccount", "Deployment", "Service"}
    deployment = found["Deployment"]["spec"]["template"]
    assert deployment["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"].items() <= deployment["metadata"]["labels"].items()
