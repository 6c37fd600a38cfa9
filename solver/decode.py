"""Request of the contract → problem. Columns stay columns: 100,000 rows are read in a few numpy operations each.

What makes no sense is told as close to its owner as can be: a table that nobody can read refuses the request
(:class:`InvalidRequest`, with the path of the field), a queue that cannot be meant is frozen, a row that cannot be
meant is rejected; the rest is planned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from solver.api import planner_pb2 as pb
from solver.decode_nodes import decode_nodes, decode_packing
from solver.decode_options import Request, Shapes, build_options
from solver.decode_previous import decode_previous, options_of
from solver.decode_quota import decode_quota
from solver.invalid import InvalidRequest, UnknownSchema
from solver.problem import MAX_TIME, NEVER, Busy, Float64s, Problem, Rejected, State
from solver.quota import MAX_AMOUNT, Bools, Int32s, Int64s, QuotaTree

__all__ = ["MAX_DURATION", "SCHEMA", "InvalidRequest", "UnknownSchema", "decode"]

SCHEMA = 1
"""Revision of the contract that this planner knows."""

DAY = 24 * 3_600_000

MAX_DURATION = 10 * 365 * DAY
"""Longest run time that is taken for real, in milliseconds: ten years."""

MAX_WEIGHT = 1e12
"""Largest weight: sums of larger ones would lose the smaller ones, or be infinite."""

UNKNOWN_REMAINING = 60_000
"""How long a running row is expected to hold its quota when its own estimate makes no sense, in milliseconds."""


def decode(request: pb.PlanRequest) -> Problem:
    """Check a request and read it.

    Running rows whose remaining time makes no sense are rejected (so that somebody hears of it), but their quota still
    counts as in use, for ``UNKNOWN_REMAINING``. Quota that a frozen queue's work holds counts nowhere: the queue's own
    quota is not in the tree either.

    Raises
    ------
    UnknownSchema
        If the client writes another revision of the contract.
    InvalidRequest
        If a table as a whole makes no sense.
    """
    if request.schema != SCHEMA:
        raise UnknownSchema("schema", f"is {request.schema}; this planner knows revision {SCHEMA}")
    if not 0 < request.now_ms <= MAX_TIME:
        raise InvalidRequest("now_ms", f"is {request.now_ms}; must be an instant in milliseconds since 1970")
    if not 0 <= request.horizon_ms <= MAX_TIME:
        raise InvalidRequest("horizon_ms", f"is {request.horizon_ms}; must be between 0 and {MAX_TIME}")
    _check_budget(request.budget)
    _check_policy(request.policy)
    now = request.now_ms
    tree, nodes, lead = decode_quota(request.quota), decode_nodes(request.quota), _leads(request.quota)
    rows = _Rows(request, tree)

    running = np.flatnonzero(rows.running)
    busy = _join(
        [
            _held(request, tree, running, rows.queue[running], rows.assignment[running], rows.remaining[running]),
            _reserved(request, tree),
        ]
    )
    row = np.flatnonzero(rows.planned)
    pairs, pair = _pairs(rows.queue[row], rows.shape[row], len(rows.shapes))
    options, pods, never = build_options(tree, [q for q, _ in pairs], [rows.requests[s] for _, s in pairs], nodes, lead)
    if never:
        pair_never = np.zeros(len(pairs), dtype=np.bool_)
        pair_never[list(never)] = True
        lost = pair_never[pair]
        for position in np.flatnonzero(lost):
            rows.reject(int(row[position]), "", never[int(pair[position])], pb.NEVER_FITS)
        row, pair = row[~lost], pair[~lost]

    duration = rows.duration[row]
    release = rows.release[row]
    latest = max(int(release.max(initial=0)), int(busy.end.max(initial=0)))
    duration_and_lead = duration + max(lead, default=0)
    worst = latest + (int(duration_and_lead.sum()) if duration_and_lead.sum(dtype=np.float64) < NEVER else NEVER)
    if worst >= NEVER >> 1:
        raise InvalidRequest("workloads.duration_ms", "add up to more time than there is")
    planned_before = decode_previous(request, len(rows.ids))
    pending = rows.state[row] == State.PENDING
    before = np.where(pending, planned_before.assignment[row], -1)
    return Problem(
        now=now,
        horizon=max(request.horizon_ms, worst),
        tree=tree,
        options=options,
        packing=decode_packing(nodes, tree, busy, pods),
        busy=busy,
        ids=rows.ids,
        row=row,
        state=rows.state[row].astype(np.int8),
        pair=pair,
        release=release,
        duration=duration,
        due=rows.due[row],
        hard=rows.hard[row],
        weight=rows.weight[row],
        created=rows.created[row],
        priority=rows.priority[row].astype(np.int32),
        previous=np.where(pending, planned_before.start[row], -1),
        previous_option=options_of(options, pair, before, request.previous.assignments, len(tree.resources)),
        rejected=tuple(sorted(rows.rejected, key=lambda rejected: rejected.row)),
        notes=planned_before.notes,
    )


def _leads(quota: pb.Quota) -> list[int]:
    """Lead time of each flavor."""
    for position, flavor in enumerate(quota.flavors):
        if not 0 <= flavor.lead_ms <= MAX_DURATION:
            told = f"is {flavor.lead_ms}; must be between 0 and {MAX_DURATION} (ten years)"
            raise InvalidRequest(f"quota.flavors[{position}].lead_ms", told)
    return [flavor.lead_ms for flavor in quota.flavors]


def _check_budget(budget: pb.Budget) -> None:
    for name in ("wall_ms", "work_limit"):
        if (value := getattr(budget, name)) < 0:
            raise InvalidRequest(f"budget.{name}", f"is {value}; must not be negative")


def _check_policy(policy: pb.Policy) -> None:
    levels = list(policy.objective)
    for k, level in enumerate(levels):
        if level not in pb.ObjectiveLevel.values() or level == pb.OBJECTIVE_LEVEL_UNSPECIFIED:
            raise InvalidRequest(f"policy.objective[{k}]", f"is {level}, which is no level that this planner knows")
        if level in levels[:k]:
            raise InvalidRequest(f"policy.objective[{k}]", f"lists {pb.ObjectiveLevel.Name(level)} again")
    if policy.engine not in pb.Engine.values():
        raise InvalidRequest("policy.engine", f"is {policy.engine}, which is no engine that this planner knows")
    if policy.preemption not in pb.Entitlement.values():
        raise InvalidRequest("policy.preemption", f"is {policy.preemption}, which this planner does not know")
    if not 0 <= policy.ageing_ms <= MAX_TIME:
        raise InvalidRequest("policy.ageing_ms", f"is {policy.ageing_ms}; must be between 0 and {MAX_TIME}")
    if not 0 <= policy.stability_threshold < math.inf:
        raise InvalidRequest("policy.stability_threshold", f"is {policy.stability_threshold}; must not be negative")


class _Rows:
    """Columns of the workloads, ``[n]`` each, times counted from now; and the rows that are rejected."""

    def __init__(self, request: pb.PlanRequest, tree: QuotaTree) -> None:
        work, now = request.workloads, request.now_ms
        self.ids = tuple(work.id)
        self.rejected: list[Rejected] = []
        self.shapes = Shapes(request.shapes, tree)
        self.requests: dict[int, Request] = {}
        if len(set(self.ids)) != len(self.ids):
            self._refuse_duplicate()
        self.queue = self._column(work.cluster_queue, "cluster_queue")
        self.shape = self._column(work.shape, "shape")
        self.state = self._column(work.state, "state")
        self.assignment = self._column(work.assignment, "assignment", default=-1)
        self.priority = self._column(work.priority, "priority")
        self.hard = self._column(work.hard, "hard", np.bool_)
        self.weight: Float64s = self._column(work.weight, "weight", np.float64, default=1.0)
        created = self._column(work.created_ms, "created_ms")
        release = self._column(work.release_ms, "release_ms")
        due = self._column(work.due_ms, "due_ms")
        for name in ("reserved_ms", "evicted"):
            self._length(getattr(work, name), name)
        duration = self._column(work.duration_ms, "duration_ms")

        is_running = self.state == State.RUNNING
        self._ok = np.ones(len(self.ids), dtype=np.bool_)
        self._invalid(
            "state", ~np.isin(self.state, [int(s) for s in State]), self.state, "is {}, which is no state of a workload"
        )
        queues = len(request.quota.cluster_queues)
        self._invalid("cluster_queue", self.queue >= queues, self.queue, f"is {{}}, but there are {queues} queues")
        held = self._sound_assignments(request, tree, is_running)
        short, long = duration <= 0, duration > MAX_DURATION
        self._invalid("duration_ms", short, duration, "is {}; a run time must be positive")
        self._invalid("duration_ms", long, duration, f"is {{}}; the longest run time is {MAX_DURATION} (ten years)")
        self.running = held
        """Rows that hold quota."""
        self.remaining = np.where(short, UNKNOWN_REMAINING, np.minimum(duration, MAX_DURATION))
        self.duration = duration

        ours = ~is_running
        bad_weight = ours & ~((self.weight >= 0) & (self.weight <= MAX_WEIGHT))
        self._invalid("weight", bad_weight, self.weight, f"is {{}}; a weight must be a number from 0 to {MAX_WEIGHT:g}")
        for name, values in (("created_ms", created), ("release_ms", release), ("due_ms", due)):
            self._invalid(name, ours & (values < 0), values, "is {}; an instant must not be negative")
            far = ours & (values > now + MAX_TIME)
            self._invalid(name, far, values, f"is {{}}; no more than {MAX_TIME} ms from now")
        shapes = len(self.shapes)
        self._invalid("shape", ours & (self.shape >= shapes), self.shape, f"is {{}}, but there are {shapes} shapes")

        def since_now(values: Int64s) -> Int64s:
            return np.where(self._ok, values, now) - now

        self.created = np.where(created == 0, 0, since_now(created))
        self.due = np.where(due == 0, NEVER, since_now(due))
        # What is released already has no release date any more.
        self.release = np.where(self.state == State.IN_FLIGHT, 0, np.maximum(0, since_now(release)))
        self._stopped(tree, ours)
        self._shapes(ours)
        self.planned = self._ok & ours
        """Rows to place."""

    def reject(self, row: int, field: str, message: str, kind: int) -> None:
        """Leave a row out of the plan."""
        self.rejected.append(Rejected(row, kind, field, message))

    def _column(
        self, column: Sequence[Any], name: str, dtype: npt.DTypeLike = np.int64, default: float = 0
    ) -> npt.NDArray[Any]:
        n = len(self.ids)
        if not self._length(column, name):
            return np.full(n, default, dtype=dtype)
        return np.fromiter(column, dtype, n)

    def _length(self, column: Sequence[Any], name: str) -> int:
        """Number of entries of a column: none, or one for each row."""
        if len(column) not in (0, len(self.ids)):
            told = f"has {len(column)} entries where workloads.id has {len(self.ids)}"
            raise InvalidRequest(f"workloads.{name}", told)
        return len(column)

    def _refuse_duplicate(self) -> None:
        seen: dict[str, int] = {}
        for position, name in enumerate(self.ids):
            if name in seen:
                raise InvalidRequest(f"workloads.id[{position}]", f"is {name!r}, as is workloads.id[{seen[name]}]")
            seen[name] = position

    def _invalid(self, name: str, wrong: Bools, values: npt.NDArray[Any], message: str) -> None:
        """Reject rows that are wrong and not rejected yet."""
        for row in np.flatnonzero(wrong & self._ok):
            self.reject(int(row), f"workloads.{name}[{row}]", message.format(values[row]), pb.INVALID)
        self._ok &= ~wrong

    def _sound_assignments(self, request: pb.PlanRequest, tree: QuotaTree, is_running: Bools) -> Bools:
        """Running rows in the tree that hold an assignment which can be meant."""
        wrong = _wrong_assignments(request, tree)
        unknown = is_running & ((self.assignment < 0) | (self.assignment >= len(request.assignments)))
        for row in np.flatnonzero(unknown & self._ok):
            given = self.assignment[row]
            message = (
                "is missing: a running row must say what it holds"
                if given < 0
                else f"is {given}, but there are {len(request.assignments)} assignments"
            )
            self.reject(int(row), f"workloads.assignment[{row}]", message, pb.INVALID)
        self._ok &= ~unknown
        if wrong:
            for row in np.flatnonzero(is_running & self._ok & np.isin(self.assignment, list(wrong))):
                self.reject(int(row), *wrong[int(self.assignment[row])], pb.INVALID)
                self._ok[row] = False
        held = is_running & self._ok
        held[held] = tree.queue_node[self.queue[held]] >= 0
        return held

    def _stopped(self, tree: QuotaTree, ours: Bools) -> None:
        closed = np.fromiter((q in tree.frozen for q in range(len(tree.queue_names))), np.bool_) | tree.stopped
        rows = np.flatnonzero(ours & self._ok)
        for row in rows[closed[self.queue[rows]]] if closed.any() else ():
            queue = int(self.queue[row])
            message = f"ClusterQueue {tree.queue_names[queue]} is stopped"
            if queue in tree.frozen:
                message = f"ClusterQueue {tree.queue_names[queue]} cannot be planned: {tree.frozen[queue]}"
            self.reject(int(row), "", message, pb.QUEUE_STOPPED)
            self._ok[row] = False

    def _shapes(self, ours: Bools) -> None:
        """Read the shapes in use, and reject the rows of those that make no sense."""
        rows = np.flatnonzero(ours & self._ok)
        used = np.flatnonzero(np.bincount(self.shape[rows], minlength=len(self.shapes)))
        wrong: dict[int, tuple[str, str]] = {}
        for shape in used.tolist():
            request = self.shapes.request(shape)
            if isinstance(request, tuple):
                wrong[shape] = request
            else:
                self.requests[shape] = request
        if wrong:
            for row in rows[np.isin(self.shape[rows], list(wrong))]:
                self.reject(int(row), *wrong[int(self.shape[row])], pb.INVALID)
                self._ok[row] = False


def _wrong_assignments(request: pb.PlanRequest, tree: QuotaTree) -> dict[int, tuple[str, str]]:
    """Assignments that make no sense: path of the field at fault, and what is wrong."""
    wrong: dict[int, tuple[str, str]] = {}
    for position, held in enumerate(request.assignments):
        path = f"assignments[{position}]"
        if len({len(held.flavors), len(held.resources), len(held.amounts), len(held.pods or held.amounts)}) > 1:
            lengths = f"{len(held.flavors)} flavors, {len(held.resources)} resources, {len(held.amounts)} amounts"
            lengths += f", {len(held.pods)} pods" if held.pods else ""
            raise InvalidRequest(path, f"has columns of different lengths: {lengths}")
        for k, (flavor, resource, amount) in enumerate(zip(held.flavors, held.resources, held.amounts, strict=True)):
            if flavor >= len(tree.flavors):
                wrong[position] = f"{path}.flavors[{k}]", f"is {flavor}, but there are {len(tree.flavors)} flavors"
            elif resource >= len(tree.resources):
                told = f"is {resource}, but there are {len(tree.resources)} resources"
                wrong[position] = f"{path}.resources[{k}]", told
            elif not 0 <= amount <= MAX_AMOUNT:
                wrong[position] = f"{path}.amounts[{k}]", f"is {amount}; must be between 0 and {MAX_AMOUNT}"
        for k, pods in enumerate(held.pods):
            if not 0 <= pods <= MAX_AMOUNT:
                wrong[position] = f"{path}.pods[{k}]", f"is {pods}; must be between 0 and {MAX_AMOUNT}"
    return wrong


def _held(
    request: pb.PlanRequest, tree: QuotaTree, rows: Int64s, queue: Int64s, assignment: Int64s, remaining: Int64s
) -> Busy:
    """What running rows hold, until their estimates end."""
    used = np.unique(assignment)
    sizes = np.zeros(len(request.assignments) + 1, dtype=np.int64)
    cells: list[int] = []
    amounts: list[int] = []
    pods: list[int] = []
    for position in used.tolist():
        held = request.assignments[position]
        cells += [tree.cell(f, r) for f, r in zip(held.flavors, held.resources, strict=True)]
        amounts += held.amounts
        pods += held.pods or [0] * len(held.amounts)
        sizes[position + 1] = len(held.amounts)
    first = np.cumsum(sizes)
    count = first[assignment + 1] - first[assignment]
    row = np.repeat(np.arange(len(assignment)), count)
    entry = np.arange(len(row)) + np.repeat(first[assignment] - np.cumsum(count) + count, count)
    return Busy(
        node=tree.queue_node[queue[row]],
        cell=np.array(cells, dtype=np.int32)[entry],
        amount=np.array(amounts, dtype=np.int64)[entry],
        start=np.zeros(len(row), dtype=np.int64),
        end=remaining[row],
        row=rows[row],
        pods=np.array(pods, dtype=np.int64)[entry],
    )


def _reserved(request: pb.PlanRequest, tree: QuotaTree) -> Busy:
    """What reservations keep free; those that are over, or on a frozen node, are left out."""
    kept = list(_reservations(request, tree))
    columns = np.array(kept, dtype=np.int64).reshape(-1, 5).T
    node, cell, amount, start, end = columns
    nobody = np.full(len(kept), -1, dtype=np.int64)
    return Busy(node.astype(np.int32), cell.astype(np.int32), amount, start, end, nobody, np.zeros_like(amount))


def _reservations(request: pb.PlanRequest, tree: QuotaTree) -> Iterator[tuple[int, int, int, int, int]]:
    now = request.now_ms
    queue_nodes = set(tree.queue_node.tolist())
    cohorts = {name: node for node, name in enumerate(tree.names) if node not in queue_nodes}
    queues = {name: int(tree.queue_node[position]) for position, name in enumerate(tree.queue_names)}
    known = {cohort.name for cohort in request.quota.cohorts} | {cohort.parent for cohort in request.quota.cohorts}
    known |= {queue.cohort for queue in request.quota.cluster_queues}
    for position, kept in enumerate(request.reservations):
        path = f"reservations[{position}]"
        if not kept.node or (kept.node not in queues and kept.node not in known):
            raise InvalidRequest(f"{path}.node", f"is {kept.node!r}, which is neither a ClusterQueue nor a Cohort")
        if kept.flavor >= len(tree.flavors):
            raise InvalidRequest(f"{path}.flavor", f"is {kept.flavor}, but there are {len(tree.flavors)} flavors")
        if kept.resource >= len(tree.resources):
            told = f"is {kept.resource}, but there are {len(tree.resources)} resources"
            raise InvalidRequest(f"{path}.resource", told)
        if not 0 <= kept.amount <= MAX_AMOUNT:
            raise InvalidRequest(f"{path}.amount", f"is {kept.amount}; must be between 0 and {MAX_AMOUNT}")
        for name in ("start_ms", "end_ms"):
            if not 0 <= getattr(kept, name) <= MAX_TIME:
                raise InvalidRequest(f"{path}.{name}", f"is {getattr(kept, name)}; must be between 0 and {MAX_TIME}")
        if kept.end_ms < kept.start_ms:
            raise InvalidRequest(f"{path}.end_ms", f"is {kept.end_ms}, before start_ms, {kept.start_ms}")
        node = queues.get(kept.node, cohorts.get(kept.node, -1))
        start, end = max(0, kept.start_ms - now), kept.end_ms - now
        if node >= 0 and start < end and kept.amount > 0:
            yield node, tree.cell(kept.flavor, kept.resource), kept.amount, start, end


def _join(parts: Collection[Busy]) -> Busy:
    return Busy(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _pairs(queue: Int64s, shape: Int64s, shapes: int) -> tuple[list[tuple[int, int]], Int32s]:
    """Distinct (queue, shape) pairs, and which of them each row is."""
    key = queue * shapes + shape
    top = int(key.max(initial=-1)) + 1
    if top <= 1 << 22:  # a table is ten times faster than sorting
        occurs = np.zeros(top, dtype=np.bool_)
        occurs[key] = True
        distinct = np.flatnonzero(occurs)
        number = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
        pair = number[key]
    else:
        distinct, inverse = np.unique(key, return_inverse=True)
        pair = inverse.astype(np.int32)
    return [divmod(k, shapes) for k in distinct.tolist()], pair
