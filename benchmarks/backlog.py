"""How much of a backlog is late: Punctual's plan beside thirteen priority rules, on the same random instances.

All orders go through one decoder, the planner's own (:class:`solver.schedule.Scheduler`): the rules get the same fast,
gap-filling schedules. See :func:`instance` for what is in a backlog.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.greedy import finish
from solver.plan import Plan
from solver.planner import plan, warm_up
from solver.problem import Problem
from solver.rules import RULES, Work
from solver.schedule import Scheduler

NOW = 1_790_000_000_000
HOUR = 3_600_000
POOL, QUEUES = 256, 10
GPUS, OFTEN = (1, 2, 4, 8, 16, 32), (0.35, 0.2, 0.15, 0.15, 0.1, 0.05)
WEIGHTS = (1.0, 2.0, 4.0, 8.0)

LOADS = (0.9, 1.1, 1.3)
"""Quota × time asked for until the end, in parts of what there is."""

LONG_ABOVE, SHORT_MS, LONG_MS = 2_000, 1_000, 5_000
"""Rows up to which Punctual gets the shorter time; both times."""

MOST = ((2_000, 0.5), (200, 0.6))
"""Bars, from so many rows on: Punctual's late weight in parts of the best rule's, each a mean over all instances."""


def instance(n: int, load: float, seed: int) -> pb.PlanRequest:
    """A backlog of ``n`` workloads that all have due dates.

    * 256 GPUs of one flavor in 10 ClusterQueues of one cohort. Each queue has a tenth of them (less what is left over)
      and may borrow until it has 20 to 60 % of the pool.
    * Half of the pool is busy: running work of 8 GPUs each, over within a quarter of the time until the end.
    * Each workload takes 1 to 32 GPUs (small ones are more frequent), for a log-normal time (median 1 h, σ = 1.2,
      1 minute to 2 days), and weighs 1, 2, 4 or 8.
    * The end is when the work would have kept the free part of the pool busy, divided by ``load``. Due dates are
      uniform from the earliest possible finish to the end, or to a twentieth of the duration behind it if later.
    """
    rng = np.random.default_rng([seed, n, round(load * 1000)])
    request = pb.PlanRequest(schema=1, now_ms=NOW, seed=seed)
    quota = request.quota
    quota.resources.append("gpu")
    quota.flavors.add(name="gpu")
    quota.cohorts.add(name="pool")
    own = POOL // QUEUES
    left = quota.cohorts[0].quotas.add(flavor=0).resources.add(resource=0)
    left.nominal = POOL - own * QUEUES
    for k in range(QUEUES):
        group = quota.cluster_queues.add(name=f"queue-{k}", cohort="pool").resource_groups.add(covered_resources=[0])
        amount = group.flavors.add(flavor=0).resources.add(resource=0, nominal=own)
        amount.borrowing_limit = int(rng.uniform(0.2, 0.6) * POOL) - own
    for gpus in GPUS:
        request.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[gpus])

    shape = rng.choice(len(GPUS), size=n, p=OFTEN)
    duration = np.clip(rng.lognormal(np.log(HOUR), 1.2, size=n), HOUR / 60, 48 * HOUR).astype(np.int64)
    energy = float((np.array(GPUS)[shape] * duration).sum())
    # Busy work takes a half for an eighth of the reach on average, so reach × POOL × 15/16 is what there is.
    reach = energy / (load * POOL * 15 / 16)
    due = duration + rng.uniform(size=n) * np.maximum(duration / 20, reach - duration)
    work = request.workloads
    running = POOL // 2 // 8
    work.id.extend([f"job-{k}" for k in range(n)] + [f"running-{k}" for k in range(running)])
    work.cluster_queue.extend([*rng.integers(QUEUES, size=n).tolist(), *(k % QUEUES for k in range(running))])
    work.shape.extend([*shape.tolist(), *[0] * running])
    work.state.extend([pb.PENDING] * n + [pb.RUNNING] * running)
    work.created_ms.extend((NOW - rng.integers(0, 12 * HOUR, size=n + running)).tolist())
    work.duration_ms.extend(duration.tolist())
    work.duration_ms.extend(rng.integers(1, max(2, int(reach / 4)), size=running).tolist())
    work.due_ms.extend((NOW + due.astype(np.int64)).tolist() + [0] * running)
    work.weight.extend(rng.choice(WEIGHTS, size=n).tolist() + [1.0] * running)
    work.assignment.extend([0] * (n + running))
    request.assignments.add(flavors=[0], resources=[0], amounts=[8])
    return request


def rules(scheduler: Scheduler) -> Iterator[Plan]:
    """Seven rules as they are, and six of them once more with what would be late put behind everything else."""
    work = Work(scheduler.problem, scheduler.ours)
    for name, rule in RULES.items():
        order = work.rows[np.lexsort((np.arange(len(work.rows)), rule(work)))]
        yield finish(scheduler, scheduler.schedule(order), name)
        if name != "fifo":
            yield finish(scheduler, scheduler.schedule(work.order(rule(work)), work.tail()), f"{name}, late last")


class Result(NamedTuple):
    """Of one instance; late weights in per cent of all weight."""

    rules: dict[str, float]
    punctual: float
    bound: float
    seconds: float
    """Until Punctual's plan was there."""
    engine: str


