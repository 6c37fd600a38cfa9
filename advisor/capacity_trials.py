"""One pool with so much quota: how many deadlines a plan meets, and how many no plan can.

The work is that of a planning request, cut to what decides the question:

* Each deadline counts one, whatever its weight. All pods of a workload are needed.
* Work of the pool's tree without a deadline that is ours to start is left out: it runs in the room that the others
  leave. So is work that misses its deadline with any amount, as its time is too short or something else stands in its
  way. Both are in :class:`Cut`.
* What runs, what is kept free, and what is Kueue's to start stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from advisor.capacity_bound import least_late
from advisor.capacity_pools import Pool
from solver.api import planner_pb2 as pb
from solver.bound import certain
from solver.decode import decode
from solver.encode import encode
from solver.plan import Plan
from solver.planner import CP_SAT_ROWS, plans
from solver.problem import NEVER, Problem
from solver.quota import Bools, Int64s
from solver.schedule import Scheduler
from solver.verify import verify

Told = Callable[[str], None]
"""Told what is being done."""

QUICK, USUAL, HARD = 1, 2, 8
"""How hard it is tried to find a plan, and to prove that there is none, in times the effort."""

MOST_ROWS = 2_000
"""Rows up to which CP-SAT is asked for all but a quick plan; it builds no model of more."""

ARRIVING = 0.1
"""Share of rows that come later, from which on CP-SAT is asked instead of search."""

EACH = 50
"""CP-SAT's work for so many rows is the effort."""

SMALL = 50
"""Rows up to which CP-SAT takes part even in a quick plan: it proves things."""

_COLUMNS = tuple(descriptor.name for descriptor in pb.Workloads.DESCRIPTOR.fields)


class BadPlan(Exception):
    """A plan did not pass the verifier: a mistake of the planner."""


@dataclass(frozen=True)
class Trial:
    """What is known of one amount: the best plan so far, and a bound on all plans.

    Attributes
    ----------
    missed, least
        Deadlines that the plan misses; that every plan misses.
    rows
        Rows of the request that the plan has late, or has no place for.
    """

    amount: int
    missed: int
    least: int
    rows: tuple[int, ...]
    plan: Plan
    problem: Problem
    effort: int


@dataclass(frozen=True)
class Cut:
    """What was left out of the question, as rows of the request."""

    too_short: tuple[int, ...] = ()
    """Misses its deadline even when it starts at once."""
    running_late: tuple[int, ...] = ()
    """Runs already, and will miss its deadline."""
    never: dict[int, str] = field(default_factory=dict)
    """Is not planned, whatever the amount, and why."""
    best_effort: tuple[int, ...] = ()
    """Has no deadline."""


