"""From Kubernetes objects to a planning request: what waits, what runs, and who has to be told that something is wrong.

The cluster's objects are the only state: a controller that starts anew sees what one that ran for weeks sees.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scheduler.cluster import Cluster, Reference
from scheduler.plans import PlanInForce
from scheduler.settings import Settings
from solver.api import planner_pb2 as pb
from solver.problem import State


@dataclass(frozen=True)
class Item:
    """One workload of a snapshot; row ``k`` of the request's workloads is item ``k``.

    Instants are milliseconds since the Unix epoch.
    """

    workload: Reference
    """The Workload; its uid is the row's id in the request."""
    root: Reference
    """The object on which the gate sits and whose owner is told things: the Job, or the ownerless Workload itself."""
    queue: str
    """Name of the LocalQueue."""
    cluster_queue: str
    state: State
    gated: bool
    """Whether our gate is on the root object."""
    other_gates: tuple[str, ...]
    """Gates of somebody else. Work that has some is planned but not released: it would only sit."""
    created: int
    deadline: int | None
    earliest_start: int | None
    estimate: int
    """Estimated run time in milliseconds (as a whole, also for running work)."""
    estimate_source: str
    """Where the estimate comes from: an annotation, a field of Kueue or of the Job, or ``default``."""
    weight: float
    hard: bool
    admitted: int | None
    """Since when it runs."""

    @property
    def uid(self) -> str:
        """Uid of the Workload: the row's id in the request."""
        return self.workload.uid

    @property
    def releasable(self) -> bool:
        """Whether taking our gate off lets it start."""
        return self.state == State.PENDING and self.gated and not self.other_gates


@dataclass(frozen=True)
class Complaint:
    """Something that an object's owner should hear about."""

    target: Reference
    reason: str
    """One word in CamelCase, the reason of an Event."""
    message: str
    workload: Reference | None = None
    """The Workload it is about, if that is not planned because of it."""


@dataclass(frozen=True)
class Stranded:
    """Gated work whose queue is missing or stopped: not planned."""

    item: Item
    message: str
    confirmed: bool
    """Whether the cluster itself says so (a stopped ClusterQueue, Kueue's own condition), not only our view of it."""


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one instant."""

    now: int
    request: pb.PlanRequest
    """Columns parallel to ``items``; must not be changed."""
    items: tuple[Item, ...]
    complaints: tuple[Complaint, ...]
    stranded: tuple[Stranded, ...]
    signature: int
    """Equal for two snapshots when nothing that matters to a plan has changed, but for the passing of time."""


class Snapshotter:
    """Takes snapshots, and remembers what it parsed by (uid, resourceVersion), so that the next one is cheap."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def take(
        self, cluster: Cluster, plan: PlanInForce | None = None, released: Collection[str] = frozenset()
    ) -> Snapshot:
        """The cluster as it is now.

        Parameters
        ----------
        plan
            The plan in force, to be repaired rather than thrown over.
        released
            Uids of Workloads that were released, whatever a watch that lags behind says.
        """
        raise NotImplementedError


def snapshot(cluster: Cluster, settings: Settings | None = None, plan: PlanInForce | None = None) -> Snapshot:
    """One snapshot, of a cluster that is looked at only once."""
    return Snapshotter(settings or Settings()).take(cluster, plan)
