"""The first cause: timing. The same work on the same quota, as it was (or in Kueue's order), and with planning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.capacity_bound import least_late
from advisor.capacity_past import end_of
from advisor.capacity_trials import BadPlan, Told
from scheduler.ledger_entry import Entry
from scheduler.settings import Settings
from scheduler.shadow import PastWork, Replay
from solver.api import planner_pb2 as pb
from solver.bound import certain
from solver.decode import decode
from solver.encode import encode
from solver.plan import Plan
from solver.planner import plans
from solver.problem import NEVER
from solver.schedule import Scheduler
from solver.verify import verify

MOST_REPLAYED = 3_000
"""Workloads of a past that are replayed at most."""


@dataclass(frozen=True)
class Timing:
    """Deadlines of a request, as rows of it.

    Attributes
    ----------
    due
        That can be met at all, each by itself.
    hopeless
        That cannot: too little time, or its work never fits.
    without
        Missed without planning: in fact, or in Kueue's own order.
    planned
        Missed by the best plan that was found, with the quota of today.
    least
        How many are missed by every plan, with that quota.
    replayed
        Missed when the past is replayed by plans that knew only what could be known; None: it was not.
    """

    due: frozenset[int]
    hopeless: frozenset[int]
    without: frozenset[int]
    planned: frozenset[int]
    least: int
    replayed: frozenset[int] | None = None

    @property
    def rescued(self) -> frozenset[int]:
        """Missed without planning, and met with it: without hindsight, if that is known."""
        return self.without - (self.planned if self.replayed is None else self.replayed)

    @property
    def surprised(self) -> bool:
        """Whether plans that know estimates only miss more than one that knows what was to come."""
        return self.replayed is not None and bool(self.replayed - self.planned)


def timing(
    request: pb.PlanRequest,
    missed: frozenset[int] | None = None,
    *,
    effort: int,
    seed: int = 0,
    told: Told = lambda text: None,
) -> Timing:
    """Compare.

    Parameters
    ----------
    request
        What waits and runs, or a past. Not changed.
    missed
        Rows that missed their deadlines in fact; None: nothing has happened yet, so Kueue's own order is taken.
    effort
        Deterministic limit of the planner.

    Raises
    ------
    advisor.capacity_trials.BadPlan
        If the plan does not pass the verifier.
    """
    told("timing: planning with the quota of today ...")
    asked = pb.PlanRequest()
    asked.CopyFrom(request)
    asked.ClearField("previous")
    asked.policy.CopyFrom(pb.Policy(objective=[pb.LATE_WEIGHT], preemption=request.policy.preemption))
    asked.workloads.weight[:] = [1.0] * len(asked.workloads.id)
    problem = decode(asked)
    scheduler = Scheduler(problem)
    alone = (problem.due < NEVER) & (problem.release + problem.shortest > problem.due)
    rejected = {each.row for each in problem.rejected if asked.workloads.state[each.row] != pb.RUNNING}
    hopeless = {k for k in {*problem.row[alone].tolist()} | rejected if asked.workloads.due_ms[k]}
    due = frozenset(problem.row[problem.due < NEVER].tolist()) - hopeless
    sure = int(certain(scheduler)[0].sum()) - int(alone.sum())
    least = max(sure, least_late(scheduler) - int(alone.sum()))
    best: Plan | None = None
    for plan in plans(problem, asked.policy, pb.Budget(work_limit=effort, wall_ms=60_000), seed):
        best = plan
        least = max(least, round(plan.bound) - int(alone.sum()))
        if round(plan.objective.late_weight) - int(alone.sum()) <= least:
            break
    assert best is not None  # there always is one
    response = encode(problem, best, asked.policy)
    if violations := verify(asked, response.plan, response.objective):
        raise BadPlan(violations[0].message)
    late = frozenset(problem.row[best.start + problem.length(best.option) > problem.due].tolist()) & due
    return Timing(
        due=due,
        hopeless=frozenset(hopeless),
        without=(_in_order(asked) if missed is None else missed) & due,
        planned=late,
        least=max(0, least),
    )


def _in_order(request: pb.PlanRequest) -> frozenset[int]:
    """Rows that would be late if Kueue started all waiting work in its own order, by priority and age."""
    order = pb.PlanRequest()
    order.CopyFrom(request)
    states = order.workloads.state
    states[:] = [pb.FOREIGN if state == pb.PENDING else state for state in states]
    problem = decode(order)
    fixed = Scheduler(problem).fixed
    late = np.flatnonzero(fixed.start + problem.length(fixed.option) > problem.due)
    return frozenset(problem.row[late].tolist())


def replayed(
    request: pb.PlanRequest, work: Sequence[PastWork], until: int, settings: Settings, told: Told
) -> frozenset[int] | None:
    """Rows of a past that would have been late with plans that knew estimates only, and nothing before it came.

    None if there is too much of it.

    Parameters
    ----------
    work
        Of the rows first, in their order; then what stays where it was.
    """
    if len(work) > MOST_REPLAYED:
        return None
    steps = 0

    def breath() -> None:
        nonlocal steps
        steps += 1
        if steps % 50 == 0:
            told(f"timing: replaying {len(work)} workloads, {steps} steps ...")

    course = Replay(request.quota, work, settings, request.now_ms, until, breath).planned()
    due = request.workloads.due_ms
    ends = [course.end.get(uid) for uid in request.workloads.id]
    return frozenset(
        row for row, (end, deadline) in enumerate(zip(ends, due, strict=True)) if deadline and (end or NEVER) > deadline
    )


def past_work(request: pb.PlanRequest, entries: Iterable[Entry], hide: Callable[[str], str] = str) -> list[PastWork]:
    """What :func:`replayed` needs: the rows of a past, in their order, then what stays where it was.

    Parameters
    ----------
    request
        Of :func:`advisor.capacity_past.past_question`.
    entries
        That it was made from.
    hide
        How the entries write names.
    """
    names = {hide(queue.name): queue.name for queue in request.quota.cluster_queues}
    work = request.workloads
    row_of = {uid: row for row, uid in enumerate(work.id)}
    rows: dict[int, PastWork] = {}
    others: list[PastWork] = []
    for entry in entries:
        queue, row = names.get(entry.family.cluster_queue), row_of.get(entry.uid)
        if queue is None or entry.started is None or not entry.usage:
            continue
        duration = end_of(entry) - entry.started
        past = PastWork(
            uid=entry.uid,
            cluster_queue=queue,
            submitted=entry.submitted,
            ours=row is not None,
            estimate=max(1, entry.estimate or duration),
            duration=max(1, duration),
            usage=entry.usage,
            deadline=work.due_ms[row] or None if row is not None else None,
            not_before=entry.earliest_start or 0,
            started=entry.started,
            ended=entry.ended,
        )
        if row is None:
            others.append(past)
        else:
            rows[row] = past
    return [*(rows[row] for row in sorted(rows)), *others]
