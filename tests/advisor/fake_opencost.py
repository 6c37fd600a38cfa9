"""An OpenCost small enough to break on purpose: allocations of containers, in the layouts that versions emit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scheduler.annotations import format_instant, parse_instant
from scheduler.settings import HOUR
from tests.advisor.fake_prometheus import serving


@dataclass
class Container:
    """What something costs an hour, between two instants."""

    namespace: str
    pod: str
    start: int
    end: int
    cost: float
    gpus: float = 1.0
    properties: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    name: str = ""


class FakeOpenCost:
    """Computes allocations as OpenCost does: cut off at the window that is asked for."""

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.layout = "list"
        self.since = 0
        """Before that it knows nothing."""
        self.hooks: list[Callable[[dict[str, str]], tuple[int, bytes] | None]] = []
        self.requests: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.date: str | None = None
        self.url = ""

    def add(self, *words: Any, **named: Any) -> None:
        """A container."""
        self.containers.append(Container(*words, **named))

    def compute(self, query: dict[str, str]) -> dict[str, Any]:
        """As ``/allocation/compute`` answers."""
        start, end = map(parse_instant, query["window"].split(","))
        window = {"start": format_instant(start), "end": format_instant(end)}
        found = {}
        for each in self.containers:
            begin, until = max(start, each.start, self.since), min(end, each.end)
            if begin >= until or (each.name.endswith("__idle__") and query.get("includeIdle") != "true"):
                continue
            hours = (until - begin) / HOUR
            name = each.name or f"cluster-one/node-1/{each.namespace}/{each.pod}/main"
            properties = {"cluster": "cluster-one"}
            if not each.name:
                properties |= {"node": "node-1", "container": "main", "namespace": each.namespace, "pod": each.pod}
            cost = round(each.cost * hours, 5)
            found[name] = {
                "name": name,
                "properties": {**properties, **each.properties},
                "window": window,
                "start": format_instant(begin),
                "end": format_instant(until),
                "minutes": hours * 60,
                "gpuCount": each.gpus,
                "gpuHours": each.gpus * hours,
                "gpuCost": cost,
                "cpuCost": 0,
                "sharedCost": 0,
                "totalCost": cost,
                "gpuEfficiency": None,
                **each.more,
            }
        data: Any = [found]
        if self.layout == "sets":
            data = {"step": end - start, "sets": [{"allocations": found, "window": window}], "window": window}
        if self.layout == "wrapped":
            data = [{"allocations": found, "window": window}]
        return {"code": 200, "status": "success", "data": data}


@contextmanager
def fake_opencost() -> Iterator[FakeOpenCost]:
    """One that runs."""
    fake = FakeOpenCost()

    def answer(path: str, query: dict[str, str]) -> Any:
        assert path == "/allocation/compute", path
        return fake.compute(query)

    with serving(fake, answer):
        yield fake
