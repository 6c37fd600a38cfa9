"""Gates and guards: whether they are there, and whether they act, Kueue's feature gate too. That they act is tried.

Everything that is made for it is in a namespace of its own, which goes again at once: one Workload with a gate of its
own for a queue that does not exist (see :mod:`scheduler.canary`), and a user who may edit it and nothing more.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from scheduler.apiserver import FORBIDDEN, MERGE_PATCH, RESOURCES, ApiError
from scheduler.canary import CANARY_GATE, SECONDS, canary, first_words, remove, try_out
from scheduler.check import Finding, Installation, State
from scheduler.check_cluster import switch_on
from scheduler.cluster import GATE, GATES_ANNOTATION, PREFIX, QUEUE_LABEL, Object
from scheduler.in_force import IN_FORCE, find_policy
from scheduler.policy_source import read_config_map
from scheduler.ungate import gate_names, gates_of, without_gate

GATES = ("punctual-gate-jobs", "punctual-gate-workloads")
"""Names of the MutatingAdmissionPolicies of manifests/gates."""

GUARDS = (
    "punctual-guard-bypass",
    "punctual-guard-children",
    "punctual-guard-controller",
    "punctual-guard-late-queue",
    "punctual-guard-owned-workloads",
    "punctual-guard-ungate",
    "punctual-guard-verdict",
    "punctual-guard-waiting-in-run-policy",
    "punctual-guard-waiting-jobs",
)
"""Names of the ValidatingAdmissionPolicies of manifests/guards."""

MANAGED = f"{PREFIX}/managed"
"""Label that opts a namespace in, with the value ``true``."""

SCRATCH = f"{PREFIX}/check"
"""Label of the namespaces that are made here."""

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_APPLY_GATES = "kubectl apply --server-side -k manifests/gates"
_APPLY_GUARDS = "kubectl apply --server-side -k manifests/guards"
_RBAC_SECONDS = 5.0
_SOME = 20
"""Namespaces that are tried at most."""


def policy(at: Installation) -> Iterable[Finding]:
    """Whether the policy can be read, and whether the controller goes by it."""
    found = find_policy(at.api, at.namespace)
    for remark in found.remarks:
        yield Finding(
            "policy", State.WARN, remark, "punctual policy check FILE    # with the file that it was made from"
        )
    if not found.remarks:
        yield Finding("policy", State.OK, f"in force: {found.where}")


def installed(at: Installation) -> Iterable[Finding]:
    """Whether all gates and guards are there, bound, and well typed."""
    yield _there(at, "gates", "mutatingadmissionpolicies", GATES, _APPLY_GATES, _no_flaw)
    yield _there(at, "guards", "validatingadmissionpolicies", GUARDS, _APPLY_GUARDS, _flaw)


def _there(
    at: Installation, what: str, plural: str, names: Iterable[str], fix: str, flaw: Callable[[Any, Any], str]
) -> Finding:
    def listed(path: str) -> dict[str, Any]:
        return {item["metadata"]["name"]: item for item in at.api.request("GET", f"{_ADMISSION}/{path}")["items"]}

    policies, bindings = listed(plural), listed(f"{plural.removesuffix('ies')}ybindings")
    bound = {binding["spec"]["policyName"]: binding for binding in bindings.values()}
    if missing := [name for name in names if name not in policies]:
        return Finding(what, State.FAIL, f"missing: {', '.join(missing)}", fix)
    if loose := [name for name in names if name not in bound]:
        return Finding(what, State.FAIL, f"without a binding, so without effect: {', '.join(loose)}", fix)
    if flaws := [f"{name} {words}" for name in names if (words := flaw(policies[name], bound[name]))]:
        return Finding(what, State.FAIL, "; ".join(flaws), fix)
    return Finding(what, State.OK, f"all there: {', '.join(names)}")


def _no_flaw(policy: Mapping[str, Any], binding: Mapping[str, Any]) -> str:
    return ""


def _flaw(policy: Mapping[str, Any], binding: Mapping[str, Any]) -> str:
    if "Deny" not in (binding["spec"].get("validationActions") or ()):
        return "does not deny (validationActions)"
    if policy["spec"].get("failurePolicy", "Fail") != "Fail":
        return "lets pass what it cannot judge (failurePolicy)"
    if (policy.get("status", {}).get("typeChecking") or {}).get("expressionWarnings"):
        return "has expressions that Kubernetes warns about"
    return ""


def opted_in(at: Installation) -> Iterable[Finding]:
    """Whether new Jobs are gated in the namespaces that are opted in; by dry runs, which store nothing."""
    queues: dict[str, str] = {}
    for key in at.cluster.objects("LocalQueue"):
        namespace, _, name = key.partition("/")
        queues.setdefault(namespace, name)
    namespaces = [name for name, item in at.cluster.objects("Namespace").items() if managed(item)]
    if not namespaces:
        told, fix = "no namespace is opted in: nothing waits for a plan", f"kubectl label namespace NAME {MANAGED}=true"
        yield Finding("namespaces", State.WARN, told, fix)
        return
    if without := [name for name in namespaces if name not in queues]:
        told = f"opted in, but without a LocalQueue, so no work can be queued there: {', '.join(without)}"
        yield Finding("namespaces", State.WARN, told)
    tried = [name for name in namespaces if name in queues]
    ungated: list[str] = []
    gated: list[str] = []
    for name in tried[:_SOME]:
        try:
            made = at.api.request("POST", RESOURCES["Job"].path(name), query={"dryRun": "All"}, body=_job(queues[name]))
        except ApiError as error:
            if error.status != FORBIDDEN or GATES_ANNOTATION in error.message:
                raise
            yield Finding("namespaces", State.WARN, f"whether Jobs in {name} are gated was not tried: {error.message}")
            continue
        (gated if GATE in gate_names(gates_of(made)) else ungated).append(name)
    data = read_config_map(at.api, at.namespace, IN_FORCE) if ungated else None
    observed = [name for name in ungated if _mode(data, f"{name}_{queues[name]}") == "observe"]
    ungated = [name for name in ungated if name not in observed]
    if observed:
        told = f"observed only (mode: observe), so new Jobs get no gate: {', '.join(observed)}"
        yield Finding("namespaces", State.WARN, told, "punctual policy show")
    if ungated:
        told = f"new Jobs get no gate in {', '.join(ungated)}: they start as if Punctual was not there"
        yield Finding("namespaces", State.FAIL, told, _APPLY_GATES)
    if gated:
        more = f" (of {len(tried)}, the first {_SOME} were tried)" if len(tried) > _SOME else ""
        yield Finding("namespaces", State.OK, f"new Jobs are gated in {', '.join(gated)}{more}")


def unguarded(at: Installation) -> Iterable[Finding]:
    """Work that waits behind our gate where the guards do not hold."""
    namespaces = {name for name, item in at.cluster.objects("Namespace").items() if managed(item)}
    found: dict[str, int] = {}
    for root in at.kinds:
        for item in at.cluster.objects(root.kind).values():
            namespace = item["metadata"].get("namespace", "")
            if GATE in gate_names(gates_of(item)) and namespace not in namespaces:
                found[namespace] = found.get(namespace, 0) + 1
    for namespace, count in sorted(found.items()):
        told = f"{count} wait behind our gate in {namespace}, which is not opted in: anybody may take it off there"
        fix = f"kubectl label namespace {namespace} {MANAGED}=true    # or: punctual release --all -n {namespace}"
        yield Finding("namespaces", State.WARN, told, fix)


def acting(at: Installation) -> Iterable[Finding]:
    """Whether gates and guards act, and whether Kueue heeds gates: tried in a namespace made for it."""
    try:
        with _scratch(at) as namespace:
            yield from _tried(at, namespace)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        told = f"gates and guards were not tried in a namespace of their own: {error.message}"
        yield Finding("guards act", State.WARN, told, "run it with the rights of cluster-admin")
        yield heeded(at, try_out(at.api, at.namespace))


def _mode(data: Mapping[str, str] | None, queue: str = "") -> str:
    """``enforce`` or ``observe``, as gates read it in their ConfigMap; empty without one: then they do nothing.

    ``queue``: of a LocalQueue, named as in :func:`scheduler.in_force.modes`; else of all that have none of their own.
    """
    return "" if data is None else data.get(queue) or data.get("mode") or "enforce"


def _tried(at: Installation, namespace: str) -> Iterator[Finding]:
    known = _mode(read_config_map(at.api, at.namespace, IN_FORCE))
    made = at.api.request("POST", RESOURCES["Workload"].path(namespace), body=canary(CANARY_GATE))
    try:
        gated = GATE in gate_names(gates_of(made))
        answer = heeded(at, first_words(at.api, made, SECONDS))
        if known == "observe" and answer.state is State.FAIL:
            told = f"{answer.message}; it must be on before plans are enforced (the policy says mode: observe)"
            answer = Finding(answer.what, State.WARN, told, answer.fix)
        yield answer
        if gated:
            yield Finding("gates act", State.OK, "a Workload in an opted-in namespace gets our gate")
            yield _guard(at, namespace, made)
        elif known == "observe":
            told = "the policy says mode: observe, so nothing is gated (guards are not tried without a gate)"
            yield Finding("gates act", State.WARN, told, "punctual policy show")
        elif not known:
            told = f"no ConfigMap {at.namespace}/{IN_FORCE}: without it the gates do nothing"
            fix = "kubectl apply --server-side -k manifests/controller"
            yield Finding("gates act", State.FAIL, told, fix)
        else:
            told = "a Workload in an opted-in namespace gets no gate"
            yield Finding("gates act", State.FAIL, told, f"{_APPLY_GATES}    # they act a second or two later")
    finally:
        remove(at.api, namespace)


def heeded(at: Installation, answer: bool | None) -> Finding:
    """What Kueue did with a gated Workload, in words."""
    what = "AdmissionGatedBy"
    if answer:
        return Finding(what, State.OK, "Kueue keeps a gated Workload out of its queues")
    if answer is None:
        told = f"Kueue says nothing about a new Workload for {SECONDS:.0f} s: does it run?"
        fix = f"kubectl -n {at.kueue_namespace} rollout status deployment {at.kueue_name}"
        return Finding(what, State.FAIL, told, fix)
    return Finding(what, State.FAIL, "Kueue ignores gates: its feature gate AdmissionGatedBy is off", switch_on(at))


def _guard(at: Installation, namespace: str, workload: Object) -> Finding:
    """Try to take our gate off as somebody who may edit Workloads."""
    user = f"{namespace}-editor"
    rule = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["get", "patch"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    rbac = f"{_RBAC}/namespaces/{namespace}"
    at.api.request("POST", f"{rbac}/roles", body={"metadata": {"name": "editor"}, "rules": [rule]})
    body = {"metadata": {"name": "editor"}, "roleRef": role, "subjects": [subject]}
    at.api.request("POST", f"{rbac}/rolebindings", body=body)
    path = RESOURCES["Workload"].path(namespace, workload["metadata"]["name"])
    patch = {"metadata": {"annotations": {GATES_ANNOTATION: without_gate(gates_of(workload))}}}
    end = time.monotonic() + _RBAC_SECONDS
    while True:
        try:
            query = {"dryRun": "All"}
            at.api.as_user(user).request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if '"ungate"' in error.message:
                return Finding("guards act", State.OK, "who may edit a Workload may not take our gate off")
            if time.monotonic() > end:  # the new role is not known everywhere yet, or we may not impersonate
                return Finding("guards act", State.WARN, f"not tried: {error.message}")
            time.sleep(0.1)
        else:
            told = "who may edit a Workload may take our gate off: anybody can start before the plan"
            return Finding("guards act", State.FAIL, told, f"{_APPLY_GUARDS}    # they act a second or two later")


@contextmanager
def _scratch(at: Installation) -> Iterator[str]:
    """A namespace that is opted in; it goes with all that is in it."""
    namespaces = RESOURCES["Namespace"]
    left = at.api.request("GET", namespaces.path(), query={"labelSelector": SCRATCH})
    for item in left["items"]:  # whoever made it was killed
        _drop(at, item["metadata"]["name"])
    name = f"punctual-check-{uuid.uuid4().hex[:8]}"
    labels = {MANAGED: "true", SCRATCH: "true", "app.kubernetes.io/part-of": "punctual"}
    at.api.request("POST", namespaces.path(), body={"metadata": {"name": name, "labels": labels}})
    try:
        yield name
    finally:
        _drop(at, name)


def _drop(at: Installation, namespace: str) -> None:
    remove(at.api, namespace)
    with suppress(ApiError):
        at.api.request("DELETE", RESOURCES["Namespace"].path(name=namespace))


def managed(namespace: Object) -> bool:
    """Whether a namespace is opted in."""
    return (namespace["metadata"].get("labels") or {}).get(MANAGED) == "true"


def _job(queue: str) -> dict[str, Any]:
    container = {"name": "none", "image": "none", "resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "1m"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "punctual-check-", "labels": {QUEUE_LABEL: queue}},
        "spec": {"suspend": True, "template": template},
    }
