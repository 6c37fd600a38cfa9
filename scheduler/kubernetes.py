"""The real cluster: what the control loop sees of it, and the few things it does to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from scheduler.apiserver import RESOURCES, ApiServer
from scheduler.cluster import KINDS, Object, Reference, Release, ReleaseResult
from scheduler.kinds import ROOT_KINDS
from scheduler.metrics import Metrics
from scheduler.nodes import essence
from scheduler.notices import Notices
from scheduler.reflector import Reflector
from scheduler.slim import slim
from scheduler.ungate import ungate

PARALLEL = 8
"""Releases under way at once. On one apiserver more than this brought nothing."""

GATHER = 0.2
"""Seconds from the end of one wait to the next at least, unless quota comes free: each start and end of work changes
objects a dozen times."""

SLOW_SECONDS = 2.0
"""A release that fails only after so long stops those behind it."""

CONNECTIONS = len(KINDS) + PARALLEL + 6
"""Connections in use at most: a watch a kind and two of the policy, the releases, notices, the lease, a read or two."""


_ESSENCE: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Node": essence,
    **{kind: partial(slim, kind) for kind in ("Workload", "ClusterQueue", "LocalQueue", *ROOT_KINDS)},
}
"""Of kinds of which little matters and much changes, what is kept."""


class KubernetesCluster:
    """Implements :class:`scheduler.cluster.Cluster` on an apiserver.

    Parameters
    ----------
    api
        Keeps at least :data:`CONNECTIONS` connections.
    may_act
        Asked right before each release.
    """

    def __init__(
        self, api: ApiServer, *, may_act: Callable[[], bool] = lambda: True, metrics: Metrics | None = None
    ) -> None:
        self._api = api
        self._may_act = may_act
        metrics = metrics or Metrics()
        self._changed = threading.Event()
        self._room = threading.Event()
        """Whether quota has come free since the last wait."""
        self._first_change: float | None = None
        self._first_room: float | None = None
        self._woken = 0.0
        """When the last wait ended."""
        self.woken_by: float | None = None
        """When the first of the changes came that ended the last :meth:`wait`, on :func:`time.monotonic`'s clock: if
        quota has come free, the first that freed some."""
        self._reflectors = {
            kind: Reflector(
                api,
                RESOURCES[kind],
                self._note_change,
                essence=_ESSENCE.get(kind),
                watched=self._note_workload if kind == "Workload" else None,
            )
            for kind in KINDS
        }
        for kind, reflector in self._reflectors.items():
            metrics.watching(kind, partial(_followed, reflector))
        self._notices = Notices(api, dropped=metrics.notice_dropped)
        self._slow = 0.0
        """When a release timed out last."""
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="release")

    def start(self) -> None:
        """Begin to follow the cluster."""
        for reflector in self._reflectors.values():
            reflector.start()
        self._notices.start()

    def stop(self) -> None:
        """Let what is under way end, write the notices that wait (for two seconds at most), and end all threads."""
        self._pool.shutdown()
        self._notices.stop()
        for reflector in self._reflectors.values():
            reflector.stop()

    def wait_synced(self, seconds: float) -> bool:
        """Wait until all objects of all kinds have been seen once. False when the time is over before."""
        end = time.monotonic() + seconds
        return all(reflector.wait_synced(end - time.monotonic()) for reflector in self._reflectors.values())

    def unsynced(self) -> Mapping[str, str]:
        """Kinds whose objects have not been seen yet, or that the cluster should have and does not; why, if known."""
        return {
            kind: reflector.problem
            for kind, reflector in self._reflectors.items()
            if not reflector.has_synced or (reflector.missing and not reflector.resource.optional)
        }

    def now(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    @property
    def changing(self) -> bool:
        """Whether something has changed since the last :meth:`wait`."""
        return self._changed.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until an object changed since the last call, or ``seconds`` passed.

        Changes that come close to one another end one wait, unless quota comes free: that ends it at once.
        """
        changed = self._changed.wait(seconds)
        if changed:
            self._room.wait(max(0.0, self._woken + GATHER - time.monotonic()))
        # Before the caller looks, not after: what changes while it looks must wake it again.
        self._changed.clear()
        self._room.clear()
        self.woken_by = self._first_change if self._first_room is None else self._first_room
        self._first_change = self._first_room = None
        self._woken = time.monotonic()
        return changed

    def wake(self) -> None:
        """Let :meth:`wait` return now."""
        self._changed.set()

    def objects(self, kind: str) -> Mapping[str, Object]:
        """All objects of a kind by ``namespace/name``, or ``name``; does not change any more."""
        return self._reflectors[kind].store.snapshot()

    def release(self, target: Reference) -> ReleaseResult:
        """Take our gate off a root object. Safe to call from several threads."""
        begun = time.monotonic()
        result = ungate(self._api, target, self._seen(target), self._may_act)
        return replace(result, seconds=time.monotonic() - begun)

    def begin_release(self, target: Reference) -> Future[ReleaseResult]:
        """Release soon, in the order of the calls, several at once; :meth:`wait` ends when it is done."""
        future = self._pool.submit(self._release_soon, target, time.monotonic())
        future.add_done_callback(lambda _: self.wake())
        return future

    def _release_soon(self, target: Reference, asked: float) -> ReleaseResult:
        # One that timed out says enough: those behind it must not each wait as long.
        if asked < self._slow:
            return ReleaseResult(Release.TRY_AGAIN, "the apiserver is slow to answer")
        result = self.release(target)
        if result.release is Release.TRY_AGAIN and result.seconds > SLOW_SECONDS:
            self._slow = time.monotonic()
        return result

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        """Tell an object's owner something, soon."""
        self._notices.event(target, kind, reason, message)

    def annotate(self, target: Reference, annotations: Mapping[str, str | None]) -> None:
        """Set annotations on an object, soon."""
        self._notices.annotate(target, annotations)

    def _note_workload(self, before: Object | None, now: Object | None) -> None:
        if frees_quota(before, now):
            if self._first_room is None:
                self._first_room = time.monotonic()
            self._room.set()

    def _note_change(self) -> None:
        if self._first_change is None:
            self._first_change = time.monotonic()
        self._changed.set()

    def _seen(self, target: Reference) -> Object | None:
        reflector = self._reflectors.get(target.kind)
        known = reflector and reflector.store.get(f"{target.namespace}/{target.name}")
        # Of another uid, ours may be newer than what we know: the apiserver decides.
        return known if known and known["metadata"]["uid"] == target.uid else None


def frees_quota(before: Object | None, now: Object | None) -> bool:
    """Whether a Workload that was ``before`` and is ``now`` (None: not there) holds less quota than it did."""
    held, holds = _holds(before), _holds(now)
    return held is not None and held != holds


def _holds(workload: Object | None) -> Any:
    """What a Workload holds: equal if it is the same; None if nothing."""
    status = (workload or {}).get("status") or {}
    true = {condition["type"] for condition in status.get("conditions") or () if condition.get("status") == "True"}
    return status.get("reclaimablePods") or [] if "QuotaReserved" in true and "Finished" not in true else None


def _followed(reflector: Reflector) -> bool:
    return reflector.has_synced and not reflector.problem
