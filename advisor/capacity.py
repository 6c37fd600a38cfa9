"""How much quota is needed: of each pool the least that meets the deadlines, and what it rests on.

The question is that of a planning request: what waits, what runs, what there is. See :mod:`advisor.capacity_pools` for
what is varied, :mod:`advisor.capacity_trials` for what counts, :mod:`advisor.capacity_search` for how it is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from advisor.capacity_pools import Pool, pools
from advisor.capacity_search import Least, least
from advisor.capacity_trials import Cut, Told, Trials, use
from scheduler.family import is_gpu
from solver.api import planner_pb2 as pb

EFFORT = 25
"""Work for a quick plan: about half a second for some hundred jobs."""

MOST_NAMES = 5
"""Jobs named in a sentence."""

HOUR = 3_600_000


@dataclass(frozen=True)
class Effort:
    """How hard plans and proofs are looked for."""

    work: int = EFFORT
    """Deterministic limit of the planner for a quick plan."""
    seed: int = 0


@dataclass(frozen=True)
class BestEffort:
    """Work without a deadline, which waits for the room that the others leave.

    Attributes
    ----------
    jobs
        That ask for something of the pool.
    hours
        What they ask for, in amount × hours.
    room
        What is left for them until the last deadline when there is as much as is needed, in amount × hours.
    """

    jobs: int
    hours: float
    room: float


@dataclass(frozen=True)
class Capacity:
    """The answer for one pool. Jobs are named as in ``names`` of :func:`capacity`.

    Attributes
    ----------
    at_once
        The least with which everything that counts starts as soon as it is there.
    held, lowest
        The most that is in use, or kept free, already; and the least with which every job can run at all.
    deadlines
        That count: of work that waits and could meet them with plenty of the pool, as far as that can be said for
        sure.
    now
        Deadlines that a plan meets with what there is today.
    span
        Milliseconds from now until the last of these deadlines.
    share
        Of the deadlines that can be met, how many were asked for.
    """

    pool: Pool
    least: Least
    at_once: int
    held: int
    lowest: int
    deadlines: int
    now: int
    span: int
    share: Fraction
    best_effort: BestEffort
    cut: Cut
    names: Mapping[int, str]
    """Of rows that are named."""

    @property
    def unit(self) -> str:
        """What is counted, in the plural."""
        return unit_of(self.pool.resource_name, 2)

    @property
    def where(self) -> str:
        """Which pool it is, in words."""
        return f"flavor {self.pool.flavor_name} of {self.pool.kind} {self.pool.name}"

    @property
    def short(self) -> bool:
        """Whether there is less than is needed."""
        return self.pool.now < self.least.needed

    def named(self, rows: Sequence[int]) -> list[str]:
        """Names of some rows."""
        return [self.names[row] for row in rows]


def capacity(
    request: pb.PlanRequest,
    names: Sequence[str],
    *,
    share: Fraction = Fraction(1),
    resource: str | None = None,
    queue: str | None = None,
    effort: Effort = Effort(),
    told: Told = lambda text: None,
) -> list[Capacity]:
    """What is needed of each pool that some work asks for.

    Parameters
    ----------
    request
        What waits, runs and is there, as a snapshot has it. Not changed.
    names
        Of each row.
    share
        Of the deadlines that can be met.
    resource, queue
        See :func:`advisor.capacity_pools.pools`.
    told
        Told what is being done.

    Raises
    ------
    advisor.capacity_pools.NoPool
        If there is no such pool.
    solver.invalid.InvalidRequest
        If the request makes no sense.
    advisor.capacity_trials.BadPlan
        If a plan does not pass the verifier.
    """
    return [
        _answer(Trials(request, pool, effort=effort.work, seed=effort.seed, told=told), request, names, share)
        for pool in pools(request.quota, resource, queue)
        if _asked(request, pool)
    ]


def unit_of(resource: str, count: int) -> str:
    """What a count of a resource is called."""
    if is_gpu(resource) and resource.endswith("/gpu"):
        return "GPU" if count == 1 else "GPUs"
    return {"cpu": "CPU" if count == 1 else "CPUs", "memory": "GiB of memory"}.get(resource, resource)


def prices_per_extra(answer: Capacity, price: float | None) -> list[float | None]:
    """What each further deadline met costs, at each point of the curve that meets more than the ones before it.

    It is the price of what is more than at the first point that meets as many as the one before, over the time from
    now until the last deadline, by the deadlines that are met in addition.

    Parameters
    ----------
    price
        Of one for an hour; None: not known.
    """
    curve = answer.least.curve
    result: list[float | None] = [None]
    level = curve[0]
    for last, point in pairwise(curve):
        level = level if level.met == last.met else last
        extra = point.met - level.met
        known = price is not None and extra > 0
        result.append((point.amount - level.amount) * (price or 0) * answer.span / HOUR / extra if known else None)
    return result


def _answer(trials: Trials, request: pb.PlanRequest, names: Sequence[str], share: Fraction) -> Capacity:
    found = least(trials, share)
    work = trials.request.workloads
    due = [work.due_ms[row] for row in trials.due]
    cut = trials.cut
    rows = {
        *found.sets_peak, *found.stuck, *cut.too_short, *cut.running_late, *cut.never, *trials.lowest.largest
    }  # fmt: skip
    span = max(due, default=request.now_ms) - request.now_ms
    return Capacity(
        pool=trials.pool,
        least=found,
        at_once=max(found.needed, trials.at_once()),
        held=trials.lowest.held,
        lowest=trials.lowest.amount,
        deadlines=len(trials.due),
        now=max((point.met for point in found.curve if point.amount <= trials.pool.now), default=0),
        span=span,
        share=share,
        best_effort=_best_effort(trials, request, found, span),
        cut=cut,
        names={row: names[row] for row in rows},
    )


def _asked(request: pb.PlanRequest, pool: Pool) -> bool:
    """Whether something in the pool's tree asks for it, or holds some."""
    work = request.workloads
    for row in range(len(work.id)):
        if (work.cluster_queue[row] if work.cluster_queue else 0) not in pool.queues:
            continue
        if (work.state[row] if work.state else pb.PENDING) == pb.RUNNING:
            if pool.held_by(request, row):
                return True
        elif pool.asked_by(request, row):
            return True
    return any((kept.flavor, kept.resource) == (pool.flavor, pool.resource) for kept in request.reservations)


