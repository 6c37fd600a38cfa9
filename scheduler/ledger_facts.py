"""What only the ledger wants to know of a Workload; no plan needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.family import Traits, read_traits
from scheduler.quantity import MAX_VALUE, amount

EVICTED = "Evicted"


class Record(NamedTuple):
    """Of one version of a Workload."""

    traits: Traits
    generate_name: str
    """What Kubernetes made its name from; empty if somebody chose it."""
    usage: tuple[tuple[str, str, int], ...]
    """Flavor, resource and amount that Kueue has granted, also what finished pods gave back; of finished work too."""
    cluster_queue: str
    """Whose quota that was; empty if nothing is granted."""
    interrupted: str | None
    """Since when its last run is over without it having finished, as the API writes it."""
    eviction: str
    """Kueue's reason of the last eviction; empty without one."""
    evictions: int
    reason: str
    """Kueue's word on how it finished; empty if it has not."""


def read_record(item: Mapping[str, Any]) -> Record:
    """Read a Workload.

    Raises
    ------
    ValueError
        If a request is not a quantity.
    """
    status = item.get("status") or {}
    conditions = {str(condition["type"]): condition for condition in status.get("conditions") or ()}
    admitted, finished = conditions.get("Admitted") or {}, conditions.get("Finished") or {}
    admission = status.get("admission") or {}
    statistics = (status.get("schedulingStats") or {}).get("evictions") or ()
    return Record(
        traits=read_traits(item["spec"]),
        generate_name=str(item["metadata"].get("generateName") or ""),
        usage=_usage(admission),
        cluster_queue=str(admission.get("clusterQueue") or ""),
        interrupted=admitted.get("lastTransitionTime") if admitted.get("status") == "False" else None,
        eviction=str((conditions.get(EVICTED) or {}).get("reason") or ""),
        evictions=sum(int(each.get("count") or 0) for each in statistics),
        reason=str(finished.get("reason") or "") if finished.get("status") == "True" else "",
    )


def _usage(admission: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    usage: dict[tuple[str, str], int] = {}
    for assignment in admission.get("podSetAssignments") or ():
        flavors = assignment.get("flavors") or {}
        for resource, quantity in (assignment.get("resourceUsage") or {}).items():
            cell = str(flavors.get(resource) or ""), str(resource)
            usage[cell] = min(MAX_VALUE, usage.get(cell, 0) + amount(resource, quantity))
    return tuple(sorted((flavor, resource, held) for (flavor, resource), held in usage.items() if flavor and held))
