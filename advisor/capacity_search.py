"""The least amount of a pool that meets the deadlines, between what a plan shows and what a bound proves.

More of a pool never hurts, so both are looked for by bisection: a plan that meets the deadlines with an amount shows
that this is enough; a bound that says that no plan does shows that it, and anything less, is not. Where the two meet
the answer is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import log1p
from typing import NamedTuple

import numpy as np

from advisor.capacity_trials import HARD, QUICK, USUAL, Trial, Trials, taken, use

POINTS = 9
"""Points of a curve for which plans are made, beside those that the search has made."""

MOST_LOOKS = 200_000
"""Rows looked at, over all sets of them, to find a small one that sets the peak."""


class Point(NamedTuple):
    """Of the curve: with this amount a plan meets ``met`` deadlines, and none meets more than ``at_most``."""

    amount: int
    met: int
    at_most: int


@dataclass(frozen=True)
class Least:
    """What is needed of a pool.

    Attributes
    ----------
    needed
        With it, a plan meets the deadlines.
    at_least
        With less, no plan does.
    required
        Deadlines to be met, of those that can be with plenty.
    reachable
        Deadlines that the best plan meets with plenty.
    stuck
        Rows of the request that this plan misses: more of this pool does not help them, as far as plans can tell.
    sets_peak
        Rows of the request because of which it is not less: they cannot be on time together with one less, or (when
        that is not proved, or not all need be on time) they run when most is in use.
    """

    needed: int
    at_least: int
    required: int
    reachable: int
    stuck: tuple[int, ...]
    sets_peak: tuple[int, ...]
    curve: tuple[Point, ...]

    @property
    def proven(self) -> bool:
        """Whether it is proved that one less cannot do."""
        return self.needed == self.at_least


def least(trials: Trials, share: Fraction = Fraction(1)) -> Least:
    """The least amount with which a share of the deadlines is met, as many of them as can be with plenty."""
    lowest, plenty, total = trials.lowest.amount, trials.plenty, len(trials.due)
    full = trials.try_plan(plenty, enough=0, effort=HARD)
    reachable = total - full.missed
    required = -(-reachable * share.numerator // share.denominator)
    allowed = total - required
    low = _first(lowest, plenty, lambda amount: trials.least(amount) <= allowed)
    needed, low = _by_plans(trials, low, plenty, allowed)
    while low < needed:
        trial = trials.try_plan(needed - 1, enough=allowed, effort=HARD)
        if trial.missed <= allowed:
            needed -= 1
        elif trial.least > allowed:
            low = needed
        else:
            break
    return Least(
        needed=needed,
        at_least=low,
        required=required,
        reachable=reachable,
        stuck=trials.original(full.rows),
        sets_peak=_sets_peak(trials, needed, low, full, allowed),
        curve=_curve(trials, needed),
    )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least amount for which something holds that holds for all larger ones; ``high`` if for none below it.

    ``high`` may be far too much: first upwards from ``low``, by steps that double.
    """
    probe, step = low, max(1, low // 8)
    while probe < high and not holds(probe):
        low, probe, step = probe + 1, min(high, probe + step), 2 * step
    high = probe
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _by_plans(trials: Trials, low: int, high: int, allowed: int) -> tuple[int, int]:
    """The least amount for which a plan is found, and the least that is not ruled out.

    With quick plans from ``low`` on upwards, by steps that double, since plans are seldom far from the bound; then by
    bisection, and what they leave open once more with better plans.
    """
    failed, step, probe = low - 1, 1, low
    while (trial := trials.try_plan(probe, allowed, QUICK)).missed > allowed:
        failed = probe
        low = probe + 1 if trial.least > allowed else low
        probe, step = min(high, probe + step), 2 * step
    needed = probe
    for effort in (QUICK, USUAL):
        failed = failed if effort == QUICK else low - 1
        while failed + 1 < needed:
            middle = (failed + needed) // 2
            trial = trials.try_plan(middle, allowed, effort)
            if trial.missed <= allowed:
                needed = middle
            else:
                failed = middle
                low = max(low, middle + 1) if trial.least > allowed else low
    return needed, low


def _curve(trials: Trials, needed: int) -> tuple[Point, ...]:
    """Deadlines met, from what is held already up to what is needed (or there today, if that is more)."""
    first = trials.lowest.held
    last = max(needed, trials.pool.now, first)
    known = {amount: trials.try_plan(amount, effort=QUICK) for amount in {first, needed, last}}
    known |= {trial.amount: trial for trial in trials.known() if first <= trial.amount <= last}
    if first <= trials.pool.now:
        known[trials.pool.now] = trials.try_plan(trials.pool.now, effort=QUICK)
    for _ in range(POINTS):
        amounts = sorted(known)
        gaps = [  # on a scale on which the last few deadlines count as much as the first many
            (log1p(known[a].missed) - log1p(known[b].missed), b - a, a, b)
            for a, b in pairwise(amounts)
            if b - a > 1 and known[a].missed > known[b].missed
        ]
        if not gaps:
            break
        *_, a, b = max(gaps)
        known[(a + b) // 2] = trials.try_plan((a + b) // 2, effort=QUICK)
    return _points(trials, known)


def _points(trials: Trials, known: dict[int, Trial]) -> tuple[Point, ...]:
    """What is known of each amount, from all: a plan is one for more, too, and a bound one for less."""
    total, amounts = len(trials.due), sorted(known)
    met = np.maximum.accumulate([total - known[amount].missed for amount in amounts])
    at_most = np.minimum.accumulate([total - known[amount].least for amount in reversed(amounts)])[::-1]
    return tuple(map(Point, amounts, met.tolist(), at_most.tolist()))


def _sets_peak(trials: Trials, needed: int, low: int, full: Trial, allowed: int) -> tuple[int, ...]:
    if needed <= trials.lowest.amount:
        return trials.lowest.largest
    rows = [row for row in trials.due if row not in full.rows]
    if low == needed and allowed == full.missed and trials.least_of(rows, needed - 1) > 0:
        return trials.original(_together(trials, rows, needed - 1))
    return trials.original(_at_peak(trials, needed))


def _together(trials: Trials, rows: list[int], amount: int) -> list[int]:
    """Few of the rows that cannot all be on time with an amount; all that are in it are needed, if there is time."""
    rows = sorted(rows, key=lambda row: trials.request.workloads.due_ms[row])
    size, looked = -(-len(rows) // 2), 0
    while True:
        end = len(rows)
        while end > 0 and looked < MOST_LOOKS:  # those due last go first
            start = max(0, end - size)
            rest = rows[:start] + rows[end:]
            looked += len(rest) + 100
            if trials.least_of(rest, amount) > 0:
                rows = rest
            end = start
        if size == 1 or looked >= MOST_LOOKS:
            return rows
        size = min(-(-size // 2), len(rows))


def _at_peak(trials: Trials, amount: int) -> Sequence[int]:
    """Rows that run, in the plan for an amount, when most is in use."""
    trial = trials.try_plan(amount, effort=QUICK)
    problem, plan = trial.problem, trial.plan
    times, changes = use(problem, trials.pool, plan)
    if not len(times):
        return ()
    at = times[int(np.argmax(np.cumsum(changes)))]
    takes = taken(problem, problem.tree.cell(trials.pool.flavor, trials.pool.resource))[plan.option] > 0
    runs = takes & (plan.start <= at) & (at < plan.start + problem.length(plan.option))
    counted = {*trials.due}
    return [row for row in problem.row[runs].tolist() if row in counted]
