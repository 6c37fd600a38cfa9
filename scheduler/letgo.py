"""Work that we must let go: its queue is missing, stopped or not supported.

Kueue 0.17 rewrites the status of a gated Workload for ever while its queue takes no work, a hundred times a second.
So our gates are taken off there; the work then waits quietly until its queue opens. What is seen for a moment only,
while the objects of one ``kubectl apply`` arrive, is no reason: a gate cannot be put on again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from scheduler.items import Stranded
from scheduler.settings import SECOND

AT_ONCE = 50
"""Let go in one round at most: the releases that are due must not wait for thousands of these."""


class Leaving(NamedTuple):
    """What to let go."""

    now: list[Stranded]
    """Due soonest first, as Kueue will not ask for deadlines when the queue opens."""
    later: frozenset[str]
    """Uids of Workloads that will be let go as well, if nothing changes."""
    pause: float
    """Seconds until more is to be let go; infinite for never."""


class LetGo:
    """Remembers since when work is known to be stranded.

    Parameters
    ----------
    patience
        Milliseconds for which that must be so before it is let go.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._since: dict[str, int] = {}

    def look(self, stranded: Iterable[Stranded], now: int, shunned: Collection[str]) -> Leaving:
        """What is stranded for long enough at the instant ``now``, but for those that are ``shunned``."""
        before, self._since = self._since, {}
        ripe, later, pause = [], set(), float("inf")
        for lost in stranded:
            uid = lost.item.uid
            since = before.get(uid, now if lost.confirmed else None)
            if since is None:
                continue
            self._since[uid] = since  # Kueue's own word flips with its status: once is enough
            if not lost.item.releasable or uid in shunned:
                continue
            if now - since >= self._patience:
                ripe.append(lost)
            else:
                later.add(uid)
                pause = min(pause, (since + self._patience - now) / SECOND)
        ripe.sort(key=lambda lost: (lost.item.deadline is None, lost.item.deadline or 0, lost.item.created))
        later.update(lost.item.uid for lost in ripe[AT_ONCE:])
        return Leaving(ripe[:AT_ONCE], frozenset(later), 0.0 if len(ripe) > AT_ONCE else pause)
