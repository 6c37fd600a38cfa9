"""Checks a plan against its request. Every plan passes here before it leaves the sidecar, whoever made it.

The checker reads the messages of the contract itself and does its own arithmetic, so that a mistake in a planner, or in
what the planners share, cannot hide here too. A planner asks "how much is available now?", node by node, while it
places one workload after another; the checker never places anything. It lays all use of quota out as step functions of
time, one for each node of the tree and each *cell* (flavor and resource), passes what exceeds a node's private part on
to its parent, and looks at every instant at which something starts. After all that starts at an instant, what is
available at each starter's queue must not be negative. That is the same as Kueue admitting them one after another, in
any order:

* taking an amount lowers what is available at the queue by exactly that amount, so it fits if and only if nothing is
  owed afterwards;
* taking somewhere else raises the use of a shared node only once nothing private is left below it, so a later starter
  that fits leaves an earlier one with at least nothing.

Only starts are judged: a cohort may be in debt because its quota was cut, until enough has ended. A reservation that
begins is a start too; it may be short of room, but never because of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from solver.api import planner_pb2 as pb
from solver.verify_quota import (
    LONGEST,
    Amounts,
    Bools,
    Demand,
    Ints,
    Steps,
    TooMany,
    Tree,
    Use,
    distinct,
    held_by,
    ints,
    reduction,
    reductions,
    shape_meant,
)

REPORTED = 100
"""Violations of one kind that are told one by one; the rest of that kind is only counted, in one more."""

HOUR = 3_600_000

TEN_YEARS = 10 * 365 * 24 * HOUR
"""Longest run time that is taken for real."""

LARGEST_WEIGHT = 1e12
"""Largest weight that is taken for real."""

MINUTE = 60_000
"""How long running work is expected to go on that says nothing sensible itself: its quota is in use all the same."""


def verify(request: pb.PlanRequest, plan: pb.Plan, objective: pb.Objective | None = None) -> list[pb.Violation]:
    """Everything that is wrong with ``plan``; nothing when it can be carried out.

    Every workload that can be planned must be in the plan, once; times must agree with the request; each assignment
    must be one that the workload's queue may get; and Kueue must have the quota at each start. With ``objective``,
    its values, bound and gap must be the plan's.

    Parameters
    ----------
    request
        What was asked. Its tables should be sound (the server refuses it otherwise); rows and queues that are not
        sound cannot be planned, so they must not be in the plan.
    plan
        The answer, in the columns of the contract.
    objective
        What the answer says that it is worth.

    Returns
    -------
    list
        Violations: position of the workload, the instant, and what is wrong in plain words. At most ``REPORTED`` of
        each kind and one more that counts the others.
    """
    lengths = {name: len(getattr(plan, name)) for name in _PLAN_COLUMNS}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        return [pb.Violation(at_ms=request.now_ms, message=f"the plan's columns are not equally long: {told}")]
    checked = _Check(request, plan)
    violations = [*checked.references(), *checked.rows()]
    if checked.entries.size:
        violations += [*checked.times(), *checked.shapes()]
    violations += [*checked.quota(), *checked.nodes()]
    if objective is not None:
        violations += checked.value(objective)
    return violations


_PLAN_COLUMNS = ("workload", "start_ms", "not_before_ms", "finish_ms", "assignment", "tardiness_ms", "reason")


class _Check:
    """A request and a plan as arrays. Times count from now. ``entries`` are the plan's entries that can be judged."""

    def __init__(self, request: pb.PlanRequest, plan: pb.Plan) -> None:
        self.request, self.plan = request, plan
        self.now = request.now_ms
        self.tree = Tree(request.quota)
        work = request.workloads
        self.n = len(work.id)
        self.queue = ints(work.cluster_queue, self.n)
        self.shape = ints(work.shape, self.n)
        self.state = ints(work.state, self.n)
        self.duration = ints(work.duration_ms, self.n)
        self.weight = np.ones(self.n)
        self.weight[: len(work.weight)] = np.fromiter(work.weight, np.float64, len(work.weight))[: self.n]
        self.release, self.due = ints(work.release_ms, self.n), ints(work.due_ms, self.n)
        self.created = ints(work.created_ms, self.n)
        self.open = (self.tree.queue >= 0) & ~np.array(
            [q.stopped for q in request.quota.cluster_queues], dtype=np.bool_
        )
        """Queues that admit work and have a place in the tree: ``bool [Q]``."""

        self.workload = ints(plan.workload)
        self.assignment = ints(plan.assignment)
        self.start, self.finish = ints(plan.start_ms) - self.now, ints(plan.finish_ms) - self.now
        self.amounts = Amounts(plan.assignments, self.tree)
        self.entries = self._judged()

    def _judged(self) -> Ints:
        amounts = self.amounts
        known = (self.workload < self.n) & (self.assignment < len(amounts.kind)) & (np.abs(self.start) < LONGEST)
        known[known] &= amounts.sound[amounts.kind[self.assignment[known]]]
        known[known] &= self.sound[self.workload[known]]
        return np.flatnonzero(known)

    @cached_property
    def sound(self) -> Bools:
        """Rows whose work can be planned, if it fits anywhere: ``bool [n]``."""
        quota, shapes = self.request.quota, self.request.shapes
        result = (self.queue < len(self.open)) & (self.shape < len(shapes))
        result &= np.isin(self.state, (pb.PENDING, pb.IN_FLIGHT, pb.FOREIGN))
        result &= (
            (self.duration > 0) & (self.duration <= TEN_YEARS) & (self.weight >= 0) & (self.weight <= LARGEST_WEIGHT)
        )
        for instant in (self.created, self.release, self.due):
            result &= (instant >= 0) & (instant <= self.now + LONGEST)
        result[result] = self.open[self.queue[result]]
        used = np.flatnonzero(np.bincount(self.shape[result], minlength=len(shapes)))
        absurd = [s for s in used if not shape_meant(shapes[s], len(quota.resources), len(quota.flavors))]
        return result & ~np.isin(self.shape, absurd)

    def name(self, row: int) -> str:
        """How a workload is called in messages."""
        return f"workload {self.request.workloads.id[row]!r}" if row < self.n else f"row {row}"

    def told(self, entries: Iterable[int], message: Callable[[int], str]) -> Iterator[pb.Violation]:
        """One violation for each entry of the plan, up to the limit, then one that counts the rest."""
        entries = list(entries)
        for k in entries[:REPORTED]:
            row = int(self.workload[k])
            yield pb.Violation(workload=row, at_ms=self.plan.start_ms[k], message=f"{self.name(row)}: {message(k)}")
        if len(entries) > REPORTED:
            last = message(entries[-1])
            yield pb.Violation(
                at_ms=self.now, message=f"{len(entries) - REPORTED} more of the same kind, the last: {last}"
            )

    def references(self) -> Iterator[pb.Violation]:
        """Entries point to what exists, at times that exist."""
        count = len(self.plan.assignments)
        yield from self.told(np.flatnonzero(self.workload >= self.n), lambda k: "is not in the request")
        yield from self.told(
            np.flatnonzero(self.assignment >= count),
            lambda k: f"assignment {self.assignment[k]} is not in the plan's table of {count}",
        )
        wrong = np.flatnonzero(~self.amounts.sound[self.amounts.kind])
        yield from self.told(
            np.flatnonzero(np.isin(self.assignment, wrong)),
            lambda k: (
                f"assignment {self.assignment[k]} makes no sense: columns of different lengths, an unknown "
                "flavor or resource, or an absurd amount"
            ),
        )
        yield from self.told(np.flatnonzero(np.abs(self.start) >= LONGEST), lambda k: "starts at no real time")

    def rows(self) -> Iterator[pb.Violation]:
        """Every row that can be planned is in the plan once, and no other is."""
        known = np.flatnonzero(self.workload < self.n)
        rows = self.workload[known]
        times = np.bincount(rows, minlength=self.n)
        yield from self.told(
            known[times[rows] > 1], lambda k: f"is in the plan {times[self.workload[k]]} times instead of once"
        )
        yield from self.told(
            known[~self.sound[rows]], lambda k: f"cannot be planned: {self.excuse(int(self.workload[k]))}"
        )
        absent = np.flatnonzero(self.sound & (times == 0))
        missing = [row for row in absent.tolist() if self.could_fit(row)]
        for row in missing[:REPORTED]:
            message = f"{self.name(row)}: can be planned but is not in the plan"
            yield pb.Violation(workload=row, at_ms=self.now, message=message)
        if len(missing) > REPORTED:
            yield pb.Violation(at_ms=self.now, message=f"{len(missing) - REPORTED} more workloads are not in the plan")

    def excuse(self, row: int) -> str:
        """Why a row has no place in a plan."""
        queue = int(self.queue[row])
        if self.state[row] == pb.RUNNING:
            return "it is running"
        if queue < len(self.open) and not self.open[queue]:
            return (
                f"ClusterQueue {self.request.quota.cluster_queues[queue].name} is stopped, or its quota makes no sense"
            )
        return "its row, or its shape, makes no sense"

    @cached_property
    def _fitting(self) -> dict[tuple[int, int], bool]:
        return {}

    def could_fit(self, row: int) -> bool:
        """Whether a sound row would fit if nothing were in use."""
        pair = int(self.queue[row]), int(self.shape[row])
        if pair not in self._fitting:
            room = dict(enumerate(self.tree.empty[self.tree.queue[pair[0]]].tolist())) | self.tree.nodes.roof
            offer, least = self.tree.offer[pair[0]], reductions(self.request.shapes[pair[1]])
            try:
                self._fitting[pair] = self.demand(offer, pair[1], least).split(room, all_of_it=False)
            except TooMany:
                self._fitting[pair] = True
        return self._fitting[pair]

    def demand(self, offer: int, shape: int, less: int = 0) -> Demand:
        """What a shape asks of a queue with an offer; with fewer pods if ``less`` is more than 0."""
        return Demand(self.request.shapes[shape], self.tree.offers[offer], self.tree, less)

    def times(self) -> Iterator[pb.Violation]:
        """Starts are not too early; finishes and tardiness follow from them."""
        k = self.entries
        row, start, finish = self.workload[k], self.start[k], self.finish[k]
        not_before, tardiness = ints(self.plan.not_before_ms)[k], ints(self.plan.tardiness_ms)[k]
        yield from self.told(k[start < 0], lambda k: f"starts before now ({_instant(self.now)})")
        early = (start >= 0) & (start + self.now < self.release[row]) & (self.state[row] != pb.IN_FLIGHT)
        yield from self.told(
            k[early], lambda k: f"starts before its release date {_instant(self.release[self.workload[k]])}"
        )
        yield from self.told(
            k[(not_before != 0) & (start + self.now < not_before)],
            lambda k: f"starts before its not-before time {_instant(self.plan.not_before_ms[k])}",
        )
        yield from self.told(
            k[finish != start + self.length(k)],
            lambda k: (
                f"finishes at {_instant(self.plan.finish_ms[k])}, which is not its start and its duration "
                f"of {self.length(np.array([k]))[0]} ms, lead included"
            ),
        )
        late = self._late(k)
        yield from self.told(
            k[tardiness != late],
            lambda k: f"is said to be {self.plan.tardiness_ms[k]} ms late but would be {self._late(np.array([k]))[0]}",
        )

    def length(self, k: Ints) -> Ints:
        """How long entries of the plan hold quota: until work begins in their slowest flavor, and until it ends."""
        lead = np.array([flavor.lead_ms for flavor in self.request.quota.flavors], dtype=np.int64)
        held = self.amounts.quota
        slowest = np.zeros(len(self.amounts.kind) + 1, dtype=np.int64)
        kind = np.repeat(np.arange(len(held.first) - 1), np.diff(held.first))
        np.maximum.at(slowest, kind, lead[held.cell // max(1, len(self.tree.resources))])
        return self.duration[self.workload[k]] + slowest[self.amounts.kind[self.assignment[k]]]

    def _late(self, k: Ints) -> Ints:
        """How late entries of the plan are, by their start."""
        row = self.workload[k]
        finish = self.now + self.start[k] + self.length(k)
        return np.where(self.due[row] != 0, np.maximum(0, finish - self.due[row]), 0)

    def shapes(self) -> Iterator[pb.Violation]:
        """Each assignment is what its workload asks for, in flavors that it may have."""
        k = self.entries
        row = self.workload[k]
        columns = self.tree.offer[self.queue[row]], self.shape[row], self.amounts.kind[self.assignment[k]]
        sizes = len(self.tree.offers), len(self.request.shapes), len(self.amounts.totals)
        cases, case = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
        faults: dict[int, str] = {}
        for position, (offer, shape, kind) in enumerate(zip(*np.unravel_index(cases, sizes), strict=True)):
            totals = self.amounts.totals[kind] or {}
            quota = {c: x for c, x in totals.items() if c < self.tree.cells}
            less = reduction(self.request.shapes[shape], sum(quota.values()))
            try:
                if not self.demand(offer, shape, less).split(totals, all_of_it=True):
                    held = ", ".join(f"{x} {self.tree.cell_name(c)}" for c, x in quota.items()) or "nothing"
                    faults[position] = (
                        f"its queue could not give it {held}: that is not its request in one flavor for each pod set "
                        "and resource group, among those that the queue lists, the pod set does not exclude and the "
                        "nodes have room for, held by as many pods"
                    )
            except TooMany:
                faults[position] = "has too many pod sets to say whether its assignment is what it asks for"
        at = dict(zip(k.tolist(), case.tolist(), strict=True)) if faults else {}
        yield from self.told(k[np.isin(case, list(faults))], lambda k: faults[at[k]])

    def quota(self) -> Iterator[pb.Violation]:
        """Kueue has the quota at each start, along the whole tree, with all that runs or is reserved then."""
        k, tree = self.entries[np.argsort(self.start[self.entries])], self.tree
        start, end = self.start[k], self.start[k] + self.length(k)
        running, remaining, held, amounts = self._running
        reservations, begins, ends = self._reservations()
        instants = distinct(np.concatenate((start, end, np.zeros_like(remaining), remaining, begins, ends)))

        def at(time: Ints) -> Ints:
            return np.searchsorted(instants, time).astype(np.int64)

        node = tree.queue[self.queue[self.workload[k]]]
        planned, entry = held_by(node, at(start), at(end), self.amounts.kind[self.assignment[k]], self.amounts.quota)
        in_use, _ = held_by(tree.queue[self.queue[running]], at(0 * remaining), at(remaining), held, amounts.quota)
        reserved = Use(reservations[0], reservations[1], reservations[2], at(begins), at(ends))
        fixed = in_use.joined(reserved)
        steps = Steps(tree, fixed.joined(planned), len(instants))

        over = steps.over()
        if not over.any():
            return

        asked = np.flatnonzero(over[planned.cell])
        short = asked[steps.available(planned.node[asked], planned.cell[asked], planned.start[asked])[0] < 0]
        entries, first = np.unique(entry[short], return_index=True)  # short of two resources: told once
        lacks = dict(zip(k[entries].tolist(), short[first].tolist(), strict=True))

        def shortage(use: Use, j: int) -> str:
            return steps.shortage(int(use.node[j]), int(use.cell[j]), int(use.start[j]))

        yield from self.told(k[entries], lambda k: f"starts without quota: {shortage(planned, lacks[k])}")

        begun = reserved.node, reserved.cell, reserved.start
        if not over[reserved.cell].any():
            return
        alone = Steps(tree, fixed, len(instants)).available(*begun)[0]
        for r in np.flatnonzero(steps.available(*begun)[0] < np.minimum(0, alone))[:REPORTED]:
            kept = f"{reserved.amount[r]} for {tree.names[reserved.node[r]]}"
            message = f"the plan leaves no room for the reservation of {kept}: {shortage(reserved, r)}"
            yield pb.Violation(at_ms=self.now + begins[r], message=message)

    def nodes(self) -> Iterator[pb.Violation]:
        """The pods of each start fit onto the nodes of their flavors, with all that run then."""
        k, tree = self.entries, self.tree
        if not tree.nodes.roof:
            return
        start, end = self.start[k], self.start[k] + self.length(k)
        _, remaining, held, amounts = self._running
        instants = distinct(np.concatenate((start, end, np.zeros_like(remaining), remaining)))

        def at(time: Ints) -> Ints:
            return np.searchsorted(instants, time).astype(np.int64)

        planned, entry = held_by(
            0 * k, at(start), at(end), self.amounts.kind[self.assignment[k]], self.amounts.on_nodes
        )
        in_use, _ = held_by(0 * held, at(0 * remaining), at(remaining), held, amounts.on_nodes)
        whole = in_use.joined(planned)
        by_number = np.argsort(whole.cell, kind="stable")
        borders = np.searchsorted(whole.cell[by_number], [*tree.nodes.roof, max(tree.nodes.roof) + 1])
        lacks: dict[int, str] = {}
        for number, first, last in zip(tree.nodes.roof, borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            on = by_number[first:last]
            start, end, amount = whole.start[on], whole.end[on], whole.amount[on].astype(np.float64)
            if amount.sum() <= tree.nodes.roof[number]:
                continue
            # Whole numbers in floats are exact up to 2^53; what is meant never comes near that.
            changes = np.bincount(start, amount, len(instants)) - np.bincount(end, amount, len(instants))
            starts = (whole.amount[on] > 0) & (on >= len(in_use.cell))
            over = starts & (np.cumsum(changes) > tree.nodes.roof[number])[start]
            for j in entry[on[over] - len(in_use.cell)].tolist():
                lacks.setdefault(int(k[j]), tree.cell_name(tree.nodes.cell[number]))
        yield from self.told(lacks, lambda k: f"starts without room on nodes for its pods' {lacks[k]}")

    @cached_property
    def _running(self) -> tuple[Ints, Ints, Ints, Amounts]:
        """Rows that have quota now, how long they keep it, and the kind of assignment that each holds."""
        amounts = Amounts(self.request.assignments, self.tree)
        assignment = ints(self.request.workloads.assignment, self.n, default=-1)
        running = (self.state == pb.RUNNING) & (self.queue < len(self.open))
        running &= (assignment >= 0) & (assignment < len(amounts.kind))
        running[running] &= amounts.sound[amounts.kind[assignment[running]]] & (
            self.tree.queue[self.queue[running]] >= 0
        )
        row = np.flatnonzero(running)
        remaining = np.where(self.duration[row] > 0, np.minimum(self.duration[row], TEN_YEARS), MINUTE)
        return row, remaining, amounts.kind[assignment[row]], amounts

    def _reservations(self) -> tuple[Ints, Ints, Ints]:
        """What is kept free from now on: (node, cell, amount) as ``[3, k]``, when it begins, when it ends."""
        queues = {queue.name for queue in self.request.quota.cluster_queues}
        kept = [
            (node, cell, min(r.amount, LONGEST), max(0, r.start_ms - self.now), min(r.end_ms - self.now, LONGEST))
            for r in self.request.reservations
            if (node := self.tree.reserved_node(r.node, queues)) >= 0
            and (cell := self.tree.cell(r.flavor, r.resource)) is not None
        ]
        table = np.array([r for r in kept if r[2] > 0 and r[3] < r[4]], dtype=np.int64).reshape(-1, 5).T
        return table[:3], table[3], table[4]

    def value(self, objective: pb.Objective) -> Iterator[pb.Violation]:
        """What the response says that the plan is worth is what it is worth."""
        k, weight = self.entries, self.weight
        row, late = self.workload[k], self._late(k)
        late_weight = float(weight[row[late > 0]].sum())
        soft = (late > 0) & (ints(self.request.workloads.hard, self.n)[row] == 0)
        worth = {
            pb.LATE_WEIGHT: late_weight,
            pb.TARDINESS: float((weight[row[soft]] * late[soft]).sum() / HOUR),
            pb.START_TIMES: self._mean_start(k),
        }
        for level in objective.levels:
            if level.level in worth and not _same(level.value, worth[level.level]):
                name = pb.ObjectiveLevel.Name(level.level)
                yield self._overall(f"objective {name} is said to be {level.value} but is {worth[level.level]}")
        if not (objective.bound <= late_weight or _same(objective.bound, late_weight)):
            yield self._overall(f"the bound {objective.bound} is above the plan's own late weight {late_weight}")
        dated = float(weight[row[self.due[row] != 0]].sum())
        gap = max(0.0, late_weight - objective.bound) / dated if dated > 0 else 0.0
        if not (objective.gap >= gap or _same(objective.gap, gap)):
            yield self._overall(f"the gap is said to be {objective.gap} but is {gap}")

    def _mean_start(self, k: Ints) -> float:
        """Mean start of entries of the plan in hours: a tenth of the plain mean, and nine of that by quota × time."""
        if not len(k):
            return 0.0
        tree, amounts = self.tree, self.amounts
        taken = np.zeros((len(amounts.kind), len(tree.resources)))
        size = np.diff(amounts.quota.first)
        resource = amounts.quota.cell % max(1, len(tree.resources))
        np.add.at(taken, (np.repeat(np.arange(len(size)), size), resource), amounts.quota.amount)
        row = self.workload[k]
        whole = tree.whole[tree.queue[self.queue[row]]]
        part = (taken[amounts.kind[self.assignment[k]]] / np.maximum(1, whole)).max(axis=1, initial=0)
        energy = part * self.duration[row]
        hours = self.start[k] / HOUR
        plain = float(hours.mean())
        return 0.1 * plain + 0.9 * float(np.average(hours, weights=energy)) if energy.sum() > 0 else plain

    def _overall(self, message: str) -> pb.Violation:
        return pb.Violation(at_ms=self.now, message=message)


def _same(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=1e-6, atol=1e-6))


def _instant(ms: int) -> str:
    """An instant for people; milliseconds where the calendar ends."""
    try:
        return datetime.fromtimestamp(int(ms) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{int(ms)} ms"
