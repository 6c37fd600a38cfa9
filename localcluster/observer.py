"""Watches a cluster from outside and notes, to the millisecond, when things happened to its Jobs.

Timestamps in Kubernetes' own status have whole seconds; these are the instants at which a watch told us. While the
apiserver is away nothing is seen; what has become of everything is read anew when it is back.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.kueue import API
from localcluster.nodes import GPU
from localcluster.rest import Watch

Note = Callable[[float, str, dict[str, Any]], None]
"""Called with an instant, a change and the object."""

AGAIN_SECONDS = 0.1
"""Pause before an apiserver that is away is tried again."""


@dataclass
class Run:
    """What happened to one Job. Instants are seconds of the wall clock; 0 is never.

    Attributes
    ----------
    pending, reserved, finished
        Its Workload appeared, was given quota (first), had finished or was deleted.
    running, ended
        A pod of its ran (first), was over (first).
    evictions
        How often the Workload lost its quota before it had finished.
    gpus
        What the Workload holds or held.
    pods
        Uids of its pods that ran or are over.
    """

    running: float = 0
    ended: float = 0
    pending: float = 0
    reserved: float = 0
    finished: float = 0
    evictions: int = 0
    gpus: int = 0
    pods: set[str] = field(default_factory=set)
    evicted: bool = False


class Entry(NamedTuple):
    """One change of an object."""

    at: float
    change: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``."""
    kind: str
    item: dict[str, Any]


@dataclass
class Observer:
    """Follows the pods and Workloads (and Events) of all namespaces while a ``with`` block runs.

    Parameters
    ----------
    keep
        Whether Events are followed too, and all that is seen is kept in the journal.

    Attributes
    ----------
    runs
        By namespace and Job name.
    peak
        Most GPUs that Workloads of a namespace held at once.
    journal
        All that was seen; Workloads among themselves in the order in which it was so.
    """

    cluster: LocalCluster
    keep: bool = True
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    journal: list[Entry] = field(default_factory=list)
    _held: dict[str, dict[str, int]] = field(default_factory=dict)
    _watches: dict[str, Watch] = field(default_factory=dict)
    _left: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        kinds: list[tuple[str, str, Note]] = [
            ("/api/v1/pods", "Pod", self._pod),
            (f"{API}/workloads", "Workload", self._workload),
        ]
        if self.keep:
            kinds.append(("/api/v1/events", "Event", lambda *_: None))
        for path, kind, note in kinds:
            ready = threading.Event()
            threading.Thread(target=self._follow, args=(path, kind, note, ready), daemon=True).start()
            ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        for watch in list(self._watches.values()):
            with suppress(OSError):  # its apiserver may be gone
                watch.close()

    def run(self, namespace: str, job: str) -> Run:
        """What happened to a Job so far."""
        return self.runs.setdefault((namespace, job), Run())

    def _follow(self, path: str, kind: str, note: Note, ready: threading.Event) -> None:
        while not self._left.is_set():
            try:
                items, watch = self.cluster.api.list_and_watch(path)
                self._watches[path] = watch
                for item in items:
                    self._see("ADDED", kind, item, note)
                ready.set()
                for event in watch:
                    if event["type"] == "ERROR":
                        break  # the version is too old: list again
                    self._see(event["type"], kind, event["object"], note)
            except (LocalClusterError, OSError, http.client.HTTPException):
                pass
            self._left.wait(AGAIN_SECONDS)

    def _see(self, change: str, kind: str, item: dict[str, Any], note: Note) -> None:
        at = time.time()
        if self.keep:
            self.journal.append(Entry(at, change, kind, item))
        note(at, change, item)

    def _pod(self, at: float, kind: str, pod: dict[str, Any]) -> None:
        job = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name")
        if not job:
            return
        run, phase = self.run(pod["metadata"]["namespace"], job), pod["status"].get("phase")
        if phase in ("Running", "Succeeded", "Failed"):
            run.pods.add(pod["metadata"]["uid"])
            run.running = run.running or at
        if phase in ("Succeeded", "Failed"):
            run.ended = run.ended or at

    def _workload(self, at: float, kind: str, workload: dict[str, Any]) -> None:
        owners = workload["metadata"].get("ownerReferences")
        if not owners:
            return
        namespace, uid = workload["metadata"]["namespace"], workload["metadata"]["uid"]
        run = self.run(namespace, owners[0]["name"])
        run.pending = run.pending or at
        finished = kind == "DELETED" or _true(workload, "Finished")
        holds = _true(workload, "QuotaReserved") and not finished
        if holds or (finished and not run.gpus and "admission" in workload.get("status", {})):
            run.reserved = run.reserved or at
            run.gpus = _gpus(workload)
        if finished:
            run.finished = run.finished or at
        evicted = _true(workload, "Evicted") and not finished
        run.evictions += evicted and not run.evicted
        run.evicted = evicted
        held = self._held.setdefault(namespace, {})
        if holds:
            held[uid] = run.gpus
        else:
            held.pop(uid, None)
        self.peak[namespace] = max(self.peak.get(namespace, 0), sum(held.values()))


def _true(workload: dict[str, Any], kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _gpus(workload: dict[str, Any]) -> int:
    assignments = workload["status"]["admission"]["podSetAssignments"]
    return sum(int(assignment["resourceUsage"].get(GPU, 0)) for assignment in assignments)
