"""Every finite root kind on a real Kueue, by its real CRD: gated, guarded, planned and released on the root.

No operators run here, so pods of Jobs alone start (and end). Of the other kinds the proof is what Kueue does: one gated
Workload, then its quota reserved and the root unsuspended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from localcluster import build
from localcluster.cluster import LocalCluster
from localcluster.rest import ApiError, Rest
from scheduler.kinds import ROOT_KINDS, ROOTS
from tests.kueue.conftest import with_punctual
from tests.kueue.kinds import SPECS, body, collection, pod, training_runtime
from tests.kueue.punctual import Punctual
from tests.kueue.team import GATE, GATES, QUEUE, Team, condition_of, gates_of, new_team, remove_team, wait_for

pytestmark = [pytest.mark.kueue, pytest.mark.timeout(300)]

KINDS = tuple(ROOT_KINDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own, with the CRDs of all kinds that could be fetched: others need not wait for them."""
    yield from with_punctual(LocalCluster(tmp_path_factory.mktemp("kinds"), frameworks=build.frameworks()))


@pytest.fixture(scope="module")
def served(cluster: LocalCluster) -> list[str]:
    """The kinds that this cluster has."""
    crds = cluster.api("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    names = {crd["metadata"]["name"] for crd in crds}
    return [root.kind for root in ROOTS if root.builtin or f"{root.plural}.{root.group}" in names]


@pytest.fixture(scope="module")
def team(cluster: LocalCluster, served: list[str]) -> Iterator[Team]:
    """A team whose quota is one GPU short of one for each kind."""
    team = new_team(cluster, "kinds", len(served) - 1, True, "lq", None, {})
    if "TrainJob" in served:
        runtimes = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{team.name}/trainingruntimes"
        cluster.api("POST", runtimes, training_runtime())
    yield team
    for kind in served:
        cluster.api("DELETE", f"{collection(team, kind)}?propagationPolicy=Background")
    remove_team(team)


@pytest.fixture(scope="module")
def waiting(team: Team, served: list[str]) -> dict[str, str]:
    """One gated object of each kind, by kind: the path of each. The later in the table, the later it is due."""
    paths = {}
    for number, kind in enumerate(served, start=1):
        made = body(team, kind, kind.lower(), deadline=f"{100 * number}h", duration="1h")
        root = team.cluster.api("POST", collection(team, kind), made)
        assert gates_of(root) == [GATE], kind
        paths[kind] = f"{collection(team, kind)}/{kind.lower()}"
    return paths


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, served: list[str]) -> str:
    """Each kind of the table."""
    if request.param not in served:
        pytest.skip(f"the CRD of {request.param} could not be fetched")
    return str(request.param)


@pytest.fixture(scope="module")
def alice(team: Team) -> Rest:
    """A user who may edit everything in the team's namespace, but has no other verb than the usual ones."""
    api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["create", "get", "list", "patch", "update"]}]
    api("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": team.name}]
    api("POST", f"{rbac}/rolebindings", {"metadata": {"name": "editor"}, "roleRef": role, "subjects": subjects})
    account = f"/api/v1/namespaces/{team.name}/serviceaccounts/default"
    wait_for(lambda: api("GET", account), "the namespace's ServiceAccount")
    return team.cluster.api_as(team.cluster.token(team.name, "default"))


@pytest.fixture(scope="module")
def controller(cluster: LocalCluster) -> Rest:
    """Calls with a token of the controller's own ServiceAccount."""
    return cluster.api_as(cluster.token("punctual-system", "punctual-controller"))


def suspend(kind: str, value: bool) -> dict[str, Any]:
    """A patch of the field ``suspend``, where this kind has it."""
    patch: dict[str, Any] = {"suspend": value}
    for part in reversed(ROOT_KINDS[kind].policy):
        patch = {part: patch}
    return patch


def suspended(kind: str, root: dict[str, Any]) -> bool:
    """Whether an object is suspended."""
    part: Any = root
    for name in ROOT_KINDS[kind].policy:
        part = part.get(name, {})
    return bool(part.get("suspend"))


def workloads_of(team: Team, root: dict[str, Any]) -> list[dict[str, Any]]:
    """The Workloads that Kueue has made for an object."""
    uid = root["metadata"]["uid"]
    found = team.cluster.api("GET", team.workloads)["items"]
    return [w for w in found if uid in [owner["uid"] for owner in w["metadata"].get("ownerReferences", [])]]


def refused(call: Callable[..., Any], path: str, patch: Any, words: str) -> None:
    """It is forbidden, in these words."""
    with pytest.raises(ApiError, match=words) as error:
        call("PATCH", path, patch)
    assert error.value.status == 403


