"""A plan in the words of the people whose jobs it moves: when each starts and ends, on what, on time or not, and why.

Built from a snapshot and the planner's response to it; for tables, for machines (:func:`to_json`), for Events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scheduler.annotations import format_instant
from scheduler.plans import Placement, PlanInForce, read_plan
from scheduler.snapshot import Item, Snapshot
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.explain import quantity
from solver.plan import Reason
from solver.problem import NEVER, Problem, State
from solver.quota import QuotaTree, available, take

Clock = Callable[[int], str]
"""Writes an instant (milliseconds since the Unix epoch) in the words of a reason."""


@dataclass(frozen=True)
class Row:
    """Forecast for one workload. Instants are milliseconds since the Unix epoch."""

    item: Item
    start: int | None
    """Planned start, or since when it runs; None when it is not planned."""
    finish: int | None
    on_time: bool | None
    """Whether it finishes by its deadline; None without one. What is not planned never does."""
    flavors: dict[str, str]
    """Flavor by resource."""
    amounts: dict[str, int]
    """What it holds, or is expected to, by resource, in Kueue's units."""
    reason: str

    @property
    def name(self) -> str:
        """``namespace/name`` of the root object."""
        return f"{self.item.root.namespace}/{self.item.root.name}"

    @property
    def running(self) -> bool:
        """Whether it has quota already."""
        return self.item.state == State.RUNNING

    @property
    def slack(self) -> int | None:
        """Milliseconds between its end and its deadline, negative when late; None without either."""
        deadline = self.item.deadline
        return None if deadline is None or self.finish is None else deadline - self.finish


@dataclass(frozen=True)
class Forecast:
    """A plan for people. ``rows``: what runs, then what is planned in the order of admission, then what is not."""

    now: int
    rows: tuple[Row, ...]
    order: tuple[str, ...]
    """Names of what is planned, in the order of admission."""
    peak: dict[str, dict[str, int]]
    """Most that is in use at once, by flavor and resource, in Kueue's units."""
    bound: float
    """No plan can have less weight late."""
    gap: float
    """How far from that this plan can be at most, as a share of all weight."""
    engine: str

    def late(self) -> list[Row]:
        """What will miss its deadline."""
        return [row for row in self.rows if row.on_time is False]


def forecast(snapshot: Snapshot, response: pb.PlanResponse, clock: Clock = format_instant) -> Forecast:
    """Join a snapshot and the planner's response to its request.

    Parameters
    ----------
    clock
        How reasons write instants.

    Raises
    ------
    scheduler.plans.BadPlan
        If the response makes no sense for the request.
    """
    plan = read_plan(snapshot.request, response)
    problem = decode(snapshot.request)
    course = _Course(problem, plan)
    course.run()
    now = snapshot.now
    running, planned, left = [], [], []
    for row, item in enumerate(snapshot.items):
        placement = plan.placements.get(item.uid)
        if item.state == State.RUNNING:
            running.append(_running(snapshot, row, now, clock))
        elif placement is not None:
            position = course.position[item.uid]
            planned.append((placement.rank, _planned(item, placement, course, position, now, clock)))
        else:
            left.append(_left(item, item.refused or plan.rejections.get(item.uid, "the planner left it out")))
    left += [_left(stranded.item, stranded.message) for stranded in snapshot.stranded]
    running.sort(key=lambda row: (row.start or 0, row.name))
    planned.sort(key=lambda entry: entry[0])
    in_order = [row for _, row in planned]
    return Forecast(
        now=now,
        rows=(*running, *in_order, *left),
        order=tuple(row.name for row in in_order),
        peak=course.peak(),
        bound=plan.bound,
        gap=plan.gap,
        engine=plan.engine,
    )


def to_json(forecast: Forecast) -> dict[str, Any]:
    """The forecast for machines; instants in RFC 3339, UTC."""

    def instant(value: int | None) -> str | None:
        return None if value is None else format_instant(value)

    return {
        "now": instant(forecast.now),
        "order": list(forecast.order),
        "workloads": [
            {
                "namespace": row.item.root.namespace,
                "name": row.item.root.name,
                "queue": row.item.queue,
                "clusterQueue": row.item.cluster_queue,
                "state": row.item.state.name.lower().replace("_", " "),
                "start": instant(row.start),
                "finish": instant(row.finish),
                "deadline": instant(row.item.deadline),
                "flavor": row.flavors,
                "onTime": row.on_time,
                "reason": row.reason,
            }
            for row in forecast.rows
        ],
        "peak": {
            flavor: {resource: quantity(resource, amount) for resource, amount in used.items()}
            for flavor, used in forecast.peak.items()
        },
        "bound": forecast.bound,
        "gap": forecast.gap,
        "engine": forecast.engine,
    }


def _left(item: Item, why: str) -> Row:
    return Row(item, None, None, None if item.deadline is None else False, {}, {}, f"not planned: {why}")


