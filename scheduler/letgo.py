"""Work that we must let go: its queue is missing, stopped, not supported, or from now on only observed.

Kueue 0.17 rewrites the status of a gated Workload for ever while its queue takes no work, a hundred times a second.
So our gates are taken off there; the work then waits quietly until its queue opens. What is seen for a moment only,
while the objects of one ``kubectl apply`` arrive, is no reason: a gate cannot be put on again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from scheduler.items import Stranded
from scheduler.plans import Placement
from scheduler.settings import SECOND
from solver.problem import NEVER

AT_ONCE = 50
"""Let go in one round at most: the releases that are due must not wait for thousands of these."""


class Leaving(NamedTuple):
    """What to let go."""

    now: list[Stranded]
    """In the order of the plan, what it does not know due soonest first: Kueue will not ask for deadlines."""
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
        self._since: dict[str, tuple[int, int]] = {}
        """By uid: since when, and its place in the plan of that time."""

    def look(
        self,
        stranded: Iterable[Stranded],
        now: int,
        shunned: Collection[str],
        placements: Mapping[str, Placement] = MappingProxyType({}),
    ) -> Leaving:
        """What is stranded for long enough at the instant ``now``, but for those that are ``shunned``.

        ``placements``: those of the plan in force, by uid.
        """
        before, self._since = self._since, {}
        ripe, later, pause = [], set(), float("inf")
        for lost in stranded:
            uid = lost.item.uid
            if uid not in before and not lost.confirmed:
                continue
            placement = placements.get(uid)
            since, rank = before.get(uid, (now, placement.rank if placement else NEVER))
            self._since[uid] = since, rank  # Kueue's own word flips with its status: once is enough
            if not lost.item.releasable or uid in shunned:
                continue
            if now - since >= self._patience:
                ripe.append(lost)
            else:
                later.add(uid)
                pause = min(pause, (since + self._patience - now) / SECOND)
        ripe.sort(key=self._turn)
        later.update(lost.item.uid for lost in ripe[AT_ONCE:])
        return Leaving(ripe[:AT_ONCE], frozenset(later), 0.0 if len(ripe) > AT_ONCE else pause)

    def _turn(self, lost: Stranded) -> tuple[int, int, int]:
        item = lost.item
        return self._since[item.uid][1], NEVER if item.deadline is None else item.deadline, item.created
