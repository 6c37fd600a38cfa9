"""What ``kubectl apply -k manifests/`` puts into a cluster, on a real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.policies import wait_for_policies
from localcluster.rest import ApiError
from tests.kueue.conftest import MANIFESTS
from tests.kueue.team import GATE, GATES, KUEUE, QUEUE, Team, condition_of, gates_of

pytestmark = pytest.mark.kueue

JSON_PATCH = "application/json-patch+json"
ALICE = "alice"
CONTROLLER = "system:serviceaccount:punctual-system:punctual-controller"


def gate_patch(value: str | None) -> dict[str, Any]:
    """A merge patch that sets the gates annotation, or removes it."""
    return {"metadata": {"annotations": {GATES: value}}}


def workload_body(name: str, queue: str, **metadata: Any) -> dict[str, Any]:
    """A Workload of 2 GPUs that nobody owns."""
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none", "resources": resources}]}
    pod_set = {"name": "main", "count": 1, "template": {"spec": pod}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, **metadata},
        "spec": {"queueName": queue, "podSets": [pod_set]},
    }


@pytest.fixture
def alice(team: Team, wait_until: Any) -> Callable[..., Any]:
    """Calls as a user who may edit all of the team's Jobs and Workloads, as Kueue's own editor roles allow."""
    api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs", "jobs/status"], "verbs": verbs},
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": verbs},
    ]
    api("POST", f"{rbac}/roles", {"metadata": {"name": "editor"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ALICE}]
    api("POST", f"{rbac}/rolebindings", {"metadata": {"name": "editor"}, "roleRef": role, "subjects": subjects})
    wait_until(lambda: api("GET", team.jobs, impersonate=ALICE), "alice's role")
    return lambda *words, **named: api(*words, **named, impersonate=ALICE)


@pytest.fixture
def controller(team: Team) -> Any:
    """Calls with a token of the controller's own ServiceAccount."""
    return team.cluster.api_as(team.cluster.token("punctual-system", "punctual-controller"))


def test_the_deployment_runs(cluster: Any, wait_until: Any) -> None:
    """Controller and planner pass Pod Security "restricted" and become available behind the metrics Service."""
    namespace = cluster.api("GET", "/api/v1/namespaces/punctual-system")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    deployment = "/apis/apps/v1/namespaces/punctual-system/deployments/punctual"
    wait_until(lambda: cluster.api("GET", deployment)["status"].get("availableReplicas") == 1, "an available replica")
    slices = "/apis/discovery.k8s.io/v1/namespaces/punctual-system/endpointslices"
    ports = wait_until(lambda: [s["ports"] for s in cluster.api("GET", slices)["items"] if s["endpoints"]], "endpoints")
    assert [port["port"] for port in ports[0]] == [8080]


def test_only_the_controller_gets_a_token(cluster: Any, wait_until: Any) -> None:
    """The planner knows no Kubernetes: no credentials are mounted into its container."""
    pods = "/api/v1/namespaces/punctual-system/pods?labelSelector=app.kubernetes.io%2Fname%3Dpunctual"
    (pod,) = wait_until(lambda: cluster.api("GET", pods)["items"], "the pod")
    mounts = {c["name"]: [m["mountPath"] for m in c["volumeMounts"]] for c in pod["spec"]["containers"]}
    assert [name for name, paths in mounts.items() if any("serviceaccount" in path for path in paths)] == ["controller"]


def test_policies_are_well_typed(cluster: Any, wait_until: Any) -> None:
    """Kubernetes' own type check finds nothing wrong with the guards' expressions."""
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> list[Any]:
        items = [p for p in cluster.api("GET", policies)["items"] if p["metadata"]["name"].startswith("punctual-")]
        return items if items and all(p.get("status", {}).get("observedGeneration") for p in items) else []

    for policy in wait_until(checked, "the type check"):
        assert not policy["status"].get("typeChecking", {}).get("expressionWarnings"), policy["metadata"]["name"]