def _running(snapshot: Snapshot, row: int, now: int, clock: Clock) -> Row:
    item, request = snapshot.items[row], snapshot.request
    held = request.assignments[request.workloads.assignment[row]]
    finish = now + request.workloads.duration_ms[row]
    since = f"running since {clock(item.admitted)}" if item.admitted is not None else "holds quota, not admitted yet"
    if item.admitted is not None and now - item.admitted > item.estimate:
        since += ", longer than estimated"
    return Row(
        item=item,
        start=item.admitted,
        finish=finish,
        on_time=None if item.deadline is None else finish <= item.deadline,
        flavors={
            request.quota.resources[r]: request.quota.flavors[f].name
            for f, r in zip(held.flavors, held.resources, strict=True)
        },
        amounts=_by_resource(request.quota.resources, held),
        reason=since,
    )


def _planned(item: Item, placement: Placement, course: _Course, position: int, now: int, clock: Clock) -> Row:
    deadline = item.deadline
    return Row(
        item=item,
        start=placement.start,
        finish=placement.finish,
        on_time=None if deadline is None else placement.finish <= deadline,
        flavors=dict(placement.flavors),
        amounts=course.amounts(position),
        reason=_reason(item, placement, course.blocked.get(position), now, clock),
    )


def _reason(item: Item, placement: Placement, blocked: _Blocked | _NoNodes | None, now: int, clock: Clock) -> str:
    waits = f"{blocked} until {clock(placement.start)}" if blocked else "waits its turn: the room is kept for others"
    late = f"late by {_length(placement.tardiness)}"
    match placement.reason:
        case Reason.ROOM_NOW:
            text = "starts now: there is room"
        case Reason.WAITS_FOR_RELEASE_DATE:
            text = f"not before {clock(placement.start)}"
        case Reason.LATE_ALREADY:
            text = f"{late}: it could not meet its deadline even without others"
            text += f"; {waits}" if placement.start > now else "; starts now"
        case Reason.LATE_NO_ROOM:
            text = f"{late}: others that are due sooner or weigh more take the room; {waits}"
        case Reason.RELEASED:
            text = "released: Kueue admits it next" + (f" ({item.message})" if item.message else "")
        case Reason.NOT_OURS:
            text = "not managed by Punctual: Kueue admits it in its own order" + (
                f"; {waits}" if placement.start > now else ""
            )
        case _:
            text = waits
    if item.other_gates:
        text += f"; also gated by {', '.join(item.other_gates)}"
    return text


