"""Everything that waits behind our gate, found without any state of ours: what an uninstall has to let go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler.annotations import parse_instant, read_wishes
from scheduler.apiserver import FORBIDDEN, NOT_FOUND, RESOURCES, ApiError, ApiServer
from scheduler.cluster import GATE, Object, Reference
from scheduler.kinds import ROOT_KINDS
from scheduler.ungate import controller_of, gate_names, gates_of


@dataclass(frozen=True)
class Gated:
    """One root object with our gate on it.

    Attributes
    ----------
    due
        Its deadline, milliseconds since the Unix epoch; None without one.
    """

    target: Reference
    item: Object
    due: int | None
    created: int


def find_gated(api: ApiServer, namespace: str = "", forbidden: Callable[[str, str], None] | None = None) -> list[Gated]:
    """Root objects with our gate, due first; those without a deadline last, oldest first.

    Parameters
    ----------
    namespace
        Look there only; empty: everywhere.
    forbidden
        Told the kinds that we may not list, and the apiserver's words; None: that is an error.

    Raises
    ------
    scheduler.apiserver.ApiError
        A kind cannot be listed. A cluster need not have it (nor Kueue, and so Workloads), and that is fine.
    """
    found = []
    for kind in (*ROOT_KINDS, "Workload"):
        try:
            found += _gated(api, kind, namespace)
        except ApiError as error:
            if forbidden is None or error.status != FORBIDDEN:
                raise
            forbidden(kind, error.message)
    # A Workload that something controls follows its owner, which is the one to release.
    found = [each for each in found if each.target.kind != "Workload" or not controller_of(each.item)]
    return sorted(found, key=lambda gated: (gated.due is None, gated.due or 0, gated.created, str(gated.target)))


def gated(kind: str, item: Object) -> Gated:
    """What matters about one object for its release."""
    metadata = item["metadata"]
    created = parse_instant(metadata["creationTimestamp"])
    target = Reference(kind, metadata.get("namespace", ""), metadata["name"], metadata["uid"])
    return Gated(target, item, read_wishes(metadata.get("annotations"), created).deadline, created)


def _gated(api: ApiServer, kind: str, namespace: str) -> list[Gated]:
    try:
        # Also those without a queue: somebody may have taken the label off while the gate was on.
        items, _ = api.list_all(replace(RESOURCES[kind], selector=""), namespace)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return []
    return [gated(kind, item) for item in items if GATE in gate_names(gates_of(item))]
