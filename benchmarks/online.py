"""Traces of real jobs, replayed as they came: Punctual's protection levels beside what others do.

Levels are learned on the first half of a trace (of Chronus, the first week) and the jobs of the second half count. The
whole trace is replayed under each policy, so the second half begins with the backlog that the policy itself has left;
beside it stand figures of the second half alone, begun with an empty pool. All jobs run in the end.

``lost`` is what bars speak about: the part of the jobs with a due date that are late, plus their part of the GPU-hours
of all jobs with a due date. EDF and least slack are at their best: of six variants (when work counts as hopeless, and
in which order hopeless work comes) the one that loses least on the very jobs that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from simulator.baselines import CONSERVATIVE, EASY, backfill
from simulator.online import Among, Order, Policy, replay, score
from simulator.traces import chronus, elasticflow, swf
from simulator.traces.table import packed
from simulator.traces.trace import Trace
from simulator.tune import HOPELESS, learned
from solver.protection import HOUR, Protection, Score
from solver.quota import Int64s

WEEK = 7 * 24 * HOUR

SIGMA = 0.5775
"""Estimates with noise are the true durations times a log-normal factor of this σ: 23 % are off by 2 × or more."""

DUE_DATES = 1
"""Seed of the due dates that are made for logs without any."""


def noisy(trace: Trace, seed: int) -> Int64s:
    """Estimates that are wrong, ``int64 [n]`` milliseconds."""
    factor = np.exp(SIGMA * np.random.default_rng(seed).standard_normal(len(trace)))
    return np.maximum(1, (trace.duration * factor).astype(np.int64))


@dataclass(frozen=True)
class Case:
    """A trace on a pool, cut in two."""

    trace: Trace
    capacity: int
    cut: int
    """Jobs of the first part."""

    @property
    def history(self) -> Trace:
        """The first part."""
        return self.trace.take(np.arange(self.cut))

    @property
    def rest(self) -> Trace:
        """The jobs that count."""
        return self.trace.take(np.arange(self.cut, len(self.trace)))


class Source(NamedTuple):
    """Where a case comes from, and what must hold; bars are parts of what EDF loses."""

    path: str
    make: Callable[[Path], Case]
    exact: float | None = None
    noise: float | None = None


def _chronus(path: Path) -> Case:
    trace = chronus.read(path)
    return Case(trace, trace.capacity, int(np.searchsorted(trace.submit, trace.submit[0] + WEEK)))


def _elasticflow(path: Path) -> Case:
    """Jobs that could be on time, on as many GPUs as make a load of 1.05."""
    trace = elasticflow.read(path).feasible()
    capacity = max(int(trace.gpus.max()), round(trace.load(1) / 1.05))
    return Case(trace, capacity, len(trace) // 2)


def _swf(path: Path) -> Case:
    trace = swf.read(path)
    return Case(swf.with_due_dates(trace, DUE_DATES), trace.capacity, len(trace) // 2)


SOURCES = {
    "SLO": Source("chronus-philly/trace_job_Philly_SLO.csv", _chronus, 0.68, 0.87),
    "MIX1": Source("chronus-philly/trace_job_Philly_MIX1.csv", _chronus, 0.25, 0.27),
    "EF04": Source("elasticflow/cluster04.csv", _elasticflow, 0.85, 0.70),
    "EF03": Source("elasticflow/cluster03.csv", _elasticflow, 1.03),
    "KTH": Source("swf/KTH-SP2-1996-2.1-cln.swf", _swf, 0.85),
    "EF02": Source("elasticflow/cluster02.csv", _elasticflow),
    "EF07": Source("elasticflow/cluster07.csv", _elasticflow),
    "EF08": Source("elasticflow/cluster08.csv", _elasticflow),
    "HPC2N": Source("swf/HPC2N-2002-alea-excerpt.swf", _swf),
}
"""By name. Those without bars were looked at only when all else was settled."""

BARRED = tuple(name for name, source in SOURCES.items() if source.exact is not None)

WAITS = (1.0, 4.0)
"""Bars on the waits of best effort, median and 95th percentile, in parts of those under EDF; with true durations."""


def load(data: Path, name: str) -> Case:
    """A case from a folder of public data, where files may be gzipped.

    Raises
    ------
    TraceError
        When its file is missing or broken.
    """
    path = data / SOURCES[name].path
    return SOURCES[name].make(packed(path))


class Run(NamedTuple):
    """One policy on one case."""

    warm: Score
    """Of the jobs that count, when the whole trace is replayed."""
    empty: Score
    """Of the same jobs alone, from an empty pool."""
    longest: float
    """Hours that a job that counts waited at most, best effort and late work included."""

    def to_json(self) -> dict[str, float]:
        """For machines."""
        return {
            "missed": self.warm.missed,
            "missed GPU-hours": self.warm.missed_energy,
            "lost": self.warm.lost,
            "best-effort wait, median min": self.warm.wait_median,
            "best-effort wait, p95 min": self.warm.wait_p95,
            "longest wait, h": self.longest,
            "lost, from an empty pool": self.empty.lost,
        }


def _run(case: Case, estimate: Int64s, starts: Callable[[Trace, Int64s], Int64s]) -> Run:
    counts = np.arange(len(case.trace)) >= case.cut
    start = starts(case.trace, estimate)
    rest = case.rest
    return Run(
        score(case.trace, start, counts),
        score(rest, starts(rest, estimate[counts])),
        float((start - case.trace.submit)[counts].max() / HOUR),
    )


def _replayed(case: Case, estimate: Int64s, policy: Policy) -> Run:
    return _run(case, estimate, lambda trace, believed: replay(trace, case.capacity, policy, believed))


def _best(case: Case, estimate: Int64s, order: Order) -> Run:
    """A rule at its best, separately for both ways to begin."""
    runs = [_replayed(case, estimate, Policy(order, hopeless, among)) for hopeless in HOPELESS for among in Among]
    best = min(runs, key=lambda run: run.warm.lost)
    return best._replace(empty=min((run.empty for run in runs), key=lambda told: told.lost))


def baselines(case: Case, estimate: Int64s) -> Iterator[tuple[str, Run]]:
    """What others do."""
    yield "FIFO", _replayed(case, estimate, Policy(Order.FIFO))
    yield "EASY", _run(case, estimate, lambda trace, believed: backfill(trace, case.capacity, EASY, believed))
    yield (
        "conservative",
        _run(case, estimate, lambda trace, believed: backfill(trace, case.capacity, CONSERVATIVE, believed)),
    )
    yield "least slack", _best(case, estimate, Order.LEAST_SLACK)
    yield "EDF", _best(case, estimate, Order.EDF)


def protected(case: Case, estimate: Int64s) -> tuple[Run, Protection]:
    """Punctual's levels, learned on the first part with the same kind of estimates."""
    found = learned(case.history, case.capacity, estimate[: case.cut])
    return _replayed(case, estimate, Policy(Order.PROTECTED, protection=found)), found


