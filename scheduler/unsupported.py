"""What Kueue can do with a ClusterQueue that our plans do not reckon with yet: the one place that names it.

Such a queue is left to Kueue: our gates are taken off its work at once, and nothing of it is planned. What waits or
runs there still counts against the quota that it shares with other queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scheduler.facts import ClusterQueueFacts, CohortFacts
from scheduler.podset import Flavor


class Cause(NamedTuple):
    """Why a ClusterQueue is not supported."""

    name: str
    """One word out of few, for metrics."""
    message: str


def unsupported(
    cluster_queues: Mapping[str, ClusterQueueFacts], cohorts: Mapping[str, CohortFacts], flavors: Mapping[str, Flavor]
) -> dict[str, tuple[Cause, ...]]:
    """The ClusterQueues that are not supported, each with all that is in the way."""
    weighted = any(queue.weighted for queue in cluster_queues.values()) or any(c.weighted for c in cohorts.values())
    causes = {name: _causes(queue, flavors, weighted) for name, queue in cluster_queues.items()}
    return {name: found for name, found in causes.items() if found}


def _causes(queue: ClusterQueueFacts, flavors: Mapping[str, Flavor], weighted: bool) -> tuple[Cause, ...]:
    causes = []
    if queue.checks:
        checks = f"admission checks ({', '.join(queue.checks)}) may hold quota long before work starts"
        causes.append(Cause("AdmissionChecks", checks))
    # Whether fair sharing is on is in Kueue's own configuration, and shows only in the status that it writes. It
    # changes the order between the queues of a cohort, nothing else.
    if queue.cohort and (weighted if queue.fair_sharing is None else queue.fair_sharing):
        causes.append(Cause("FairSharing", "fair sharing decides the order in its cohort"))
    if queue.admission_fair_sharing:
        causes.append(Cause("AdmissionFairSharing", "admission fair sharing decides the order of its LocalQueues"))
    topologies = [
        name for group in queue.groups for name, _ in group.flavors if name in flavors and flavors[name].topology
    ]
    if topologies:
        topology = f"topology-aware scheduling places the pods of flavor {', '.join(topologies)}"
        causes.append(Cause("TopologyAwareScheduling", topology))
    return tuple(causes)
