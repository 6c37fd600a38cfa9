"""Traces of ElasticFlow (Gu et al., ASPLOS 2023): training jobs of Microsoft ITP with deadlines put on them.

CSV with a header; ``submission_time, deadline, num_gpu, duration`` are read (in the Philly file of the set
``submit_time`` and ``ddl``). Times are seconds, deadlines on the clock of the submissions. About half of the jobs
cannot be on time with their own number of GPUs, because the authors' scheduler changes it:
:meth:`~simulator.traces.trace.Trace.feasible` leaves those out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.traces.table import TraceError, opened, rows
from simulator.traces.trace import Trace, by_submission

SECOND = 1_000


def read(path: Path) -> Trace:
    """Read one trace; the size of the cluster is not in it.

    Raises
    ------
    TraceError
        When the file is missing or broken, or has no jobs.
    """
    with opened(path) as text:
        philly = "ddl" in text.readline().strip().split(",")
    at, until = ("submit_time", "ddl") if philly else ("submission_time", "deadline")
    submit, duration, gpus, due = [], [], [], []
    for row in rows(path, (at, until, "num_gpu", "duration")):
        submit.append(row.whole(at, least=0))
        duration.append(row.whole("duration", least=1))
        gpus.append(row.whole("num_gpu", least=1))
        due.append(row.whole(until, least=submit[-1]))
    if not submit:
        raise TraceError(f"{path}: no jobs in it")
    length_ms = np.array(duration, dtype=np.int64) * SECOND
    trace = Trace(
        name=path.name.split(".")[0],
        submit=np.array(submit, dtype=np.int64) * SECOND,
        duration=length_ms,
        gpus=np.array(gpus, dtype=np.int64),
        due=np.array(due, dtype=np.int64) * SECOND,
        hard=np.ones(len(submit), dtype=np.bool_),
        estimate=length_ms.copy(),
    )
    return by_submission(trace)
