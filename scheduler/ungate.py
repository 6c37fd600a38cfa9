"""Taking our gate off an object: compare and remove, so that nobody else's gate is lost and no namesake is touched.

A release is final (Kueue lets no gate be put on again), and it goes to the *root* object. With the gate off a Job's
Workload alone, Kueue would reserve quota for a Job that can never start.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from scheduler.apiserver import BUSY, JSON_PATCH, RESOURCES, ApiError, ApiServer
from scheduler.cluster import GATE, GATES_ANNOTATION, Object, Reference, Release, ReleaseResult

ATTEMPTS = 4
"""How often a patch is tried that lost against another writer."""

_ANNOTATION_PATH = "/metadata/annotations/" + GATES_ANNOTATION.replace("~", "~0").replace("/", "~1")


def gate_names(value: str) -> list[str]:
    """The gates in a value of Kueue's annotation."""
    return [name for part in value.split(",") if (name := part.strip())]


def gates_of(item: Object) -> str:
    """The value of Kueue's annotation on an object; empty without one."""
    return str((item["metadata"].get("annotations") or {}).get(GATES_ANNOTATION, ""))


def controller_of(item: Object) -> str:
    """``Job name`` of the object that controls this one; empty when there is none."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{owner['kind']} {owner['name']}"
    return ""


def without_gate(value: str) -> str:
    """A value of Kueue's annotation with our gate taken out; empty when no other is left."""
    return ",".join(name for name in gate_names(value) if name != GATE)


def ungate(
    api: ApiServer,
    target: Reference,
    seen: Object | None = None,
    may_act: Callable[[], bool] = lambda: True,
    *,
    dry_run: bool = False,
) -> ReleaseResult:
    """Take our gate off ``target``, if it still is the same object.

    Parameters
    ----------
    seen
        The object as it was seen last, if it was; saves the call that reads it.
    may_act
        Asked right before each patch.
    dry_run
        Go through it all, rights and policies of the cluster too, and change nothing.
    """
    resource = RESOURCES.get(target.kind)
    if resource is None:
        return ReleaseResult(Release.REFUSED, f"a {target.kind} is no kind of root object that can be released")
    path = resource.path(target.namespace, target.name)
    query = {"dryRun": "All"} if dry_run else None
    tried, refusal, sent = None, None, None
    try:
        for _ in range(ATTEMPTS):
            item = seen or api.request("GET", path)
            if item["metadata"]["uid"] != target.uid:
                return ReleaseResult(Release.GONE, f"{target} is another object of the same name by now")
            gates = gates_of(item)
            if GATE not in gate_names(gates):
                return ReleaseResult(Release.NOT_GATED)
            if target.kind == "Workload" and (owner := controller_of(item)):
                return ReleaseResult(Release.REFUSED, f"{target} belongs to {owner}: that has to be released")
            if refusal is not None and refusal.status == 422 and gates == tried:
                return ReleaseResult(Release.REFUSED, refusal.message)  # the tests held: it is somebody's rule
            if not may_act():
                return ReleaseResult(Release.TRY_AGAIN, "this replica does not lead")
            sent = time.monotonic()
            try:
                api.request("PATCH", path, query=query, body=_patch(target, gates), content_type=JSON_PATCH)
                return ReleaseResult(Release.DONE, sent=sent)
            except ApiError as error:
                if error.status not in (409, 422):
                    raise
                # Either a test failed or somebody's rule did; how the object looks now tells which.
                seen, tried, refusal = None, gates, error
    except ApiError as error:
        return ReleaseResult(_outcome(error), error.message, sent)
    return ReleaseResult(Release.TRY_AGAIN, str(refusal), sent)


def _patch(target: Reference, value: str) -> list[dict[str, str]]:
    rest = without_gate(value)
    change = {"op": "replace", "path": _ANNOTATION_PATH, "value": rest} if rest else None
    return [
        {"op": "test", "path": "/metadata/uid", "value": target.uid},
        {"op": "test", "path": _ANNOTATION_PATH, "value": value},
        change or {"op": "remove", "path": _ANNOTATION_PATH},
    ]


def _outcome(error: ApiError) -> Release:
    if error.status == 404:
        return Release.GONE
    return Release.TRY_AGAIN if error.status in (*BUSY, 401, 409) else Release.REFUSED