def test_policies_are_well_typed(cluster: LocalCluster, served: list[str]) -> None:
    """With all kinds there, Kubernetes' own type check finds nothing wrong with the guards' expressions."""
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checks() -> list[dict[str, Any]]:
        found = [policy.get("status", {}).get("typeChecking") for policy in cluster.api("GET", policies)["items"]]
        return found if found and None not in found else []

    assert not any(check.get("expressionWarnings") for check in wait_for(checks, "the type check"))


def test_one_gated_workload(team: Team, waiting: dict[str, str], kind: str) -> None:
    """Kueue suspends the root and makes one Workload for it, with our gate: it waits, and holds no quota."""
    root = team.cluster.api("GET", waiting[kind])
    assert suspended(kind, root)
    wait_for(
        lambda: (
            [condition_of(w, "QuotaReserved").get("reason") for w in workloads_of(team, root)] == ["AdmissionGated"]
        ),
        "one gated Workload",
    )
    (workload,) = workloads_of(team, root)
    assert gates_of(workload) == [GATE]
    (owner,) = workload["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == (kind, True)


def test_it_is_guarded(team: Team, waiting: dict[str, str], kind: str, alice: Rest, controller: Rest) -> None:
    """Nobody starts it by hand or moves it; a user cannot ungate it; Punctual changes nothing but annotations."""
    path, admin = waiting[kind], team.cluster.api
    for call in (admin, alice):
        refused(call, path, suspend(kind, False), f"this {kind} waits .* cannot be unsuspended by hand")
        refused(call, path, {"metadata": {"labels": {QUEUE: "other"}}}, "its queue cannot be changed")
    ungated = {"metadata": {"annotations": {GATES: None}}}
    refused(alice, path, ungated, f'takes the RBAC verb "ungate" on {ROOT_KINDS[kind].plural}')
    refused(controller, path, {"metadata": {"labels": {"a": "b"}}}, f"nothing but annotations of a {kind}")
    alice("PATCH", path, {"metadata": {"annotations": {"punctual.kueue/weight": "2"}}})
    (workload,) = wait_for(lambda: workloads_of(team, admin("GET", path)), "its Workload")
    for call in (admin, controller):
        refused(call, f"{team.workloads}/{workload['metadata']['name']}", ungated, f"this Workload belongs to {kind} ")
    assert gates_of(admin("GET", path)) == [GATE]


def test_no_queue_after_creation(team: Team, kind: str, alice: Rest) -> None:
    """What gets its queue later would run ungated: refused, with what to do."""
    made = body(team, kind, "late", queue="")
    if kind == "RayJob":  # Kueue looks at its cluster only in a queue
        made["spec"]["suspend"] = True
    path = f"{collection(team, kind)}/late"
    assert GATES not in team.cluster.api("POST", collection(team, kind), made)["metadata"].get("annotations", {})
    refused(alice, path, {"metadata": {"labels": {QUEUE: team.queue}}}, f"when the {kind} is created")
    team.cluster.api("DELETE", f"{path}?propagationPolicy=Background")


def test_children_are_left_alone(team: Team, waiting: dict[str, str], kind: str) -> None:
    """A Job that such an object controls is part of it: no gate."""
    version, uid = ROOT_KINDS[kind].version, team.cluster.api("GET", waiting[kind])["metadata"]["uid"]
    owner = {"apiVersion": version, "kind": kind, "name": kind.lower(), "uid": uid, "controller": True}
    assert gates_of(team.job("child", owner=owner, dry_run=True)) == []


@pytest.mark.parametrize("service", ["Deployment", "StatefulSet", "Pod"])
def test_services_are_left_alone(team: Team, service: str) -> None:
    """What runs for as long as it is wanted never waits for us."""
    labels = {"app": "x", QUEUE: team.queue}
    template = {"metadata": {"labels": labels}, **pod()}
    template["spec"]["restartPolicy"] = "Always"
    made = {"metadata": {"name": "serve", "labels": labels}}
    if service == "Pod":
        answer = team.cluster.api(
            "POST", f"/api/v1/namespaces/{team.name}/pods?dryRun=All", {**made, "spec": template["spec"]}
        )
    else:
        spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
        path = f"/apis/apps/v1/namespaces/{team.name}/{service.lower()}s?dryRun=All"
        answer = team.cluster.api("POST", path, {**made, "spec": spec})
    assert GATES not in answer["metadata"].get("annotations", {})


def test_a_ray_job_on_a_cluster_of_its_own_choice_is_left_alone(team: Team, served: list[str]) -> None:
    """Kueue does not queue a RayJob that names a cluster that is there already; nor do we gate it."""
    if "RayJob" not in served:
        pytest.skip("the CRD of RayJob could not be fetched")
    made = body(team, "RayJob", "elsewhere")
    made["spec"] = {"entrypoint": "true", "clusterSelector": {"ray.io/cluster": "x"}}
    root = team.cluster.api("POST", f"{collection(team, 'RayJob')}?dryRun=All", made)
    assert gates_of(root) == []


@pytest.fixture(scope="module")
def punctual(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Punctual]:
    """Planner and controller, running with the rights that the manifests give."""
    folder = tmp_path_factory.mktemp("punctual")
    token = cluster.token("punctual-system", "punctual-controller")
    running = Punctual(cluster.kubeconfig_as(token, folder / "kubeconfig"), folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_all_are_planned_and_released(
    team: Team, waiting: dict[str, str], served: list[str], punctual: Punctual
) -> None:
    """By the deadline on the root: all but the one due last are released on the root, and Kueue unsuspends them; the
    last is told when it will start, and has its turn when one of the others is gone.
    """
    api, last = team.cluster.api, served[-1]

    def runs(kind: str) -> bool:
        root = api("GET", waiting[kind])
        (workload,) = workloads_of(team, root)
        admitted = condition_of(workload, "Admitted").get("status") == "True"
        return admitted and not gates_of(root) and not gates_of(workload) and not suspended(kind, root)

    for kind in served[:-1]:
        wait_for(lambda kind=kind: runs(kind), f"the {kind} to be released")  # type: ignore[misc]
    events = f"/api/v1/namespaces/{team.name}/events?fieldSelector=source%3Dpunctual,involvedObject.kind%3D{last}"
    (event,) = wait_for(lambda: api("GET", events)["items"], "an Event with its start")
    assert (event["reason"], event["involvedObject"]["apiVersion"]) == ("Planned", ROOT_KINDS[last].version)
    assert gates_of(api("GET", waiting[last])) == [GATE]
    api("DELETE", f"{waiting[served[-2]]}?propagationPolicy=Background")
    wait_for(lambda: runs(last), f"the {last} to be released")
    levels = {json.loads(line).get("level") for line in punctual.log("controller").splitlines()}
    assert "info" in levels
    assert not levels & {"error", "critical"}


def test_a_cron_jobs_job_runs(team: Team, cluster: LocalCluster, punctual: Punctual) -> None:
    """A CronJob starts its Job by the clock; that Job is gated, planned and released like any other, and ends."""
    other = new_team(cluster, "cron", 2, True, "lq", None, {})
    job = other.job_body("x", gpus=1, run_for=1, annotations={"punctual.kueue/deadline": "1h"})
    template = {"metadata": {key: job["metadata"][key] for key in ("labels", "annotations")}, "spec": job["spec"]}
    path = f"/apis/batch/v1/namespaces/{other.name}/cronjobs"
    cluster.api("POST", path, {"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": template}})
    # As if its controller had been away for some minutes: it starts what it missed now, and not at the next minute.
    past = (datetime.now(UTC) - timedelta(minutes=3)).isoformat().replace("+00:00", "Z")
    cluster.api("PATCH", f"{path}/c/status", {"status": {"lastScheduleTime": past}})
    (made,) = wait_for(lambda: cluster.api("GET", other.jobs)["items"][:1], "the CronJob's Job")
    cluster.api("PATCH", f"{path}/c", {"spec": {"suspend": True}})
    name = made["metadata"]["name"]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    wait_for(lambda: other.finished(name), "the Job to finish")
    reserved = [c for c in other.workload_of(name)["status"]["conditions"] if c["type"] == "Admitted"]
    assert reserved
    assert gates_of(other.get_job(name)) == []
    cluster.api("DELETE", f"{path}/c?propagationPolicy=Background")
    remove_team(other)


def test_ownerless_workloads_run(cluster: LocalCluster, punctual: Punctual) -> None:
    """A Workload that nobody owns is gated, planned and released itself; when it has finished the next one starts."""
    other = new_team(cluster, "ownerless", 1, True, "lq", None, {})
    pod_set = {"name": "main", "count": 1, "template": pod()}
    spec = {"queueName": "lq", "podSets": [pod_set]}
    for name, deadline in (("first", "1h"), ("second", "2h")):
        metadata = {"name": name, "annotations": {"punctual.kueue/deadline": deadline, "punctual.kueue/duration": "1m"}}
        made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec}
        assert gates_of(cluster.api("POST", other.workloads, made)) == [GATE]

    def admitted(name: str) -> bool:
        seen = cluster.api("GET", f"{other.workloads}/{name}")
        return condition_of(seen, "Admitted").get("status") == "True" and not gates_of(seen)

    running = wait_for(lambda: [n for n in ("first", "second") if admitted(n)], "one to be released")
    (waits,) = {"first", "second"} - set(running)
    done = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": now()}
    seen = cluster.api("GET", f"{other.workloads}/{running[0]}")
    finished = {"status": {"conditions": [*seen["status"]["conditions"], done]}}
    cluster.api("PATCH", f"{other.workloads}/{running[0]}/status", finished)
    wait_for(lambda: admitted(waits), "the other one to be released")
    remove_team(other)


def now() -> str:
    """As Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_every_kind_has_a_body() -> None:
    """A new kind of the table is tried here as well."""
    assert set(SPECS) == set(KINDS)
