"""Nodes: in which pieces the quota of a flavor comes, since a pod does not span two of them.

How much there is, quota says. Where the nodes that we see have less than the quota of their flavor, others are thought
to come (an autoscaler's, or some that are out of service), as large as the largest: nothing waits for nodes that would
come if it did not. A flavor whose nodes are all that there will be says so by an annotation
(:data:`scheduler.podset.NODES`). What pods that Kueue does not know take of nodes is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from scheduler.cluster import Object
from scheduler.podset import Flavor, Taint
from scheduler.quantity import CPU, amount
from solver.quota import MAX_AMOUNT

COARSE = 1 << 30
"""Bytes of memory and disk are rounded up to multiples of this: nodes of a kind differ by a few pages."""

_STATE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that say that a node is not in service."""


class Node(NamedTuple):
    """What matters of a Node."""

    labels: frozenset[tuple[str, str]]
    taints: tuple[Taint, ...]
    in_service: bool
    has: tuple[tuple[str, int], ...]
    """What pods may ask for, by resource, in Kueue's unit."""


def read_node(item: Object) -> Node:
    """Read a Node.

    Raises
    ------
    ValueError
        If its allocatable is no quantity.
    """
    spec, status = item.get("spec") or {}, item.get("status") or {}
    ready = [c.get("status") == "True" for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return Node(
        labels=frozenset((item["metadata"].get("labels") or {}).items()),
        taints=tuple(
            Taint(str(taint["key"]), str(taint.get("value") or ""), str(taint.get("effect") or ""))
            for taint in spec.get("taints") or ()
        ),
        in_service=all(ready) and not spec.get("unschedulable"),
        has=tuple(sorted((name, amount(name, value)) for name, value in (status.get("allocatable") or {}).items())),
    )


def essence(item: Object) -> dict[str, Any]:
    """A Node without what nobody here reads: heartbeats, addresses, images."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    ready = [
        {"type": "Ready", "status": condition.get("status")}
        for condition in status.get("conditions") or ()
        if condition.get("type") == "Ready"
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": ready},
    }


class Alike(NamedTuple):
    """Nodes that have the same of one resource."""

    resource: str
    size: int
    nodes: int


def nodes_of(flavor: Flavor, nodes: Collection[Node], quota: Mapping[str, int]) -> Iterator[Alike]:
    """The nodes of a flavor, for each resource that it has quota of and some node has.

    Parameters
    ----------
    quota
        Nominal quota of the flavor by resource, all ClusterQueues and Cohorts together.
    """
    mine = [dict(node.has) for node in nodes if _belongs(flavor, node)]
    for resource, needed in quota.items():
        count = Counter(_rounded(resource, has[resource]) for has in mine if has.get(resource, 0) > 0)
        if not count:
            continue
        missing = needed - sum(size * several for size, several in count.items())
        if missing > 0 and not flavor.fixed_nodes:
            count[max(count)] += -(-missing // max(count))
        for size, several in sorted(count.items()):
            yield Alike(resource, size, several)


def _belongs(flavor: Flavor, node: Node) -> bool:
    """Whether pods that are admitted in a flavor may run on a node."""
    if not node.in_service or not node.labels.issuperset(flavor.labels):
        return False
    has = {name for name, _ in node.has}
    return all(
        taint.effect not in ("NoSchedule", "NoExecute")
        or taint in flavor.taints
        or any(toleration.tolerates(taint) for toleration in flavor.tolerations)
        # Taints named after a resource keep others away; pods that ask for it are made to tolerate them.
        or (taint.key in has and not taint.key.startswith(_STATE))
        for taint in node.taints
    )


def _rounded(resource: str, value: int) -> int:
    """What a node has, in the planner's range; the same for nodes of one kind."""
    unit = COARSE if value > COARSE and resource != CPU else 1
    return min(MAX_AMOUNT, -(-value // unit) * unit)
