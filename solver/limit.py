"""When to stop."""

from __future__ import annotations

import math
import time
from copy import copy

from solver.api import planner_pb2 as pb

DEFAULT_WALL_MS = 1_000
"""Budget when the request names none."""


class Limit:
    """A budget that runs from now on.

    Attributes
    ----------
    work
        Deterministic limit, 0 for none. With one and no wall-clock limit, time does not matter.
    """

    def __init__(self, budget: pb.Budget) -> None:
        self.work = budget.work_limit
        wall_ms = budget.wall_ms or (0 if self.work else DEFAULT_WALL_MS)
        self._end = time.monotonic() + wall_ms / 1e3 if wall_ms else math.inf

    def seconds_left(self) -> float:
        """Wall-clock time that is left; infinite when there is no such limit."""
        return max(0.0, self._end - time.monotonic())

    def part(self, share: float) -> Limit:
        """A limit that ends earlier: with a share of what is left of the time, and of the work."""
        result = copy(self)
        result.work = math.ceil(self.work * share)
        result._end = time.monotonic() + self.seconds_left() * share
        return result

    def over(self) -> bool:
        """Whether the time is up."""
        return self.seconds_left() <= 0
