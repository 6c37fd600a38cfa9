"""What schedule generation costs: a million rows in time buckets, beside a plain scan of the same buckets.

Both place the same rows in the same order with the same arithmetic of the quota tree and must find the same starts. The
plain scan looks for each row from its release on, from the end of the row backwards to the last bucket in the way, as
one would write it at first; the planner's kernel (:mod:`solver.buckets`) remembers lower bounds from row to row.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from solver.api import planner_pb2 as pb
from solver.buckets import Hints, Rows, make_hints, make_use, place
from solver.decode import decode
from solver.problem import NEVER
from solver.quota import UNLIMITED, Int32s, Int64s
from solver.schedule import never_stop
from solver.slots import Needs, Slots, compact

NOW = 1_790_000_000_000
MINUTE = 60_000
FLAVORS = ("h200", "h100", "a100", "l40s")
GPUS = (1, 2, 4, 8, 16)
DIVISIONS, TEAMS, QUEUES = 4, 20, 200
ROWS_PER_PAIR = 10
"""Rows of the request that quota is made of, for 100,000: enough that all quota can run short."""


class Case(NamedTuple):
    """One size, and its bar."""

    rows: int
    tree: bool
    buckets: int
    times: float
    """Bar: so many times as fast as the plain scan."""
    wanted_s: float
    """Target; the machine decides, so it is no bar."""


CASES = {
    "100k tree": Case(100_000, True, 1_024, 3.0, 0.1),
    "1M flat": Case(1_000_000, False, 4_096, 4.0, 0.3),
    "1M tree": Case(1_000_000, True, 1_024, 4.0, 1.0),
}
"""By name, in the order in which they run."""

MOST_MIB = 500
"""Bar: memory of the whole process at its peak."""


class Work(NamedTuple):
    """All that schedule generation needs."""

    slots: Slots
    needs: Needs
    hints: Hints
    rows: Rows
    edge: Int64s
    use: Int64s
    order: Int64s


def request(tree: bool, rows: int, seed: int) -> pb.PlanRequest:
    """Quota for so many rows, and some rows of each (ClusterQueue, shape).

    * Tree: 200 ClusterQueues in 20 team cohorts, in 4 division cohorts, under one root. Each has 8 to 64 GPUs of each
      of 4 flavors for 100,000 rows; a third may borrow as much again at most, a third lend half at most. A shape may
      run on 2 to 4 flavors.
    * Flat: one ClusterQueue with 6,000 GPUs of one flavor for 100,000 rows.

    More rows have more quota: the work takes about two days (flat: a week) in all, and a row lasts for some tens of
    buckets. (With less quota the plain scan goes through long stretches that are full, and falls behind without end.)
    """
    scale = max(1, rows // 100_000)
    rng = np.random.default_rng(seed)
    asked = pb.PlanRequest(schema=1, now_ms=NOW)
    quota = asked.quota
    quota.resources.append("nvidia.com/gpu")
    for name in FLAVORS[: 4 if tree else 1]:
        quota.flavors.add(name=name)
    if tree:
        quota.cohorts.add(name="org")
        for k in range(DIVISIONS):
            quota.cohorts.add(name=f"division-{k}", parent="org")
        for k in range(TEAMS):
            quota.cohorts.add(name=f"team-{k}", parent=f"division-{k % DIVISIONS}")
    for k in range(QUEUES if tree else 1):
        queue = quota.cluster_queues.add(name=f"queue-{k}", cohort=f"team-{k % TEAMS}" if tree else "")
        group = queue.resource_groups.add(covered_resources=[0])
        for flavor in range(len(quota.flavors)):
            gpus = scale * (int(rng.integers(1, 9)) * 8 if tree else 6_000)
            amount = group.flavors.add(flavor=flavor).resources.add(resource=0, nominal=gpus)
            if tree and k % 3 == 1:
                amount.borrowing_limit = gpus
            if tree and k % 3 == 2:
                amount.lending_limit = gpus // 2
    for gpus in GPUS:
        pods = asked.shapes.add().pod_sets.add(count=gpus, resources=[0], amounts=[1])
        if tree:
            excluded = rng.choice(len(FLAVORS), size=int(rng.integers(0, 3)), replace=False)
            pods.excluded_flavors.extend(sorted(excluded.tolist()))
    queues, pairs = len(quota.cluster_queues), len(quota.cluster_queues) * len(GPUS)
    n = pairs * ROWS_PER_PAIR * scale if tree else 10_000 * scale
    work = asked.workloads
    work.id.extend(f"job-{k}" for k in range(n))
    work.cluster_queue.extend((np.arange(n) % queues).tolist())
    work.shape.extend((np.arange(n) // queues % len(GPUS)).tolist())
    work.state.extend([pb.PENDING] * n)
    work.duration_ms.extend([MINUTE] * n)
    return asked


def make(case: Case, seed: int, some: int | None = None) -> Work:
    """A case's work, or some of its rows: log-normal run times (median 1 h, σ = 1), one in ten with a release date."""
    problem = decode(request(case.tree, case.rows, seed))
    slots, needs, held, *_ = compact(problem)
    rng = np.random.default_rng([seed, case.rows])
    n = case.rows if some is None else some
    pair = rng.integers(len(problem.options.node), size=n)
    duration = np.clip(rng.lognormal(np.log(60 * MINUTE), 1.0, size=n), MINUTE, 2_880 * MINUTE).astype(np.int64)
    gpus = problem.options.amount[problem.options.need[problem.options.first[pair]]]
    total = float(problem.tree.nominal.sum())
    # Half as long again as with all quota in use, because some queues have more to do than others.
    reach = 1.5 * float((gpus * duration).sum()) / total + 2 * float(duration.max())
    release = np.where(rng.random(n) < 0.1, rng.integers(1, max(2, int(reach / 10)), size=n), 0)
    edge = np.ceil(np.linspace(0, reach, case.buckets + 1)).astype(np.int64)
    nothing = np.full(n, -1, dtype=np.int32)
    rows = Rows(
        problem.options.first[pair], problem.options.first[pair + 1], release, duration, nothing,
        np.zeros(n, dtype=np.bool_),
    )  # fmt: skip
    hints = make_hints(needs, duration)
    return Work(slots, needs, hints, rows, edge, make_use(slots, held, edge), np.arange(n))


