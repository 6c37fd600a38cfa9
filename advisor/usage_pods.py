"""Whose pod it is: from the name of a pod, its labels and a time to the work of the ledger that it belongs to.

The ledger has root objects, metrics and costs have pods. A pod belongs to the work of its namespace that its labels or
its controller name; else to the one whose name its own begins with, in the way that Kubernetes makes pods' names. Names
come again (a Job that is made anew has the same pods, a StatefulSet's always have): the time tells which it was. Where
two could be meant, none is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduler.ledger_entry import Entry, Run

OWNER_LABELS = (
    "jobset_sigs_k8s_io_jobset_name",
    "training_kubeflow_org_job_name",
    "batch_kubernetes_io_job_name",
    "job_name",
    "leaderworkerset_sigs_k8s_io_name",
    "kueue_x_k8s_io_pod_group_name",
)
"""Labels of pods that name a root object, as Prometheus and OpenCost write them; the outer ones first."""

_RANDOM = r"[bcdfghjklmnpqrstvwxz2456789]{5}"
_OF_JOB = re.compile(rf"-(?:[0-9]+-)?{_RANDOM}")
"""What a Job appends: a random part, and before that the index of an indexed Job."""
_OF_ANY = re.compile(r"-.+")


@dataclass(frozen=True)
class Part:
    """A stretch of time of a pod that lies in a run of some work."""

    entry: Entry
    run: Run
    start: int
    end: int


class Pods:
    """All work, by the names of its pods.

    Parameters
    ----------
    now
        Until when a run that has not ended goes on.
    hide
        How the ledger has names, if not as they are.
    """

    def __init__(self, entries: Iterable[Entry], now: int, hide: Callable[[str], str] | None = None) -> None:
        self._now = now
        self._hide = hide or (lambda name: name)
        self._work: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            self._work.setdefault((entry.family.namespace, entry.name), []).append(entry)
        self._known: dict[tuple[str, str, str], list[tuple[str, str]]] = {}

    def parts(
        self, namespace: str, pod: str, start: int, end: int, labels: Mapping[str, str] | None = None, owner: str = ""
    ) -> list[Part] | None:
        """Whose a pod was between two instants: the runs that it was of, with how much of the time; empty if of none.

        None where the work of two could be meant.

        Parameters
        ----------
        labels
            Of the pod, with ``_`` for what is no letter or digit.
        owner
            Its controller, where that is known.
        """
        found: list[Part] = []
        names = set()
        for key in self._keys(namespace, pod, labels or {}, owner):
            for entry in self._work[key]:
                for run in entry.runs:
                    begin, until = max(start, run.started), min(end, self._now if run.ended is None else run.ended)
                    if begin < until:
                        found.append(Part(entry, run, begin, until))
                        names.add(key)
        return None if len(names) > 1 else found

    def _keys(self, namespace: str, pod: str, labels: Mapping[str, str], owner: str) -> list[tuple[str, str]]:
        said = next((labels[name] for name in OWNER_LABELS if labels.get(name)), "")
        cached = namespace, pod, said or owner
        if cached not in self._known:
            self._known[cached] = self._find(namespace, pod, said, owner)
        return self._known[cached]

    def _find(self, namespace: str, pod: str, said: str, owner: str) -> list[tuple[str, str]]:
        space = self._hide(namespace)
        if (key := (space, self._hide(pod))) in self._work:
            return [key]
        for name in filter(None, (said, owner)):
            if (key := (space, self._hide(name))) in self._work:
                return [key]
            for stem in _beginnings(name):  # a Job of a JobSet, a ReplicaSet of a Deployment
                if (key := (space, self._hide(stem))) in self._work and self._kind(key) not in ("Job", "Pod"):
                    return [key]
        if owner:
            return []  # of something that the ledger does not know, whatever the pod's name looks like
        jobs, others = [], []
        for stem in _beginnings(pod):
            key = space, self._hide(stem)
            if key not in self._work:
                continue
            rest = pod[len(stem) :]
            if self._kind(key) == "Job":
                if _OF_JOB.fullmatch(rest):
                    jobs.append(key)
            elif self._kind(key) not in ("Pod", "Workload") and _OF_ANY.fullmatch(rest):
                others.append(key)
        return [*jobs, *others[:1]]  # of other kinds the longest name is meant

    def _kind(self, key: tuple[str, str]) -> str:
        return self._work[key][0].family.kind


def _beginnings(name: str) -> Iterable[str]:
    """A name cut off at each of its hyphens, the longest first."""
    while "-" in name:
        name = name.rpartition("-")[0]
        yield name
