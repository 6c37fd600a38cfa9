"""From Kubernetes objects to a planning request: what waits, what runs, and who has to be told that something is wrong.

The cluster's objects are the only state: a controller that starts anew sees what one that ran for weeks sees.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduler.cluster import View
from scheduler.estimates import Estimates
from scheduler.items import Complaint, Item, Stranded, Work
from scheduler.leads import StartLeads
from scheduler.plans import PlanInForce
from scheduler.previous import add_previous
from scheduler.queues import QueueReader, Queues
from scheduler.settings import Settings
from scheduler.table import Line, Table, beyond_words
from scheduler.unsupported import Cause
from scheduler.works import Works
from solver.api import planner_pb2 as pb
from solver.quota import Bools

__all__ = ["Complaint", "Item", "Snapshot", "Snapshotter", "Stranded", "snapshot"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant."""

    now: int
    request: pb.PlanRequest
    """Columns parallel to ``items``; must not be changed. Knows of no plan."""
    items: tuple[Item, ...]
    row: Mapping[str, int]
    """Places in ``items`` by uid of the Workload; the same mapping as long as it serves."""
    releasable: Bools
    """``[n]``: :attr:`Item.releasable` of the items."""
    complaints: tuple[Complaint, ...]
    stranded: tuple[Stranded, ...]
    unsupported: Mapping[str, tuple[Cause, ...]]
    """By name: ClusterQueues of ours that are left to Kueue."""
    signature: int
    """Equal for two snapshots when nothing that matters to a plan has changed, but for the passing of time."""
    leads: Mapping[str, int] = field(default_factory=dict)
    """By flavor: how long after its admission work begins, in milliseconds."""

    def request_after(self, plan: PlanInForce | None) -> pb.PlanRequest:
        """The request with what is planned already, to be repaired rather than thrown over."""
        if plan is None:
            return self.request
        request = pb.PlanRequest()
        request.CopyFrom(self.request)
        add_previous(request, self.items, plan)
        return request


class Snapshotter:
    """Takes snapshots. What has not changed since the last one is neither read nor judged again."""

    def __init__(self, settings: Settings, estimates: Estimates | None = None) -> None:
        self.settings = settings
        self._estimates = estimates
        self._heard = -1
        """Version of the estimates that the verdicts rest on."""
        self._reader = QueueReader()
        self._works = Works(estimates)
        self._released: frozenset[str] = frozenset()
        self._lines: dict[str, Line] = {}
        """What a plan or an owner has to know of, by key of its Workload."""
        self._beyond_words: dict[str, Complaint] = {}
        """Workloads that could not be judged, by key."""
        self._table: Table | None = None
        """Of the last snapshot."""
        self._leads = StartLeads()

    def take(self, cluster: View, released: Collection[str] = frozenset()) -> Snapshot:
        """The cluster as it is now.

        Parameters
        ----------
        released
            Uids of Workloads that were released, whatever a watch that lags behind says.
        """
        now, queues = cluster.now(), self._reader.read(cluster)
        leads = self._leads.of(queues.objects.flavors)
        changed = self._works.follow(cluster, self.settings)
        dirty = changed | self._doubtful(queues, frozenset(released))
        for key in dirty:
            self._judge(key, queues)
        table = self._table
        if dirty or table is None or not table.serves(queues, self.settings, leads):
            lines = [line for _, line in sorted(self._lines.items())]
            table = self._table = Table(queues, self.settings, leads, lines)
        if changed:
            self._leads.look(work.facts for work in self._works.by_key.values())
        request, amiss = table.request(now)
        unreadable = (*queues.objects.unreadable, *self._works.broken())
        return Snapshot(
            now=now,
            request=request,
            items=table.items,
            row=table.row,
            releasable=table.releasable,
            complaints=(
                *(Complaint(each.target, "Unreadable", each.message) for each in unreadable),
                *table.about_queues,
                *self._beyond_words.values(),
                *amiss,
                *table.complaints(now),
            ),
            stranded=table.stranded,
            unsupported=table.unsupported,
            signature=table.signature,
            leads=leads,
        )

    def _doubtful(self, queues: Queues, released: frozenset[str]) -> set[str]:
        """Keys of Workloads on which the verdict may have changed though they have not."""
        heard = self._heard if self._estimates is None else self._estimates.version
        if self._table is None or queues is not self._table.queues or heard != self._heard:
            self._heard, self._released = heard, released
            return {*self._works.by_key}
        moved, self._released = self._released ^ released, released
        return {self._works.key[uid] for uid in moved if uid in self._works.key}

    def _judge(self, key: str, queues: Queues) -> None:
        self._lines.pop(key, None)
        self._beyond_words.pop(key, None)
        work = self._works.by_key.get(key)
        if work is None:
            return
        facts = work.facts
        try:
            verdict, signature = work.verdict(queues, facts.reference.uid in self._released)
            if verdict.item is not None or verdict.complaints or verdict.stranded is not None:
                self._lines[key] = Line(work, verdict, signature)
        except Exception as error:  # one that we have no words for must not stop the others
            self._beyond_words[key] = beyond_words(facts.reference, error)

    @property
    def works(self) -> Mapping[str, Work]:
        """All Workloads of the last snapshot's cluster that could be read, finished ones too, by uid."""
        return self._works.by_uid

    def finished(self, uid: str) -> int | None:
        """When a Workload of the last snapshot's cluster finished; None if it has not, or is not there."""
        work = self._works.by_uid.get(uid)
        return work.facts.finished if work else None


def snapshot(cluster: View, settings: Settings | None = None) -> Snapshot:
    """One snapshot, of a cluster that is looked at only once."""
    return Snapshotter(settings or Settings()).take(cluster)
