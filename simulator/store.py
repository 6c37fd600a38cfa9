"""API objects in memory, as an apiserver keeps them: replaced as a whole, never changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from scheduler.cluster import KINDS, Object, Reference


class Store:
    """Objects by kind and ``namespace/name`` (``name`` alone for cluster-scoped kinds).

    Attributes
    ----------
    changed
        Whether something was put or removed since the caller last set it to False.
    """

    def __init__(self) -> None:
        self.changed = False
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
        self._version = 0

    def all(self, kind: str) -> Mapping[str, Object]:
        """All objects of a kind; changes with the store."""
        return self._objects[kind]

    def get(self, target: Reference) -> Object | None:
        """The object, if it is still the same one."""
        item = self._objects[target.kind].get(key_of(target))
        return item if item is not None and item["metadata"]["uid"] == target.uid else None

    def put(self, kind: str, key: str, item: Object) -> None:
        """Set an object, with a new resource version."""
        self._version += 1
        self._objects[kind][key] = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        self.changed = True

    def remove(self, kind: str, key: str) -> None:
        """Remove an object that is there."""
        del self._objects[kind][key]
        self.changed = True

    def annotate(self, kind: str, key: str, annotations: Mapping[str, str | None]) -> None:
        """Set (None: remove) annotations of an object that is there."""
        item = self._objects[kind][key]
        merged = {**(item["metadata"].get("annotations") or {}), **annotations}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.put(kind, key, {**item, "metadata": {**item["metadata"], "annotations": kept}})

    def set_status(self, kind: str, key: str, status: Mapping[str, Any], *conditions: Mapping[str, str]) -> None:
        """Merge fields and conditions into the status of an object that is there."""
        item = self._objects[kind][key]
        old = item.get("status") or {}
        by_type = {condition["type"]: condition for condition in old.get("conditions") or ()}
        by_type.update({condition["type"]: condition for condition in conditions})
        self.put(kind, key, {**item, "status": {**old, **status, "conditions": list(by_type.values())}})


def key_of(target: Reference) -> str:
    """``namespace/name``, or the name alone."""
    return f"{target.namespace}/{target.name}" if target.namespace else target.name


def timestamp(instant: int) -> str:
    """An instant (milliseconds) as the API has it: UTC, whole seconds."""
    return dt.datetime.fromtimestamp(instant // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: bool, reason: str, message: str, instant: int) -> dict[str, str]:
    """A condition of a status."""
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(instant),
    }
