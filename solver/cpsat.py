"""CP-SAT: which work to have on time, and when, for some hundred rows.

Two models, each hinted with the best plan so far.

1. *On time.* Optional intervals, one for each option of each row that can make its due date, which must end by then;
   maximise the weight of those that are present. Rows that are late are not in the model at all. This is far stronger
   than modelling starts and lateness of all rows.
2. *Early.* All rows, those on time bound to stay so: minimise tardiness, then the mean start.

Quota is a cumulative for each slot and, where children keep quota private, for each set of children that may exceed
what is theirs. What is held already never overfills it, whatever debts there are, and times and amounts are rounded in
the rows' favour, so each model is a relaxation: the first one's bound holds for all plans. What the solver finds is
decoded like everything else (:mod:`solver.schedule`), so what leaves here is feasible.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from solver.api import planner_pb2 as pb
from solver.bound import certain, rounded
from solver.cpus import cpus
from solver.energy import Parts
from solver.greedy import finish
from solver.limit import Limit
from solver.plan import Plan
from solver.problem import Float64s, Problem
from solver.quota import UNLIMITED, Bools, Int32s, Int64s
from solver.rules import Work, half_slack
from solver.schedule import Scheduler, Starts
from solver.slots import Held, Slots

MOST_ROWS = 2_000
"""Most rows of ours for which a model is built at all."""

MOST_EARLY_ROWS = 150
"""Most rows of ours for which the second model is worth its time."""

MOST_SETS = 16
"""Most sets of children with private quota that are written out for one slot."""

MOST_TIME = 1 << 31
"""Longest time in the solver's units; 24 days of milliseconds, coarser above."""

MOST_AMOUNT = 1 << 20
"""Largest capacity in the solver's units."""

MOST_PULL = 1 << 10
"""Largest weight of a start."""

MOST_SUM = 1 << 40
"""Largest sum of a linear constraint or objective in the solver's units."""

LARGEST_SCALE = 1e300
"""Weights may be so small that what makes whole numbers of them would be infinite."""

ENERGY_ROWS = 40
"""Due dates, spread evenly, for which a part of the tree gets an energy row."""

ON_TIME_SHARE = 0.6
"""Part of the budget that the first model may use up when the second one is to come."""

LEAST_SECONDS = 0.02
"""Time kept for decoding what a solve found; with less than that no solve begins."""

UNITS = 1_000
"""Units of a work limit in one unit of the solver's deterministic time, which is about a second."""

STOP_SECONDS = 0.02
"""How often the stop flag is looked at."""


def improve(scheduler: Scheduler, best: Plan, policy: pb.Policy, limit: Limit, seed: int) -> Iterator[Plan]:
    """Plans that CP-SAT finds from the best one so far, each with the bound that it has proved. They may be worse."""
    ours = scheduler.ours
    if not 0 < len(ours) <= MOST_ROWS:
        return
    work = Work(scheduler.problem, ours, policy.ageing_ms)
    early = len(ours) <= MOST_EARLY_ROWS
    effort = _Effort(scheduler, limit, seed)
    bound = 0.0
    candidates = [best]
    if best.objective.late_weight > best.bound:
        for plan in _on_time(scheduler, work, best, effort, ON_TIME_SHARE if early else 1.0):
            bound = max(bound, plan.bound)
            candidates.append(plan)
            yield plan
    best = min(candidates, key=lambda plan: plan.objective)
    if early and not effort.over():
        for plan in _early(scheduler, work, best, effort):
            yield replace(plan, bound=bound)


class _Effort:
    """What all solves together may spend."""

    def __init__(self, scheduler: Scheduler, limit: Limit, seed: int) -> None:
        self.stop, self.limit, self.seed = scheduler.stop, limit, seed

    def over(self) -> bool:
        """Whether there is no time for another solve."""
        return bool(self.stop[0]) or self.limit.seconds_left() < LEAST_SECONDS or self.limit.over()

    def solve(self, model: cp_model.CpModel, share: float) -> cp_model.CpSolver | None:
        """Solve a model with a share of what is left; nothing when no solution was found."""
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.random_seed = self.seed % (1 << 31)
        parameters.num_workers = cpus()
        if self.limit.deterministic:
            parameters.max_deterministic_time = self.limit.work_left() * share / UNITS
            parameters.num_workers = 1  # several at once depend on how the machine deals out time
        if math.isfinite(seconds := self.limit.seconds_left()):
            parameters.max_time_in_seconds = max(LEAST_SECONDS, (seconds - LEAST_SECONDS) * share)
        solved = threading.Event()

        def watch() -> None:
            while not solved.wait(STOP_SECONDS):
                if self.stop[0]:
                    solver.stop_search()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            status = solver.solve(model)
        finally:
            solved.set()
            watcher.join()
        self.limit.spend(solver.response_proto.deterministic_time * UNITS)
        return solver if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


