"""``punctual check`` piece by piece: what it concludes from what it sees."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduler import check_cluster, check_policies, check_queues, check_rights, check_running
from scheduler.apiserver import ApiError
from scheduler.check import Finding, Installation, State, run
from scheduler.cluster import GATE
from scheduler.kinds import ROOTS
from scheduler.leader import LEASE
from tests.scheduler.fake_kueue import WORKLOADS, FakeKueue
from tests.scheduler.memory_cluster import MemoryCluster

MANIFESTS = Path(__file__).parents[2] / "manifests"
DEPLOYMENT = "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager"
CONFIGURATION = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/punctual-system/leases/{LEASE}"


class StubApi:
    """Answers by path: an object, an ApiError, or a function of the body."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = dict(answers)
        self.made: list[tuple[str, str]] = []

    def request(self, method: str, path: str, *, query: Any = None, body: Any = None, **more: Any) -> dict[str, Any]:
        self.made.append((method, path))
        answer = self.answers.get(path, ApiError(404, "not found"))
        if callable(answer):
            answer = answer(body)
        if isinstance(answer, ApiError):
            raise answer
        return dict(answer)

    def text(self, path: str) -> str:
        raise ApiError(503, "no endpoints")

    def date(self) -> str:
        return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


def an_installation(cluster: MemoryCluster | None = None, **more: Any) -> tuple[Installation, StubApi]:
    api = StubApi()
    at = Installation(api, **more)  # type: ignore[arg-type]
    at._cluster = cluster or MemoryCluster()  # type: ignore[assignment]
    return at, api


def states(findings: Any) -> list[tuple[str, str]]:
    return [(finding.what, finding.state.value) for finding in findings]


def test_what_cannot_be_checked_stops_no_other() -> None:
    """A check that the apiserver refuses us, and one that breaks, are findings; the others are made, in order."""

    def refused(at: Installation) -> Iterator[Finding]:
        yield Finding("one", State.OK, "half of it")
        raise ApiError(403, "nodes is forbidden")

    def broken(at: Installation) -> Iterator[Finding]:
        raise KeyError("spec")

    def fine(at: Installation) -> Iterator[Finding]:
        yield Finding("three", State.OK, "well")

    at, _ = an_installation()
    found = list(run(at, [("one", refused), ("two", broken), ("three", fine)]))
    assert states(found) == [("one", "ok"), ("one", "warn"), ("two", "fail"), ("three", "ok")]
    assert "nodes is forbidden" in found[1].message
    assert "cluster-admin" in found[1].fix


# --- Kubernetes and Kueue --------------------------------------------------------------------------------------------

RESOURCES = {"resources": [{"name": "mutatingadmissionpolicies"}]}


@pytest.mark.parametrize(
    ("version", "policies", "expected"),
    [
        ("v1.36.3", RESOURCES, [State.OK]),
        ("v1.37.0", RESOURCES, [State.WARN]),
        ("v1.33.1-gke.1", {"resources": []}, [State.WARN, State.FAIL]),
        ("", RESOURCES, [State.WARN]),
    ],
)
def test_kubernetes_versions(version: str, policies: Any, expected: list[State]) -> None:
    """The tested version is fine, others are untried; without MutatingAdmissionPolicy v1 nothing works."""
    at, api = an_installation()
    api.answers |= {"/version": {"gitVersion": version}, "/apis/admissionregistration.k8s.io/v1": policies}
    assert [finding.state for finding in check_cluster.kubernetes(at)] == expected


@pytest.mark.parametrize(
    ("image", "state"),
    [
        ("registry.k8s.io/kueue/kueue:v0.17.0", State.OK),
        ("registry.k8s.io/kueue/kueue:v0.17.2@sha256:abc", State.OK),
        ("localhost:5000/kueue:v0.19.2", State.WARN),
        ("kueue:v0.18.0", State.WARN),
        ("kueue:v0.16.3", State.FAIL),
        ("kueue@sha256:abc", State.WARN),
    ],
)
def test_kueue_versions(image: str, state: State) -> None:
    """The tested minor version is fine, the tried and the untried are said to be so, older ones know no gates."""
    at, api = an_installation()
    api.answers["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta2"}]}
    containers = [{"name": "proxy", "image": "x:v9.9"}, {"name": "manager", "image": image}]
    api.answers[DEPLOYMENT] = {"spec": {"template": {"spec": {"containers": containers}}}}
    finding = next(iter(check_cluster.kueue(at)))
    assert (finding.what, finding.state) == ("kueue", state)