def _length(duration: int) -> str:
    """A length of time in at most two units."""
    minutes, seconds = divmod(-(-duration // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{value}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")) if value]
    return "".join(parts[:2]) or "0s"


class _Blocked(NamedTuple):
    """What a workload waits for: quota of a cell that is in use up to a limit."""

    used: int
    limit: int
    resource: str
    flavor: str
    where: str
    """The part of the quota tree that is full; empty for a ClusterQueue that shares with nobody."""

    def __str__(self) -> str:
        used, limit = quantity(self.resource, self.used), quantity(self.resource, self.limit)
        return f"waits for quota: {used} of {limit} {self.resource} in flavor {self.flavor}{self.where} in use"


class _NoNodes(NamedTuple):
    """A workload waits for nodes: it has the quota, but its pods do not fit beside those that run."""

    size: int
    """What each of its largest pods asks for."""
    resource: str
    flavor: str

    def __str__(self) -> str:
        pods = f"pods of {quantity(self.resource, self.size)} {self.resource}"
        return f"waits for nodes: those of flavor {self.flavor} have no room for {pods}"


class _Course:
    """The use of quota over time as a plan has it.

    Attributes
    ----------
    position
        Row of the problem of each planned workload.
    blocked
        What was full just before a row starts, by row of the problem.
    """

    def __init__(self, problem: Problem, plan: PlanInForce) -> None:
        self.problem, self.tree = problem, problem.tree
        self.position: dict[str, int] = {}
        self.blocked: dict[int, _Blocked | _NoNodes] = {}
        self._start: dict[int, int] = {}
        self._option: dict[int, int] = {}
        self._most: Counter[int] = Counter()
        self._on_nodes: Counter[int] = Counter()
        """What counts towards each limit of nodes."""
        for position, row in enumerate(problem.row.tolist()):
            placement = plan.placements.get(problem.ids[row])
            if placement is not None:
                self.position[problem.ids[row]] = position
                self._start[position] = max(0, placement.start - problem.now)
                self._option[position] = self._option_of(position, placement)

    def run(self) -> None:
        """Go through all starts and ends."""
        problem, tree = self.problem, self.tree
        usage = tree.no_usage()
        used: Counter[int] = Counter()
        # At one instant: first look who starts there, then give back what ends, then take what starts.
        events: list[tuple[int, int, int, int, int, int]] = []
        busy = zip(*(column.tolist() for column in problem.busy), strict=True)
        for node, cell, amount, start, end, *_ in busy:
            events += [(max(0, start), 2, -1, node, cell, amount), (end, 1, -1, node, cell, -amount)]
        for limit, amount, start, end in zip(*(c.tolist() for c in problem.packing.held), strict=True):
            events += [(start, 2, -1, -1, limit, amount), (end, 1, -1, -1, limit, -amount)]
        for position, start in self._start.items():
            node = int(problem.options.node[problem.pair[position]])
            events.append((start, 0, position, 0, 0, 0))
            end = start + int(problem.duration[position] + problem.options.lead[self._option[position]])
            for cell, amount in self._needs(position):
                events += [(start, 2, position, node, cell, amount), (end, 1, position, node, cell, -amount)]
            for limit, amount in self._pods(position):
                events += [(start, 2, position, -1, limit, amount), (end, 1, position, -1, limit, -amount)]
        for at, what, position, node, cell, amount in sorted(events):
            if what == 0:
                if at > 0 and (blocked := self._full(usage, position)):
                    self.blocked[position] = blocked
                continue
            if node < 0:
                self._on_nodes[cell] += amount
                continue
            take(tree.arrays, usage, node, cell, amount)
            used[cell] += amount
            self._most[cell] = max(self._most[cell], used[cell])

    def peak(self) -> dict[str, dict[str, int]]:
        """Most in use at once, by flavor and resource."""
        result: dict[str, dict[str, int]] = {}
        for cell, most in sorted(self._most.items()):
            flavor, resource = divmod(cell, len(self.tree.resources))
            if most:
                result.setdefault(self.tree.flavors[flavor], {})[self.tree.resources[resource]] = most
        return result

    def amounts(self, position: int) -> dict[str, int]:
        """What a row is expected to hold, by resource."""
        result: Counter[str] = Counter()
        for cell, amount in self._needs(position):
            result[self.tree.resources[cell % len(self.tree.resources)]] += amount
        return dict(result)

    def _needs(self, position: int) -> Iterator[tuple[int, int]]:
        options, option = self.problem.options, self._option[position]
        for k in range(options.need[option], options.need[option + 1]):
            yield int(options.cell[k]), int(options.amount[k])

    def _pods(self, position: int) -> Iterator[tuple[int, int]]:
        packing, option = self.problem.packing, self._option[position]
        for k in range(packing.first[option], packing.first[option + 1]):
            yield int(packing.limit[k]), int(packing.amount[k])

    def _option_of(self, position: int, placement: Placement) -> int:
        """The option with the flavors that the plan names; the first if none has exactly these."""
        options, pair, tree = self.problem.options, self.problem.pair[position], self.tree
        first, last = int(options.first[pair]), int(options.first[pair + 1])
        for option in range(first, last):
            cells = options.cell[options.need[option] : options.need[option + 1]]
            size = len(tree.resources)
            if all(placement.flavors.get(tree.resources[c % size]) == tree.flavors[c // size] for c in cells.tolist()):
                return option
        return first

    def _full(self, usage: np.ndarray[Any, np.dtype[np.int64]], position: int) -> _Blocked | _NoNodes | None:
        """What leaves no room for a row."""
        node = int(self.problem.options.node[self.problem.pair[position]])
        for cell, amount in self._needs(position):
            if amount > max(0, available(self.tree.arrays, usage, node, cell)):
                return _fullest(self.tree, usage, node, cell, amount)
        packing = self.problem.packing
        for limit, amount in self._pods(position):
            if self._on_nodes[limit] + amount > packing.limits.capacity[limit]:
                return self._no_nodes(position, int(packing.limits.cell[limit]))
        return None

    def _no_nodes(self, position: int, cell: int) -> _NoNodes:
        pods, option = self.problem.packing.pods, self._option[position]
        mine = slice(pods.first[option], pods.first[option + 1])
        flavor, resource = divmod(cell, len(self.tree.resources))
        size = int(pods.size[mine][pods.cell[mine] == cell].max())
        return _NoNodes(size, self.tree.resources[resource], self.tree.flavors[flavor])


def _fullest(
    tree: QuotaTree, usage: np.ndarray[Any, np.dtype[np.int64]], node: int, cell: int, amount: int
) -> _Blocked:
    """The highest part of the tree, from a ClusterQueue up, that has no room for ``amount``."""
    subtree, borrowing = tree.arrays.subtree, tree.borrowing
    queue, path = node, [node]
    while tree.parent[path[-1]] >= 0:
        path.append(int(tree.parent[path[-1]]))
    flavor, resource = divmod(cell, len(tree.resources))
    for node in reversed(path):
        limit = int(subtree[node, cell])
        if tree.parent[node] >= 0:
            limit = min(NEVER, limit + int(borrowing[node, cell]))
        if int(usage[node, cell]) + amount > limit:
            break
    where = "" if len(path) == 1 else f" in {'queue' if node == queue else 'cohort'} {tree.names[node]}"
    return _Blocked(int(usage[node, cell]), limit, tree.resources[resource], tree.flavors[flavor], where)


def _by_resource(resources: Any, held: pb.Assignment) -> dict[str, int]:
    result: Counter[str] = Counter()
    for resource, amount in zip(held.resources, held.amounts, strict=True):
        result[resources[resource]] += amount
    return dict(result)