def test_jobs_are_gated(team: Team, wait_until: Any) -> None:
    """A Job with a queue in an opted-in namespace gets our gate, and so does its Workload; nothing of it runs."""
    assert gates_of(team.job("a")) == [GATE]
    wait_until(lambda: team.condition("a", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    assert gates_of(team.workload_of("a")) == [GATE]
    assert team.get_job("a")["spec"]["suspend"] is True


def test_jobs_of_the_default_queue_are_gated(make_team: Any) -> None:
    """A Job without the label is gated too when Kueue puts it into the namespace's default LocalQueue."""
    team = make_team(queue="default")
    job = team.job("a", queue="")
    assert job["metadata"]["labels"][QUEUE] == "default"
    assert gates_of(job) == [GATE]


def test_gates_of_others_are_kept(team: Team) -> None:
    """Our gate is added to those that an object has already, and never twice."""
    theirs = "budget.example.com/check"
    assert gates_of(team.job("a", annotations={GATES: theirs}, dry_run=True)) == [theirs, GATE]
    both = f"{GATE},{theirs}"
    assert gates_of(team.job("b", annotations={GATES: both}, dry_run=True)) == [GATE, theirs]
    body = workload_body("w", team.queue, annotations={GATES: theirs})
    assert gates_of(team.cluster.api("POST", f"{team.workloads}?dryRun=All", body)) == [theirs, GATE]


def test_ownerless_workloads_are_gated(team: Team, wait_until: Any) -> None:
    """A Workload that nobody owns gets our gate, and Kueue heeds it."""
    workload = team.cluster.api("POST", team.workloads, workload_body("w", team.queue))
    assert gates_of(workload) == [GATE]

    def gated() -> bool:
        seen = team.cluster.api("GET", f"{team.workloads}/w")
        return condition_of(seen, "QuotaReserved").get("reason") == "AdmissionGated"

    wait_until(gated, "a gated Workload")


@pytest.mark.parametrize(
    ("owner", "gated"), [("batch/v1 CronJob", True), ("v1 ConfigMap", True), ("batch/v1 Job", False)]
)
def test_children_of_kueue_jobs_are_left_alone(team: Team, owner: str, gated: bool) -> None:
    """A Job whose controller Kueue queues itself gets no gate; one of a CronJob or of somebody unknown does."""
    version, kind = owner.split()
    uid = team.job("parent")["metadata"]["uid"]  # Kueue's webhook looks a parent up, if it knows the kind
    reference = {"apiVersion": version, "kind": kind, "name": "parent", "uid": uid, "controller": True}
    assert gates_of(team.job("child", owner=reference, dry_run=True)) == ([GATE] if gated else [])


def test_other_namespaces_are_left_alone(make_team: Any, wait_until: Any) -> None:
    """In a namespace that has not opted in, Kueue admits as if we were not there."""
    team = make_team(managed=False)
    assert gates_of(team.job("a")) == []
    assert gates_of(team.cluster.api("POST", team.workloads, workload_body("w", team.queue))) == []
    wait_until(lambda: team.admitted("a"), "its admission")


def test_jobs_without_a_queue_are_left_alone(team: Team) -> None:
    """A Job that Kueue does not manage is not touched: no gate, and no empty annotation either."""
    assert GATES not in team.job("a", queue="", dry_run=True)["metadata"].get("annotations", {})


@pytest.mark.parametrize("left", [None, "", "budget.example.com/check"])
def test_users_may_not_release(team: Team, alice: Any, left: str | None) -> None:
    """Who may edit a Job may still not take our gate off it, in whatever way."""
    team.job("a")
    for path in ("a", "a/status"):
        with pytest.raises(ApiError, match=r'alice may not \(that takes the RBAC verb "ungate" on jobs\)') as refused:
            alice("PATCH", f"{team.jobs}/{path}", gate_patch(left))
        assert refused.value.status == 403
    assert gates_of(team.get_job("a")) == [GATE]


def test_users_may_not_release_workloads(team: Team, alice: Any) -> None:
    """Nor off a Workload."""
    team.cluster.api("POST", team.workloads, workload_body("w", team.queue))
    with pytest.raises(ApiError, match=r'alice may not \(that takes the RBAC verb "ungate" on workloads\)') as refused:
        alice("PATCH", f"{team.workloads}/w", gate_patch(None))
    assert refused.value.status == 403


def test_administrators_may_release(team: Team, wait_until: Any) -> None:
    """Break the glass: cluster-admin holds every verb, also ours."""
    team.job("a")
    team.release("a")
    wait_until(lambda: team.admitted("a"), "its admission")


def test_nobody_may_wedge_a_job(team: Team, controller: Any, wait_until: Any) -> None:
    """The gate of a Job's Workload cannot be taken off by anybody but Kueue, not even by cluster-admin."""
    team.job("a")
    name = wait_until(lambda: team.workload_of("a"), "its Workload")["metadata"]["name"]
    for call in (team.cluster.api, controller):
        with pytest.raises(ApiError, match=r"this Workload belongs to Job a: take the gate .* off that one") as refused:
            call("PATCH", f"{team.workloads}/{name}", gate_patch(None))
        assert refused.value.status == 403


def test_a_namesake_of_kueue_may_not_either(team: Team, wait_until: Any) -> None:
    """A ServiceAccount that only has Kueue's name lacks the verb."""
    team.job("a")
    name = wait_until(lambda: team.workload_of("a"), "its Workload")["metadata"]["name"]
    api, rbac = team.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team.name}"
    rules = [{"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["get", "patch"]}]
    api("POST", f"{rbac}/roles", {"metadata": {"name": "patcher"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "namespace": team.name, "name": "kueue-controller-manager"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patcher"}
    api("POST", f"{rbac}/rolebindings", {"metadata": {"name": "patcher"}, "roleRef": role, "subjects": [subject]})
    namesake = f"system:serviceaccount:{team.name}:kueue-controller-manager"
    wait_until(lambda: api("GET", f"{team.workloads}/{name}", impersonate=namesake), "its role")
    with pytest.raises(ApiError, match='verb "ungate" on workloads') as refused:
        api("PATCH", f"{team.workloads}/{name}", gate_patch(None), impersonate=namesake)
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": {"suspend": False}}, "cannot be unsuspended by hand"),
        ({"metadata": {"labels": {QUEUE: None}}}, "its queue cannot be changed"),
        ({"metadata": {"labels": {QUEUE: "other"}}}, "its queue cannot be changed"),
    ],
)
def test_waiting_jobs_stay_as_they_are(team: Team, alice: Any, change: Any, message: str) -> None:
    """A gated Job can neither be started by hand nor taken out of its queue, by its user or by an administrator."""
    team.job("a")
    for call in (alice, team.cluster.api):
        with pytest.raises(ApiError, match=message) as refused:
            call("PATCH", f"{team.jobs}/a", change)
        assert refused.value.status == 403


def test_a_job_that_is_not_to_be_suspended_waits_all_the_same(team: Team, wait_until: Any) -> None:
    """Created with suspend: false, a Job is suspended by Kueue and gated by us."""
    job = team.job("a", spec={"suspend": False})
    assert (job["spec"]["suspend"], gates_of(job)) == (True, [GATE])
    wait_until(lambda: team.condition("a", "QuotaReserved").get("reason") == "AdmissionGated", "a gated Workload")
    assert team.get_job("a")["spec"]["suspend"] is True


def documented(heading: str) -> list[str]:
    """The YAML examples of a chapter of docs/operating.md."""
    page = (MANIFESTS.parent / "docs" / "operating.md").read_text()
    chapter = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", chapter, re.DOTALL)


URGENT = {"punctual.kueue/bypass": "outage of the payment service"}


def test_an_emergency_passes_by_the_plan(team: Team, alice: Any, wait_until: Any) -> None:
    """As documented: whoever is given the verb `bypass` makes a Job without a gate, and the record of it stays."""
    job, roles = documented("An emergency")
    team.cluster.kubectl("apply", "-f", "-", stdin=roles.replace("research", team.name))
    body = team.job_body("urgent", annotations=yaml.safe_load(job)["metadata"]["annotations"])
    wait_until(lambda: alice("POST", f"{team.jobs}?dryRun=All", body), "her right")
    job = alice("POST", team.jobs, body)
    assert gates_of(job) == []
    assert job["metadata"]["annotations"]["punctual.kueue/bypassed-by"] == ALICE
    wait_until(lambda: team.admitted("urgent"), "its admission")
    for change in ({"punctual.kueue/bypass": None}, {"punctual.kueue/bypassed-by": "bob"}):
        with pytest.raises(ApiError, match="the record of it stays") as refused:
            team.cluster.api("PATCH", f"{team.jobs}/urgent", {"metadata": {"annotations": change}})
        assert refused.value.status == 403


def test_an_ownerless_workload_passes_by_too(team: Team) -> None:
    """The same for a Workload that nobody owns; cluster-admin holds every verb."""
    body = workload_body("w", team.queue, annotations=URGENT)
    workload = team.cluster.api("POST", team.workloads, body)
    assert gates_of(workload) == []
    assert workload["metadata"]["annotations"]["punctual.kueue/bypassed-by"]


def test_nobody_else_passes_by(team: Team, alice: Any) -> None:
    """Without the verb the Job is refused, with what to do; a forged record too, and an emergency that comes later."""
    with pytest.raises(
        ApiError, match=r'alice may not pass by the plan \(that takes the RBAC verb "bypass"'
    ) as refused:
        alice("POST", team.jobs, team.job_body("a", annotations=URGENT))
    assert refused.value.status == 403
    with pytest.raises(ApiError, match='verb "bypass" on workloads'):
        alice("POST", team.workloads, workload_body("w", team.queue, annotations=URGENT))
    with pytest.raises(ApiError, match="written by Punctual only"):
        alice("POST", team.jobs, team.job_body("a", annotations={"punctual.kueue/bypassed-by": "bob"}))
    assert gates_of(alice("POST", team.jobs, team.job_body("a", annotations={"punctual.kueue/bypass": ""}))) == [GATE]
    for call in (alice, team.cluster.api):
        with pytest.raises(ApiError, match="counts at creation only"):
            call("PATCH", f"{team.jobs}/a", {"metadata": {"annotations": URGENT}})
    assert gates_of(team.get_job("a")) == [GATE]


def test_users_make_no_children_that_pass_by(team: Team, alice: Any, wait_until: Any) -> None:
    """Kueue queues a child by itself whose parent has no queue, and it has no gate: users may not make one."""
    uid = alice("POST", team.jobs, team.job_body("parent", queue=""))["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "parent", "uid": uid, "controller": True}
    body = team.job_body("child")
    body["metadata"]["ownerReferences"] = [owner]
    with pytest.raises(ApiError, match=r'alice may not create a Job that has an owner and a queue .* verb "bypass"'):
        alice("POST", team.jobs, body)
    workload = workload_body("w", team.queue, ownerReferences=[{**owner, "controller": False}])
    with pytest.raises(ApiError, match="alice may not create a Workload that has an owner"):
        alice("POST", team.workloads, workload)
    team.job("child", owner=owner)
    wait_until(lambda: team.admitted("child"), "what the guard is there for")


def test_waiting_jobs_may_be_edited_otherwise(team: Team, alice: Any) -> None:
    """A user changes the deadline of a waiting Job, and deletes one."""
    team.job("a")
    alice("PATCH", f"{team.jobs}/a", {"metadata": {"annotations": {"punctual.kueue/deadline": "8h"}}})
    assert gates_of(team.get_job("a")) == [GATE]
    alice("DELETE", f"{team.jobs}/a?propagationPolicy=Background")


def test_no_queue_after_creation(team: Team, alice: Any) -> None:
    """A Job that gets its queue later would run ungated: refused, with what to do."""
    team.job("a", queue="")
    with pytest.raises(ApiError, match=r"set the label kueue.x-k8s.io/queue-name when the Job is created") as refused:
        alice("PATCH", f"{team.jobs}/a", {"metadata": {"labels": {QUEUE: team.queue}}})
    assert refused.value.status == 403


def test_unsuspended_jobs_are_gated_too(team: Team) -> None:
    """``suspend: false`` at creation does not pass by the plan: Kueue suspends it, our gate is on."""
    job = team.job("a", spec={"suspend": False})
    assert job["spec"]["suspend"] is True
    assert gates_of(job) == [GATE]


def test_the_controller_releases(team: Team, controller: Any, wait_until: Any) -> None:
    """Compare and remove with the controller's own token: Kueue admits the Job, and the ownerless Workload."""
    team.job("a", gpus=2, run_for=5)
    team.cluster.api("POST", team.workloads, workload_body("w", team.queue))
    path = f"/metadata/annotations/{GATES.replace('/', '~1')}"
    patch = [{"op": "test", "path": path, "value": GATE}, {"op": "remove", "path": path}]
    for item in (f"{team.jobs}/a", f"{team.workloads}/w"):
        controller("PATCH", item, patch, content_type=JSON_PATCH)
    wait_until(lambda: team.admitted("a"), "the Job's admission")
    assert gates_of(team.workload_of("a")) == []

    def admitted() -> bool:
        return condition_of(team.cluster.api("GET", f"{team.workloads}/w"), "Admitted").get("status") == "True"

    wait_until(admitted, "the Workload's admission")


def test_the_controller_reads_what_it_plans_from(team: Team, controller: Any) -> None:
    """It may list, in all namespaces, every kind that a plan needs; speak in Events; and hold its Lease."""
    kinds = "workloads localqueues clusterqueues cohorts resourceflavors workloadpriorityclasses"
    for path in ("/api/v1/namespaces", "/apis/batch/v1/jobs", *(f"{KUEUE}/{kind}" for kind in kinds.split())):
        assert "items" in controller("GET", path)
    about = {"kind": "Namespace", "name": team.name, "namespace": team.name}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "Planned", "message": "m", "type": "Normal"}
    controller("POST", f"/api/v1/namespaces/{team.name}/events", event)
    controller("PATCH", f"/api/v1/namespaces/{team.name}/events/e", {"count": 2})
    leases = "/apis/coordination.k8s.io/v1/namespaces/punctual-system/leases"
    lease = controller("POST", f"{leases}?dryRun=All", {"metadata": {"name": team.name}})
    assert lease["metadata"]["name"] == team.name
    with pytest.raises(ApiError) as refused:
        controller("POST", f"/apis/coordination.k8s.io/v1/namespaces/{team.name}/leases", {"metadata": {"name": "x"}})
    assert refused.value.status == 403


def test_the_controller_may_nothing_else(team: Team, controller: Any) -> None:
    """With its token one can delete, create or reconfigure nothing, and read no Secret or Pod."""
    team.job("a")
    item = f"{team.jobs}/a"
    forbidden: list[tuple[str, str, Any]] = [
        ("DELETE", item, None),
        ("POST", team.jobs, team.job_body("b")),
        ("PUT", item, team.get_job("a")),
        ("PATCH", f"{item}/status", {"status": {"active": 1}}),
        ("POST", team.workloads, workload_body("w", team.queue)),
        ("DELETE", team.workloads, None),
        ("PATCH", f"{KUEUE}/clusterqueues/{team.name}", {"spec": {"stopPolicy": "Hold"}}),
        ("PATCH", f"/api/v1/namespaces/{team.name}", {"metadata": {"labels": {"punctual.kueue/managed": None}}}),
        ("GET", f"/api/v1/namespaces/{team.name}/secrets", None),
        ("GET", f"/api/v1/namespaces/{team.name}/pods", None),
        ("GET", "/api/v1/namespaces/punctual-system/secrets", None),
    ]
    for method, path, body in forbidden:
        with pytest.raises(ApiError) as refused:
            controller(method, path, body)
        assert refused.value.status == 403, f"{method} {path}: {refused.value}"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"parallelism": 2}},
        {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
    ],
)
def test_the_controller_patches_annotations_only(team: Team, controller: Any, change: Any) -> None:
    """RBAC lets it patch Jobs; a guard keeps that to annotations."""
    team.job("a")
    controller("PATCH", f"{team.jobs}/a", {"metadata": {"annotations": {"punctual.kueue/planned-start": "soon"}}})
    with pytest.raises(ApiError, match="may change nothing but annotations") as refused:
        controller("PATCH", f"{team.jobs}/a", change)
    assert refused.value.status == 403


def test_gates_go_first(team: Team, wait_until: Any) -> None:
    """Uninstalling begins with the gates: new Jobs wait no more, while the guards still hold what waits."""
    # An apiserver (1.36.3) whose gates were deleted and made again goes on reading their parameters as they were then:
    # tests that edit the policy come before this one.
    cluster = team.cluster
    team.job("waits")
    cluster.kubectl("delete", "-k", MANIFESTS / "gates")
    try:
        wait_until(lambda: not gates_of(team.job("new", dry_run=True)), "Jobs without a gate")
        assert gates_of(team.get_job("waits")) == [GATE]
        with pytest.raises(ApiError, match="cannot be unsuspended by hand"):
            cluster.api("PATCH", f"{team.jobs}/waits", {"spec": {"suspend": False}})
    finally:
        cluster.kubectl("apply", "--server-side", "-k", MANIFESTS / "gates")
        wait_for_policies(cluster, team.name, team.queue)


def test_the_kubeconfig_is_the_controllers(cluster: Any, punctual_kubeconfig: Path) -> None:
    """What the other tests run the controller with is its own ServiceAccount, not an administrator."""
    words = ("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert cluster.kubectl(*words, kubeconfig=punctual_kubeconfig) == CONTROLLER
