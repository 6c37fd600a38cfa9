"""A cluster that was looked at once and stands still: enough for a snapshot, for a plan that only shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.apiserver import FORBIDDEN, NOT_FOUND, RESOURCES, ApiError, ApiServer
from scheduler.cluster import KINDS, Object
from scheduler.reflector import key_of

PAGE = 500
"""Objects per answer of the apiserver."""


@dataclass
class StillCluster:
    """Objects as they were at ``instant`` (milliseconds since the Unix epoch), by kind and ``namespace/name``."""

    instant: int
    by_kind: dict[str, dict[str, Object]] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def now(self) -> int:
        """The time, in milliseconds since the Unix epoch."""
        return self.instant

    def objects(self, kind: str) -> Mapping[str, Object]:
        """All objects of a kind by ``namespace/name`` (``name`` alone for cluster-scoped kinds)."""
        return self.by_kind[kind]


def look(
    api: ApiServer,
    now: int,
    progress: Callable[[str], None] = lambda kind: None,
    told: Callable[[str], None] = lambda message: None,
) -> StillCluster:
    """List each kind once.

    Parameters
    ----------
    progress
        Told each kind before it is listed.
    told
        Told what is left out because it may not be read.

    Raises
    ------
    scheduler.apiserver.ApiError
        If a kind cannot be listed; the message names it.
    """
    cluster = StillCluster(now)
    for kind in KINDS:
        progress(kind)
        resource = RESOURCES[kind]
        query: dict[str, str | int] = {"limit": PAGE, **resource.query}
        while True:
            try:
                answer: dict[str, Any] = api.request("GET", resource.path(), query=query)
            except ApiError as error:
                if error.status == NOT_FOUND and resource.optional:
                    break
                if error.status == FORBIDDEN and not resource.needed:
                    told(f"{resource.plural} do not count: {error.message}")
                    break
                what = "Kueue's API is not there: " if error.status == NOT_FOUND else ""
                where = f"{what}{resource.plural} ({resource.version}) cannot be listed"
                raise ApiError(error.status, f"{where}: {error.message}") from error
            for item in answer["items"]:
                cluster.by_kind[kind][key_of(item)] = {**item, "kind": kind, "apiVersion": resource.version}
            if not (token := answer["metadata"].get("continue")):
                break
            query["continue"] = token
    return cluster