class Trials:
    """Tries amounts of a pool, and remembers what came out.

    Parameters
    ----------
    request
        As a snapshot has it. Not changed.
    effort
        Deterministic limit of the planner for a quick plan (``Budget.work_limit``).
    most
        Time for that at most, in milliseconds.
    """

    def __init__(
        self,
        request: pb.PlanRequest,
        pool: Pool,
        *,
        effort: int,
        most: int = 20_000,
        seed: int = 0,
        told: Told = lambda text: None,
    ) -> None:
        self.pool, self._effort, self._most, self._seed, self._told = pool, effort, most, seed, told
        self._plans: dict[int, Trial] = {}
        self._bounds: dict[int, int] = {}
        whole = _plain(request)
        mine = _rows(whole, lambda k, work: work.state[k] != pb.PENDING or work.cluster_queue[k] in pool.queues)
        self.request = _only(whole, mine)
        self._original = mine
        self.plenty = _plenty(self.request, pool)
        self.cut = self._leave_out()
        self.lowest = self._lowest()
        self.due = tuple(k for k, due in enumerate(self.request.workloads.due_ms) if due and self._waits(k))
        """Rows of this request whose deadlines count."""

    # --- what is tried ---------------------------------------------------------------------------------------------

    def original(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Rows of the request that was given, for rows of the one that is tried."""
        return tuple(self._original[row] for row in rows)

    def try_plan(self, amount: int, enough: int = -1, effort: int = USUAL) -> Trial:
        """Plan with an amount, until no more than ``enough`` deadlines are missed, or it is proved that more must be.

        Parameters
        ----------
        effort
            :data:`QUICK`, :data:`USUAL` or :data:`HARD`.

        Raises
        ------
        BadPlan
            If the verifier does not accept the plan.
        """
        known = self._plans.get(amount)
        if known and (known.effort >= effort or known.missed <= max(enough, known.least)):
            return known
        request = self.pool.at(self.request, amount)
        problem = decode(request)
        lost = self._lost(problem)
        least = self.least(amount)
        budget = pb.Budget(wall_ms=self._most * effort, work_limit=self._effort * effort)
        if effort == QUICK and len(problem) > SMALL:
            request.policy.engine = pb.SEARCH
        elif effort > QUICK and CP_SAT_ROWS < len(problem) <= MOST_ROWS and (problem.release > 0).mean() > ARRIVING:
            # Search does not look ahead to what is yet to come; CP-SAT does.
            request.policy.engine, effort = pb.CP_SAT, HARD
            budget = pb.Budget(wall_ms=HARD * self._most, work_limit=len(problem) * self._effort // EACH)
        self._told(f"{self.pool.flavor_name}: planning with {amount} {self.pool.resource_name} ...")
        best: Plan | None = None
        for plan in plans(problem, request.policy, budget, self._seed):
            best, missed = plan, round(plan.objective.late_weight) + len(lost)
            least = max(least, round(plan.bound) + len(lost))
            if missed <= max(enough, least) or (enough >= 0 and least > enough):
                break
        assert best is not None  # there always is one
        response = encode(problem, best, request.policy)
        if violations := verify(request, response.plan, response.objective):
            raise BadPlan(violations[0].message)
        ends = best.start + problem.length(best.option)
        rows = tuple(sorted([*lost, *problem.row[ends > problem.due].tolist()]))
        self._bounds[amount] = least
        trial = Trial(amount, len(rows), least, rows, best, problem, effort)
        if known is None or trial.missed <= known.missed:
            self._plans[amount] = trial
        return self._plans[amount]

    def known(self) -> list[Trial]:
        """All that was tried."""
        return list(self._plans.values())

    def least(self, amount: int) -> int:
        """How many deadlines are missed at least, as far as can be told quickly."""
        if amount not in self._bounds:
            self._told(f"{self.pool.flavor_name}: proving what {amount} {self.pool.resource_name} cannot do ...")
            self._bounds[amount] = self._least(self.pool.at(self.request, amount))
        return self._bounds[amount]

    def least_of(self, rows: Sequence[int], amount: int) -> int:
        """The same when of the rows whose deadlines count only some are there."""
        kept = {*rows}
        others = {*self.due} - kept
        request = _only(self.request, [k for k in range(len(self.request.workloads.id)) if k not in others])
        return self._least(self.pool.at(request, amount))

    def _least(self, request: pb.PlanRequest) -> int:
        problem = decode(request)
        return least_late(Scheduler(problem)) + len(self._lost(problem, request))

    def at_once(self) -> int:
        """The least amount with which everything starts as soon as it does with plenty: nobody waits for this pool."""

        def starts(amount: int) -> tuple[int, ...]:
            problem = decode(self.pool.at(self.request, amount))
            start = dict(zip(problem.row.tolist(), _at_once(problem).tolist(), strict=True))
            return tuple(start.get(row, -1) for row in range(len(self.request.workloads.id)))

        soonest = starts(self.plenty)
        low, high = self.lowest.amount, self.plenty
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if starts(middle) == soonest else (middle + 1, high)
        return high

    # --- what is left out ------------------------------------------------------------------------------------------

    def _waits(self, row: int) -> bool:
        return self.request.workloads.state[row] != pb.RUNNING

    def _lost(self, problem: Problem, request: pb.PlanRequest | None = None) -> list[int]:
        """Rows with a deadline that cannot be planned with this amount."""
        work = (request or self.request).workloads
        return [
            rejected.row
            for rejected in problem.rejected
            if work.due_ms[rejected.row] and work.state[rejected.row] != pb.RUNNING
        ]

    def _leave_out(self) -> Cut:
        """Cut the request to what decides, and say what went."""
        request = self.request
        work = request.workloads
        mine = [position in self.pool.queues for position in work.cluster_queue]
        work.due_ms[:] = [due if ours else 0 for due, ours in zip(work.due_ms, mine, strict=True)]
        problem = decode(self.pool.at(request, self.plenty))
        scheduler = Scheduler(problem)
        never = {rejected.row: rejected.message for rejected in problem.rejected if self._waits(rejected.row)}
        late = certain(scheduler)[0]
        late |= (problem.due < NEVER) & (problem.release + problem.shortest > problem.due)
        touched = _touched(scheduler, decode(request), self.pool)
        too_short = problem.row[late & touched].tolist()
        elsewhere = problem.row[~touched].tolist()
        running = [k for k in range(len(work.id)) if not self._waits(k) and work.due_ms[k]]
        overrun = [k for k in running if request.now_ms + work.duration_ms[k] > work.due_ms[k]]
        waits = [k for k in problem.row[touched].tolist() if mine[k] and not work.due_ms[k]]
        cut = Cut(
            too_short=self.original(too_short),
            running_late=self.original([k for k in overrun if self.pool.held_by(request, k)]),
            never={self._original[k]: why for k, why in never.items() if mine[k] and self.pool.asked_by(request, k)},
            best_effort=self.original(waits),
        )
        gone = {k for k in (*too_short, *elsewhere) if work.state[k] == pb.PENDING} | {*never}
        for k in (*too_short, *elsewhere, *running):
            work.due_ms[k] = 0
        # Until the lowest amount is known, work without a deadline is needed: all of it must have room to run at all.
        self._keep([k for k in range(len(work.id)) if k not in gone])
        return cut

    def _keep(self, rows: list[int]) -> None:
        self._original = list(self.original(rows))
        self.request = _only(self.request, rows)

    def _lowest(self) -> Lowest:
        """What there must be so that running work has its quota and everything fits that is ever to run."""
        plenty = decode(self.pool.at(self.request, self.plenty))
        held = max(0, peak(plenty, self.pool) - self.pool.elsewhere)
        low, high = held, self.plenty
        while low < high:
            middle = (low + high) // 2
            if any(self._waits(r.row) for r in decode(self.pool.at(self.request, middle)).rejected):
                low = middle + 1
            else:
                high = middle
        largest: list[int] = []
        if low > held:
            rejected = decode(self.pool.at(self.request, low - 1)).rejected
            largest = [each.row for each in rejected if self._waits(each.row)]
        result = Lowest(low, held, self.original(largest))
        work = self.request.workloads
        self._keep([k for k in range(len(work.id)) if work.due_ms[k] or work.state[k] != pb.PENDING])
        return result


@dataclass(frozen=True)
class Lowest:
    """The amount below which it makes no sense to go."""

    amount: int
    held: int
    """The most that is in use, or kept free, already."""
    largest: tuple[int, ...]
    """Rows of the request that need more than what is held, each by itself."""


def peak(problem: Problem, pool: Pool, plan: Plan | None = None) -> int:
    """The most of a pool's flavor and resource in use at once: what is held already, and what a plan adds."""
    _, changes = use(problem, pool, plan)
    return -(-int(np.cumsum(changes).max(initial=0)) // pool.unit)


def use(problem: Problem, pool: Pool, plan: Plan | None) -> tuple[Int64s, Int64s]:
    """Changes of what is in use of a pool, in order of time; at one instant what ends comes first."""
    cell = problem.tree.cell(pool.flavor, pool.resource)
    nodes = problem.tree.queue_node[sorted(pool.queues)]
    busy = problem.busy
    mine = (busy.cell == cell) & (problem.tree.root[busy.node] == problem.tree.root[nodes[0]])
    amount, start, end = busy.amount[mine], np.maximum(0, busy.start[mine]), busy.end[mine]
    if plan is not None and len(problem):
        takes = taken(problem, cell)[plan.option]
        takes[~np.isin(problem.options.node[problem.pair], nodes)] = 0
        amount = np.concatenate([amount, takes])
        start = np.concatenate([start, plan.start])
        end = np.concatenate([end, plan.start + problem.length(plan.option)])
    times, changes = np.concatenate([end, start]), np.concatenate([-amount, amount])
    order = np.argsort(times, kind="stable")
    return times[order], changes[order]


def taken(problem: Problem, cell: int) -> Int64s:
    """What each option takes of a cell: ``int64 [options]``."""
    result = np.zeros(len(problem.options.need) - 1, dtype=np.int64)
    option = np.repeat(np.arange(len(result)), np.diff(problem.options.need))
    here = problem.options.cell == cell
    np.add.at(result, option[here], problem.options.amount[here])
    return result


def _at_once(problem: Problem) -> Int64s:
    """When each row starts if Kueue starts them in order of arrival."""
    scheduler = Scheduler(problem)
    order = np.lexsort((np.arange(len(problem)), problem.created, problem.release))
    fixed = scheduler.fixed.start
    return np.where(fixed >= 0, fixed, scheduler.exactly(order[fixed[order] < 0]).start)


def _touched(scheduler: Scheduler, today: Problem, pool: Pool) -> Bools:
    """Rows that could be in the pool, or share something that may run short with one that could, and so on: ``[n]``.

    Parameters
    ----------
    scheduler
        With plenty of the pool.
    today
        The problem as it is today.
    """
    problem = scheduler.problem
    options, tree = problem.options, problem.tree
    mine = tree.cell(pool.flavor, pool.resource)
    slots = np.concatenate([scheduler.compact.slot_of, Scheduler(today).compact.slot_of])
    short = np.logical_or.reduce(slots >= 0, axis=0)
    short[mine] = True
    pair_of_option = np.repeat(np.arange(len(options.node)), np.diff(options.first))
    uses = np.zeros((len(options.node), tree.cells), dtype=np.bool_)
    uses[np.repeat(pair_of_option, np.diff(options.need)), options.cell] = True
    uses &= short
    uses[~np.isin(options.node, tree.queue_node[sorted(pool.queues)])] = False
    pairs = uses[:, mine]
    while (grown := pairs | uses[:, uses[pairs].any(axis=0)].any(axis=1)).sum() > pairs.sum():
        pairs = grown
    result: Bools = pairs[problem.pair]
    return result


def _plain(request: pb.PlanRequest) -> pb.PlanRequest:
    """Each deadline counts one, all pods are needed, and nothing else counts."""
    plain = pb.PlanRequest()
    plain.CopyFrom(request)
    plain.ClearField("previous")
    plain.ClearField("horizon_ms")
    plain.policy.CopyFrom(pb.Policy(objective=[pb.LATE_WEIGHT], preemption=request.policy.preemption))
    work = plain.workloads
    n = len(work.id)
    for name in ("cluster_queue", "state", "due_ms"):
        column = getattr(work, name)
        if not column:
            column.extend([0] * n)
    work.weight[:] = [1.0] * n
    for shape in plain.shapes:
        for pod_set in shape.pod_sets:
            pod_set.min_count = 0
    return plain


def _rows(request: pb.PlanRequest, wanted: Callable[[int, pb.Workloads], bool]) -> list[int]:
    work = request.workloads
    return [k for k in range(len(work.id)) if wanted(k, work)]


def _only(request: pb.PlanRequest, rows: Sequence[int]) -> pb.PlanRequest:
    """The request with some of its rows."""
    work = request.workloads
    if len(rows) == len(work.id):
        return request
    cut = pb.PlanRequest()
    cut.CopyFrom(request)
    for name in _COLUMNS:
        column = getattr(cut.workloads, name)
        if column:
            column[:] = [column[k] for k in rows]
    return cut


def _plenty(request: pb.PlanRequest, pool: Pool) -> int:
    """More than everything together could use, and so much that each queue's share is."""
    wanted = [
        sum(
            pod_set.count * amount
            for pod_set in shape.pod_sets
            for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True)
            if resource == pool.resource
        )
        for shape in request.shapes
    ]
    work = request.workloads
    asked = sum(wanted[work.shape[k] if work.shape else 0] for k in range(len(work.id)) if wanted)
    asked += sum(
        a
        for held in request.assignments
        for r, a in zip(held.resources, held.amounts, strict=True)
        if r == pool.resource
    )
    asked += sum(kept.amount for kept in request.reservations if kept.resource == pool.resource)
    needed = max(pool.now, -(-asked // pool.unit))
    if not pool.limited:
        return needed
    least = min(share for share in pool.shares if share)
    return max(needed, -(-needed * sum(pool.shares) // least) + len(pool.shares))
