"""Public instances with known optima: one machine, all jobs there from the start, minimise Σ weight × tardiness.

The wt40, wt50 and wt100 of the OR-Library (Crauwels, Potts and Van Wassenhove 1998). To Punctual each is a ClusterQueue
with one GPU and as many workloads of one GPU, with nothing but tardiness to make small: nothing here, and nothing in
the search, knows that there is a single machine. A unit of time is an hour, so that the plan's tardiness is the value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simulator.traces.table import TraceError, packed, rows
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.planner import plan, warm_up

NOW = 1_790_000_000_000
HOUR = 3_600_000

LIMITS_MS = {"wt40": 2_000, "wt50": 5_000, "wt100": 10_000}
"""Sets, and the wall clock for each instance."""

LEAST = {"wt40": 1.0, "wt50": 0.98, "wt100": 0.85}
"""Bars: the part of the instances on which the best known value must be found."""

MOST_GAP = 0.1
"""Bar: per cent above the best known value on any instance. (Where that is 0, anything above 0 counts as 100 %.)"""


class Job(NamedTuple):
    """One job of an instance."""

    duration: int
    weight: int
    due: int


class Instance(NamedTuple):
    """One instance and the best value known."""

    number: int
    jobs: tuple[Job, ...]
    best: int


def read(folder: Path) -> dict[str, list[Instance]]:
    """Instances by set: ``instances.csv`` and ``best_known.csv``, which may be gzipped.

    Raises
    ------
    TraceError
        When a file is missing or broken.
    """
    jobs: dict[tuple[str, int], list[Job]] = {}
    for row in rows(packed(folder / "instances.csv"), ("set", "instance", "p", "w", "d")):
        key = row.text("set"), row.whole("instance", least=1)
        job = Job(row.whole("p", least=1), row.whole("w", least=0), row.whole("d", least=0))
        jobs.setdefault(key, []).append(job)
    found: dict[str, list[Instance]] = {}
    for row in rows(packed(folder / "best_known.csv"), ("set", "instance", "value")):
        key = row.text("set"), row.whole("instance", least=1)
        if key not in jobs:
            raise row.error(f"no instance {key[1]} of {key[0]} in instances.csv")
        found.setdefault(key[0], []).append(Instance(key[1], tuple(jobs[key]), row.whole("value", least=0)))
    if missing := [name for name in LIMITS_MS if name not in found]:
        raise TraceError(f"{folder}: no instances of {', '.join(missing)}")
    return found


def request(jobs: Sequence[Job]) -> pb.PlanRequest:
    """An instance as a request of the contract."""
    asked = pb.PlanRequest(schema=1, now_ms=NOW)
    asked.quota.resources.append("gpu")
    asked.quota.flavors.add(name="gpu")
    group = asked.quota.cluster_queues.add(name="machine").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=1)
    asked.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[1])
    work = asked.workloads
    work.id.extend(f"job-{k}" for k in range(len(jobs)))
    work.state.extend([pb.PENDING] * len(jobs))
    work.duration_ms.extend(job.duration * HOUR for job in jobs)
    work.due_ms.extend(NOW + job.due * HOUR for job in jobs)
    work.weight.extend(float(job.weight) for job in jobs)
    return asked


def solve(instance: Instance, wall_ms: int, seed: int) -> tuple[int, float]:
    """Value found, and the seconds it took."""
    problem = decode(request(instance.jobs))
    begun = time.perf_counter()
    policy = pb.Policy(objective=[pb.TARDINESS], engine=pb.SEARCH)
    best = plan(problem, policy, pb.Budget(wall_ms=wall_ms), seed)
    return round(best.objective.tardiness), time.perf_counter() - begun


def measure(data: Path, count: int, seed: int = 0, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Solve some instances of each set.

    Parameters
    ----------
    data
        A folder of public data with ``weighted-tardiness`` in it.
    count
        Instances of each set, spread evenly over it.

    Returns
    -------
    dict
        ``bench``; ``figures`` by set: ``best known`` (part of the instances), ``gap`` (mean and most, per cent),
        ``seconds`` (median); ``reference``: how many instances; ``bars`` and whether all ``holds``.

    Raises
    ------
    TraceError
        When a file is missing or broken.
    """
    sets = read(data / "weighted-tardiness")
    warm_up()
    figures: dict[str, Any] = {}
    for name, wall_ms in LIMITS_MS.items():
        instances = sets[name]
        some = [instances[k * len(instances) // count] for k in range(min(count, len(instances)))]
        gaps, seconds = [], []
        for instance in some:
            progress(f"{name}, instance {instance.number}")
            value, took = solve(instance, wall_ms, seed)
            gaps.append(100.0 * (value - instance.best) / instance.best if instance.best else 100.0 * (value > 0))
            seconds.append(took)
        figures[name] = {
            "instances": len(some),
            "best known": sum(gap <= 0 for gap in gaps) / len(gaps),
            "mean gap": sum(gaps) / len(gaps),
            "most gap": max(gaps),
            "seconds": median(seconds),
        }
    bars = {
        "found the best known": {"least": LEAST, "is": {name: told["best known"] for name, told in figures.items()}},
        "gap, %": {
            "most": dict.fromkeys(figures, MOST_GAP),
            "is": {n: told["most gap"] for n, told in figures.items()},
        },
    }
    found = all(bars["found the best known"]["is"][name] >= least for name, least in LEAST.items())
    return {
        "bench": "wt",
        "figures": figures,
        "reference": {name: len(instances) for name, instances in sets.items()},
        "bars": bars,
        "holds": found and all(told["most gap"] <= MOST_GAP for told in figures.values()),
        "seed": seed,
    }
