"""Costs from OpenCost, by pod and day: ``GET /allocation/compute``.

What it answers was read from its source (github.com/opencost/opencost): fields and null for what is no number in
``core/pkg/opencost/allocation_json.go`` (commit 29cefd6ec323edd84ec90828cba9be309f3af8a5), the other layout of sets in
``core/pkg/opencost/summaryallocation_json.go`` (145b77aa4bf061c198c676f07d914cce71424e9c), names and properties in
``core/pkg/opencost/allocationprops.go`` (0cc5ed0244c439b3a7b1d280f206a1a8a041b6b9). No OpenCost ran when this was
written. Its GPU-hours are those that pods asked for, whether they used them or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from advisor.prometheus import TIMEOUT, JsonSource, SourceError
from scheduler.annotations import format_instant, parse_instant

_PARTS = (
    "cpuCost",
    "cpuCostAdjustment",
    "gpuCost",
    "gpuCostAdjustment",
    "ramCost",
    "ramCostAdjustment",
    "pvCost",
    "pvCostAdjustment",
    "networkCost",
    "networkCostAdjustment",
    "loadBalancerCost",
    "loadBalancerCostAdjustment",
    "sharedCost",
    "externalCost",
)
"""What ``totalCost`` is the sum of."""

IDLE, UNMOUNTED, SHARED = "__idle__", "__unmounted__", "__shared__"


@dataclass(frozen=True)
class Allocation:
    """What one container of a pod (or nobody) cost in a stretch of time.

    Attributes
    ----------
    name
        OpenCost's, of cluster, node, namespace, pod and container; ``…/__idle__`` for what nobody asked for.
    start, end
        Milliseconds since the Unix epoch.
    owner
        Name of the pod's controller, where OpenCost knows it.
    labels
        Of the pod, with ``_`` for what is no letter or digit.
    cost
        All of it, ``shared`` included.
    shared
        Of that, its part of what is shared out among all.
    gpu_hours
        Requested.
    flawed
        Whether some of its figures were no numbers: they are not in ``cost``.
    """

    name: str
    namespace: str
    pod: str
    owner: str
    labels: Mapping[str, str]
    start: int
    end: int
    cost: float
    shared: float
    gpu_hours: float
    flawed: bool

    @property
    def idle(self) -> bool:
        """Whether it is of nobody: capacity that is paid for and not asked for."""
        return IDLE in self.name

    @property
    def common(self) -> bool:
        """Whether it is of all together: shared, or a volume that no pod has."""
        return SHARED in self.name or UNMOUNTED in (self.name, self.pod, self.namespace) or UNMOUNTED in self.name


@dataclass
class Answered:
    """What OpenCost has of one stretch of time.

    Attributes
    ----------
    total
        The sum of all that it sent, added up before anything is given to anybody.
    """

    allocations: list[Allocation] = field(default_factory=list)
    total: float = 0.0
    other_window: bool = False
    """Whether it answered for another stretch of time than it was asked for."""


class OpenCost(JsonSource):
    """An OpenCost (or Kubecost, with ``/model`` in its address)."""

    def __init__(self, url: str, token: str = "", timeout: float = TIMEOUT) -> None:
        super().__init__("OpenCost", url, token, timeout)
        self.skew: float | None = None
        """By how many seconds its clock is ahead of ours, by its last answer."""

    def compute(self, start: int, end: int) -> Answered:
        """All costs between two instants (milliseconds since the Unix epoch, whole seconds), idle ones too.

        Raises
        ------
        SourceError
            If there is no answer that can be used.
        """
        window = f"{format_instant(start)},{format_instant(end)}"
        query = {"window": window, "includeIdle": "true", "shareIdle": "false", "accumulate": "false"}
        answer = self.get("/allocation/compute", query)
        self.skew = answer.skew
        data = answer.data
        if data.get("status") == "error" or int(data.get("code") or 200) != 200:  # also with HTTP status 200
            raise SourceError(f"OpenCost {self.url} answers: {data.get('message') or data.get('data') or data}")
        found = Answered()
        try:
            for name, item in _allocations(data["data"]):
                allocation, off = _read(name, item, start, end)
                found.allocations.append(allocation)
                found.other_window = found.other_window or off
                found.total += allocation.cost
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SourceError(f"OpenCost {self.url} answers no allocations: is it an OpenCost?", down=True) from None
        return found


def _allocations(data: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All allocations of all sets: a list of maps by name, or ``sets`` that have them in ``allocations``."""
    if data is None:
        return
    if isinstance(data, Mapping):
        data = data.get("sets", [data])
    if not isinstance(data, list):
        raise TypeError
    for each in data or ():
        if each is None:
            continue
        found = each["allocations"] if isinstance(each.get("allocations"), Mapping) else each
        if each.get("allocations", found) is None:
            continue
        for name, item in found.items():
            if item is not None:
                yield str(name), item


def _read(name: str, item: Mapping[str, Any], start: int, end: int) -> tuple[Allocation, bool]:
    """An allocation, and whether it is of another window than ``start`` to ``end``."""
    properties = item.get("properties") or {}
    window = item.get("window") or {}
    begin, until = _instant(item.get("start"), start), _instant(item.get("end"), end)
    off = _instant(window.get("start"), start) < start - 60_000 or _instant(window.get("end"), end) > end + 60_000
    total, flawed = _amount(item, "totalCost")
    if flawed:
        total = sum(_amount(item, part)[0] for part in _PARTS)
    hours, _ = _amount(item, "gpuHours")
    labels = {str(key): str(value) for key, value in (properties.get("labels") or {}).items()}
    return (
        Allocation(
            name=str(item.get("name") or name),
            namespace=str(properties.get("namespace") or ""),
            pod=str(properties.get("pod") or ""),
            owner=str(properties.get("controller") or ""),
            labels=labels,
            start=max(begin, start) if begin < until else start,
            end=min(until, end) if begin < until else end,
            cost=total,
            shared=_amount(item, "sharedCost")[0],
            gpu_hours=hours,
            flawed=flawed or any(_amount(item, part)[1] for part in _PARTS if part in item),
        ),
        off,
    )


def _amount(item: Mapping[str, Any], key: str) -> tuple[float, bool]:
    """A figure, 0 for one that is null, NaN or not there; and whether it is none."""
    value = item.get(key)
    try:
        number = float(value) if value is not None else math.nan
    except (TypeError, ValueError):
        number = math.nan
    return (number, False) if math.isfinite(number) else (0.0, True)


def _instant(text: Any, otherwise: int) -> int:
    try:
        return parse_instant(str(text)) if text else otherwise
    except ValueError:
        return otherwise
