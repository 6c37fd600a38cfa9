"""What becomes of a plan when something changes: repaired at once, planned anew right behind; beside a plan made anew.

Two instances, those of the other benches: a backlog in one pool (:func:`benchmarks.backlog.instance`, load 1.1) and a
tree of 20 ClusterQueues with 4 flavors (:func:`benchmarks.rpc.instance`). For each a plan is made; then one thing at a
time changes (see :data:`EVENTS`), and the planner is asked once more with that plan in force.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import backlog, rpc
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.plan import Plan
from solver.planner import plan, plans, warm_up, warm_up_repair
from solver.previous import previous_plan
from solver.problem import Problem
from solver.schedule import Scheduler
from solver.steady import moved
from solver.verify import verify

HOUR = 3_600_000

INSTANCES: Mapping[str, Callable[[int, int], pb.PlanRequest]] = {
    "pool": lambda n, seed: backlog.instance(n, 1.1, seed),
    "tree": lambda n, seed: rpc.instance(n, seed).message(),
}

THRESHOLD = 0.1
"""Hours that a start that moves must bring: the policy's default."""

BEFORE_MS, AFTER_MS = 5_000, 1_000
"""Time for the plan in force, and for one after the event."""

RUNS = 5
"""Repairs of which the median is an event's time: this machine has other things to do, too."""

TARGET_MS = 5
MOST_LATE = 1.1
"""Bar: late weight a second after an event, in parts of a full plan's that has the same second."""


def _early(request: pb.PlanRequest, rng: np.random.Generator) -> None:
    request.workloads.duration_ms[int(rng.choice(_running(request)))] = 1


def _overrun(request: pb.PlanRequest, rng: np.random.Generator, count: int = 1) -> None:
    running = _running(request)
    for row in rng.choice(running, size=min(count, len(running)), replace=False).tolist():
        request.workloads.duration_ms[row] += int(rng.integers(HOUR, 6 * HOUR))


