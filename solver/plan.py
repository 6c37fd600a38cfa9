"""A plan: when each workload starts, with which assignment, and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from solver.problem import NEVER, Problem, State
from solver.quota import Bools, Int32s, Int64s

HOUR = 3_600_000


class Reason(IntEnum):
    """Why a workload starts when it does; values are those of the proto's Reason."""

    ROOM_NOW = 1
    WAITS_FOR_QUOTA = 2
    WAITS_FOR_RELEASE_DATE = 3
    LATE_ALREADY = 4
    LATE_NO_ROOM = 5
    RELEASED = 6
    NOT_OURS = 7
    WAITS_FOR_NODES = 8


@dataclass(frozen=True, order=True)
class Objective:
    """Value of a plan by level, most important first; smaller is better. Compares like a tuple."""

    late_weight: float
    """Sum of the weights of the work that finishes after its due date."""
    tardiness: float
    """Sum of weight × hours late, over all late work that is not hard."""
    start_hours: float
    """Mean start in hours, best effort included, weighted by ``Problem.pull``."""


@dataclass(frozen=True)
class Plan:
    """Starts for the rows of a :class:`~solver.problem.Problem`.

    Attributes
    ----------
    start
        ``int64 [n]`` milliseconds from the problem's ``now``.
    option
        ``int32 [n]``, a row of the problem's ``options``.
    not_before
        ``int64 [n]``: earliest release as a rule, 0 when there is none.
    engine
        Who made it, e.g. ``greedy/edf``.
    bound
        No plan can have a smaller ``late_weight``.
    impossible
        ``bool [n]``: rows that cannot start any more as they were planned before; None when nothing was.
    """

    start: Int64s
    option: Int32s
    not_before: Int64s
    engine: str
    bound: float = 0.0
    objective: Objective = field(default=Objective(np.inf, np.inf, np.inf))
    impossible: Bools | None = None

    def order(self, problem: Problem) -> Int64s:
        """Rows in the order of admission: by planned start; equal starts what is not ours first, then by due date."""
        rows = np.arange(len(problem))
        return np.lexsort((rows, problem.due, problem.state == State.PENDING, self.start)).astype(np.int64)

    def gap(self, problem: Problem) -> float:
        """(late weight − bound) / sum of all weights with a due date: how far from optimal it can be at most."""
        total = float(problem.weight[problem.due < NEVER].sum())
        return max(0.0, self.objective.late_weight - self.bound) / total if total > 0 else 0.0


def evaluate(problem: Problem, start: Int64s, option: Int32s) -> Objective:
    """Value of starting each row at ``start`` with ``option``, ``[n]`` each."""
    late = np.maximum(0, start + problem.length(option) - problem.due)
    is_late = late > 0
    soft = is_late & ~problem.hard
    return Objective(
        late_weight=float(problem.weight[is_late].sum()),
        tardiness=float((problem.weight[soft] * late[soft]).sum() / HOUR),
        # No dot product: BLAS uses threads for it, and adds up in another order on another machine.
        start_hours=float((problem.pull * start).sum() / HOUR),
    )


def valued(problem: Problem, plan: Plan) -> Plan:
    """The plan with its objective filled in."""
    return replace(plan, objective=evaluate(problem, plan.start, plan.option))
