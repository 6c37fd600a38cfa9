"""Kueue restarted without its feature gate AdmissionGatedBy, and with it again, on the real thing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from localcluster.cluster import LocalCluster
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import GATE, Team, gates_of, wait_for

pytestmark = pytest.mark.kueue

WAITS = {"punctual.kueue/earliest-start": "2099-01-01T00:00:00Z"}
"""Annotations of work that we would not start before long."""


@pytest.fixture
def without_gates(cluster: LocalCluster, punctual: Punctual) -> Iterator[None]:
    """Kueue runs without the feature gate, until the test ends."""
    wait_for(lambda: punctual.metric("punctual_enforcing") == 1, "the controller to enforce plans")
    yield
    if not _heeds(cluster):
        restart(cluster, True)
        wait_for(lambda: punctual.metric("punctual_enforcing") == 1, "the controller to enforce plans again")


def _heeds(cluster: LocalCluster) -> bool:
    return json.loads((cluster.folder / "cluster.json").read_text())["feature_gates"]["AdmissionGatedBy"]  # type: ignore[no-any-return]


def restart(cluster: LocalCluster, heeds: bool) -> None:
    """Restart Kueue with or without its feature gate."""
    cluster.stop("kueue")
    cluster.start("kueue", feature_gates={"AdmissionGatedBy": heeds})


def events(team: Team) -> set[str]:
    """Reasons of our Events on the team's ClusterQueue."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=source%3Dpunctual,involvedObject.name%3D{team.name}"
    return {event["reason"] for event in team.cluster.api("GET", path)["items"]}


@pytest.mark.long
def test_nothing_is_claimed_while_kueue_ignores_gates(
    team: Team, punctual: Punctual, without_gates: None, record_property: object
) -> None:
    """It is noticed within seconds and said; gated work that Kueue admits runs, none is lost; afterwards plans hold."""
    team.job("gated", gpus=2, run_for=1, annotations=WAITS)
    wait_for(lambda: team.condition("gated", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    team.cluster.stop("kueue")
    team.cluster.start("kueue", feature_gates={"AdmissionGatedBy": False})
    started = time.monotonic()
    wait_for(lambda: punctual.metric("punctual_enforcing") == 0, "the controller to notice")
    noticed = time.monotonic() - started
    print(f"noticed {noticed:.1f} s after Kueue was ready")
    # A gate on it or not: Kueue admits it, and no guard of ours keeps it from running.
    wait_for(lambda: team.finished("gated"), "the gated job to run")
    assert gates_of(team.get_job("gated")) == [GATE]
    wait_for(lambda: "GatesIgnored" in events(team), "an Event on the ClusterQueue")
    assert "Kueue ignores admission gates" in punctual.log("controller")
    assert punctual.metric("punctual_leader") == 1
    checked = subprocess.run(
        [COMMAND, "check", "-o", "json", "--kubeconfig", team.cluster.kubeconfig], capture_output=True, text=True
    )
    assert checked.returncode == 1, checked.stderr
    (found,) = (each for each in json.loads(checked.stdout)["findings"] if each["what"] == "AdmissionGatedBy")
    assert found["state"] == "fail"
    assert "--feature-gates=AdmissionGatedBy=true" in found["fix"]

    restart(team.cluster, True)
    wait_for(lambda: punctual.metric("punctual_enforcing") == 1, "the controller to go on")
    wait_for(lambda: "GatesHeeded" in events(team), "an Event on the ClusterQueue")
    team.job("later", gpus=1, run_for=1, annotations=WAITS)
    team.job("now", gpus=1, run_for=1)
    wait_for(lambda: team.finished("now"), "a job that may start")
    assert gates_of(team.get_job("later")) == [GATE]
    assert not team.admitted("later")
