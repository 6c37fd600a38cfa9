"""What may come late or be lost without harm: Events and annotations, written in the background.

They are many when much changes at once, and each costs the apiserver as much as a release. So they queue here, at a
limited rate: what repeats is counted, what was overtaken is forgotten, and nothing here ever fails its caller.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.apiserver import BUSY, MERGE_PATCH, RESOURCES, ApiError, ApiServer, Resource
from scheduler.cluster import Reference

log = logging.getLogger(__name__)

EVENTS = Resource("Event", "v1", "events")

COMPONENT = "punctual"
"""Source of our Events, as ``kubectl describe`` shows it."""

RATE = 20.0
"""Writes a second, in the long run."""
BURST = 50
"""Writes at once after a quiet time."""
CAPACITY = 10_000
"""Notices that may wait; more are dropped."""
ATTEMPTS = 5
"""How often one write is tried while the apiserver does not answer."""
SERIES_SECONDS = 600.0
"""An Event that repeats within this time counts up the one that is there."""
QUIET_SECONDS = 30.0
"""But it is not counted up more often than this."""
SERIES = 4096
"""How many Events are remembered for counting up."""
MESSAGE_LIMIT = 1024
"""Longest message of an Event that Kubernetes takes, in bytes."""


@dataclass
class _Event:
    target: Reference
    kind: str
    reason: str
    message: str
    count: int = 1

    @property
    def key(self) -> tuple[str, ...]:
        return (str(self.target), self.target.uid, self.kind, self.reason, self.message)


@dataclass
class _Annotations:
    target: Reference
    values: dict[str, str | None]

    @property
    def key(self) -> tuple[str, ...]:
        return (str(self.target), self.target.uid)


@dataclass
class _Series:
    """An Event that is in the cluster."""

    path: str
    count: int
    seen: float
    written: float


class Bucket:
    """A token bucket: ``burst`` at once, then ``rate`` a second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> float:
        """Take a token that may only be used after so many seconds."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate)


class Notices:
    """Writes Events and annotations in a thread of its own.

    Parameters
    ----------
    dropped
        Called for each notice that was given up.
    clock
        Seconds on a clock that never jumps.
    """

    def __init__(
        self,
        api: ApiServer,
        dropped: Callable[[], None] = lambda: None,
        *,
        rate: float = RATE,
        burst: int = BURST,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._dropped = dropped
        self._capacity = capacity
        self._clock = clock
        self._bucket = Bucket(rate, burst, clock)
        self._queue: OrderedDict[tuple[str, ...], _Event | _Annotations] = OrderedDict()
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Write what waits, for so long at most, and end."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(timeout=seconds)

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        """Queue an Event; ``kind`` is Normal or Warning."""
        text = message.encode(errors="replace")
        if len(text) > MESSAGE_LIMIT:
            message = text[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."
        notice = _Event(target, kind, reason, message)
        with self._changed:
            waiting = self._queue.get(notice.key)
            if isinstance(waiting, _Event):
                waiting.count += 1
            else:
                self._put(notice)

    def annotate(self, target: Reference, values: Mapping[str, str | None]) -> None:
        """Queue annotations (None removes one); the newest value of each wins."""
        notice = _Annotations(target, dict(values))
        with self._changed:
            waiting = self._queue.get(notice.key)
            if isinstance(waiting, _Annotations):
                waiting.values.update(values)
            else:
                self._put(notice)

    def _put(self, notice: _Event | _Annotations) -> None:
        if len(self._queue) >= self._capacity:
            self._dropped()
            return
        self._queue[notice.key] = notice
        self._changed.notify()

    def _run(self) -> None:
        while (notice := self._next()) is not None:
            try:
                self._write(notice)
            except ApiError as error:
                log.info("%s not told: %s", notice.target, error)
                self._dropped()
            except Exception:
                log.exception("%s not told", notice.target)
                self._dropped()

    def _next(self) -> _Event | _Annotations | None:
        with self._changed:
            while not self._queue:
                if self._stopping.is_set():
                    return None
                self._changed.wait()
            _, notice = self._queue.popitem(last=False)
        return notice

    def _write(self, notice: _Event | _Annotations) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if isinstance(notice, _Event):
                    self._write_event(notice)
                else:
                    self._write_annotations(notice)
                return
            except ApiError as error:
                if attempt == ATTEMPTS or error.status not in BUSY:
                    raise
            self._stopping.wait(2.0**attempt / 4)

    def _write_event(self, event: _Event) -> None:
        now = self._clock()
        series = self._series.pop(event.key, None)
        if series is not None and now - series.seen < SERIES_SECONDS:
            again = _Series(series.path, series.count + event.count, now, series.written)
            if now - series.written < QUIET_SECONDS:
                self._remember(event, again)
                return
            try:
                body = {"count": again.count, "lastTimestamp": _timestamp()}
                self._call("PATCH", series.path, body, MERGE_PATCH)
                self._remember(event, _Series(again.path, again.count, now, now))
                return
            except ApiError as error:
                if error.status != 404:  # it is kept for an hour or so: make it anew
                    self._remember(event, series)
                    raise
        target = event.target
        namespace = target.namespace or "default"
        name = f"{target.name[:200]}.{uuid.uuid4().hex[:16]}"
        resource = RESOURCES.get(target.kind)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": name},
            "involvedObject": {
                "apiVersion": resource.version if resource else "",
                "kind": target.kind,
                "namespace": target.namespace,
                "name": target.name,
                "uid": target.uid,
            },
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": COMPONENT},
            "firstTimestamp": _timestamp(),
            "lastTimestamp": _timestamp(),
            "count": event.count,
        }
        self._call("POST", EVENTS.path(namespace), body)
        self._remember(event, _Series(EVENTS.path(namespace, name), event.count, now, now))

    def _write_annotations(self, notice: _Annotations) -> None:
        target = notice.target
        # With a uid in it the apiserver refuses the patch if the object is another one by now.
        body = {"metadata": {"uid": target.uid, "annotations": notice.values}}
        self._call("PATCH", RESOURCES[target.kind].path(target.namespace, target.name), body, MERGE_PATCH)

    def _call(self, method: str, path: str, body: Mapping[str, Any], content_type: str = "application/json") -> None:
        self._stopping.wait(self._bucket.take())
        self._api.request(method, path, body=body, content_type=content_type)

    def _remember(self, event: _Event, series: _Series) -> None:
        self._series[event.key] = series
        if len(self._series) > SERIES:
            self._series.popitem(last=False)


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
