"""Where the policy is written: a file, or a ConfigMap of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduler.apiserver import NOT_FOUND, ApiError, ApiServer, Resource
from scheduler.cluster import Reference
from scheduler.reflector import Reflector

NAMESPACE = "punctual-system"
"""Of the controller, unless it is told another."""

CONFIG_MAP = "punctual-policy"
"""Name of the ConfigMap that a platform team writes."""

KEY = "policy.yaml"
"""The key of a ConfigMap under which a policy is."""


@dataclass(frozen=True)
class Written:
    """A policy as it is written at the moment.

    Attributes
    ----------
    text
        None: there is none.
    version
        Differs when the text may differ.
    where
        In words.
    target
        The object that has it, to be told what is wrong with it.
    problem
        Why there is a place for a policy, but no policy in it.
    """

    text: str | None
    version: str
    where: str
    target: Reference | None = None
    problem: str = ""


class PolicySource(Protocol):
    """Looks where the policy is written."""

    def look(self) -> Written:
        """What is written now. Cheap, and never raises."""


class FileSource:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self) -> Written:
        """The file as it is; one that cannot be read has no policy."""
        try:
            stat = self._path.stat()
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return Written(None, "", str(self._path))
        return Written(text, f"{stat.st_mtime_ns} {hash(text)}", str(self._path))


class ConfigMapFollower:
    """Follows one ConfigMap.

    Parameters
    ----------
    changed
        Called after each change.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str, changed: Callable[[], None]) -> None:
        self._resource = _config_map(namespace, name)
        self._key = f"{namespace}/{name}"
        self._reflector = Reflector(api, self._resource, changed)

    def start(self) -> None:
        """Begin to follow."""
        self._reflector.start()

    def stop(self) -> None:
        """End."""
        self._reflector.stop()

    def wait_synced(self, seconds: float) -> bool:
        """Wait until it is known whether the ConfigMap is there, and what is in it; also when we may not read it."""
        return self._reflector.wait_synced(seconds)

    def data(self) -> dict[str, str] | None:
        """What is in it; None when it is not there."""
        found = self._reflector.store.get(self._key)
        return None if found is None else dict(found.get("data") or {})

    def look(self) -> Written:
        """The policy in it."""
        found, where = self._reflector.store.get(self._key), f"ConfigMap {self._key}"
        if found is None:
            return Written(None, "", where)
        metadata = found["metadata"]
        target = Reference("ConfigMap", metadata["namespace"], metadata["name"], metadata["uid"])
        data, version = found.get("data") or {}, f"{metadata['uid']} {metadata['resourceVersion']}"
        if KEY in data:
            return Written(str(data[KEY]), version, where, target)
        keys = ", ".join(data) or "none"
        fix = f"kubectl create configmap … --from-file={KEY}=FILE makes it"
        return Written("", version, where, target, f"has no key {KEY} (it has: {keys}); {fix}")


def read_config_map(api: ApiServer, namespace: str, name: str) -> dict[str, str] | None:
    """What is in a ConfigMap now; None when it is not there.

    Raises
    ------
    ApiError
        If it cannot be read.
    """
    try:
        found = api.request("GET", _config_map(namespace, name).path(namespace, name))
    except ApiError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return dict(found.get("data") or {})


def _config_map(namespace: str, name: str) -> Resource:
    return Resource("ConfigMap", "v1", "configmaps", needed=False, only=(namespace, name))
