"""Virtual time: things happen in order, and hours pass in milliseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class VirtualClock:
    """A clock that only moves when it is told to, and a list of what will happen when.

    What is due at the same instant happens in the order in which it was asked for, so that a run is the same each time.

    Parameters
    ----------
    start
        First instant, in milliseconds since the Unix epoch.
    """

    def __init__(self, start: int) -> None:
        self.now = start
        self._order = count()
        self._due: list[tuple[int, int, Action]] = []

    def at(self, instant: int, action: Action) -> None:
        """Let something happen at an instant (milliseconds since the epoch); one in the past happens next."""
        heapq.heappush(self._due, (max(instant, self.now), next(self._order), action))

    def after(self, delay: int, action: Action) -> None:
        """Let something happen ``delay`` milliseconds from now."""
        self.at(self.now + delay, action)

    def next(self) -> int | None:
        """When the next thing happens; None when nothing will."""
        return self._due[0][0] if self._due else None

    def step(self, until: int) -> bool:
        """Move to the next instant at which something happens, and let all of that instant happen.

        Returns False when nothing happens up to ``until``: then the clock stands there.
        """
        instant = self.next()
        if instant is None or instant > until:
            self.now = max(self.now, until)
            return False
        self.now = instant
        while self._due and self._due[0][0] == instant:
            heapq.heappop(self._due)[2]()
        return True