class _Row(NamedTuple):
    """One row in a model: its start, and a literal for each option that it may get."""

    start: cp_model.IntVar
    latest: int
    options: dict[int, cp_model.IntVar]


class _Model:
    """Rows, their options and all quota. ``present`` literals say whether a row is in the schedule at all."""

    def __init__(self, scheduler: Scheduler, rows: Int64s, latest_start: Int64s, held: Held, *, optional: bool) -> None:
        problem = scheduler.problem
        self.scheduler, self.rows = scheduler, rows.tolist()
        self.model = cp_model.CpModel()
        end = int((latest_start + problem.shortest[rows]).max(initial=0))
        self.unit = max(1, -(-end // MOST_TIME))
        earliest = scheduler.earliest()[rows]
        self.row: dict[int, _Row] = {}
        self.present: dict[int, cp_model.IntVar] = {}
        self.intervals: dict[tuple[int, int], cp_model.IntervalVar] = {}
        for row, first, last in zip(self.rows, earliest.tolist(), latest_start.tolist(), strict=True):
            self._add_row(row, first // self.unit, self._latest(row, last), optional=optional)
        self._add_quota(held, end)

    def _latest(self, row: int, latest_start: int) -> int:
        """The latest start in units; end and length are rounded down, each."""
        length = int(self.scheduler.problem.shortest[row])
        return (latest_start + length) // self.unit - length // self.unit

    def _add_row(self, row: int, first: int, last: int, *, optional: bool) -> None:
        problem, model = self.scheduler.problem, self.model
        start = model.new_int_var(first, last, f"s{row}")
        options = {o: model.new_bool_var(f"o{row}_{o}") for o in self.scheduler.options_of(row)}
        for option, literal in options.items():
            size = int(problem.duration[row] + problem.options.lead[option]) // self.unit
            self.intervals[row, option] = model.new_optional_fixed_size_interval_var(
                start, size, literal, f"i{row}_{option}"
            )
        if optional:
            self.present[row] = model.new_bool_var(f"p{row}")
            model.add(sum(options.values()) == self.present[row])
        else:
            model.add_exactly_one(options.values())
        self.row[row] = _Row(start, last, options)

    def _add_quota(self, held: Held, end: int) -> None:
        needs = self.scheduler.compact.needs
        tightest: dict[tuple[tuple[int, int, int], ...], tuple[int, frozenset[int]]] = {}
        for slots, capacity in limits(self.scheduler.compact.slots):
            uses = []
            for row, option in self.intervals:
                k = range(needs.first[option], needs.first[option + 1])
                if demand := sum(int(needs.amount[i]) for i in k if int(needs.slot[i]) in slots):
                    uses.append((row, option, demand))
            key = tuple(uses)
            if uses and (key not in tightest or capacity < tightest[key][0]):
                tightest[key] = capacity, slots
        for key, (capacity, slots) in tightest.items():
            self._add_cumulative(key, capacity, _profile(held, slots, capacity, end))

    def _add_cumulative(
        self, uses: Sequence[tuple[int, int, int]], capacity: int, taken: Sequence[tuple[int, int, int]]
    ) -> None:
        """``uses`` are (row, option, demand), ``taken`` (start, end, demand) in milliseconds."""
        scale = math.gcd(*(demand for _, _, demand in uses), *(demand for _, _, demand in taken))
        if capacity // scale > MOST_AMOUNT:
            scale = -(-capacity // MOST_AMOUNT)
            capacity += scale - 1
        intervals = [self.intervals[row, option] for row, option, _ in uses]
        demands = [demand // scale for _, _, demand in uses]
        for start, end, demand in taken:
            first, last = start // self.unit, end // self.unit
            if last > first:
                intervals.append(self.model.new_fixed_size_interval_var(first, last - first, ""))
                demands.append(demand // scale)
        self.model.add_cumulative(intervals, demands, capacity // scale)

    def end_by(self, row: int, instant: int) -> None:
        """With options that take longer to begin, a row must start so much earlier to end by an instant."""
        problem = self.scheduler.problem
        start, _, options = self.row[row]
        for option, literal in options.items():
            length = int(problem.duration[row] + problem.options.lead[option])
            if length > problem.shortest[row]:
                latest = instant // self.unit - length // self.unit
                self.model.add(start <= latest).only_enforce_if(literal)

    def hint(self, start: Int64s, option: Int32s, on: Bools) -> None:
        """Hint the starts and options of the rows that are ``on``, ``[n]`` each."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for row, (start_var, latest, options) in self.row.items():
            if row in self.present:
                self.model.add_hint(self.present[row], bool(on[row]))
            self.model.add_hint(start_var, int(start[row]) // self.unit if on[row] else latest)
            for o, literal in options.items():
                self.model.add_hint(literal, bool(on[row]) and o == option[row])

    def solution(self, solver: cp_model.CpSolver) -> tuple[Int64s, Int64s, Int32s]:
        """Rows that are present, in the order of their starts; and starts (in milliseconds) and options, ``[n]``."""
        n = len(self.scheduler.problem)
        start, option = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int32)
        for row, (start_var, _, options) in self.row.items():
            for o, literal in options.items():
                if solver.boolean_value(literal):
                    start[row], option[row] = solver.value(start_var) * self.unit, o
        rows = np.flatnonzero(start >= 0)
        return rows[np.lexsort((rows, start[rows]))], start, option


def limits(slots: Slots) -> Iterator[tuple[frozenset[int], int]]:
    """Sets of slots, and how much may be in use of all of a set together.

    The use of a slot is that of its children above what each keeps private. So for any choice of children, the use of
    those chosen is at most what the slot may use and what is private to them. All choices together say exactly what
    Kueue's tree says; when they are too many, only the choice of all children is returned.
    """
    children: dict[int, list[int]] = {}
    for slot, above in enumerate(slots.up.tolist()):
        children.setdefault(above, []).append(slot)

    def choices(slot: int) -> list[tuple[frozenset[int], int]]:
        """Sets of slots at and below one, all of them first, and what is private below it in each."""
        of_children = []
        for child in children.get(slot, []):
            local = int(slots.local[child])
            counted = [(chosen, private + local) for chosen, private in choices(child)]
            of_children.append(counted + ([(frozenset[int](), 0)] if local > 0 else []))
        ways = [of_children] if math.prod(map(len, of_children)) <= MOST_SETS else [[w[:1] for w in of_children]]
        return [
            (frozenset({slot}).union(*(chosen for chosen, _ in way)), sum(private for _, private in way))
            for way in product(*ways[0])
        ]

    for slot in range(len(slots.up)):
        capacity = int(slots.cap[slot]) + int(slots.local[slot])
        if capacity < UNLIMITED >> 1:
            for chosen, private in choices(slot):
                yield chosen, capacity + private


def _profile(held: Held, slots: frozenset[int], capacity: int, end: int) -> list[tuple[int, int, int]]:
    """What is held of some slots, as steps (start, end, amount), never more than the capacity, until ``end``."""
    k = np.isin(held.slot, list(slots))
    times = np.concatenate([held.start[k], held.end[k]])
    changes = np.concatenate([held.amount[k], -held.amount[k]])
    instants, position = np.unique(times, return_inverse=True)
    level = np.zeros(len(instants), dtype=np.int64)
    np.add.at(level, position, changes)
    level = np.minimum(np.cumsum(level), capacity)
    return [
        (int(first), int(last), int(amount))
        for first, last, amount in zip(instants[:-1], instants[1:], level[:-1], strict=True)
        if amount > 0 and first < end
    ]


# Which work is on time ------------------------------------------------------------------------------------------------


def _on_time(scheduler: Scheduler, work: Work, best: Plan, effort: _Effort, share: float) -> Iterator[Plan]:
    """Plans around the on-time work of the first model, with the bound that it proves."""
    problem = scheduler.problem
    latest = problem.due - problem.shortest
    rows = work.rows[work.counts & (scheduler.earliest()[work.rows] <= latest[work.rows])]
    if not len(rows):
        return
    aged = work.rows[work.aged]
    held = scheduler.with_rows(scheduler.held, aged, best.start, best.option)
    model = _Model(scheduler, rows, latest[rows], held, optional=True)
    for row in rows.tolist():
        model.end_by(row, int(problem.due[row]))
    scale = _scale(problem.weight[rows])
    worth = {row: math.ceil(problem.weight[row] * scale) for row in rows.tolist()}
    model.model.maximize(sum(worth[row] * present for row, present in model.present.items()))
    _add_energy(scheduler, model, rows)
    on = np.zeros(len(problem), dtype=np.bool_)
    on[rows] = (best.start + problem.length(best.option))[rows] <= problem.due[rows]
    start, option = best.start.copy(), best.option.copy()
    _break_symmetry(problem, model, start, option, on)
    model.hint(start, option, on)
    if (solver := effort.solve(model.model, share)) is None:
        return
    bound = 0.0
    if not len(aged):  # their places are the best plan's, not a fact
        late, _ = certain(scheduler)
        on_time = min(float(problem.weight[rows].sum()), solver.best_objective_bound / scale)
        bound = rounded(problem, problem.weight[late].sum() + problem.weight[rows].sum() - on_time)
    chosen, _, option = model.solution(solver)
    placed = scheduler.exactly(chosen, option, held)
    placed.start[aged], placed.option[aged] = best.start[aged], best.option[aged]
    first = np.concatenate([aged, chosen])
    held = scheduler.with_rows(scheduler.held, first, placed.start, placed.option)
    rest = Work(problem, np.setdiff1d(work.rows, first))
    added = scheduler.schedule(rest.order(half_slack(rest)), rest.tail(), held)
    whole = Starts(
        np.where(added.start >= 0, added.start, placed.start), np.where(added.start >= 0, added.option, placed.option)
    )
    plan = replace(finish(scheduler, whole, "cpsat"), bound=bound)
    yield plan
    yield replace(_tightened(scheduler, work, plan), bound=bound)


def _scale(weight: Float64s) -> float:
    """Factor that makes weights whole numbers for the solver: 1 where they are. Finite, however small they are."""
    total = float(weight.sum())
    if total <= MOST_SUM and (weight == np.floor(weight)).all():
        return 1.0
    return min(MOST_SUM / total, LARGEST_SCALE)


def _add_energy(scheduler: Scheduler, model: _Model, rows: Int64s) -> None:
    """Until each of some instants, work on time takes no more quota × time of a tree, or of nodes, than there is."""
    problem, parts = scheduler.problem, Parts(scheduler)
    due, duration = problem.due[rows], problem.shortest[rows]
    instants = np.unique(np.quantile(due, np.linspace(0, 1, ENERGY_ROWS), method="nearest")).astype(np.int64)
    roots = np.flatnonzero(problem.tree.parent < 0).tolist()
    for part in chain(*(parts.of(node) for node in roots), parts.on_nodes()):
        least = part.least[problem.pair[rows]].astype(np.float64)
        if not least.any():
            continue
        for instant, room in zip(instants.tolist(), part.room_until(instants).tolist(), strict=True):
            # A row that is on time has run at least since its latest start.
            energy = least * np.clip(instant - (due - duration), 0, duration)
            if energy.sum() > room:
                unit = max(1.0, float(energy.sum()) / MOST_SUM)
                coefficients = np.floor(energy / unit).astype(np.int64).tolist()
                presents = [model.present[row] for row in rows.tolist()]
                taken = cp_model.LinearExpr.weighted_sum(presents, coefficients)
                model.model.add(taken <= math.ceil(room / unit))


def _break_symmetry(problem: Problem, model: _Model, start: Int64s, option: Int32s, on: Bools) -> None:
    """Of rows that are alike in everything, those that come first are present first, and start first.

    ``start``, ``option`` and ``on`` are a solution, which is changed accordingly.
    """
    alike: dict[tuple[float, ...], list[int]] = {}
    for row in model.rows:
        columns = (problem.pair, problem.release, problem.duration, problem.due, problem.weight)
        alike.setdefault(tuple(float(column[row]) for column in columns), []).append(row)
    for rows in alike.values():
        solution = sorted((int(start[row]), int(option[row])) for row in rows if on[row])
        for k, row in enumerate(rows):
            on[row] = k < len(solution)
            if on[row]:
                start[row], option[row] = solution[k]
        for row, following in pairwise(rows):
            model.model.add_implication(model.present[following], model.present[row])
            model.model.add(model.row[row].start <= model.row[following].start)


def _tightened(scheduler: Scheduler, work: Work, plan: Plan) -> Plan:
    """The same on-time work in the same order, generated anew: moved to the front wherever there is room."""
    problem = scheduler.problem
    on_time = plan.start + problem.length(plan.option) <= problem.due
    rows = work.rows[work.aged | (work.counts & on_time[work.rows])]
    order = rows[np.lexsort((rows, plan.start[rows]))]
    return finish(scheduler, scheduler.schedule(order, work.tail()), plan.engine)


# How early ------------------------------------------------------------------------------------------------------------


def _early(scheduler: Scheduler, work: Work, best: Plan, effort: _Effort) -> Iterator[Plan]:
    """Plans with the same work on time, less tardiness and earlier starts."""
    problem, rows = scheduler.problem, work.rows
    if (best.start[rows] <= scheduler.earliest()[rows]).all():
        return
    due, shortest, length = problem.due[rows], problem.shortest[rows], problem.length(best.option)[rows]
    on_time = work.counts & (best.start[rows] + length <= due)
    end = int((best.start[rows] + length).max()) + int(length.max())
    latest = np.where(on_time, due, end) - shortest
    latest[work.aged] = best.start[rows[work.aged]]
    model = _Model(scheduler, rows, latest, scheduler.held, optional=False)
    for k in np.flatnonzero(on_time).tolist():
        model.end_by(int(rows[k]), int(due[k]))
    everything = np.ones(len(problem), dtype=np.bool_)
    model.hint(best.start, best.option, everything)

    late = np.flatnonzero(work.counts & ~on_time & ~work.hard)
    tardiness = []
    for k, row in zip(late.tolist(), rows[late].tolist(), strict=True):
        tardy = model.model.new_int_var(0, end // model.unit, f"t{row}")
        model.model.add(tardy >= model.row[row].start + int(shortest[k] - due[k]) // model.unit)
        for o, literal in model.row[row].options.items():
            if (whole := int(problem.duration[row] + problem.options.lead[o])) > shortest[k]:
                late_by = (whole - int(due[k])) // model.unit
                model.model.add(tardy >= model.row[row].start + late_by).only_enforce_if(literal)
        tardiness.append(tardy)
    weight = np.maximum(1, np.round(work.weight[late] / work.weight[late].max(initial=1e-300) * MOST_AMOUNT))
    total = sum(int(w) * tardy for w, tardy in zip(weight, tardiness, strict=True))
    pull = problem.pull[rows]
    pulls = np.maximum(1, np.round(pull / pull.max() * MOST_PULL)).astype(np.int64).tolist()
    starts = sum(weight * model.row[row].start for weight, row in zip(pulls, model.rows, strict=True))
    if tardiness:
        model.model.minimize(total)
        if (solver := effort.solve(model.model, 0.5)) is None:
            return
        model.model.add(total <= round(solver.objective_value))
        order, start, option = model.solution(solver)
        yield from _decoded(scheduler, work, order, option)
        model.hint(start, option, everything)
        if effort.over():
            return
    model.model.minimize(starts)
    if (solver := effort.solve(model.model, 1.0)) is not None:
        order, _, option = model.solution(solver)
        yield from _decoded(scheduler, work, order, option)


def _decoded(scheduler: Scheduler, work: Work, order: Int64s, option: Int32s) -> Iterator[Plan]:
    plan = finish(scheduler, scheduler.exactly(order, option), "cpsat")
    yield plan
    yield _tightened(scheduler, work, plan)