def test_no_kueue() -> None:
    """Without Kueue, or with one that is too old for its API, the command that installs it is given."""
    at, api = an_installation()
    (finding,) = check_cluster.kueue(at)
    assert (finding.state, finding.fix.split()[:2]) == (State.FAIL, ["kubectl", "apply"])
    api.answers["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta1"}]}
    (finding,) = check_cluster.kueue(at)
    assert finding.state is State.FAIL


def test_kinds_that_kueue_does_not_queue() -> None:
    """A kind that the cluster has and Kueue's configuration leaves out starts at once, gate or not: that is said."""
    at, api = an_installation()
    api.answers["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta2"}]}
    api.answers["/apis/jobset.x-k8s.io/v1alpha2/jobsets"] = {"items": []}
    text = yaml.safe_dump({"integrations": {"frameworks": ["batch/job"]}})
    api.answers[CONFIGURATION] = {"data": {"controller_manager_config.yaml": text}}
    _, kinds = check_cluster.kueue(at)
    assert kinds.state is State.WARN
    assert "does not queue JobSet" in kinds.message
    text = yaml.safe_dump({"integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]}})
    api.answers[CONFIGURATION] = {"data": {"controller_manager_config.yaml": text}}
    _, kinds = check_cluster.kueue(at)
    assert (kinds.state, kinds.message) == (State.OK, "gated here, and queued by Kueue: Job, JobSet")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config=/controller_manager_config.yaml", "--zap-log-level=2"],
        ["--config=x", "--feature-gates=TopologyAwareScheduling=true,AdmissionGatedBy=false", "--zap-log-level=2"],
    ],
)
def test_the_command_that_switches_gates_on(arguments: list[str]) -> None:
    """Applied to Kueue's Deployment as it is, the patch sets the one feature gate and keeps everything else."""
    at, api = an_installation()
    containers: list[dict[str, Any]] = [{"name": "proxy"}, {"name": "manager", "args": arguments}]
    api.answers[DEPLOYMENT] = {"spec": {"template": {"spec": {"containers": containers}}}}
    words = shlex.split(check_cluster.switch_on(at))
    assert words[:6] == ["kubectl", "-n", "kueue-system", "patch", "deployment", "kueue-controller-manager"]
    (step,) = json.loads(words[words.index("-p") + 1])
    *_, container, _, place = step["path"].split("/")
    assert container == "1"
    changed = list(arguments)
    if step["op"] == "add":
        assert place == "-"
        changed.append(step["value"])
    else:
        changed[int(place)] = step["value"]
    gates = [argument for argument in changed if argument.startswith("--feature-gates=")]
    assert [argument for argument in changed if argument not in gates] == [
        argument for argument in arguments if not argument.startswith("--feature-gates=")
    ]
    (gate,) = gates
    assert gate.count("AdmissionGatedBy") == 1
    assert "AdmissionGatedBy=true" in gate
    assert ("TopologyAwareScheduling=true" in gate) == (len(gate) > len("--feature-gates=AdmissionGatedBy=true"))


@given(st.floats(-100, 100), st.floats(0, 5), st.floats(0, 1), st.floats(1.7e9, 1.8e9))
def test_skew_is_never_overestimated(offset: float, took: float, when: float, server: float) -> None:
    """A clock that is right is never called wrong, however slow the answer was; one that is far off always is."""
    before = server + offset - took * when
    finding = check_cluster.skew("clock", "this clock", float(int(server)), before, before + took)
    if abs(offset) <= check_cluster.SKEW_WARN:
        assert finding.state is State.OK
    if abs(offset) <= check_cluster.SKEW_FAIL:
        assert finding.state is not State.FAIL
    if abs(offset) > check_cluster.SKEW_FAIL + 1 + took + 0.01:
        assert finding.state is State.FAIL
        assert ("ahead of" if offset > 0 else "behind") in finding.message


