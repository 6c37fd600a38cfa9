"""Watches a cluster from outside and notes, to the millisecond, when things happened.

Timestamps in Kubernetes' own status have whole seconds; these are the instants at which a watch told us.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from localcluster.cluster import LocalCluster
from localcluster.rest import Watch
from tests.kueue.team import KUEUE, condition_of

GPU = "nvidia.com/gpu"


@dataclass
class Run:
    """What happened to one Job. Instants are seconds of the wall clock; 0 is never."""

    running: float = 0
    ended: float = 0
    pending: float = 0
    reserved: float = 0
    finished: float = 0
    evictions: int = 0
    gpus: int = 0


class Entry(NamedTuple):
    """One change of an object."""

    at: float
    change: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``."""
    kind: str
    item: dict[str, Any]


@dataclass
class Observer:
    """Follows the pods, Workloads and Events of all namespaces until it is left.

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
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    journal: list[Entry] = field(default_factory=list)
    _watches: list[Watch] = field(default_factory=list)

    def __enter__(self) -> Self:
        for path, note in (
            ("/api/v1/pods", self._pod),
            (f"{KUEUE}/workloads", self._workload),
            ("/api/v1/events", lambda *_: None),
        ):
            watch = self.cluster.api.watch(path)
            self._watches.append(watch)
            threading.Thread(target=self._follow, args=(watch, note), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.close()

    def run(self, namespace: str, job: str) -> Run:
        """What happened to a Job so far."""
        return self.runs.setdefault((namespace, job), Run())

    def _follow(self, watch: Watch, note: Callable[[float, str, dict[str, Any]], None]) -> None:
        for event in watch:
            at, item = time.time(), event["object"]
            self.journal.append(Entry(at, event["type"], item["kind"], item))
            note(at, event["type"], item)

    def _pod(self, at: float, kind: str, pod: dict[str, Any]) -> None:
        job = pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name")
        if not job:
            return
        run, phase = self.run(pod["metadata"]["namespace"], job), pod["status"].get("phase")
        if phase == "Running":
            run.running = run.running or at
        elif phase in ("Succeeded", "Failed"):
            run.ended = run.ended or at

    def _workload(self, at: float, kind: str, workload: dict[str, Any]) -> None:
        owners = workload["metadata"].get("ownerReferences")
        if not owners:
            return
        namespace = workload["metadata"]["namespace"]
        run = self.run(namespace, owners[0]["name"])
        run.pending = run.pending or at
        holds = condition_of(workload, "QuotaReserved").get("status") == "True"
        finished = kind == "DELETED" or condition_of(workload, "Finished").get("status") == "True"
        if holds and not run.reserved:
            run.reserved = at
            assignments = workload["status"]["admission"]["podSetAssignments"]
            run.gpus = sum(int(assignment["resourceUsage"].get(GPU, 0)) for assignment in assignments)
        if finished:
            run.finished = run.finished or at
        evicted = condition_of(workload, "Evicted")
        run.evictions += evicted.get("status") == "True" and not finished
        held = sum(
            other.gpus
            for (ns, _), other in self.runs.items()
            if ns == namespace and other.reserved and not other.finished
        )
        self.peak[namespace] = max(self.peak.get(namespace, 0), held)
