"""``punctual release`` on a real Kueue, with no controller and no planner about."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kueue.punctual import COMMAND
from tests.kueue.team import GATE, GATES, Team, gates_of, wait_for

pytestmark = pytest.mark.kueue

OTHER_GATE = "budget.example.com/check"


def test_release_all_by_hand(make_team: Callable[..., Team], tmp_path: Path) -> None:
    """Without controller and planner: --all lets everything of a namespace go, and nothing of any other."""
    team, neighbour = make_team(4), make_team(4)
    for number in range(3):
        team.job(f"job-{number}", gpus=1, run_for=1, annotations={"punctual.kueue/deadline": f"{60 - 10 * number}s"})
    team.job("held", gpus=1, run_for=1, annotations={GATES: OTHER_GATE})
    neighbour.job("other", gpus=1, run_for=1)
    for name, where in (("held", team), ("other", neighbour)):
        wait_for(lambda name=name, where=where: where.workload_of(name), "the Workloads")  # type: ignore[misc]

    def release(*words: str, kubeconfig: Path = team.cluster.kubeconfig) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, "release", *words, "--kubeconfig", kubeconfig]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    refused = release("job-0", "-n", team.name, kubeconfig=_editor(team, tmp_path))
    assert refused.returncode == 1
    assert "refused" in refused.stdout
    assert "ungate" in refused.stdout
    tried = release("--all", "-n", team.name, "--dry-run")
    assert tried.returncode == 0
    assert tried.stdout.count("would be released") == 4
    assert gates_of(team.get_job("job-0")) == [GATE]
    done = release("--all", "-n", team.name, "-o", "json")
    assert done.returncode == 0
    names = [each["name"] for each in json.loads(done.stdout)["objects"]]
    assert names == ["job-2", "job-1", "job-0", "held"]
    wait_for(lambda: all(team.finished(f"job-{number}") for number in range(3)), "the released jobs to finish")
    assert gates_of(team.get_job("held")) == [OTHER_GATE]
    assert gates_of(neighbour.get_job("other")) == [GATE]
    again = release("--all", "-n", team.name)
    assert (again.returncode, again.stdout) == (0, "nothing waits behind our gate\n")


def _editor(team: Team, folder: Path) -> Path:
    """Kubeconfig of somebody who may edit the team's Jobs, and nothing more."""
    api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "patch", "update"]}]
    api("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": team.name}]
    api("POST", f"{rbac}/rolebindings", {"metadata": {"name": "editor"}, "roleRef": role, "subjects": subjects})
    account = f"/api/v1/namespaces/{team.name}/serviceaccounts/default"
    wait_for(lambda: api("GET", account), "the namespace's ServiceAccount")
    return team.cluster.kubeconfig_as(team.cluster.token(team.name, "default"), folder / "editor.kubeconfig")
