"""Fast replays: a trace on one pool, decided anew at each event, job after job in machine code.

Jobs are rigid and run to their end. Whenever one is submitted or ends, and every five minutes while any waits, a
policy says in which order the waiting jobs come, and which it holds back; then :func:`walk` starts what may start. Two
weeks of 30,000 jobs take about a tenth of a second.

``walk`` is the rule of :mod:`scheduler.dispatch` for one ClusterQueue with one flavor, nothing that Kueue has already
and nobody who has a planned start: there the arithmetic of quota comes to one number, what is free. The controller's
kernel itself is not called here, because it asks for each row what Kueue would choose, which costs microseconds; a
replay asks ten million times, and learning replays dozens of times. Instead the tests compare both on random queues
(``tests/simulator/test_online.py``).

EASY and conservative backfill, which make reservations by their own rules, are in :mod:`simulator.baselines`.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit

from simulator.traces.trace import Trace
from solver.problem import NEVER, Float64s, Int8s
from solver.protection import (
    LAST,
    MINUTE,
    NORMAL,
    Protection,
    Score,
    expected_end,
    key,
    level,
    off,
    turn_of,
)
from solver.quota import Bools, Int64s, inner

TICK = 5 * MINUTE
"""A decision at least so often while work waits: slack runs out without any event."""


class Order(IntEnum):
    """Which job comes first."""

    FIFO = 0
    EDF = 1
    LEAST_SLACK = 2
    PROTECTED = 3
    """As :mod:`solver.protection` says."""


class Among(IntEnum):
    """Which of the hopeless jobs comes first."""

    DUE = 0
    SUBMITTED = 1
    SHORTEST = 2


class Policy(NamedTuple):
    """What decides. Of :class:`Order` and :class:`Among`; hopeless work comes last, but with FIFO."""

    order: int
    hopeless: float = 1.0
    """A job is hopeless when it would be late even if it ran only this part of its estimate. (Not of PROTECTED, which
    has its own.)"""
    among: int = Among.SUBMITTED
    protection: Protection = off()


class Jobs(NamedTuple):
    """What kernels read of a trace: ``int64 [n]``, see :class:`~simulator.traces.trace.Trace`."""

    submit: Int64s
    duration: Int64s
    estimate: Int64s
    gpus: Int64s
    due: Int64s


def jobs(trace: Trace, estimate: Int64s | None = None) -> Jobs:
    """Columns of a trace, with other estimates if any are given."""
    return Jobs(trace.submit, trace.duration, trace.estimate if estimate is None else estimate, trace.gpus, trace.due)


def replay(trace: Trace, capacity: int, policy: Policy, estimate: Int64s | None = None) -> Int64s:
    """Start of each job, ``int64 [n]`` on the clock of the trace; all jobs run in the end.

    Parameters
    ----------
    capacity
        GPUs of the pool.
    estimate
        What the policy believes of the durations (``int64 [n]``, milliseconds) instead of the trace's estimates.

    Raises
    ------
    ValueError
        When a job is larger than the pool.
    """
    if len(trace) and int(trace.gpus.max()) > capacity:
        raise ValueError(f"{trace.name}: a job of {trace.gpus.max()} GPUs in a pool of {capacity}")
    return _replay(jobs(trace, estimate), capacity, _plain(policy))


def _plain(policy: Policy) -> Policy:
    """The same in the types that the kernel is compiled for: once, not for each mixture of them."""
    levels = policy.protection
    protection = Protection(
        share=float(levels.share),
        small=float(levels.small),
        large=float(levels.large),
        soon=int(levels.soon),
        fade=float(levels.fade),
        hopeless=float(levels.hopeless),
        behind=float(levels.behind),
        best_effort=float(levels.best_effort),
        ageing=int(levels.ageing),
    )
    return Policy(int(policy.order), float(policy.hopeless), int(policy.among), protection)


@njit(cache=True, nogil=True)
def walk(
    free: int, waiting: Int64s, jobs: Jobs, overtakes: bool, held: Bools, started: Int64s, left: Int64s
) -> tuple[int, int]:
    """Which of the waiting jobs start now, in their order; how many do, and how many are left.

    Parameters
    ----------
    waiting
        Jobs in the order of their turns, ``[m]``.
    overtakes
        Whether those behind one that does not start may.
    held
        ``[m]``
    started, left
        Filled in: the jobs that start, and the others, in order.
    """
    count, rest = 0, 0
    for k in range(len(waiting)):
        job = waiting[k]
        if jobs.gpus[job] <= free and not held[k] and (overtakes or rest == 0):
            free -= jobs.gpus[job]
            started[count] = job
            count += 1
        else:
            left[rest] = job
            rest += 1
    return count, rest


@njit(cache=True, nogil=True)
def _replay(jobs: Jobs, capacity: int, policy: Policy) -> Int64s:
    n = len(jobs.submit)
    start = np.full(n, -1, dtype=np.int64)
    waiting, started, left = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    turn, rank = np.zeros(n, np.int8), np.zeros(n)
    held = np.zeros(n, np.bool_)
    running = [(np.int64(0), np.int64(0)) for _ in range(0)]  # a heap of (end, job)
    free, coming, count = capacity, 0, 0
    now = jobs.submit[0] if n else np.int64(0)
    while coming < n or count > 0:
        while len(running) > 0 and running[0][0] <= now:
            free += jobs.gpus[heappop(running)[1]]
        while coming < n and jobs.submit[coming] <= now:
            waiting[count] = coming
            count, coming = count + 1, coming + 1
        if free > 0 and count > 0:
            _in_order(jobs, policy, now, waiting[:count], turn, rank)
            if policy.order == Order.PROTECTED:
                _hold(jobs, policy.protection, capacity, free, now, waiting[:count], turn, start, running, held)
                if len(running) == 0:
                    held[0] = False  # an empty pool waits for nobody
            going, count = walk(free, waiting[:count], jobs, policy.order != Order.FIFO, held, started, left)
            waiting[:count] = left[:count]
            for job in started[:going]:
                start[job] = now
                free -= jobs.gpus[job]
                heappush(running, (now + jobs.duration[job], job))
        coming_next = jobs.submit[coming] if coming < n else NEVER
        then = min(coming_next, running[0][0] if len(running) > 0 else NEVER)
        now = min(then, now + TICK) if count > 0 and policy.order != Order.FIFO else then
    return start


@inner
def _in_order(jobs: Jobs, policy: Policy, now: int, waiting: Int64s, turn: Int8s, rank: Float64s) -> None:
    """Sort the waiting jobs. They are nearly in order already: only keys that depend on the time have moved."""
    for job in waiting:
        due, estimate = jobs.due[job], jobs.estimate[job]
        if policy.order == Order.PROTECTED:
            turn[job] = turn_of(policy.protection, now - jobs.submit[job], estimate, due - now, due)
            rank[job] = key(jobs.gpus[job], estimate, due - now - estimate, due)
            continue
        rank[job] = jobs.submit[job]
        if policy.order == Order.FIFO:
            continue
        turn[job] = NORMAL
        if due == NEVER:
            turn[job] = LAST
        elif now + policy.hopeless * estimate > due:
            turn[job] = LAST + 1
            if policy.among == Among.DUE:
                rank[job] = due
            elif policy.among == Among.SHORTEST:
                rank[job] = estimate
        else:
            rank[job] = due if policy.order == Order.EDF else due - estimate
    for k in range(1, len(waiting)):
        job = waiting[k]
        at = k - 1
        while at >= 0 and (
            turn[waiting[at]] > turn[job] or (turn[waiting[at]] == turn[job] and rank[waiting[at]] > rank[job])
        ):
            waiting[at + 1] = waiting[at]
            at -= 1
        waiting[at + 1] = job


@inner
def _hold(
    jobs: Jobs,
    protection: Protection,
    capacity: int,
    free: int,
    now: int,
    waiting: Int64s,
    turn: Int8s,
    start: Int64s,
    running: list[tuple[int, int]],
    held: Bools,
) -> None:
    """Which of the waiting jobs would leave less free than their levels, those in front of them started."""
    soon = now + protection.soon
    ahead = free  # what is expected to be free then
    for _, job in running:
        if expected_end(start[job], jobs.estimate[job], now) <= soon:
            ahead += jobs.gpus[job]
    for k in range(len(waiting)):
        job = waiting[k]
        gpus, estimate, due = jobs.gpus[job], jobs.estimate[job], jobs.due[job]
        held[k] = False
        if gpus > free:
            continue
        keep = level(protection, capacity, gpus, estimate, due - now - estimate, due, turn[job])
        if keep > 0 and ahead - gpus < keep:
            held[k] = True
            continue
        free -= gpus
        if estimate > protection.soon:
            ahead -= gpus


def score(trace: Trace, start: Int64s, which: Bools | None = None) -> Score:
    """What starts come to, of the jobs that count (``bool [n]``; all by default)."""
    counts = np.ones(len(trace), dtype=np.bool_) if which is None else which
    dated = trace.slo & counts
    late = dated & (start + trace.duration > trace.due)
    energy = trace.energy.astype(np.float64)
    wait = (start - trace.submit)[counts & ~trace.slo] / MINUTE
    return Score(
        missed=float(late.sum() / max(1, dated.sum())),
        missed_energy=float(energy[late].sum() / max(1.0, energy[dated].sum())),
        wait_median=float(np.median(wait)) if len(wait) else 0.0,
        wait_p95=float(np.quantile(wait, 0.95)) if len(wait) else 0.0,
    )
