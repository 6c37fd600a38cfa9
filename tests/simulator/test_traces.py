"""Readers of public traces, on small files in their formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from simulator.traces import chronus, elasticflow, swf
from simulator.traces.table import TraceError
from simulator.traces.trace import Trace
from solver.problem import NEVER

MINUTE, SECOND = 60_000, 1_000

CHRONUS = """\
job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,best_effort,job_type
0,vc_a,4,120,100,vgg16,30,6,45,10,0,strict
1,vc_b,0,10,100,vgg16,30,6,45,10,0,strict
2,vc_a,1,60,100,vgg16,20,6,60,10,1,best
3,vc_a,8,60,100,vgg16,50,6,70-90-120,10-8-5,0,soft
"""
ELASTICFLOW = """\
job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
a,100,10,vgg16,900,64,2,700
b,100,10,vgg16,1100,64,4,1000
"""
SWF = """\
; MaxProcs: 100
;
    1   10  5  100   4 -1 -1    4   200 -1 1 1 1 -1 -1 -1 -1 -1
    2   20  5   50  -1 -1 -1    8    60 -1 0 1 1 -1 -1 -1 -1 -1
    3   30  5   -1   4 -1 -1    4   200 -1 1 1 1 -1 -1 -1 -1 -1
"""


def columns(trace: Trace) -> list[tuple[int, ...]]:
    return list(
        zip(trace.submit.tolist(), trace.duration.tolist(), trace.gpus.tolist(), trace.due.tolist(), strict=True)
    )


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_chronus(tmp_path: Path) -> None:
    """Minutes, deadlines from the submission, the first of several steps; no jobs without GPUs; sorted."""
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(CHRONUS.encode()))
    trace = chronus.read(path)
    assert columns(trace) == [
        (60 * MINUTE, 20 * MINUTE, 1, NEVER),
        (60 * MINUTE, 50 * MINUTE, 8, 130 * MINUTE),
        (120 * MINUTE, 30 * MINUTE, 4, 165 * MINUTE),
    ]
    assert trace.hard.tolist() == [False, False, True]
    assert trace.slo.tolist() == [False, True, True]


def test_elasticflow(tmp_path: Path) -> None:
    """Seconds, deadlines on the clock of the submissions; what cannot be on time with its own GPUs can be left out."""
    trace = elasticflow.read(written(tmp_path / "c.csv", ELASTICFLOW))
    assert columns(trace) == [
        (100 * SECOND, 700 * SECOND, 2, 900 * SECOND),
        (100 * SECOND, 1000 * SECOND, 4, 1100 * SECOND),
    ]
    late = trace.take(np.array([0, 1]))
    late.due[0] -= 101 * SECOND
    assert late.feasible().gpus.tolist() == [4]


def test_elasticflow_philly(tmp_path: Path) -> None:
    """The Philly file of the set has other names for the same columns."""
    text = "job_id,submit_time,ddl,num_gpu,duration\n0,5,90,1,60\n"
    assert columns(elasticflow.read(written(tmp_path / "p.csv", text))) == [(5 * SECOND, 60 * SECOND, 1, 90 * SECOND)]


def test_swf(tmp_path: Path) -> None:
    """Processors allocated, else requested; the user's estimate; no job without a run time; the machine's size."""
    trace = swf.read(written(tmp_path / "log.swf", SWF))
    assert columns(trace) == [(10 * SECOND, 100 * SECOND, 4, NEVER), (20 * SECOND, 50 * SECOND, 8, NEVER)]
    assert trace.estimate.tolist() == [200 * SECOND, 60 * SECOND]
    assert trace.capacity == 100


def test_due_dates_go_by_the_estimate(tmp_path: Path) -> None:
    """Due dates made for a log are a factor within the bounds times the estimate, the same for the same seed."""
    trace = swf.read(written(tmp_path / "log.swf", SWF))
    made = swf.with_due_dates(trace, seed=3, least=2, most=4)
    factor = (made.due - made.submit) / made.estimate
    assert ((factor > 1.99) & (factor < 4.01)).all()
    assert made.hard.all()
    assert (made.due == swf.with_due_dates(trace, seed=3, least=2, most=4).due).all()
    assert (made.due != swf.with_due_dates(trace, seed=4, least=2, most=4).due).any()


def test_load() -> None:
    """Load is GPU-time over the capacity from the first submission to the last."""
    two = np.array([2, 2])
    trace = Trace("", np.array([0, 100]), np.array([50, 100]), two, np.array([NEVER, 9]), two > 3, two)
    assert trace.load(4) == pytest.approx(300 / 400)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (chronus.read, "job_id,num_gpu\n", "line 1: no column submit_time, duration, expect_time_list, best_effort"),
        (chronus.read, CHRONUS.replace("120,100", "noon,100"), "line 2: submit_time is 'noon', not a whole number"),
        (chronus.read, CHRONUS.replace("70-90-120", "90-70"), "line 5: expect_time_list is 90-70; its steps must grow"),
        (chronus.read, CHRONUS.splitlines()[0], "no jobs in it"),
        (elasticflow.read, ELASTICFLOW + "c,3\n", "line 4: 2 cells, the header has 8"),
        (elasticflow.read, ELASTICFLOW.replace("64,2,700", "64,2,0"), "line 2: duration is 0; it must be at least 1"),
        (swf.read, SWF + "4 5 6\n", "line 6: 3 fields instead of 18"),
        (swf.read, SWF.replace("100   4", "1h   4"), "line 3: 4 (run time) is '1h', not a whole number"),
        (swf.read, "; MaxProcs: 1\n", "no usable jobs in it"),
    ],
)
def test_a_broken_file(tmp_path: Path, read, text: str, message: str) -> None:  # type: ignore[no-untyped-def]
    """The error says the file, the line and what is wrong there."""
    path = written(tmp_path / "broken.csv", text)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


@pytest.mark.parametrize("read", [chronus.read, elasticflow.read, swf.read])
def test_no_such_file(tmp_path: Path, read) -> None:  # type: ignore[no-untyped-def]
    """A missing or half-copied file is an error that names it."""
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "none.csv")
    half = tmp_path / "half.gz"
    half.write_bytes(gzip.compress(CHRONUS.encode())[:60])
    with pytest.raises(TraceError, match=r"half\.gz: cannot be read"):
        read(half)
