"""A job trace as columns, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver.problem import NEVER
from solver.quota import Bools, Int64s


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of their submission. Rigid: each needs all its GPUs for all its time.

    Attributes
    ----------
    name
        For people.
    submit
        ``int64 [n]`` milliseconds from some instant, ascending.
    duration
        ``int64 [n]`` milliseconds that it truly ran, > 0.
    gpus
        ``int64 [n]``, > 0; of a trace of processors, processors.
    due
        ``int64 [n]`` on the clock of ``submit``; ``NEVER`` for best effort.
    hard
        ``bool [n]``: worthless when late. Best effort is not hard.
    estimate
        ``int64 [n]`` milliseconds the user asked for, > 0; the true duration where the trace has no estimates.
    capacity
        GPUs of the cluster, 0 where the trace does not say.
    """

    name: str
    submit: Int64s
    duration: Int64s
    gpus: Int64s
    due: Int64s
    hard: Bools
    estimate: Int64s
    capacity: int = 0

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.submit)

    @property
    def slo(self) -> Bools:
        """Which jobs have a due date, ``bool [n]``."""
        return np.asarray(self.due < NEVER)

    @property
    def energy(self) -> Int64s:
        """GPUs × milliseconds of each job, ``int64 [n]``."""
        return self.gpus * self.duration

    def load(self, capacity: int) -> float:
        """GPU-time asked for, in parts of what so many GPUs have from the first submission to the last."""
        span = int(self.submit[-1] - self.submit[0]) if len(self) else 0
        return float(self.energy.sum()) / (capacity * span) if span else 0.0

    def take(self, which: Int64s | Bools) -> Trace:
        """Some of the jobs: a mask, or ascending positions."""
        return replace(
            self,
            submit=self.submit[which],
            duration=self.duration[which],
            gpus=self.gpus[which],
            due=self.due[which],
            hard=self.hard[which],
            estimate=self.estimate[which],
        )

    def feasible(self) -> Trace:
        """The jobs that could be on time if they started when they were submitted, and best effort."""
        return self.take(~self.slo | (self.submit + self.duration <= self.due))


def by_submission(trace: Trace) -> Trace:
    """The same jobs in the order of their submission; of one instant in the order of the file."""
    return trace.take(np.argsort(trace.submit, kind="stable"))
