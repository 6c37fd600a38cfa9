"""Whether our accounts, and Kueue's, have the rights that they need: asked of the apiserver, right by right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scheduler.apiserver import FORBIDDEN, NOT_FOUND, RESOURCES, ApiError
from scheduler.canary import NAME
from scheduler.check import Finding, Installation, State
from scheduler.cluster import KINDS
from scheduler.in_force import IN_FORCE
from scheduler.kinds import ROOT_KINDS, RootKind
from scheduler.leader import LEASE
from scheduler.policy_source import CONFIG_MAP

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RELEASES = ("get", "list", "watch", "patch", "ungate")


class Right(NamedTuple):
    """One verb on one resource."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    """Empty: in all."""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{where}"


def controllers(kinds: Sequence[RootKind], namespace: str) -> list[Right]:
    """What the controller must be allowed to do.

    Parameters
    ----------
    kinds
        Kinds of jobs that the cluster has.
    namespace
        The controller's own.
    """
    there = {root.kind for root in kinds}
    rights: list[Right] = []
    for kind in KINDS:
        resource = RESOURCES[kind]
        if kind in ROOT_KINDS and kind not in there:
            continue
        verbs = _RELEASES if kind in ROOT_KINDS or kind == "Workload" else ("list", "watch")
        place = resource.only or ("", "")
        rights += [Right(verb, _group(resource.version), resource.plural, *place) for verb in verbs]
    rights += [Right(verb, "", "events") for verb in ("create", "patch")]
    rights += [Right(verb, "coordination.k8s.io", "leases", namespace) for verb in ("create", "get", "update")]
    for name, ways in ((CONFIG_MAP, ("list", "watch")), (IN_FORCE, ("list", "watch", "patch"))):
        rights += [Right(verb, "", "configmaps", namespace, name) for verb in ways]
    rights += [
        Right("create", "kueue.x-k8s.io", "workloads", namespace),
        Right("delete", "kueue.x-k8s.io", "workloads", namespace, NAME),
    ]
    return rights


def sweepers(kinds: Sequence[RootKind], namespace: str) -> list[Right]:
    """What the sweeper must be allowed to do."""
    releasing = [*(RESOURCES[root.kind] for root in kinds), RESOURCES["Workload"]]
    rights = [
        Right(verb, _group(resource.version), resource.plural)
        for resource in releasing
        for verb in ("get", "list", "patch", "ungate")
    ]
    rights += [Right("get", "", "configmaps", namespace, name) for name in (CONFIG_MAP, IN_FORCE)]
    rights += [Right("create", "", "events"), Right("get", "coordination.k8s.io", "leases", namespace, LEASE)]
    return rights


def rights(at: Installation) -> Iterable[Finding]:
    """The rights of the controller, the sweeper, and Kueue."""
    controller, sweeper = at.account, at.account.replace("punctual-controller", "punctual-sweeper")
    everything = "kubectl apply --server-side -k manifests/"
    yield _asked(at, "the controller", controller, controllers(at.kinds, at.namespace), f"{everything}controller")
    if _exists(at, sweeper):  # else that is said elsewhere
        yield _asked(at, "the sweeper", sweeper, sweepers(at.kinds, at.namespace), f"{everything}sweeper")
    # It follows a release on the Workload.
    kueues = [Right("ungate", "kueue.x-k8s.io", "workloads")]
    yield _asked(at, "Kueue", at.kueue_account, kueues, f"{everything}guards")


def _asked(at: Installation, who: str, user: str, wanted: Sequence[Right], fix: str) -> Finding:
    what = "rights"
    try:
        lacking = [right for right in wanted if not _may(at, user, right)]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        told = f"what {who} may do cannot be asked: {error.message}"
        return Finding(what, State.WARN, told, "run it with the rights of cluster-admin")
    if lacking:
        return Finding(what, State.FAIL, f"{who} ({user}) may not: {', '.join(map(str, lacking))}", fix)
    return Finding(what, State.OK, f"{who} has all {len(wanted)} rights that it needs")


def _exists(at: Installation, user: str) -> bool:
    _, _, namespace, name = user.split(":")
    try:
        at.api.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            return False
        if error.status != FORBIDDEN:
            raise
    return True


def _may(at: Installation, user: str, right: Right) -> bool:
    _, _, namespace, _ = user.split(":")
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": right.resource}
    attributes |= {"namespace": right.namespace, "name": right.name}
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(at.api.request("POST", _REVIEWS, body=body)["status"]["allowed"])


def _group(version: str) -> str:
    return version.rpartition("/")[0]
