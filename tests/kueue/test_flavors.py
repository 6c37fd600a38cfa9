"""On a real Kueue: who may have several flavors does not take the only one that others may have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.kueue.punctual import Punctual
from tests.kueue.team import KUEUE, Team, gates_of, wait_for

pytestmark = [pytest.mark.kueue, pytest.mark.long]

PREFIX = "punctual.kueue"


def test_older_work_for_any_flavor_leaves_the_only_one_to_what_is_due(
    make_team: Callable[..., Team], punctual: Punctual
) -> None:
    """All may start at one instant; Kueue would come to the older ones first, and these would take the first flavor."""
    team = make_team(2)
    api, queue = team.cluster.api, f"{KUEUE}/clusterqueues/{team.name}"
    flavors = {kind: f"{team.name}-{kind}" for kind in ("h100", "a100")}
    for kind, name in flavors.items():
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}
        api("POST", f"{KUEUE}/resourceflavors", {**flavor, "spec": {"nodeLabels": {"kind": kind}}})
    (group,) = api("GET", queue)["spec"]["resourceGroups"]
    offers = [{**group["flavors"][0], "name": name} for name in flavors.values()]
    api("PATCH", queue, {"spec": {"resourceGroups": [{**group, "flavors": offers}]}})
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8)
    wishes = {f"{PREFIX}/earliest-start": start.isoformat(), f"{PREFIX}/duration": "10m"}
    any_kind, only_h100 = ["any-0", "any-1"], ["h100-0", "h100-1"]
    for name in any_kind:
        team.job(name, gpus=1, run_for=600, annotations=wishes)
    wait_for(lambda: all(team.workload_of(name) for name in any_kind), "the older Workloads", 10)
    wishes |= {f"{PREFIX}/duration": "5s", f"{PREFIX}/deadline": (start + timedelta(seconds=15)).isoformat()}
    for name in only_h100:
        job = team.job_body(name, gpus=1, run_for=5, annotations=wishes)
        job["spec"]["template"]["spec"]["nodeSelector"] = {"kind": "h100"}
        api("POST", team.jobs, job)
    everyone = [*any_kind, *only_h100]
    wait_for(lambda: not any(gates_of(team.get_job(name)) for name in everyone), "the releases", 40)
    wait_for(lambda: all(team.admitted(name) for name in everyone), "all to be admitted", 5)
    for name in everyone:
        (given,) = team.workload_of(name)["status"]["admission"]["podSetAssignments"]
        assert given["flavors"]["nvidia.com/gpu"] == flavors["h100" if name in only_h100 else "a100"]
