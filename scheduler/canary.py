"""Whether Kueue heeds admission gates. Nothing in its API says so, so it is asked, and tried.

To *ask* costs nothing: with the feature gate AdmissionGatedBy on, Kueue's webhook refuses a gate with a malformed name;
the request is a dry run. But the webhook is answered by any replica, and it may be missing.

To *try* is certain: a Workload with a gate of the canary's own, for a queue that does not exist. Kueue looks at gates
before it looks for the queue, so its first words about the Workload are ``AdmissionGated`` or, with the feature off,
``Inadmissible``. Whatever happens, it can never be admitted and touches no quota. Hazard: while it exists, Kueue 0.17
rewrites its status a hundred times a second (as of any gated Workload without a queue). So it lives for a blink, and
one that was left behind is removed by the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scheduler.apiserver import NOT_FOUND, RESOURCES, ApiError, ApiServer
from scheduler.cluster import GATES_ANNOTATION, PREFIX, Object
from scheduler.reflector import Backoff

log = logging.getLogger(__name__)

NAME = "punctual-canary"
"""Name of the Workload. Always the same, so that there is never more than one, and RBAC can name it."""

CANARY_GATE = f"{PREFIX}/canary"
"""Its gate. Not our own: nobody may take it for work."""

SECONDS = 10.0
"""How long Kueue may take to say anything."""

_GRACE = 1
"""Whole seconds in which Kueue may still say that it is gated after it has said something else about it."""

_CONFLICT = 409
_REMOVALS = 5


def ask(api: ApiServer, namespace: str) -> bool:
    """Whether Kueue's webhook knows admission gates. Nothing is stored.

    Raises
    ------
    scheduler.apiserver.ApiError
        It cannot be asked: Kueue's webhook is away, or we may not create Workloads in this namespace.
    """
    try:
        body = canary("not-a-gate")
        api.request("POST", RESOURCES["Workload"].path(namespace), query={"dryRun": "All"}, body=body)
    except ApiError as error:
        if GATES_ANNOTATION in error.message:
            return True
        raise
    return False


def try_out(
    api: ApiServer, namespace: str, seconds: float = SECONDS, cancelled: Callable[[], bool] = lambda: False
) -> bool | None:
    """Whether Kueue keeps a gated Workload out of its queues; None when it says nothing in time.

    Parameters
    ----------
    namespace
        Where the Workload is made. Nobody else should work there.

    Raises
    ------
    scheduler.apiserver.ApiError
        The Workload can be neither made nor watched.
    """
    resource = RESOURCES["Workload"]
    body = canary(CANARY_GATE)
    try:
        made = api.request("POST", resource.path(namespace), body=body)
    except ApiError as error:
        if error.status != _CONFLICT:
            raise
        remove(api, namespace)  # somebody was killed in the middle of it
        made = api.request("POST", resource.path(namespace), body=body)
    try:
        return first_words(api, made, seconds, cancelled)
    finally:
        remove(api, namespace)


def canary(gates: str, name: str = NAME) -> dict[str, Any]:
    """The Workload: one pod that asks for next to nothing, and a queue that does not exist."""
    resource = RESOURCES["Workload"]
    container = {"name": "none", "image": "none", "resources": {"requests": {"cpu": "1m"}}}
    pods = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": resource.version,
        "kind": resource.kind,
        "metadata": {"name": name, "annotations": {GATES_ANNOTATION: gates}},
        "spec": {
            "queueName": "punctual-canary-has-none",
            "podSets": [{"name": "main", "count": 1, "template": {"spec": pods}}],
        },
    }


def first_words(
    api: ApiServer, made: Object, seconds: float, cancelled: Callable[[], bool] = lambda: False
) -> bool | None:
    """Whether Kueue says that a Workload which was just made is gated; None when it says nothing in time."""
    metadata = made["metadata"]
    path, version = RESOURCES["Workload"].path(metadata["namespace"]), metadata["resourceVersion"]
    end, said = time.monotonic() + seconds, False
    while time.monotonic() < end and not cancelled():
        query = {"fieldSelector": f"metadata.name={metadata['name']}", "resourceVersion": version}
        watch = api.watch(path, query, _GRACE)
        try:
            for event in watch:
                item = event["object"]
                if event["type"] == "ERROR":
                    raise ApiError(int(item.get("code", 500)), str(item.get("message", item)))
                version = item["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK" or item["metadata"]["name"] != metadata["name"]:
                    continue
                if event["type"] == "DELETED":
                    return None
                reason = _reason(item)
                if reason == "AdmissionGated":
                    return True
                said = said or bool(reason)
        finally:
            watch.close()
        if said:
            return False
    return None


def remove(api: ApiServer, namespace: str, name: str = NAME) -> None:
    """Delete the Workload. Does not give up at once: left alone, it costs the cluster a hundred writes a second."""
    backoff = Backoff()
    for attempt in range(1, _REMOVALS + 1):
        try:
            api.request("DELETE", RESOURCES["Workload"].path(namespace, name))
            return
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            if attempt == _REMOVALS:
                log.error("Workload %s/%s could not be deleted; delete it by hand: %s", namespace, name, error)
        time.sleep(backoff.seconds())


def _reason(workload: Object) -> str:
    """Why it has no quota, or that it has, in Kueue's word; empty while Kueue has said nothing."""
    with suppress(KeyError, TypeError):
        for condition in workload["status"]["conditions"]:
            if condition["type"] == "QuotaReserved":
                return str(condition["reason"])
    return ""