def solve(n: int, load: float, seed: int) -> Result:
    """One instance, with all rules and with Punctual."""
    problem = decode(instance(n, load, seed))
    late = {made.engine: _per_cent(problem, made.objective.late_weight) for made in rules(Scheduler(problem))}
    begun = time.perf_counter()
    best = plan(problem, budget=pb.Budget(wall_ms=LONG_MS if n > LONG_ABOVE else SHORT_MS), seed=seed)
    seconds = time.perf_counter() - begun
    return Result(
        late, _per_cent(problem, best.objective.late_weight), _per_cent(problem, best.bound), seconds, best.engine
    )


def _per_cent(problem: Problem, weight: float) -> float:
    return 100 * weight / float(problem.weight.sum())


def measure(
    sizes: Sequence[int], seeds: Sequence[int], progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Late weight in per cent, mean over seeds × loads, for several sizes.

    Returns
    -------
    dict
        ``bench``; ``figures`` by size: ``punctual``, ``bound``, ``gap``, ``seconds`` (median), ``engines`` (how often
        each made the plan); ``reference``: the rules by size, and the best of them, which is another one for each
        instance; ``bars`` and whether each ``holds``.
    """
    warm_up()
    figures: dict[str, dict[str, Any]] = {}
    reference: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    most: dict[str, float] = {}
    for n in sizes:
        results = []
        for seed in seeds:
            for load in LOADS:
                progress(f"{n:,} workloads, load {load}, seed {seed}")
                results.append(solve(n, load, seed))
        best = statistics.mean(min(r.rules.values()) for r in results)
        late = statistics.mean(r.punctual for r in results)
        bound = statistics.mean(r.bound for r in results)
        engines = [r.engine for r in results]
        figures[str(n)] = {
            "punctual": late,
            "bound": bound,
            "gap": late - bound,
            "seconds": statistics.median(r.seconds for r in results),
            "engines": {engine: engines.count(engine) for engine in sorted(set(engines))},
        }
        reference[str(n)] = {name: statistics.mean(r.rules[name] for r in results) for name in results[0].rules}
        reference[str(n)]["best rule of each instance"] = best
        for least, ratio in MOST:
            if n >= least:
                ratios[str(n)], most[str(n)] = (late / best if best > 0 else 0.0), ratio
                break
    return {
        "bench": "backlog",
        "figures": figures,
        "reference": reference,
        "bars": {"punctual / best rule": {"most": most, "is": ratios}},
        "holds": all(ratio <= most[n] for n, ratio in ratios.items()),
        "loads": list(LOADS),
        "seeds": list(seeds),
    }