# --- policies --------------------------------------------------------------------------------------------------------


def documents(folder: str) -> list[dict[str, Any]]:
    return [
        document
        for file in sorted((MANIFESTS / folder).glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]


def test_all_policies_of_the_manifests_are_looked_for() -> None:
    """A policy that is added to the manifests is added to the check."""
    for folder, names in (("gates", check_policies.GATES), ("guards", check_policies.GUARDS)):
        there = {each["metadata"]["name"] for each in documents(folder) if each["kind"].endswith("AdmissionPolicy")}
        assert there == set(names)


def policies(api: StubApi) -> None:
    for folder, plural in (("gates", "mutatingadmissionpolicies"), ("guards", "validatingadmissionpolicies")):
        for ending, kind in (("", "AdmissionPolicy"), ("bindings", "AdmissionPolicyBinding")):
            path = f"/apis/admissionregistration.k8s.io/v1/{plural if not ending else plural[:-3] + 'y' + ending}"
            api.answers[path] = {"items": [each for each in documents(folder) if each["kind"].endswith(kind)]}


def test_policies_that_are_there_and_bound() -> None:
    """The manifests as they are shipped pass."""
    at, api = an_installation()
    policies(api)
    assert states(check_policies.installed(at)) == [("gates", "ok"), ("guards", "ok")]


@pytest.mark.parametrize("flaw", ["missing", "unbound", "audits only", "fails open", "ill-typed"])
def test_guards_that_do_not_hold(flaw: str) -> None:
    """A guard that is missing, not bound, does not deny, fails open or has type errors fails, with what to apply."""
    at, api = an_installation()
    policies(api)
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    guards, bindings = api.answers[f"{path}ies"]["items"], api.answers[f"{path}ybindings"]["items"]
    guard = next(each for each in guards if each["metadata"]["name"] == "punctual-guard-ungate")
    binding = next(each for each in bindings if each["metadata"]["name"] == "punctual-guard-ungate")
    match flaw:
        case "missing":
            guards.remove(guard)
        case "unbound":
            bindings.remove(binding)
        case "audits only":
            binding["spec"]["validationActions"] = ["Audit"]
        case "fails open":
            guard["spec"]["failurePolicy"] = "Ignore"
        case "ill-typed":
            guard["status"] = {"typeChecking": {"expressionWarnings": [{"fieldRef": "x", "warning": "y"}]}}
    _, finding = check_policies.installed(at)
    assert finding.state is State.FAIL
    assert "punctual-guard-ungate" in finding.message
    assert finding.fix == "kubectl apply --server-side -k manifests/guards"


def test_gated_work_where_no_guard_holds() -> None:
    """Work that waits in a namespace that is not opted in is pointed out."""
    cluster = MemoryCluster()
    cluster.queue()
    cluster.job("fine")
    cluster.put({"kind": "Namespace", "metadata": {"name": "other"}})
    cluster.job("loose", namespace="other")
    at, _ = an_installation(cluster)
    (finding,) = check_policies.unguarded(at)
    assert finding.state is State.WARN
    assert "1 wait behind our gate in other" in finding.message


@pytest.mark.parametrize(
    ("gates", "modes", "state"),
    [
        (GATE, {"mode": "enforce"}, "ok"),
        ("", {"mode": "enforce"}, "fail"),
        ("", {"mode": "observe"}, "warn"),
        ("", {"mode": "enforce", "team_lq": "observe"}, "warn"),
        ("", {"mode": "observe", "team_lq": "enforce"}, "fail"),
    ],
)
def test_jobs_of_opted_in_namespaces_are_tried(gates: str, modes: dict[str, str], state: str) -> None:
    """A dry run shows whether a new Job is gated; that it is not is right where the policy only observes."""
    cluster = MemoryCluster()
    cluster.queue()
    at, api = an_installation(cluster)
    api.answers["/api/v1/namespaces/punctual-system/configmaps/punctual-in-force"] = {"data": modes}

    def admit(job: Mapping[str, Any]) -> dict[str, Any]:
        return {"metadata": {**job["metadata"], "annotations": {"kueue.x-k8s.io/admission-gated-by": gates}}}

    api.answers["/apis/batch/v1/namespaces/team/jobs"] = admit
    assert states(check_policies.opted_in(at)) == [("namespaces", state)]


@pytest.fixture
def kueue(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKueue]:
    monkeypatch.setattr("scheduler.canary._GRACE", 0)  # this Kueue has said it all when the Workload is there
    server = FakeKueue()
    server.kinds |= {"/api/v1/configmaps"}
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("heeds", "mode", "expected"),
    [
        (True, "enforce", [("AdmissionGatedBy", "ok"), ("gates act", "fail")]),
        (False, "enforce", [("AdmissionGatedBy", "fail"), ("gates act", "fail")]),
        (False, "observe", [("AdmissionGatedBy", "warn"), ("gates act", "warn")]),
        (True, "", [("AdmissionGatedBy", "ok"), ("gates act", "fail")]),
    ],
)
def test_trying_leaves_nothing_behind(kueue: FakeKueue, heeds: bool, mode: str, expected: Any) -> None:
    """It is tried in a namespace of its own, which goes again; where nothing is gated on purpose, that is fine.

    (This apiserver has no admission policies: that the gate is put on shows on the real one.)
    """
    kueue.heeds = heeds
    left_over = {"metadata": {"name": "punctual-check-old", "labels": {check_policies.SCRATCH: "true"}}}
    kueue.put("/api/v1/namespaces", left_over)
    kueue.put("/api/v1/namespaces", {"metadata": {"name": "team"}})
    if mode:
        name = {"name": "punctual-in-force", "namespace": "punctual-system"}
        kueue.put("/api/v1/configmaps", {"metadata": name, "data": {"mode": mode}})
    assert states(check_policies.acting(Installation(kueue.api()))) == expected
    assert list(kueue.objects["/api/v1/namespaces"]) == ["team"]
    assert not kueue.objects.get(WORKLOADS)


