"""Priority rules: which work comes first. Each is one line of scheduling theory on columns.

A rule orders the work that has a due date and can still make it. What cannot, and what turns out late when its turn
comes, waits in the *tail*, the same for all rules: what is worth less the later it is, by weight over length; then work
without a due date, the shortest first; last what is worthless when late. Work without a due date that has waited for
``Policy.ageing_ms`` goes in front of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from solver.problem import NEVER, Float64s, Problem
from solver.quota import Bools, Int64s


class Work:
    """Rows that are ours to order, as columns that rules speak about (``[m]``; times in milliseconds from now).

    Attributes
    ----------
    rows
        ``int64 [m]``, their positions in the problem.
    duration
        How long it holds its quota: what it takes to begin, with the flavor that is quickest, included.
    size
        Part of its tree's quota that a row takes, of its scarcest resource.
    """

    def __init__(self, problem: Problem, rows: Int64s, ageing_ms: int = 0) -> None:
        self.rows = rows
        self.created = problem.created[rows].astype(np.float64)
        self.priority = problem.priority[rows].astype(np.float64)
        self.release = problem.release[rows].astype(np.float64)
        self.duration = problem.shortest[rows].astype(np.float64)
        self.weight = problem.weight[rows]
        self.size = problem.size[rows]
        self.counts: Bools = (problem.due[rows] < NEVER) & (self.weight > 0)
        """Whether being late costs anything at all."""
        self.due = np.where(self.counts, problem.due[rows], np.inf)
        self.hopeless: Bools = self.release + self.duration > self.due
        self.hard = problem.hard[rows]
        self.aged: Bools = (problem.due[rows] == NEVER) & (self.created + ageing_ms <= 0) & (ageing_ms > 0)

    @property
    def energy(self) -> Float64s:
        """Quota × time that a row takes."""
        return self.duration * self.size

    def order(self, key: Float64s) -> Int64s:
        """Rows that can be on time, the smallest key first, behind those that have waited too long."""
        first = np.flatnonzero(self.aged | (self.counts & ~self.hopeless))
        key, aged = np.where(self.aged, self.created, key)[first], self.aged[first]
        return self.rows[first[np.lexsort((first, key, ~aged))]]

    def tail(self) -> Int64s:
        """All rows, as they follow when being on time is out of reach."""
        worth = np.where(self.counts & ~self.hard, 1, np.where(self.counts & self.hard, 3, 2))
        key = np.where(worth == 1, self.duration / np.maximum(self.weight, 1e-300), self.duration)
        return self.rows[np.lexsort((np.arange(len(key)), self.created, key, worth, ~self.aged))]


def fifo(work: Work) -> Float64s:
    """First come, first served."""
    return work.created


def due_date(work: Work) -> Float64s:
    """Earliest due date."""
    return work.due


def least_slack(work: Work) -> Float64s:
    """The latest instant at which it may start."""
    return work.due - work.duration


def half_slack(work: Work) -> Float64s:
    """Between the due date and the latest start."""
    return work.due - work.duration / 2


def weighted_shortest(work: Work) -> Float64s:
    """The most worth for the least quota × time."""
    return work.energy / np.maximum(work.weight, 1e-300)


def apparent_tardiness(work: Work) -> Float64s:
    """Worth for quota × time, less for what has slack left (ATC, at the start of the schedule)."""
    worth = np.log(np.maximum(work.weight, 1e-300)) - np.log(np.maximum(work.energy, 1e-300))
    slack = np.maximum(0, work.due - work.duration)
    finite = slack[np.isfinite(slack)]
    scale = max(1.0, float(finite.mean()) / 2) if len(finite) else 1.0
    result: Float64s = slack / scale - worth
    return result


def critical_ratio(work: Work) -> Float64s:
    """Time left over time needed."""
    return work.due / work.duration


RULES: Mapping[str, Callable[[Work], Float64s]] = {
    "half-slack": half_slack,
    "edf": due_date,
    "apparent-tardiness": apparent_tardiness,
    "least-slack": least_slack,
    "weighted-shortest": weighted_shortest,
    "critical-ratio": critical_ratio,
    "fifo": fifo,
}
"""By name, the best on average first."""
