"""When to stop."""

from __future__ import annotations

import math
import time
from copy import copy

from solver.api import planner_pb2 as pb

DEFAULT_WALL_MS = 1_000
"""Budget when the request names none."""


class Limit:
    """A budget that runs from now on: of time, and of work. Its parts draw on the same work.

    Attributes
    ----------
    deterministic
        Whether there is a limit of work. With one and no wall-clock limit, time does not matter.
    """

    def __init__(self, budget: pb.Budget) -> None:
        self.deterministic = budget.work_limit > 0
        wall_ms = budget.wall_ms or (0 if self.deterministic else DEFAULT_WALL_MS)
        self._end = time.monotonic() + wall_ms / 1e3 if wall_ms else math.inf
        self._most = float(budget.work_limit) if self.deterministic else math.inf
        self._spent = [0.0]

    def seconds_left(self) -> float:
        """Wall-clock time that is left; infinite when there is no such limit."""
        return max(0.0, self._end - time.monotonic())

    def work_left(self) -> float:
        """Units of work that are left; infinite when there is no such limit."""
        return max(0.0, self._most - self._spent[0])

    def spend(self, work: float) -> None:
        """Count units of work that were done."""
        self._spent[0] += work

    def part(self, share: float) -> Limit:
        """A limit that ends earlier: with a share of what is left of the time, and of the work."""
        result = copy(self)
        result._most = self._spent[0] + self.work_left() * share
        result._end = time.monotonic() + self.seconds_left() * share
        return result

    def over(self) -> bool:
        """Whether the time is up, or the work is done."""
        return self.seconds_left() <= 0 or self.work_left() <= 0