def _best_effort(trials: Trials, request: pb.PlanRequest, found: Least, span: int) -> BestEffort:
    pool, durations = trials.pool, request.workloads.duration_ms
    asked = [(row, asks) for row in trials.cut.best_effort if (asks := pool.asked_by(request, row))]
    hours = sum(asks / pool.unit * durations[row] / HOUR for row, asks in asked)
    trial = trials.try_plan(found.needed)
    times, changes = use(trial.problem, pool, trial.plan)
    taken = np.cumsum(changes)[:-1] @ np.diff(np.minimum(times, span)) if len(times) else 0
    room = max(0.0, (found.needed + pool.elsewhere) * span - float(taken) / pool.unit) / HOUR
    return BestEffort(len(asked), round(hours, 2), round(room, 2))


def to_json(answer: Capacity, price: float | None) -> dict[str, Any]:
    """For machines."""
    found, pool, cut = answer.least, answer.pool, answer.cut
    return {
        "flavor": pool.flavor_name,
        "resource": pool.resource_name,
        "pool": {"kind": pool.kind, "name": pool.name},
        "gpusToday": pool.now,
        "gpusNeeded": found.needed,
        "gpusAtOnce": answer.at_once,
        "gpusHeld": answer.held,
        "proven": found.proven,
        "provenAtLeast": found.at_least,
        "deadlines": answer.deadlines,
        "deadlinesRequired": found.required,
        "deadlinesMetToday": answer.now,
        "setsPeak": answer.named(found.sets_peak),
        "curve": [
            {
                "gpus": point.amount,
                "met": point.met,
                "metAtMost": point.at_most,
                "pricePerExtraDeadline": extra,
            }
            for point, extra in zip(found.curve, prices_per_extra(answer, price), strict=True)
        ],
        "spanHours": answer.span / HOUR,
        "leftOut": {
            "tooShort": answer.named(cut.too_short),
            "runningLate": answer.named(cut.running_late),
            "stuck": answer.named(found.stuck),
            "neverFits": {answer.names[row]: message for row, message in cut.never.items()},
        },
        "withoutDeadline": {
            "jobs": answer.best_effort.jobs,
            "gpuHours": answer.best_effort.hours,
            "roomGpuHours": answer.best_effort.room,
        },
    }