def quick(work: Work) -> tuple[Int32s, Int32s]:
    """Bucket and option of each row by the planner's kernel."""
    n = len(work.order)
    start, option = np.full(n, -1, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    place(
        work.slots, work.needs, work.hints, work.rows, work.edge, work.use.copy(), work.order,
        np.full(n, NEVER, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(work.hints.size, dtype=np.int32),
        start, option, never_stop(),
    )  # fmt: skip
    return start, option


def plain(work: Work) -> tuple[Int32s, Int32s]:
    """The same by a plain scan."""
    n = len(work.order)
    start, option = np.full(n, -1, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    _scan(work.slots, work.needs, work.rows, work.edge, work.use.copy(), work.order, start, option)
    return start, option


@njit(cache=True, nogil=True)
def _scan(
    slots: Slots,
    needs: Needs,
    rows: Rows,
    edge: Int64s,
    use: Int64s,
    order: Int64s,
    start: Int32s,
    option: Int32s,
) -> None:
    buckets = len(edge) - 1
    for row in order:
        earliest = np.searchsorted(edge, rows.release[row])
        best, chosen = buckets, -1
        for o in range(rows.first[row], rows.last[row]):
            length = rows.duration[row] + needs.lead[o]
            s = earliest
            while s < best:
                e = np.searchsorted(edge, edge[s] + length)
                if e > buckets:
                    break
                t = e - 1
                while t >= s and _has_room(slots, needs, use, o, t):
                    t -= 1
                if t < s:
                    best, chosen = s, o
                    break
                s = t + 1
        start[row], option[row] = best, chosen
        if chosen < 0:
            continue
        e = np.searchsorted(edge, edge[best] + rows.duration[row] + needs.lead[chosen])
        for k in range(needs.first[chosen], needs.first[chosen + 1]):
            for t in range(best, e):
                slot, amount = needs.slot[k], needs.amount[k]
                while slot >= 0 and amount > 0:
                    above = max(0, use[slot, t] - slots.local[slot])
                    use[slot, t] += amount
                    amount = max(0, use[slot, t] - slots.local[slot]) - above
                    slot = slots.up[slot]


@njit(cache=True, nogil=True, inline="always")
def _has_room(slots: Slots, needs: Needs, use: Int64s, option: int, t: int) -> bool:
    fits = True
    for k in range(needs.first[option], needs.first[option + 1]):
        private, limit, slot = 0, UNLIMITED, needs.slot[k]
        while slot >= 0:
            free = slots.local[slot] - use[slot, t]
            private += max(0, free)
            limit = min(limit, private + slots.cap[slot] + min(0, free))
            slot = slots.up[slot]
        fits = fits and needs.amount[k] <= max(0, limit)
    return fits


def measure(
    names: Sequence[str], runs: int, seed: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Seconds of both, medians of some runs, the first of which comes after one that compiles.

    Returns
    -------
    dict
        ``bench``; ``figures`` by case: ``seconds``, ``times`` (as fast as the plain scan), ``placed`` (part of the
        rows for which there was room), ``same starts``; ``reference``: the plain scan's seconds, and what is wanted;
        ``bars`` and whether all ``holds``.
    """
    figures: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    for name in names:
        case = CASES[name]
        progress(f"{name}: compiling")
        small = make(case, seed, 2_000)
        quick(small), plain(small)
        progress(f"{name}: making {case.rows:,} rows")
        work = make(case, seed)
        taken: dict[str, list[float]] = {"quick": [], "plain": []}
        for run in range(runs):
            progress(f"{name}: run {run + 1} of {runs}")
            begun = time.perf_counter()
            mine = quick(work)
            between = time.perf_counter()
            theirs = plain(work)
            taken["quick"].append(between - begun)
            taken["plain"].append(time.perf_counter() - between)
        figures[name] = {
            "seconds": statistics.median(taken["quick"]),
            # Each run's own ratio, because what else the machine does changes from run to run.
            "times": statistics.median(p / q for p, q in zip(taken["plain"], taken["quick"], strict=True)),
            "placed": float((mine[1] >= 0).mean()),
            "same starts": bool((mine[0] == theirs[0]).all() and (mine[1] == theirs[1]).all()),
        }
        reference[name] = {"plain scan": statistics.median(taken["plain"]), "wanted": case.wanted_s}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20)
    bars = {
        "times as fast": {
            "least": {name: CASES[name].times for name in names},
            "is": {name: told["times"] for name, told in figures.items()},
        },
        "same starts": {
            "least": dict.fromkeys(names, True),
            "is": {name: told["same starts"] for name, told in figures.items()},
        },
        "peak MiB": {"most": MOST_MIB, "is": peak},
    }
    return {
        "bench": "kernel",
        "figures": figures,
        "reference": reference,
        "bars": bars,
        "holds": peak <= MOST_MIB
        and all(told["same starts"] and told["times"] >= CASES[name].times for name, told in figures.items()),
        "runs": runs,
        "seed": seed,
    }
