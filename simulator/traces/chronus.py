"""Traces of Chronus (Gao et al., SoCC 2021): jobs of Microsoft's Philly with deadlines put on them.

CSV with a header; ``job_id, num_gpu, submit_time, duration, expect_time_list, best_effort`` are read. Times are
minutes. ``expect_time_list`` counts from the submission; of several steps (``a-b-c``, soft jobs: worth less at each)
the first is the due date. For best effort it says nothing. Jobs without GPUs are left out, as the authors do. The rows
are in no order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.traces.table import TraceError, rows
from simulator.traces.trace import Trace, by_submission
from solver.problem import NEVER

MINUTE = 60_000
CAPACITY = 960
"""GPUs of the authors' own runs: 120 nodes of 8."""

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "expect_time_list", "best_effort")


def read(path: Path) -> Trace:
    """Read one trace.

    Raises
    ------
    TraceError
        When the file is missing or broken, or has no jobs.
    """
    submit, duration, gpus, due, hard = [], [], [], [], []
    for row in rows(path, COLUMNS):
        wanted = row.whole("num_gpu", least=0)
        at, length = row.whole("submit_time", least=0), row.whole("duration", least=1)
        best_effort = row.whole("best_effort", least=0)
        steps = [row.parse("expect_time_list", step, least=0) for step in row.text("expect_time_list").split("-")]
        if sorted(steps) != steps:
            raise row.error(f"expect_time_list is {row.text('expect_time_list')}; its steps must grow")
        if not wanted:
            continue
        submit.append(at)
        duration.append(length)
        gpus.append(wanted)
        due.append(NEVER if best_effort else (at + steps[0]) * MINUTE)
        hard.append(not best_effort and len(steps) == 1)
    if not submit:
        raise TraceError(f"{path}: no jobs in it")
    length_ms = np.array(duration, dtype=np.int64) * MINUTE
    trace = Trace(
        name=path.name.split(".")[0],
        submit=np.array(submit, dtype=np.int64) * MINUTE,
        duration=length_ms,
        gpus=np.array(gpus, dtype=np.int64),
        due=np.array(due, dtype=np.int64),
        hard=np.array(hard, dtype=np.bool_),
        estimate=length_ms.copy(),
        capacity=CAPACITY,
    )
    return by_submission(trace)