def _arrival(request: pb.PlanRequest, rng: np.random.Generator) -> None:
    """One more of a kind that is there, due soon."""
    work = request.workloads
    like = int(rng.integers(len(work.id) - len(_running(request))))
    duration = int(rng.integers(HOUR // 2, 4 * HOUR))
    for name, value in {
        "id": "arrival",
        "cluster_queue": work.cluster_queue[like],
        "shape": work.shape[like],
        "state": pb.PENDING,
        "created_ms": request.now_ms,
        "release_ms": 0,
        "duration_ms": duration,
        "due_ms": request.now_ms + 2 * duration,
        "hard": False,
        "weight": 4.0,
        "assignment": 0,
    }.items():
        column = getattr(work, name)
        if len(column):
            column.append(value)


def _quota_cut(request: pb.PlanRequest, rng: np.random.Generator) -> None:
    """A ClusterQueue loses half of its nominal quota."""
    queue = request.quota.cluster_queues[int(rng.integers(len(request.quota.cluster_queues)))]
    for offer in queue.resource_groups[0].flavors:
        for amount in offer.resources:
            amount.nominal //= 2


EVENTS: Mapping[str, Callable[[pb.PlanRequest, np.random.Generator], None]] = {
    "early end": _early,
    "overrun": _overrun,
    "10 overruns": lambda request, rng: _overrun(request, rng, 10),
    "arrival": _arrival,
    "quota cut": _quota_cut,
}
"""By name. Early end: running work ends now. Overrun: it goes on for 1 to 6 hours more than was expected. Arrival: new
work that is due when twice its run time has passed. Quota cut: half of a ClusterQueue's nominal quota is gone."""


def _running(request: pb.PlanRequest) -> list[int]:
    return [row for row, state in enumerate(request.workloads.state) if state == pb.RUNNING]


class Result(NamedTuple):
    """Of one event."""

    repair_ms: float
    """From a problem that has been read to a plan that is possible."""
    answer_ms: float
    """From a request to the first response: read, repaired, verified, written."""
    repaired: float
    """Late weight."""
    after: float
    """The same a second later."""
    anew: float
    """The same of a plan that was made anew in that second, with no plan in force."""
    repair_moves: int
    after_moves: int
    anew_moves: int
    bad: int
    """Plans that the verifier did not let pass."""


def solve(asked: pb.PlanRequest, before: pb.Plan, seed: int) -> Result:
    """What a planner makes of a changed request, given the plan for what it was before."""
    asked.previous.CopyFrom(
        pb.PreviousPlan(
            workload=before.workload,
            start_ms=before.start_ms,
            assignment=before.assignment,
            assignments=before.assignments,
        )
    )
    policy = asked.policy
    taken = []
    scheduler = Scheduler(decode(asked))
    for _ in range(RUNS):
        begun = time.perf_counter()
        previous_plan(scheduler, policy)
        taken.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    problem = decode(asked)
    repaired = previous_plan(Scheduler(problem), policy)
    assert repaired is not None  # there is a plan in force
    bad = _bad(asked, problem, repaired)
    answer = time.perf_counter() - begun

    *_, after = plans(problem, policy, pb.Budget(wall_ms=AFTER_MS), seed)
    bad += _bad(asked, problem, after)
    alone = pb.PlanRequest()
    alone.CopyFrom(asked)
    alone.ClearField("previous")
    anew = plan(decode(alone), policy, pb.Budget(wall_ms=AFTER_MS), seed)
    late = (repaired.objective.late_weight, after.objective.late_weight, anew.objective.late_weight)
    moves = (moved(problem, repaired), moved(problem, after), moved(problem, anew))
    return Result(1e3 * statistics.median(taken), 1e3 * answer, *late, *moves, bad)


def _bad(asked: pb.PlanRequest, problem: Problem, made: Plan) -> int:
    response = encode(problem, made, asked.policy)
    return int(bool(verify(asked, response.plan, response.objective)))


def measure(n: int, seed: int, events: int, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Repairs after each kind of event, ``events`` times on each instance of ``n`` pending workloads.

    Returns
    -------
    dict
        ``bench``; ``figures`` by kind of event: ``repair ms`` and ``first answer ms`` (``p50``, ``p95``), ``late
        weight`` (sums: ``repaired``, ``a second after``) and ``moved`` starts (means); ``reference``: the same of plans
        made anew, and the time that is wanted; ``bars`` and whether all of them hold.
    """
    warm_up()
    warm_up_repair()
    results: dict[str, list[Result]] = defaultdict(list)
    for name, make in INSTANCES.items():
        progress(f"{name}: the plan in force")
        base = make(n, seed)
        base.policy.CopyFrom(pb.Policy(stability_threshold=THRESHOLD))
        problem = decode(base)
        before = encode(problem, plan(problem, base.policy, pb.Budget(wall_ms=BEFORE_MS), seed), base.policy).plan
        rng = np.random.default_rng([seed, n])
        for kind, change in EVENTS.items():
            for k in range(events):
                progress(f"{name}: {kind}, {k + 1} of {events}")
                asked = pb.PlanRequest()
                asked.CopyFrom(base)
                change(asked, rng)
                results[kind].append(solve(asked, before, seed))
    every = [result for of_kind in results.values() for result in of_kind]
    ratios = {kind: _ratio([r.after for r in found], [r.anew for r in found]) for kind, found in results.items()}
    bad = sum(result.bad for result in every)
    return {
        "bench": "repair",
        "figures": {kind: _figures(found) for kind, found in [*results.items(), ("all", every)]},
        "reference": {
            "repair p95 ms wanted": TARGET_MS,
            "planned anew": {
                kind: {
                    "late weight": sum(r.anew for r in found),
                    "moved": statistics.mean(r.anew_moves for r in found),
                }
                for kind, found in [*results.items(), ("all", every)]
            },
        },
        "bars": {
            "plans over capacity": {"most": 0, "is": bad},
            "late weight a second after / planned anew": {"most": MOST_LATE, "is": ratios},
        },
        "holds": bad == 0 and all(ratio <= MOST_LATE for ratio in ratios.values()),
        "pending": n,
        "seed": seed,
        "events": events,
    }


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    return sum(mine) / sum(theirs) if sum(theirs) > 0 else 1.0 + sum(mine)


def _figures(found: Sequence[Result]) -> dict[str, Any]:
    def spread(values: Sequence[float]) -> dict[str, float]:
        p50, p95 = np.quantile(values, (0.5, 0.95)).tolist()
        return {"p50": p50, "p95": p95}

    return {
        "repair ms": spread([r.repair_ms for r in found]),
        "first answer ms": spread([r.answer_ms for r in found]),
        "late weight": {"repaired": sum(r.repaired for r in found), "a second after": sum(r.after for r in found)},
        "moved": {
            "repaired": statistics.mean(r.repair_moves for r in found),
            "a second after": statistics.mean(r.after_moves for r in found),
        },
    }
