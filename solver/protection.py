"""Protection levels: quota kept free for urgent work that has not been submitted yet.

Once all known work is planned well, what is missed is mostly work that comes later, with little slack, and finds
everything taken by long work that could have waited. So long work must leave some quota free: a *protection level*, as
airlines keep seats for those who book late (Littlewood's rule and its successors; a bid price). Work may start when

* it fits, and
* its estimate says that it ends soon, or the quota that is free in a short while, less its own, stays at or above its
  level: nothing for small work, up to a share of the rest of the pool for the largest (:func:`level`).

Work is served in the order of energy × (slack + 20 minutes): what is small or urgent first. Work that can hardly be on
time any more comes last and leaves even more free: what it takes could make others late, and it gains nothing by
starting now. It runs all the same, when there is room. Best effort leaves as much free as large work, until it has
waited for so long that it goes first and leaves nothing (ageing).

Levels are learned by replaying history (:func:`learn`), once for each root cohort and flavor; without history there are
none. A replay loops over the history twice and only the second round counts: a history that simply ends leaves free
quota behind, in which protection looks useless.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solver.problem import NEVER
from solver.quota import Int64s, inner

MINUTE = 60_000
HOUR = 60 * MINUTE

HEAD_START = 20 * MINUTE
"""Added to the slack when it is multiplied by the energy: work without slack is not all alike."""

BEST_EFFORT_SLACK = 10 * HOUR
"""Slack that best effort is counted with among work that has a due date."""

GOES_ON = 0.5
"""Work that has outlived its estimate is expected to run on for this part of what it has run so far."""

HISTORY = 200
"""Fewest jobs of a history to learn from."""

MARGIN = 0.03
"""A setting is changed when the objective gets better by more than this part of it."""

FIRST, NORMAL, LAST = 0, 1, 2
"""Turns: aged best effort; all the rest; what can hardly be on time."""


class Protection(NamedTuple):
    """Levels of one pool, each as a part of what the work that must leave it does not take itself: else wide work would
    never start. Energies are GPUs × milliseconds."""

    share: float
    """The level of the largest work."""
    small: float
    """Work of this energy or less leaves nothing free."""
    large: float
    """Work of this energy or more leaves the whole share; in between it goes by the logarithm."""
    soon: int
    """Milliseconds: work that is expected to end within so long needs no level."""
    fade: float
    """The part of its level that work keeps when it has no slack left, in [0, 1]; it is whole from a slack of one
    estimate on, and for work that is late already by its estimate."""
    hopeless: float
    """Work is hopeless when it would be late even if it ran only this part of its estimate."""
    behind: float
    """The level of hopeless work."""
    best_effort: float
    """The least level of best effort."""
    ageing: int
    """Milliseconds after which best effort goes first; 0 for never."""


def off(ageing: int = 0) -> Protection:
    """No levels at all."""
    return Protection(0.0, 1.0, 2.0, 0, 1.0, 1.0, 0.0, 0.0, ageing)


@inner
def level(protection: Protection, capacity: int, gpus: int, estimate: int, slack: int, due: int, turn: int) -> float:
    """GPUs of the pool that work must leave free: a share of those that it does not take itself."""
    if turn == FIRST or estimate <= protection.soon:
        return 0.0
    others = float(capacity - gpus)
    if turn == LAST:
        return protection.behind * others
    size = math.log(float(gpus) * estimate / protection.small) / math.log(protection.large / protection.small)
    share = protection.share * min(1.0, max(0.0, size))
    if due == NEVER:
        share = max(share, protection.best_effort)
    elif slack >= 0:
        share *= protection.fade + (1.0 - protection.fade) * min(1.0, slack / estimate)
    return share * others


@inner
def turn_of(protection: Protection, waited: int, estimate: int, due_in: int, due: int) -> int:
    """Whose turn it is: ``FIRST``, ``NORMAL`` or ``LAST``."""
    if due == NEVER:
        return FIRST if 0 < protection.ageing <= waited else NORMAL
    return LAST if protection.hopeless * estimate > due_in else NORMAL


@inner
def key(gpus: int, estimate: int, slack: int, due: int) -> float:
    """Within a turn, the smaller the earlier."""
    left = float(BEST_EFFORT_SLACK) if due == NEVER else max(0.0, float(slack))
    return float(gpus) * estimate * (HEAD_START + left)


@inner
def expected_end(start: int, estimate: int, now: int) -> int:
    """When running work is expected to end: later than now, also when it has outlived its estimate."""
    end = start + estimate
    return end if end > now else now + int(GOES_ON * (now - start)) + 1


class Score(NamedTuple):
    """What a replay comes to; only jobs that count are in it."""

    missed: float
    """Part of the jobs with a due date that were late."""
    missed_energy: float
    """Their part of the GPU-hours of all jobs with a due date. A count alone can be made small by giving up all big
    jobs."""
    wait_median: float
    """Of best effort, in minutes; 0 when there is none."""
    wait_p95: float
    """Of best effort, in minutes."""

    @property
    def lost(self) -> float:
        """Both parts together, in [0, 2]."""
        return self.missed + self.missed_energy


def objective(score: Score, median: float, p95: float) -> float:
    """What :func:`learn` makes small: what is lost, and as much again for each time that a bound on waits is exceeded.

    Parameters
    ----------
    median, p95
        Bounds on the waits of best effort, in minutes.
    """
    excess = max(0.0, score.wait_median / median - 1) + max(0.0, score.wait_p95 / p95 - 1)
    return score.lost * (1 + excess) + 0.1 * excess


SETTINGS: Mapping[str, Sequence[float]] = {
    "behind": (0.2, 0.35, 0.5, 0.65, 0.8),
    "share": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    "hopeless": (0.4, 0.6, 0.8, 1.0),
    "best_effort": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3),
    "fade": (0.0, 0.25, 0.5, 0.75, 1.0),
    "soon": (15 * MINUTE, 30 * MINUTE, 60 * MINUTE, 120 * MINUTE),
}
"""What is tried for each setting, the most important one first."""


def starts(energy: Int64s, best_effort: bool, ageing: int = 0) -> list[Protection]:
    """Where learning may begin: mild levels and strict ones, for estimates that are good and for such as are not.

    Parameters
    ----------
    energy
        ``int64 [n]``: of the jobs of a history, by their estimates.
    best_effort
        Whether there is work without due dates among them.
    ageing
        See :class:`Protection`; nothing that is learned.
    """
    small = 2.0 * max(1.0, float(np.median(energy)))
    large = max(2.0 * small, 3.0 * float(np.quantile(energy, 0.99)))
    least = 0.1 if best_effort else 0.0
    return [
        Protection(0.1, small, large, 30 * MINUTE, 0.5, 0.6, 0.35, least, ageing),
        Protection(0.1, small, large, 60 * MINUTE, 0.5, 0.4, 0.5, 3 * least, ageing),
        Protection(0.25, small, large, 15 * MINUTE, 0.5, 1.0, 0.5, least, ageing),
        Protection(0.3, small, large, 30 * MINUTE, 0.5, 0.6, 0.65, 2 * least, ageing),
        Protection(0.4, small, large, 15 * MINUTE, 0.25, 1.0, 0.8, 2 * least, ageing),
    ]


def learn(
    replay: Callable[[Protection], Score],
    begin: Sequence[Protection],
    wait_median: float,
    wait_p95: float,
    rounds: int = 2,
) -> Protection:
    """Settings that do well on a history: from the best of some, changed one after another.

    Parameters
    ----------
    replay
        Replays the history, looped twice, and scores the second round.
    begin
        See :func:`starts`.
    wait_median, wait_p95
        Bounds on the waits of best effort, in minutes.
    rounds
        How often each setting is tried at most.
    """

    def value_of(protection: Protection) -> float:
        return objective(replay(protection), wait_median, wait_p95)

    values = [value_of(protection) for protection in begin]
    best, value = begin[int(np.argmin(values))], min(values)
    names = [name for name in SETTINGS if name != "best_effort" or best.best_effort > 0]
    for _ in range(rounds):
        before = best
        for name in names:
            tried = [_with(best, name, setting) for setting in SETTINGS[name] if setting != getattr(best, name)]
            found = [value_of(protection) for protection in tried]
            winner = int(np.argmin(found))
            if found[winner] < value * (1 - MARGIN):
                best, value = tried[winner], found[winner]
        if best == before:
            break
    return best


def _with(protection: Protection, name: str, setting: float) -> Protection:
    return Protection(**{**protection._asdict(), name: setting})
