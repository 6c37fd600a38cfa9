"""A window of the past as a planning problem with hindsight: what could have been on time with how much.

Each Workload that held quota is there again: it could start from its submission (or its earliest start) on, asks for
what it was granted, in the same flavors, and runs for as long as it did. What ran before the window began, and services
(kinds that never wait for a plan), hold their quota when they really did. Queues are as they are now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.kinds import ROOT_KINDS
from scheduler.ledger_entry import Entry, Outcome
from solver.api import planner_pb2 as pb

UNTIMELY = (Outcome.FAILED, Outcome.DELETED, Outcome.UNKNOWN)
"""Ends that say nothing about a deadline; such work took its quota all the same."""


@dataclass(frozen=True)
class PastQuestion:
    """A window of the past.

    Attributes
    ----------
    request
        Its ``now_ms`` is the begin of the window.
    names
        Of its rows.
    missed
        Rows whose deadlines were missed in fact.
    remarks
        What was left out, and what had to be assumed.
    """

    request: pb.PlanRequest
    names: tuple[str, ...]
    missed: frozenset[int]
    remarks: tuple[str, ...]


def past_question(
    quota: pb.Quota,
    entries: Iterable[Entry],
    since: int,
    until: int,
    *,
    default_deadline: int | None = None,
    hide: Callable[[str], str] = str,
) -> PastQuestion:
    """Ask what the work from ``since`` to ``until`` (milliseconds since the Unix epoch) would have needed.

    Parameters
    ----------
    quota
        Of today.
    entries
        Of the ledger.
    default_deadline
        Of work without one, in milliseconds from its submission; None: it has none.
    hide
        How the entries write names.
    """
    asked = _Asked(quota, since, hide)
    for entry in entries:
        if entry.submitted < until:
            asked.add(entry, default_deadline)
    return PastQuestion(asked.request, tuple(asked.names), frozenset(asked.missed), tuple(asked.remarks()))


def quota_in_use(entries: Iterable[Entry], since: int, until: int) -> pb.Quota:
    """Each ClusterQueue by itself with the most that it had in use at once: what there was at least."""
    changes: dict[str, dict[tuple[str, str], list[tuple[int, int]]]] = {}
    for entry in entries:
        if entry.started is None or entry.started >= until or (end := end_of(entry)) <= since:
            continue
        cells = changes.setdefault(entry.family.cluster_queue, {})
        for flavor, resource, amount in entry.usage:
            cells.setdefault((flavor, resource), []).extend([(max(since, entry.started), amount), (end, -amount)])
    names = sorted({cell for cells in changes.values() for cell in cells})
    flavors, resources = [*dict.fromkeys(f for f, _ in names)], [*dict.fromkeys(r for _, r in names)]
    quota = pb.Quota(resources=resources, flavors=[pb.ResourceFlavor(name=name) for name in flavors])
    for name, cells in sorted(changes.items()):
        queue = quota.cluster_queues.add(name=name)
        for offered, covered in _groups(cells):
            group = queue.resource_groups.add(covered_resources=[resources.index(each) for each in covered])
            for flavor in offered:
                offer = group.flavors.add(flavor=flavors.index(flavor))
                for resource in covered:
                    most = _most(cells.get((flavor, resource), []))
                    offer.resources.add(resource=resources.index(resource), nominal=most)
    return quota


def _groups(cells: Iterable[tuple[str, str]]) -> list[tuple[list[str], list[str]]]:
    """Flavors and resources that hang together: no flavor and no resource is in two groups."""
    groups: list[tuple[set[str], set[str]]] = []
    for flavor, resource in cells:
        touched = [group for group in groups if flavor in group[0] or resource in group[1]]
        merged = ({flavor}.union(*(group[0] for group in touched)), {resource}.union(*(group[1] for group in touched)))
        groups = [*(group for group in groups if group not in touched), merged]
    return sorted((sorted(flavors), sorted(resources)) for flavors, resources in groups)


def _most(changes: list[tuple[int, int]]) -> int:
    """The most that is in use at once."""
    used = most = 0
    for _, change in sorted(changes):
        used += change
        most = max(most, used)
    return most


def end_of(entry: Entry) -> int:
    """When it ended that has started; of what runs, as far as is known."""
    assert entry.started is not None
    return max(entry.updated, entry.started + (entry.estimate or 1)) if entry.ended is None else entry.ended


class _Asked:
    """A request as it fills."""

    def __init__(self, quota: pb.Quota, since: int, hide: Callable[[str], str]) -> None:
        self.request = pb.PlanRequest(schema=1, now_ms=since, quota=quota)
        for flavor in self.request.quota.flavors:
            flavor.ClearField("nodes")  # how many pods it was is not known
            flavor.lead_ms = 0  # it is in the run time
        self.names: list[str] = []
        self.missed: list[int] = []
        self._since = since
        self._queues = {hide(queue.name): k for k, queue in enumerate(quota.cluster_queues)}
        self._flavors = {flavor.name: k for k, flavor in enumerate(quota.flavors)}
        self._resources = {name: k for k, name in enumerate(quota.resources)}
        self._shapes: dict[tuple[tuple[str, str, int], ...], int] = {}
        self._left: Counter[str] = Counter()

    def add(self, entry: Entry, default_deadline: int | None) -> None:
        """Take one entry in, or count why not."""
        queue = self._queues.get(entry.family.cluster_queue)
        if entry.started is None or not entry.usage:
            self._left["left out, as it never ran"] += entry.outcome is not None
            self._left["left out, as it still waits"] += entry.outcome is None
            return
        if (end := end_of(entry)) <= self._since:
            return
        if queue is None:
            self._left["left out, as its queue is not there any more"] += 1
            return
        if any(flavor not in self._flavors or name not in self._resources for flavor, name, _ in entry.usage):
            self._left["left out, as its flavor is not there any more"] += 1
            return
        finite = entry.family.kind == "Workload" or entry.family.kind in ROOT_KINDS
        if finite and entry.started >= self._since:
            self._row(entry, queue, end, default_deadline)
        else:
            self._hold(entry, queue, end)

    def _row(self, entry: Entry, queue: int, end: int, default_deadline: int | None) -> None:
        assert entry.started is not None
        deadline = entry.deadline
        if deadline is None and default_deadline is not None:
            deadline = entry.submitted + default_deadline
        counts = deadline is not None and deadline > self._since and entry.outcome not in UNTIMELY
        work = self.request.workloads
        if counts and deadline is not None and end > deadline:
            self.missed.append(len(work.id))
        work.id.append(entry.uid)
        work.cluster_queue.append(queue)
        work.shape.append(self._shape(entry.usage))
        work.created_ms.append(entry.submitted)
        work.release_ms.append(max(self._since, entry.submitted, entry.earliest_start or 0))
        work.duration_ms.append(max(1, end - entry.started))
        work.due_ms.append(deadline if counts and deadline else 0)
        self.names.append(f"{entry.family.namespace}/{entry.name}")

    def _hold(self, entry: Entry, queue: int, end: int) -> None:
        assert entry.started is not None
        self._left["stays where it was, as it ran before that time, or is a service"] += 1
        for flavor, resource, amount in entry.usage:
            self.request.reservations.add(
                node=self.request.quota.cluster_queues[queue].name,
                flavor=self._flavors[flavor],
                resource=self._resources[resource],
                amount=amount,
                start_ms=max(self._since, entry.started),
                end_ms=end,
            )

    def _shape(self, usage: tuple[tuple[str, str, int], ...]) -> int:
        if usage not in self._shapes:
            self._shapes[usage] = len(self.request.shapes)
            granted = {self._flavors[flavor] for flavor, _, _ in usage}
            pod_set = pb.PodSet(count=1, excluded_flavors=sorted({*self._flavors.values()} - granted))
            for _, resource, amount in usage:
                pod_set.resources.append(self._resources[resource])
                pod_set.amounts.append(amount)
            self.request.shapes.add().pod_sets.append(pod_set)
        return self._shapes[usage]

    def remarks(self) -> list[str]:
        """What was left out, and what is assumed."""
        return [f"{why}: {count}" for why, count in self._left.items() if count]
