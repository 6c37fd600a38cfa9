"""A copy of all objects of one kind that follows the apiserver: list once, then watch.

The ``kubernetes`` package has an informer too. It lists everything in one piece (no paging), cannot say whether it has
synced, copies its whole cache for each look, and reconnects at once however often that fails. So here is our own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from scheduler.apiserver import FORBIDDEN, GONE, NOT_FOUND, PAGE, ApiError, ApiServer, Resource, Watch
from scheduler.cluster import Object

log = logging.getLogger(__name__)

WATCH_SECONDS = 300.0
"""How long one watch lasts before we ask for the next; up to twice that, so that not all end at once."""


class Backoff:
    """How long to wait before the next attempt: doubling, up to a limit, the last half of it at random."""

    def __init__(self, first: float = 0.2, limit: float = 30.0) -> None:
        self._first, self._limit = first, limit
        self._next = first

    def reset(self) -> None:
        """It worked."""
        self._next = self._first

    def seconds(self) -> float:
        """Wait so long now."""
        wait, self._next = self._next, min(2 * self._next, self._limit)
        return wait * random.uniform(0.5, 1.0)


class Store:
    """Objects by key. Copy on write: a snapshot costs nothing, and the first change after it one copy of the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._shown = False

    def snapshot(self) -> Mapping[str, Object]:
        """All objects at this moment; does not change any more."""
        with self._lock:
            self._shown = True
            return MappingProxyType(self._objects)

    def get(self, key: str) -> Object | None:
        """One object as it is now."""
        with self._lock:
            return self._objects.get(key)

    def put(self, key: str, value: Object | None) -> None:
        """Add or replace one object; None takes it out."""
        with self._lock:
            if self._shown:
                self._objects, self._shown = dict(self._objects), False
            if value is None:
                self._objects.pop(key, None)
            else:
                self._objects[key] = value

    def replace(self, objects: dict[str, Object]) -> None:
        """All objects anew."""
        with self._lock:
            self._objects, self._shown = objects, False


class Reflector:
    """Follows the objects of one kind in a thread of its own.

    Parameters
    ----------
    changed
        Called after each change of :attr:`store`, in the reflector's thread.
    watched
        Called before ``changed`` with an object as it was and as it is now (None: not there), if a watch told of it.
    page
        Objects asked for in one answer.
    backoff
        Waits between failed attempts.
    essence
        What is kept of an object, its ``metadata.resourceVersion`` included. Where nothing else of that has changed,
        the object stays as it was, and nobody is told.
    """

    def __init__(
        self,
        api: ApiServer,
        resource: Resource,
        changed: Callable[[], None],
        *,
        page: int = PAGE,
        backoff: Backoff | None = None,
        essence: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        watched: Callable[[Object | None, Object | None], None] | None = None,
    ) -> None:
        self.resource = resource
        self.store = Store()
        self.problem = ""
        """Why the store may be out of date, in the apiserver's words; empty while all is well."""
        self.missing = False
        """Whether the apiserver says that it does not know this kind."""
        self._api = api
        self._changed = changed
        self._page = page
        self._backoff = backoff or Backoff()
        self._essence = essence
        self._watched = watched
        self._synced = threading.Event()
        self._stop = threading.Event()
        self._watch: Watch | None = None
        self._version = ""
        self._thread = threading.Thread(target=self._run, name=f"watch {resource.plural}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, wherever it waits."""
        self._stop.set()
        if watch := self._watch:
            watch.close()
        self._thread.join(timeout=5)

    @property
    def has_synced(self) -> bool:
        """Whether the store has held all objects once. Stays true: what is known is better than nothing."""
        return self._synced.is_set()

    def wait_synced(self, seconds: float) -> bool:
        """Wait until :attr:`has_synced`."""
        return self._synced.wait(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                if self._follow():
                    continue
            except ApiError as error:
                self._failed(error)
            except Exception:
                log.exception("following %s failed", self.resource.plural)
                self._version = ""
            self._stop.wait(self._backoff.seconds())

    def _failed(self, error: ApiError) -> None:
        if self._stop.is_set():
            return
        if error.status == GONE:
            log.info("listing %s anew: its version is too old to go on from", self.resource.plural)
            self._version = ""  # that is no fault
            return
        if error.status not in (0, 429, 503):
            self._version = ""  # perhaps it does not know this version (restored from a backup): list again
        problem = f"cannot follow {self.resource.plural}: {error}"
        self.missing = error.status == NOT_FOUND
        dispensable = error.status == FORBIDDEN and not self.resource.needed
        if dispensable:
            problem += "; plans are made without them"
        if self.missing and self.resource.optional:
            problem = ""  # a CRD that is not installed is nothing to tell anybody
        elif self.missing:
            problem = f"this cluster has no {self.resource.plural} ({self.resource.version})"
        if problem != self.problem:
            if problem:
                log.warning("%s", problem)
            self.problem = problem
            self._changed()
        # A kind that is taken away sends DELETED for each object first. So with objects known, "not found" is what an
        # apiserver says that is still starting; without any there is nothing to wait for.
        if (self.missing or dispensable) and not self.store.snapshot():
            self._synced.set()

    def _well(self) -> None:
        if self.problem or self.missing:
            log.info("following %s again" if self.problem else "following %s", self.resource.plural)
            self.problem, self.missing = "", False

    def _list(self) -> None:
        items, version = self._api.list_all(self.resource, page=self._page)
        self.store.replace({key_of(item): self._arrived(item) for item in items})
        self._version = version
        self._synced.set()
        self._well()
        self._changed()

    def _follow(self) -> bool:
        """Watch until the apiserver ends it. False when that was so soon that the next watch should wait a little."""
        query: dict[str, str | int] = {"resourceVersion": self._version, **self.resource.query}
        watch = self._api.watch(self.resource.path(), query, WATCH_SECONDS * random.uniform(1, 2))
        self._watch, began = watch, time.monotonic()
        try:
            if self._stop.is_set():
                return True
            self._well()
            for event in watch:
                self._apply(event)
        finally:
            watch.close()
            self._watch = None
            lasted = time.monotonic() - began > 1
            if lasted:
                self._backoff.reset()
        return lasted

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(int(item.get("code", 500)), str(item.get("message", item)))
        self._version = item["metadata"]["resourceVersion"]
        self._backoff.reset()
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        key = key_of(item)
        before, now = self.store.get(key), None
        if kind != "DELETED":
            now = self._arrived(item)
            if self._essence is not None and _same(before, now):
                return
        self.store.put(key, now)
        if self._watched is not None:
            self._watched(before, now)
        self._changed()

    def _arrived(self, item: dict[str, Any]) -> Object:
        """An item as we keep it: with its kind, which lists leave out, and without what nobody here reads."""
        item["metadata"].pop("managedFields", None)
        item.setdefault("kind", self.resource.kind)
        item.setdefault("apiVersion", self.resource.version)
        return item if self._essence is None else self._essence(item)


def _same(known: Object | None, arrived: Object) -> bool:
    """Whether two versions of an object differ in nothing but that they are two."""
    if known is None:
        return False
    version = known["metadata"]["resourceVersion"]
    return known == {**arrived, "metadata": {**arrived["metadata"], "resourceVersion": version}}


def key_of(item: Object) -> str:
    """``namespace/name``, or the name alone of what has no namespace."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
