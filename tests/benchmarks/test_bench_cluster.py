"""The bench on a real cluster: its stream, its figures, and (slow) all of it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import cluster
from benchmarks.cluster import LOAD, OVERHEAD, QUOTA, SIZES, Planned, figures, stream, verdict
from cli.main import app
from localcluster.observer import Run


def test_the_stream_is_what_it_says() -> None:
    """The same for the same seed; the queue is busy until the last comes; alone, each could be on time."""
    jobs = stream(300, 1)
    assert jobs == stream(300, 1)
    assert jobs != stream(300, 2)
    assert {job.gpus for job in jobs} == set(SIZES)
    area = sum(job.gpus * (job.seconds + OVERHEAD) for job in jobs)
    assert 0.9 * area / QUOTA / LOAD < jobs[-1].at <= area / QUOTA / LOAD * 1.01
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert sum(job.at <= cluster.WITHIN for job in jobs) >= 75
    due = [job for job in jobs if job.due is not None]
    assert 0.75 < len(due) / len(jobs) < 0.95
    assert all((job.due or 0) >= job.seconds + OVERHEAD + cluster.LEAST_SLACK - 0.02 for job in due)


def test_figures_are_counted_as_they_are_described() -> None:
    """Two jobs of which the second waits for the first: its miss, its wait, the idle GPUs and the refill."""
    work = [
        Planned("first", 0, gpus=8, seconds=10, estimate=11, due=12.0),
        Planned("second", 0, gpus=4, seconds=10, estimate=11, due=12.0),
    ]
    created = {"first": 100.0, "second": 100.0}
    runs = {
        "first": Run(running=101, ended=110, reserved=100.5, finished=111, pods={"a"}),
        "second": Run(running=112, ended=122, reserved=111.25, finished=123, pods={"b", "c"}, evictions=1),
    }
    found = figures(work, created, runs)
    assert (found["due"], found["missed"], found["interrupted"]) == (2, 1, 2)
    # 1 s with all of the quota free, 9 s beside the first job, 2 s with all of it free again.
    assert found["idle GPU-seconds"] == QUOTA + 9 * (QUOTA - 8) + 2 * QUOTA
    assert found["refill ms"] == 250
    assert found["waits"] == {"4": {"p50": 12, "p95": 12}, "8": {"p50": 1, "p95": 1}}
    assert found["seconds"] == 23


def test_nobody_waits() -> None:
    """Where no job waits at another one's end there is no refill to tell."""
    work = [Planned("only", 0, gpus=8, seconds=10, estimate=11, due=12.0)]
    runs = {"only": Run(running=101, ended=110, reserved=100.5, finished=111, pods={"a"})}
    assert "refill ms" not in figures(work, {"only": 100.0}, runs)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"missed": 6}, False),
        ({"idle GPU-seconds": 101.0}, False),
        ({"interrupted": 1}, False),
        ({"controller peak MiB": 301.0}, False),
        ({"solver peak MiB": 501.0}, False),
    ],
)
def test_bars(change: dict[str, float], holds: bool) -> None:
    """Each bar alone can fail the bench."""
    kueue = {"missed": 10, "idle GPU-seconds": 100.0, "interrupted": 3}
    ours = {"missed": 5, "idle GPU-seconds": 100.0, "interrupted": 0}
    ours |= {"controller peak MiB": 300.0, "solver peak MiB": 500.0, **change}
    result = verdict(1, 0, 0, kueue, ours)
    assert result["holds"] == holds
    assert json.loads(json.dumps(result)) == result


def test_nothing_missed_is_no_worse_than_nothing() -> None:
    """Where plain Kueue misses nothing, one miss is too many, and none is fine."""
    fine = {"idle GPU-seconds": 0.0, "interrupted": 0, "controller peak MiB": 1.0, "solver peak MiB": 1.0}
    kueue = {"missed": 0, **fine}
    assert verdict(1, 0, 0, kueue, {"missed": 0, **fine})["holds"]
    assert not verdict(1, 0, 0, kueue, {"missed": 1, **fine})["holds"]


@pytest.mark.kueue
@pytest.mark.long
def test_the_whole_bench(tmp_path: object) -> None:
    """A small one, all the way: both halves end, nothing is interrupted, and JSON has every figure of the table."""
    done = CliRunner().invoke(app, ["bench", "cluster", "-n", "30", "--gated", "50", "-o", "json"])
    assert done.exit_code in (0, 3), done.output
    result = json.loads(done.stdout)
    assert result["bench"] == "cluster"
    assert result["figures"]["punctual"]["interrupted"] == 0
    assert result["figures"]["punctual"]["release p50 ms"] > 0
    assert (done.exit_code == 0) == result["holds"]
