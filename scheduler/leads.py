"""How long after its admission work begins, by flavor: images are pulled, nodes come.

What the annotation ``punctual.kueue/start-lead`` of a ResourceFlavor says counts. Without it, it is learned where Kueue
records when the pods of a workload are ready (``waitForPodsReady``): the median of the last ones; else it is nothing.
What was learned is kept in memory: after a restart it is learned anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

from scheduler.estimates import rounded
from scheduler.facts import WorkloadFacts
from scheduler.podset import Flavor
from scheduler.settings import SECOND

LAST = 20
"""Workloads of a flavor that count."""

FEWEST = 3
"""With fewer of them nothing is said."""


class StartLeads:
    """Learns lead times from Workloads as they become ready."""

    def __init__(self) -> None:
        self._last: dict[str, deque[int]] = {}
        self._heard: dict[str, int] = {}
        """When each Workload was admitted of which we have learned, by uid."""

    def look(self, workloads: Iterable[WorkloadFacts]) -> None:
        """Learn from all Workloads that there are."""
        heard: dict[str, int] = {}
        for facts in workloads:
            if facts.ready is None or facts.admitted is None or facts.admission is None:
                continue
            if facts.ready < facts.admitted:
                continue  # of an earlier admission
            uid = facts.reference.uid
            heard[uid] = facts.admitted
            if self._heard.get(uid) != facts.admitted:
                for flavor in {flavor for flavor, *_ in facts.admission.usage}:
                    self._last.setdefault(flavor, deque(maxlen=LAST)).append(facts.ready - facts.admitted)
        self._heard = heard

    def of(self, flavors: Mapping[str, Flavor]) -> dict[str, int]:
        """Lead time of each flavor in milliseconds."""
        return {name: self._learned(name) if flavor.lead is None else flavor.lead for name, flavor in flavors.items()}

    def _learned(self, flavor: str) -> int:
        last = self._last.get(flavor, ())
        # Kueue writes whole seconds. Two digits: that a pod takes a moment longer is no reason for another plan.
        return rounded(round(median(last) / SECOND) * SECOND) if len(last) >= FEWEST else 0
