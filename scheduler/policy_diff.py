"""What another policy would change, in words, and whom that touches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scheduler.annotations import format_duration, format_instant
from scheduler.cluster import View
from scheduler.items import Item
from scheduler.policy import Policy
from scheduler.snapshot import Snapshot, snapshot
from solver.problem import State

NAMED = 3
"""Jobs named at most; of the others the number is told."""


@dataclass(frozen=True)
class Change:
    """One field that differs; None where it is not written."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.path}: {_shown(self.new)} (was not written)"
        if self.new is None:
            return f"{self.path}: not written any more (was {_shown(self.old)})"
        return f"{self.path}: {_shown(self.old)} -> {_shown(self.new)}"

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {"path": self.path, "old": self.old, "new": self.new}


@dataclass(frozen=True)
class Touch:
    """What becomes of some work of one ClusterQueue."""

    cluster_queue: str
    what: str
    jobs: tuple[str, ...]
    """Each with the details, in words."""

    def __str__(self) -> str:
        named = ", ".join(self.jobs[:NAMED]) + (f" and {len(self.jobs) - NAMED} more" if len(self.jobs) > NAMED else "")
        count = f"{len(self.jobs)} job{'s' if len(self.jobs) > 1 else ''}: " if self.jobs else ""
        return f"ClusterQueue {self.cluster_queue}: {self.what}" + (f" ({count}{named})" if named else "")

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {"clusterQueue": self.cluster_queue, "what": self.what, "jobs": list(self.jobs)}


def changes(old: Policy, new: Policy) -> list[Change]:
    """Fields that differ, in the order of the schema."""
    before, after = dict(_leaves(old.as_data(), "")), dict(_leaves(new.as_data(), ""))
    paths = [*after, *(path for path in before if path not in after)]
    return [Change(path, before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)]


def touches(cluster: View, old: Policy, new: Policy) -> list[Touch]:
    """What becomes of the work that is in a cluster now, and of its queues, if ``new`` follows on ``old``."""
    before, after = old.settings(), new.settings()
    queues = sorted(cluster.objects("ClusterQueue"))
    found = []
    for name in queues:
        was, will = before.queue(name).observed, after.queue(name).observed
        if was != will:
            what = "new work waits for its planned start" if was else "new work does not wait for us any more"
            found.append(Touch(name, what, ()))
    found += _work(snapshot(cluster, before), snapshot(cluster, after))
    unknown = sorted({*new.cluster_queues} - {*queues})
    return found + [Touch(name, "is not in the cluster: what is written for it does nothing", ()) for name in unknown]


def _work(before: Snapshot, after: Snapshot) -> Iterator[Touch]:
    was, will = _waiting(before), _waiting(after)
    let_go = {lost.item.uid for lost in after.stranded if lost.reason == "QueueObserved"}
    jobs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for uid, old in was.items():
        name = f"{old.root.namespace}/{old.root.name}"
        if uid in let_go:
            jobs[old.cluster_queue, "waiting work is let go at once, Kueue alone decides"].append(name)
            continue
        new = will.get(uid)
        if new is None:
            continue
        if old.deadline != new.deadline:
            told = f"{name}: {_instant(old.deadline)} -> {_instant(new.deadline)}"
            jobs[old.cluster_queue, "has another deadline"].append(told)
        if old.estimate != new.estimate:
            told = f"{name}: {format_duration(old.estimate)} -> {format_duration(new.estimate)}"
            jobs[old.cluster_queue, "is taken to run for another time"].append(told)
        if old.weight != new.weight:
            jobs[old.cluster_queue, "has another weight"].append(f"{name}: {old.weight:g} -> {new.weight:g}")
    for (queue, what), names in sorted(jobs.items()):
        yield Touch(queue, what, tuple(names))


def _waiting(seen: Snapshot) -> dict[str, Item]:
    return {item.uid: item for item in seen.items if item.state != State.RUNNING}


def _leaves(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _instant(value: int | None) -> str:
    return "none" if value is None else format_instant(value)
