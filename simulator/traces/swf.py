"""Logs in the Standard Workload Format of the Parallel Workloads Archive (Feitelson et al., JPDC 2014).

18 blank-separated whole numbers a line, ``;`` begins a comment, −1 is unknown. Read are 2 submission, 4 run time, 5
and 8 processors (allocated; requested where that is not known) and 9 the run time that the user asked for, all in
seconds. Jobs without a run time, an estimate or processors are left out; jobs that failed stay, they used the machine.
The logs have no due dates: :func:`with_due_dates` makes them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.traces.table import Row, TraceError, opened
from simulator.traces.trace import Trace, by_submission
from solver.problem import NEVER

SECOND = 1_000
FIELDS = 18
SUBMIT, RUN, ALLOCATED, REQUESTED, ESTIMATE = (
    "2 (submit)",
    "4 (run time)",
    "5 (allocated)",
    "8 (requested)",
    "9 (requested time)",
)
READ = {SUBMIT: 1, RUN: 3, ALLOCATED: 4, REQUESTED: 7, ESTIMATE: 8}


def read(path: Path) -> Trace:
    """Read one log; all jobs are best effort.

    Raises
    ------
    TraceError
        When the file is missing or broken, or has no usable jobs.
    """
    submit, run, processors, estimate = [], [], [], []
    capacity = 0
    with opened(path) as text:
        for number, line in enumerate(text, start=1):
            if line.startswith(";"):
                if found := re.match(r";\s*MaxProcs:\s*(\d+)", line):
                    capacity = int(found[1])
                continue
            if not (cells := line.split()):
                continue
            row = Row(path, number, {name: cells[k] for name, k in READ.items() if k < len(cells)})
            if len(cells) != FIELDS:
                raise row.error(f"{len(cells)} fields instead of {FIELDS}")
            at, length, asked = row.whole(SUBMIT), row.whole(RUN), row.whole(ESTIMATE)
            allocated, requested = row.whole(ALLOCATED), row.whole(REQUESTED)
            used = allocated if allocated > 0 else requested
            if at < 0 or length <= 0 or asked <= 0 or used <= 0:
                continue
            submit.append(at)
            run.append(length)
            processors.append(used)
            estimate.append(asked)
    if not submit:
        raise TraceError(f"{path}: no usable jobs in it")
    n = len(submit)
    trace = Trace(
        name=path.name.split(".")[0],
        submit=np.array(submit, dtype=np.int64) * SECOND,
        duration=np.array(run, dtype=np.int64) * SECOND,
        gpus=np.array(processors, dtype=np.int64),
        due=np.full(n, NEVER, dtype=np.int64),
        hard=np.zeros(n, dtype=np.bool_),
        estimate=np.array(estimate, dtype=np.int64) * SECOND,
        capacity=capacity,
    )
    return by_submission(trace)


def with_due_dates(trace: Trace, seed: int, least: float = 1.1, most: float = 5.0) -> Trace:
    """The log with a hard due date on each job: its submission plus its *estimate* times a random factor.

    The factor is log-uniform from ``least`` to ``most``. It goes by the estimate, because nobody who sets a due date
    knows the run time.
    """
    factor = np.exp(np.random.default_rng(seed).uniform(np.log(least), np.log(most), size=len(trace)))
    due = trace.submit + (trace.estimate * factor).astype(np.int64)
    return replace(trace, due=due, hard=np.ones(len(trace), dtype=np.bool_))
