"""Learning from a history of jobs by replaying it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.online import Order, Policy, replay, score
from simulator.traces.trace import Trace
from solver.problem import NEVER
from solver.protection import HISTORY, Protection, Score, learn, off, starts
from solver.quota import Int64s

TIMES_P95 = 1.5
"""The longest waits of best effort (95th percentile) may become so many times those under EDF; the median may not grow.
Waits go on growing after the history, so this is less than what is acceptable."""

HOPELESS = (1.0, 0.4)
"""Under EDF work comes last when so large a part of its estimate would make it late: the better of both."""

LEAST = 60.0
"""Minutes: a bound on waits is never tighter."""


def twice(history: Trace) -> Trace:
    """The history two times, the second right behind the first."""
    n = len(history)
    shift = int(history.submit[-1] - history.submit[0]) + int(np.diff(history.submit).mean())
    both = history.take(np.concatenate([np.arange(n), np.arange(n)]).astype(np.int64))
    later = np.repeat(np.array([0, shift]), n)
    return replace(both, submit=both.submit + later, due=np.where(both.due < NEVER, both.due + later, NEVER))


def learned(history: Trace, capacity: int, estimate: Int64s | None = None) -> Protection:
    """Levels for a pool of so many GPUs; none where there is too little history.

    Parameters
    ----------
    estimate
        What was believed of the durations (``int64 [n]``), if not the trace's estimates.
    """
    if len(history) < HISTORY or not history.slo.any():
        return off()
    believed = history.estimate if estimate is None else estimate
    loop, estimates = twice(history), np.concatenate([believed, believed])
    second = np.arange(len(loop)) >= len(history)
    edf = min(
        (score(loop, replay(loop, capacity, Policy(Order.EDF, part), estimates), second) for part in HOPELESS),
        key=lambda told: told.lost,
    )
    median, p95 = max(LEAST, edf.wait_median), max(LEAST, TIMES_P95 * edf.wait_p95)

    def tried(protection: Protection) -> Score:
        return score(loop, replay(loop, capacity, Policy(Order.PROTECTED, protection=protection), estimates), second)

    best_effort = not history.slo.all()
    return learn(tried, starts(history.gpus * believed, best_effort), median, p95)
