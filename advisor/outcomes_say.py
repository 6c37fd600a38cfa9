"""Saying whether a result counts: a verdict, written where only those can write it who may.

On the cluster that is the root object of the work: an admission policy (``manifests/guards/verdict.yaml``) asks for the
RBAC verb ``verify`` and lets nobody write another's name; the controller notes it in the ledger. For work whose object
is gone it is the ledger itself: who can write that one may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scheduler.annotations import VERDICT, VERDICT_BY, VERDICT_REASON
from scheduler.apiserver import FORBIDDEN, MERGE_PATCH, NOT_FOUND, RESOURCES, ApiError, ApiServer, Resource
from scheduler.cluster import Object
from scheduler.facts import read_root, read_workload
from scheduler.items import Work
from scheduler.kinds import ROOT_KINDS
from scheduler.ledger import Ledger
from scheduler.ledger_entry import Entry, Verdict
from scheduler.ledger_recorder import entry_of
from scheduler.settings import Settings

_JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label that Kueue puts on a Workload: the uid of its root object."""

_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MAY = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

VERB = "verify"
"""The RBAC verb that it takes, which the admission policy asks for too."""


class Said(StrEnum):
    """What became of a verdict."""

    RECORDED = "recorded"
    UNCHANGED = "unchanged"
    """The same was said before, by the same person for the same reason."""


class CannotJudge(Exception):
    """There is nothing to judge, or we may not; the message says what to do."""


class NotThere(CannotJudge):
    """There is no such work, or it is not queued by Kueue."""


class NotEnded(CannotJudge):
    """There is no result yet."""


class MayNot(CannotJudge):
    """Who asks may not say whether a result counts."""


LONGEST_REASON = 1000
"""Characters."""

KINDS = {kind.lower(): kind for kind in (*ROOT_KINDS, "Workload")}
"""What is judged, by its name in small letters."""


def check_reason(reason: str) -> str:
    """What is wrong with a reason; empty if it will do."""
    if not reason.strip():
        return "say why; it is kept beside the verdict"
    if len(reason) > LONGEST_REASON:
        return f"{len(reason)} characters are too many; at most {LONGEST_REASON}"
    return ""


@dataclass(frozen=True)
class Ended:
    """A piece of work that has ended, and where its verdict goes."""

    entry: Entry
    item: Object
    resource: Resource


def find(api: ApiServer, kind: str, namespace: str, name: str, now: int) -> Ended:
    """A piece of work on the cluster, as the ledger would have it.

    Raises
    ------
    CannotJudge
        If it is not there, not queued by Kueue, or has not ended.
    scheduler.apiserver.ApiError
        If the apiserver does not answer.
    """
    resource, workloads = RESOURCES[kind], RESOURCES["Workload"]
    item = _get(api, resource, namespace, name)
    if kind == "Workload":
        owner = read_workload(item).owner
        if owner is not None and owner.kind in ROOT_KINDS:  # of others (pods, say) the Workload itself is judged
            raise CannotJudge(
                f"Workload {namespace}/{name} belongs to {owner.kind} {owner.name}: "
                f"judge that one (--kind {owner.kind})"
            )
        found = [item]
    else:
        query = {"labelSelector": f"{_JOB_UID}={item['metadata']['uid']}"}
        listed = api.request("GET", workloads.path(namespace), query=query).get("items") or []
        found = [each for each in listed if _owned(each, item)]  # a label anybody can write
    if not found:
        raise NotThere(f"{kind} {namespace}/{name} has no Workload: only what Kueue queues is judged")
    newest = max(found, key=lambda each: str(each["metadata"]["creationTimestamp"]))
    work = Work(read_workload(newest), None if kind == "Workload" else read_root(kind, item), Settings())
    entry = entry_of(None, work, None, None, now)
    if entry.outcome is None:
        raise NotEnded(f"{kind} {namespace}/{name} has not ended: there is no result to judge yet")
    return Ended(entry, item, resource)


def _get(api: ApiServer, resource: Resource, namespace: str, name: str) -> Object:
    try:
        return api.request("GET", resource.path(namespace, name))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NotThere(
            f"there is no {resource.kind} {name} in namespace {namespace}; of work whose object is gone, "
            "a verdict is written to the ledger itself (--ledger)"
        ) from None


def _owned(workload: Object, root: Object) -> bool:
    owners = workload["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == root["metadata"]["uid"] for owner in owners)


@dataclass(frozen=True)
class Saying:
    """What became of a verdict, and who said it, by the name that the cluster knows."""

    said: Said
    by: str


def say(api: ApiServer, work: Ended, verdict: Verdict, reason: str, *, dry_run: bool = False) -> Saying:
    """Write a verdict on the cluster.

    The right to do so is asked for here too, beside the admission policy: so it holds where that one is missing.

    Raises
    ------
    MayNot
        If we may not.
    scheduler.apiserver.ApiError
        If the apiserver does not answer.
    """
    who = str(api.request("POST", _WHO, body={}).get("status", {}).get("userInfo", {}).get("username", ""))
    metadata, resource = work.item["metadata"], work.resource
    if not _may(api, resource, str(metadata["namespace"])):
        raise MayNot(
            f'{who} may not say whether the result counts (that takes the RBAC verb "{VERB}" on {resource.plural})'
        )
    wanted = {VERDICT: str(verdict), VERDICT_BY: who, VERDICT_REASON: reason}
    there: Mapping[str, Any] = metadata.get("annotations") or {}
    if all(there.get(key) == text for key, text in wanted.items()):
        return Saying(Said.UNCHANGED, who)
    body = {"metadata": {"uid": metadata["uid"], "annotations": wanted}}
    path = resource.path(str(metadata["namespace"]), str(metadata["name"]))
    try:
        query = {"dryRun": "All"} if dry_run else None
        api.request("PATCH", path, query=query, body=body, content_type=MERGE_PATCH)
    except ApiError as error:
        if error.status == FORBIDDEN:
            raise MayNot(error.message) from None
        raise
    return Saying(Said.RECORDED, who)


def _may(api: ApiServer, resource: Resource, namespace: str) -> bool:
    """Whether we hold the verb on all of a namespace, as the admission policy asks."""
    group = resource.version.rpartition("/")[0]
    asked = {"namespace": namespace, "verb": VERB, "group": group, "resource": resource.plural}
    review = api.request("POST", _MAY, body={"spec": {"resourceAttributes": asked}})
    return bool(review.get("status", {}).get("allowed"))


def find_in_ledger(ledger: Ledger, namespace: str, name: str) -> Entry:
    """The newest work of that name that has ended.

    Raises
    ------
    CannotJudge
        If there is none.
    """
    known = False
    for entry in ledger.recent(namespace=namespace, details=True):
        if entry.name in (name, ledger.hide(name) if ledger.anonymous else name):
            known = True
            if entry.outcome is not None:
                return entry
    if known:
        raise NotEnded(f"{namespace}/{name} has not ended: there is no result to judge yet")
    raise NotThere(f"nothing of the name {name} in namespace {namespace} is in the ledger")
