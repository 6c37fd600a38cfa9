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


class Said(StrEnum):
    """What became of a verdict."""

    RECORDED = "recorded"
    UNCHANGED = "unchanged"
    """The same was said before, by the same person for the same reason."""


class CannotJudge(Exception):
    """There is nothing to judge, or we may not; the message says what to do."""


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
        raise CannotJudge(f"{kind} {namespace}/{name} has no Workload: only what Kueue queues is judged")
    newest = max(found, key=lambda each: str(each["metadata"]["creationTimestamp"]))
    work = Work(read_workload(newest), None if kind == "Workload" else read_root(kind, item), Settings())
    entry = entry_of(None, work, None, None, now)
    if entry.outcome is None:
        raise CannotJudge(f"{kind} {namespace}/{name} has not ended: there is no result to judge yet")
    return Ended(entry, item, resource)


def _get(api: ApiServer, resource: Resource, namespace: str, name: str) -> Object:
    try:
        return api.request("GET", resource.path(namespace, name))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise CannotJudge(
            f"there is no {resource.kind} {name} in namespace {namespace}; of work whose object is gone, "
            "a verdict is written to the ledger itself (--ledger)"
        ) from None


def _owned(workload: Object, root: Object) -> bool:
    owners = workload["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == root["metadata"]["uid"] for owner in owners)


def say(api: ApiServer, work: Ended, verdict: Verdict, reason: str, *, dry_run: bool = False) -> Said:
    """Write a verdict on the cluster.

    Raises
    ------
    CannotJudge
        If we may not.
    scheduler.apiserver.ApiError
        If the apiserver does not answer.
    """
    who = str(api.request("POST", _WHO, body={}).get("status", {}).get("userInfo", {}).get("username", ""))
    metadata = work.item["metadata"]
    wanted = {VERDICT: str(verdict), VERDICT_BY: who, VERDICT_REASON: reason}
    there: Mapping[str, Any] = metadata.get("annotations") or {}
    if all(there.get(key) == text for key, text in wanted.items()):
        return Said.UNCHANGED
    body = {"metadata": {"uid": metadata["uid"], "annotations": wanted}}
    path = work.resource.path(str(metadata["namespace"]), str(metadata["name"]))
    try:
        query = {"dryRun": "All"} if dry_run else None
        api.request("PATCH", path, query=query, body=body, content_type=MERGE_PATCH)
    except ApiError as error:
        if error.status == FORBIDDEN:
            raise CannotJudge(error.message) from None
        raise
    return Said.RECORDED


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
        raise CannotJudge(f"{namespace}/{name} has not ended: there is no result to judge yet")
    raise CannotJudge(f"nothing of the name {name} in namespace {namespace} is in the ledger")