def _mean(runs: Sequence[Run]) -> dict[str, float]:
    """Means over runs; of the longest wait the longest."""
    told = [run.to_json() for run in runs]
    return {key: (max if key.startswith("longest") else mean)(t[key] for t in told) for key in told[0]}


def measure(
    data: Path, names: Sequence[str], seeds: Sequence[int], progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Replay traces and compare.

    Parameters
    ----------
    data
        A folder of public data.
    names
        Of :data:`SOURCES`.
    seeds
        Of the noise on estimates; none to leave it out.

    Returns
    -------
    dict
        ``bench``; ``figures`` and ``reference`` by trace: Punctual's and those of the others, with ``exact`` estimates
        (of logs: the users') and ``noise`` (means over seeds); ``bars`` and whether all ``holds``.

    Raises
    ------
    TraceError
        When a file is missing or broken.
    """
    figures: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    bars: dict[str, dict[str, dict[str, float]]] = {}

    def bar(what: str, name: str, most: float, value: float) -> None:
        entry = bars.setdefault(what, {"most": {}, "is": {}})
        entry["most"][name], entry["is"][name] = most, value

    cases = {}
    for name in names:
        progress(f"{name}: reading")
        cases[name] = load(data, name)
    for name, case in cases.items():
        source = SOURCES[name]
        estimate = case.trace.estimate
        progress(f"{name}: baselines")
        others = dict(baselines(case, estimate))
        progress(f"{name}: learning")
        ours, levels = protected(case, estimate)
        figures[name] = {
            "jobs": len(case.trace),
            "that count": len(case.trace) - case.cut,
            "GPUs": case.capacity,
            "load": case.trace.load(case.capacity),
            "exact": ours.to_json(),
            "levels": levels._asdict(),
        }
        reference[name] = {"exact": {policy: run.to_json() for policy, run in others.items()}}
        edf = others["EDF"].warm
        if source.exact is not None:
            bar("lost / EDF", name, source.exact, ours.warm.lost / edf.lost)
        if source.exact is not None and edf.wait_median > 0:
            bar("best-effort median wait / EDF", name, WAITS[0], ours.warm.wait_median / edf.wait_median)
            bar("best-effort p95 wait / EDF", name, WAITS[1], ours.warm.wait_p95 / edf.wait_p95)
        if source.noise is None:
            continue
        runs, edfs = [], []
        for seed in seeds:
            progress(f"{name}: noise, seed {seed}")
            believed = noisy(case.trace, seed)
            edfs.append(_best(case, believed, Order.EDF))
            runs.append(protected(case, believed)[0])
        if runs:
            figures[name]["noise"], reference[name]["noise"] = _mean(runs), {"EDF": _mean(edfs)}
            bar("lost / EDF, noise", name, source.noise, figures[name]["noise"]["lost"] / _mean(edfs)["lost"])
    return {
        "bench": "online",
        "figures": figures,
        "reference": reference,
        "bars": bars,
        "holds": all(value <= entry["most"][name] for entry in bars.values() for name, value in entry["is"].items()),
        "seeds": list(seeds),
    }
