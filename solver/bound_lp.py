"""A lower bound on late weight by linear programming: all parts of the tree, and all due dates, together.

Until an instant, a part of the quota tree has so much quota × time. Work that is on time must have run by then for as
long as its latest start lies back: all of it when it is due, a part of it when it is due later. Letting work be late by
fractions, the least weight that must be late is a linear program. Few of its rows matter; they are added where the last
solution takes more than there is.

What the solver says is not trusted: its prices for quota × time (any prices ≥ 0) give a bound by weak duality, which is
summed here over all work.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import NamedTuple

import numpy as np

from solver.energy import Part, Parts
from solver.problem import Float64s
from solver.quota import Int64s
from solver.schedule import Scheduler

INSTANTS = 256
"""Due dates looked at, spread evenly; the fewer the more work there is, so that all together ``MOST_ENTRIES`` are."""

MOST_ENTRIES = 1 << 24
"""Most pairs of work and instant looked at for one part."""

STRETCHES = 8
"""In each of so many stretches of time a part gets one more row at most, where most is missing."""

ROUNDS, LARGE_ROUNDS, LARGE = 8, 2, 20_000
"""Most times that rows are added; and with how much work only so often."""

MOST_COLUMNS = 10_000
"""Most work that may be late by fractions; with more, what is worth least for its quota × time."""


class _Share(NamedTuple):
    """A part: what each row takes of it, and what there is until each instant."""

    least: Float64s
    room: Float64s


def energy_bound(scheduler: Scheduler, rows: Int64s, seconds: float) -> float:
    """The least weight of some rows, which are not placed yet and can each be on time, that is late in any plan.

    Parameters
    ----------
    seconds
        Time after which no more rows are added; infinite for no limit, and then the bound is always the same.
    """
    problem = scheduler.problem
    due, length, weight = problem.due[rows], problem.shortest[rows], problem.weight[rows]
    count = int(np.clip(MOST_ENTRIES // len(rows), STRETCHES, INSTANTS))
    instants = np.unique(np.quantile(due, np.linspace(0, 1, count), method="nearest")).astype(np.int64)
    begin = due - length
    ends = time.monotonic() + seconds
    shares = list(_shares(scheduler, rows, instants))
    late = np.zeros(len(rows))
    energies: list[Float64s] = []
    rooms: list[float] = []
    known: set[tuple[int, int]] = set()
    bound = 0.0
    for _ in range(ROUNDS if len(rows) <= LARGE else LARGE_ROUNDS):
        added = False
        for number, share in enumerate(shares):
            for k in _missing(share, late, instants, begin, length):
                if (number, k) not in known:
                    known.add((number, k))
                    energy = share.least * np.clip(instants[k] - begin, 0, length)
                    scale = max(1.0, float(share.room[k]), float(energy.sum()) / 1e3)
                    energies.append(energy / scale)
                    rooms.append(float(share.room[k]) / scale)
                    added = True
        if not added:
            break
        late, prices = _solve(weight, energies, rooms)
        taken = np.zeros(len(rows))
        for price, energy in zip(prices, energies, strict=True):
            taken += price * energy
        bound = max(bound, float(np.minimum(weight, taken).sum()) - float(np.dot(prices, rooms)))
        if time.monotonic() >= ends:
            break
    return bound


def _shares(scheduler: Scheduler, rows: Int64s, instants: Int64s) -> list[_Share]:
    """Parts that any of the rows takes of."""
    problem, parts = scheduler.problem, Parts(scheduler)
    nodes = range(len(problem.tree.parent))

    def share(part: Part) -> _Share:
        return _Share(part.least[problem.pair[rows]].astype(np.float64), part.room_until(instants))

    every = (share(part) for part in chain(*(parts.of(node) for node in nodes), parts.on_nodes()))
    return [each for each in every if each.least.any()]


def _missing(share: _Share, late: Float64s, instants: Int64s, begin: Int64s, length: Int64s) -> list[int]:
    """Instants until which work takes more of a part than there is; of each stretch of time the worst."""
    k = np.flatnonzero(share.least * (1 - late) > 0)
    on_time, begin, length = (share.least * (1 - late))[k], begin[k], length[k]
    excess = np.array([on_time @ np.clip(instant - begin, 0, length) for instant in instants]) - share.room
    excess = np.where(excess > 1e-6 * share.room, excess / np.maximum(1.0, share.room), 0)
    stretches = np.array_split(np.arange(len(instants)), min(STRETCHES, len(instants)))
    worst = [int(stretch[np.argmax(excess[stretch])]) for stretch in stretches]
    return [k for k in worst if excess[k] > 0]


def _solve(weight: Float64s, energies: list[Float64s], rooms: list[float]) -> tuple[Float64s, Float64s]:
    """Parts of the rows that are late in the best solution, and the price of each constraint."""
    from ortools.linear_solver import linear_solver_pb2, pywraplp  # takes a moment to load

    total = np.sum(energies, axis=0)
    ratio = weight / np.maximum(total, 1e-300)
    may = np.sort(np.argsort(ratio, kind="stable")[:MOST_COLUMNS])
    request = linear_solver_pb2.MPModelRequest(solver_type=linear_solver_pb2.MPModelRequest.GLOP_LINEAR_PROGRAMMING)
    for each in weight[may].tolist():
        request.model.variable.add(lower_bound=0.0, upper_bound=1.0, objective_coefficient=each)
    for energy, room in zip(energies, rooms, strict=True):
        of = energy[may]
        column = np.flatnonzero(of)
        excess = float(energy.sum()) - room
        # Where even all that may be late is not enough, as much as that.
        row = request.model.constraint.add(lower_bound=min(excess, float(of.sum())), upper_bound=np.inf)
        row.var_index.extend(column.tolist())
        row.coefficient.extend(of[column].tolist())
    response = linear_solver_pb2.MPSolutionResponse()
    pywraplp.Solver.SolveWithProto(request, response)
    late = np.zeros(len(weight))
    if len(response.variable_value) == len(may):
        late[may] = np.clip(response.variable_value, 0, 1)
    prices = np.maximum(0.0, np.array(response.dual_value)) if response.dual_value else np.zeros(len(rooms))
    return late, prices