# --- rights ----------------------------------------------------------------------------------------------------------


def granted(folder: list[dict[str, Any]], right: check_rights.Right) -> bool:
    """Whether a ClusterRole, or a Role of the namespace, in a folder of the manifests grants a right."""
    return any(
        right.verb in rule["verbs"]
        and right.group in rule["apiGroups"]
        and right.resource in rule["resources"]
        and (not rule.get("resourceNames") or right.name in rule["resourceNames"])
        for role in folder
        if role["kind"] == "ClusterRole"
        or (role["kind"] == "Role" and role["metadata"]["namespace"] == right.namespace)
        for rule in role["rules"]
    )


def test_the_manifests_grant_what_is_asked_for() -> None:
    """What the check wants of controller and sweeper is what the manifests give them."""
    for folder, wanted in (("controller", check_rights.controllers), ("sweeper", check_rights.sweepers)):
        roles = documents(folder)
        assert [right for right in wanted(ROOTS, "punctual-system") if not granted(roles, right)] == []


def test_a_missing_right_is_named() -> None:
    """Who lacks what is said in RBAC's words, with the folder to apply."""
    at, api = an_installation()

    def review(body: Mapping[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        attributes = spec["resourceAttributes"]
        lacking = attributes["verb"] == "ungate" and spec["user"].endswith(":punctual-controller")
        return {"status": {"allowed": not lacking}}

    api.answers["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = review
    api.answers["/api/v1/namespaces/punctual-system/serviceaccounts/punctual-sweeper"] = {}
    controller, sweeper, kueue = check_rights.rights(at)
    assert (controller.state, sweeper.state, kueue.state) == (State.FAIL, State.OK, State.OK)
    assert "may not: ungate jobs.batch, ungate workloads.kueue.x-k8s.io" in controller.message
    assert controller.fix.endswith("manifests/controller")


# --- queues ----------------------------------------------------------------------------------------------------------


def test_queues_of_opted_in_namespaces() -> None:
    """A supported queue is fine; stopped, missing and unsupported ones are told apart; others are nobody's business."""
    cluster = MemoryCluster()
    cluster.queue("good")
    cluster.queue("held", local="held", stopPolicy="Hold")
    cluster.queue("checked", local="checked", admissionChecksStrategy={"admissionChecks": [{"name": "x"}]})
    lost = {"kind": "LocalQueue", "metadata": {"name": "lost", "namespace": "team"}, "spec": {"clusterQueue": "gone"}}
    cluster.put(lost)
    cluster.queue("foreign", local="foreign", namespace="other", stopPolicy="Hold")
    cluster.put({"kind": "Namespace", "metadata": {"name": "other"}})
    at, _ = an_installation(cluster)
    found = {finding.message.split(":")[0]: finding.state for finding in check_queues.queues(at)}
    assert found == {
        "ClusterQueue checked is not supported": State.WARN,
        "LocalQueue team/lost names ClusterQueue gone, which does not exist": State.FAIL,
        "ClusterQueue held is stopped (stopPolicy": State.WARN,
        "supported, and they take work": State.OK,
    }


# --- what runs -------------------------------------------------------------------------------------------------------


def lease(version: int, holder: str = "punctual-0", age: float = 0.0) -> dict[str, Any]:
    renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - age))
    return {"metadata": {"resourceVersion": str(version)}, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_a_controller_that_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lease that changes while it is watched has a living holder; its clock is compared too."""
    at, api = an_installation()
    versions = iter([1, 1, 2])
    api.answers[LEASE_PATH] = lambda body: lease(next(versions))
    monkeypatch.setattr(check_running, "_EVERY", 0.01)
    assert states(check_running.controller(at)) == [("controller", "ok"), ("controller's clock", "ok")]
    versions = iter([1, 2])
    api.answers[LEASE_PATH] = lambda body: lease(next(versions), age=60)
    assert states(check_running.controller(at)) == [("controller", "ok"), ("controller's clock", "fail")]


def test_a_controller_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Lease, one that stands still, and one that was given back: nobody plans."""
    at, api = an_installation()
    monkeypatch.setattr(check_running, "_EVERY", 0.01)
    monkeypatch.setattr(check_running, "_SILENT", 0.1)
    assert states(check_running.controller(at)) == [("controller", "fail")]
    api.answers[LEASE_PATH] = lambda body: lease(1)
    assert states(check_running.controller(at)) == [("controller", "fail")]
    versions = iter([1, 2])
    api.answers[LEASE_PATH] = lambda body: lease(next(versions), holder="")
    assert states(check_running.controller(at)) == [("controller", "fail")]


def test_a_planner_that_is_away() -> None:
    """An address where nobody answers is a failure; without an address nothing is claimed."""
    at, _ = an_installation(solver="unix:///nonexistent/solver.sock")
    assert states(check_running.planner(at)) == [("planner", "fail")]
    at, _ = an_installation()
    assert states(check_running.planner(at)) == []


def test_the_sweeper_that_nobody_installed() -> None:
    """Without it, or with it suspended, gated work would wait for ever after the controller."""
    at, api = an_installation()
    assert states(check_running.sweeper(at)) == [("sweeper", "warn")]
    path = "/apis/batch/v1/namespaces/punctual-system/cronjobs/punctual-sweeper"
    api.answers[path] = {"spec": {"schedule": "*/5 * * * *", "suspend": True}}
    assert states(check_running.sweeper(at)) == [("sweeper", "warn")]
    api.answers[path] = {"spec": {"schedule": "*/5 * * * *"}}
    assert states(check_running.sweeper(at)) == [("sweeper", "ok")]
