"""Objects without what nobody here reads: a controller holds all Jobs and Workloads of a cluster in memory.

What is left out is named, so that whoever begins to read something finds it here.
"""

from __future__ import annotations

import sys
from typing import Any

from scheduler.kinds import ROOT_KINDS

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_OF_CONTAINERS = (
    *("args", "command", "env", "envFrom", "imagePullPolicy", "lifecycle", "livenessProbe", "ports", "readinessProbe"),
    *("securityContext", "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "volumeDevices"),
    *("volumeMounts", "workingDir"),
)
_OF_PODS = ("dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "securityContext", "volumes")
_OF_QUEUES = ("conditions", "fairSharing")
"""Of the status of a queue, what is kept."""


def slim(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """An object as it is kept. Takes the given one apart."""
    _part(item["metadata"], "annotations").pop(_LAST_APPLIED, None)
    if kind in ROOT_KINDS:
        item.pop("status", None)  # Kueue says on the Workload what has become of it
        _only(item, ROOT_KINDS[kind].policy)
    elif kind == "Workload":
        for pod_set in _items(_part(item, "spec").get("podSets")):
            _slim_pod(_part(_part(pod_set, "template"), "spec"))
    elif kind in ("ClusterQueue", "LocalQueue"):  # Kueue counts there what waits and runs: at each start and end
        status = _part(item, "status")
        item["status"] = {key: status[key] for key in _OF_QUEUES if key in status}
    return _shared(item)  # type: ignore[no-any-return]


def _only(item: dict[str, Any], path: tuple[str, ...]) -> None:
    """Leave of ``item[path[0]]`` only what is on the path, and of its end only plain values."""
    part = _part(item, path[0])
    if len(path) == 1:
        item[path[0]] = {key: value for key, value in part.items() if not isinstance(value, dict | list)}
    else:
        _only(part, path[1:])
        item[path[0]] = {path[1]: part[path[1]]}


def _slim_pod(spec: dict[str, Any]) -> None:
    for key in _OF_PODS:
        spec.pop(key, None)
    for container in (*_items(spec.get("containers")), *_items(spec.get("initContainers"))):
        for key in _OF_CONTAINERS:
            container.pop(key, None)


def _part(item: dict[str, Any], key: str) -> dict[str, Any]:
    part = item.get(key)
    return part if isinstance(part, dict) else {}


def _items(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _shared(value: Any) -> Any:
    """The same with keys that all objects share: parsed one by one, each has its own."""
    if isinstance(value, dict):
        return {sys.intern(key): _shared(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shared(each) for each in value]
    return value
