"""EASY and conservative backfill: what batch systems do, to compare with.

Jobs come first come, first served. The first ``depth`` of those that wait get reservations one after another, each at
the earliest instant at which it fits by the estimates of what runs and of the reservations in front of it; the others
start if they fit now and delay no reservation. EASY (Lifka 1995) is a depth of one; with conservative backfill
(Mu'alem and Feitelson 2001) all have reservations, which is cut off at :data:`CONSERVATIVE` here, as batch systems do.
Reservations are made anew at each event. A job that has outlived its estimate is expected to end at any moment.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

from simulator.online import Jobs, jobs
from simulator.traces.trace import Trace
from solver.problem import NEVER
from solver.quota import Int64s, inner

EASY = 1
CONSERVATIVE = 50
"""Reservations at most."""


def backfill(trace: Trace, capacity: int, depth: int, estimate: Int64s | None = None) -> Int64s:
    """Start of each job, ``int64 [n]`` on the clock of the trace.

    Parameters
    ----------
    capacity
        GPUs of the pool; no job needs more.
    depth
        How many waiting jobs have reservations, ≥ 1.
    estimate
        Instead of the trace's estimates, ``int64 [n]`` milliseconds.
    """
    return _backfill(jobs(trace, estimate), capacity, depth)


@njit(cache=True, nogil=True)
def _backfill(jobs: Jobs, capacity: int, depth: int) -> Int64s:
    n = len(jobs.submit)
    start = np.full(n, -1, dtype=np.int64)
    waiting = np.empty(n, np.int64)
    # What is free from each instant of the profile on, until the next.
    at, room = np.empty(2 * (capacity + depth) + 4, np.int64), np.empty(2 * (capacity + depth) + 4, np.int64)
    running = [(np.int64(0), np.int64(0)) for _ in range(0)]  # a heap of (end, job)
    free, coming, count = capacity, 0, 0
    while coming < n or len(running) > 0:
        now = min(jobs.submit[coming] if coming < n else NEVER, running[0][0] if len(running) > 0 else NEVER)
        while len(running) > 0 and running[0][0] <= now:
            free += jobs.gpus[heappop(running)[1]]
        while coming < n and jobs.submit[coming] <= now:
            waiting[count] = coming
            count, coming = count + 1, coming + 1
        least = NEVER
        for job in waiting[:count]:
            least = min(least, jobs.gpus[job])
        if least > free:
            continue
        size = _profile(jobs, running, start, free, now, at, room)
        rest = 0
        for k in range(count):
            job = waiting[k]
            gpus, estimate = jobs.gpus[job], jobs.estimate[job]
            begin = 0
            if k < depth:
                begin = _earliest(at, room, size, gpus, estimate)
            elif gpus > free or not _fits(at, room, size, 0, gpus, estimate):
                begin = -1
            if begin == 0:
                start[job] = now
                free -= gpus
                heappush(running, (now + jobs.duration[job], job))
            else:
                waiting[rest] = job
                rest += 1
            if begin >= 0:
                size = _take(at, room, size, begin, gpus, estimate)
        count = rest
    return start


@inner
def _profile(
    jobs: Jobs, running: list[tuple[int, int]], start: Int64s, free: int, now: int, at: Int64s, room: Int64s
) -> int:
    """What is free from now on, as far as estimates tell; how many steps it has."""
    ends = np.empty(len(running), np.int64)
    gpus = np.empty(len(running), np.int64)
    for k in range(len(running)):
        job = running[k][1]
        ends[k], gpus[k] = max(now + 1, start[job] + jobs.estimate[job]), jobs.gpus[job]
    order = np.argsort(ends)
    at[0], room[0] = now, free
    size = 1
    for k in order:
        if ends[k] > at[size - 1]:
            at[size], room[size] = ends[k], room[size - 1]
            size += 1
        room[size - 1] += gpus[k]
    return size


@inner
def _fits(at: Int64s, room: Int64s, size: int, step: int, gpus: int, length: int) -> bool:
    end = at[step] + length
    while step < size and at[step] < end:
        if room[step] < gpus:
            return False
        step += 1
    return True


@inner
def _earliest(at: Int64s, room: Int64s, size: int, gpus: int, length: int) -> int:
    """The first step from which so many are free for so long; in the last step everything is."""
    step = 0
    while not _fits(at, room, size, step, gpus, length):
        step += 1
    return step


@inner
def _take(at: Int64s, room: Int64s, size: int, step: int, gpus: int, length: int) -> int:
    """Take so many from a step on; how many steps there are then."""
    end, last = at[step] + length, step
    while last < size and at[last] < end:
        last += 1
    if last == size or at[last] != end:
        for k in range(size, last, -1):
            at[k], room[k] = at[k - 1], room[k - 1]
        at[last], room[last] = end, room[last - 1]
        size += 1
    room[step:last] -= gpus
    return size
