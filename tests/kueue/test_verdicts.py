"""Who may say that a result counts, on a real cluster; and what the ledger has of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from advisor.api import outcomes_pb2 as pb
from advisor.api import outcomes_pb2_grpc as rpc
from localcluster.rest import ApiError
from scheduler.ledger import Ledger, Verdict
from tests.kueue.conftest import MANIFESTS
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import Team, wait_for

pytestmark = pytest.mark.kueue

PREFIX = "punctual.kueue/verdict"


def said(verdict: str = "verified", by: str = "alice", reason: str = "looked at it") -> dict[str, str | None]:
    """Annotations of a verdict."""
    return {PREFIX: verdict, f"{PREFIX}-by": by, f"{PREFIX}-reason": reason}


def bind(team: Team, user: str, rules: list[dict[str, Any]]) -> Callable[..., Any]:
    """Calls as a user who may do that in the team's namespace."""
    api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
    api("POST", f"{rbac}/roles", {"metadata": {"name": user}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    api("POST", f"{rbac}/rolebindings", {"metadata": {"name": user}, "roleRef": role, "subjects": subjects})
    wait_for(lambda: api("GET", team.jobs, impersonate=user), f"{user}'s role")
    return lambda *words, **named: api(*words, **named, impersonate=user)


def rule(*verbs: str, resources: tuple[str, ...] = ("jobs", "jobs/status")) -> dict[str, Any]:
    """A rule about Jobs."""
    return {"apiGroups": ["batch"], "resources": list(resources), "verbs": list(verbs)}


EDIT = ("create", "delete", "get", "list", "patch", "update", "watch")


@pytest.mark.parametrize("managed", [True, False], ids=["managed", "observed"])
def test_who_may_edit_a_job_does_not_certify_it(make_team: Callable[..., Team], managed: bool) -> None:
    """Neither at its creation, nor later, nor through its status; in namespaces that are not opted in as well."""
    team = make_team(1, managed=managed)
    alice = bind(team, "alice", [rule(*EDIT)])
    with pytest.raises(ApiError, match="judge it when it has ended") as refused:
        alice("POST", team.jobs, team.job_body("a", annotations=said()))  # type: ignore[arg-type]
    assert refused.value.status == 403
    alice("POST", team.jobs, team.job_body("a"))
    for path in (f"{team.jobs}/a", f"{team.jobs}/a/status"):
        for change in (said(), {PREFIX: "verified"}, {f"{PREFIX}-by": "carol"}):
            with pytest.raises(ApiError, match=r'alice may not say whether the result counts .* verb "verify" on jobs'):
                alice("PATCH", path, {"metadata": {"annotations": change}})
    alice("PATCH", f"{team.jobs}/a", {"metadata": {"annotations": {"note": "mine"}}})
    assert PREFIX not in team.get_job("a")["metadata"]["annotations"]


def test_who_holds_the_verb_says_it_by_their_own_name(team: Team) -> None:
    """With a reason; it is not taken away, not even by cluster-admin, and whoever may not cannot change it."""
    carol = bind(team, "carol", [rule("get", "list", "patch", "verify", resources=("jobs",))])
    alice = bind(team, "alice", [rule(*EDIT)])
    team.job("a")
    path = f"{team.jobs}/a"

    def change(call: Callable[..., Any], annotations: dict[str, str | None]) -> None:
        call("PATCH", path, {"metadata": {"annotations": annotations}})

    for wrong, why in (
        (said(by="alice"), "verdict-by must be carol"),
        (said("fine", "carol"), "is verified or rejected"),
        (said(by="carol", reason=""), "with a reason"),
    ):
        with pytest.raises(ApiError, match=why):
            change(carol, wrong)
    change(carol, said(by="carol"))
    nothing: dict[str, str | None] = dict.fromkeys(said())
    with pytest.raises(ApiError, match='verb "verify"'):
        change(alice, nothing)
    for call in (carol, team.cluster.api):
        with pytest.raises(ApiError, match="is not taken away"):
            change(call, nothing)
    change(carol, said("rejected", "carol", "labels were wrong"))
    assert team.get_job("a")["metadata"]["annotations"][PREFIX] == "rejected"


@pytest.mark.long
def test_a_verdict_gets_into_the_ledger(team: Team, punctual: Punctual, tmp_path: Path) -> None:
    """As documented: with the role `punctual outcome` records it once, without it is refused; also after a restart."""
    page = (MANIFESTS.parent / "docs" / "usage.md").read_text()
    (roles,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Role" in block)
    ci = team.cluster.kubeconfig_as(team.cluster.token(team.name, "default"), tmp_path / "ci.kubeconfig")
    team.job("done", gpus=1, run_for=1)
    team.job("runs", gpus=1, run_for=600)
    wait_for(lambda: team.finished("done") and team.admitted("runs"), "one to end, one to run", 60)

    def outcome(*words: str) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, "outcome", *words, "-n", team.name, "--kubeconfig", ci]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    refused = outcome("done", "verified", "-r", "mine")
    assert (refused.returncode, "cannot get resource" in refused.stderr) == (1, True), refused.stderr
    mine = roles.replace("namespace: vision-ci", f"namespace: {team.name}").replace("name: ci,", "name: default,")
    team.cluster.kubectl("apply", "-f", "-", stdin=mine.replace("namespace: vision}", f"namespace: {team.name}}}"))
    wait_for(lambda: outcome("done", "verified", "-r", "fine", "--dry-run").returncode == 0, "the role")
    done = outcome("done", "verified", "-r", "fine")
    assert done.stdout == f"recorded: {team.name}/done verified: fine\n", done.stderr
    assert outcome("done", "verified", "-r", "fine").stdout.startswith("said before")
    assert "has not ended" in outcome("runs", "verified", "-r", "fine").stderr

    def judgements() -> list[tuple[Verdict, str, str]]:
        with Ledger(str(punctual.ledger)).open_for_reading() as ledger:
            found = {entry.name: entry for entry in ledger.recent(namespace=team.name, details=True)}
        return [(each.verdict, each.by, each.reason) for each in found["done"].judgements]

    account = f"system:serviceaccount:{team.name}:default"
    wait_for(lambda: judgements() == [(Verdict.VERIFIED, account, "fine")], "the ledger to have it")
    punctual.kill("controller")
    assert outcome("done", "rejected", "-r", "wrong data").returncode == 0
    punctual.start_controller()
    both = [(Verdict.VERIFIED, account, "fine"), (Verdict.REJECTED, account, "wrong data")]
    wait_for(lambda: judgements() == both, "the ledger to have the other one", 60)


@pytest.mark.long
def test_a_verdict_over_grpc(make_team: Callable[..., Team], tmp_path: Path) -> None:
    """By whom a real token belongs to, whoever runs the server: its administrator's certificate is lent to nobody."""
    team = make_team(1, managed=False)  # nothing waits for a plan
    team.job("done", gpus=1, run_for=1)
    wait_for(lambda: team.finished("done"), "one to end", 60)
    command = [COMMAND, "outcome-server", "--listen", "127.0.0.1:0", "--kubeconfig", team.cluster.kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            address = run.stdout.readline().split()[3].rstrip(",")
            token = team.cluster.token(team.name, "default")
            request = pb.RecordRequest(namespace=team.name, name="done", verdict=pb.VERIFIED, reason="fine")

            def record(token: str) -> Any:
                metadata = (("authorization", f"Bearer {token}"),)
                with grpc.insecure_channel(address) as channel:
                    try:
                        return rpc.OutcomesStub(channel).Record(request, metadata=metadata, timeout=30)  # type: ignore
                    except grpc.RpcError as error:
                        return error.code()

            assert record("none-of-this-cluster") is grpc.StatusCode.UNAUTHENTICATED
            assert record(token) is grpc.StatusCode.PERMISSION_DENIED
            api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
            seen = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["get", "list"]}
            edit = [rule(*EDIT), seen]
            api("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": edit})
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
            subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": team.name}]
            api("POST", f"{rbac}/rolebindings", {"metadata": {"name": "editor"}, "roleRef": role, "subjects": subjects})
            account = tmp_path / "account.kubeconfig"
            team.cluster.kubeconfig_as(token, account)
            wait_for(lambda: "yes" in team.cluster.kubectl("auth", "can-i", "patch", "jobs", "-n", team.name,
                                                           kubeconfig=account), "the role")  # fmt: skip
            assert record(token) is grpc.StatusCode.PERMISSION_DENIED, "who may edit a Job does not certify it"
            assert PREFIX not in team.get_job("done")["metadata"].get("annotations", {})
            judge = [rule("get", "patch", "verify", resources=("jobs",)), seen]
            api("PATCH", f"{rbac}/roles/editor", {"rules": judge})
            wait_for(lambda: not isinstance(record(token), grpc.StatusCode), "the right to judge")
            again = record(token)
        finally:
            run.terminate()
    account_name = f"system:serviceaccount:{team.name}:default"
    assert (again.recorded, again.by) == (False, account_name)
    found = team.get_job("done")["metadata"]["annotations"]
    assert (found[PREFIX], found[f"{PREFIX}-by"], found[f"{PREFIX}-reason"]) == ("verified", account_name, "fine")
