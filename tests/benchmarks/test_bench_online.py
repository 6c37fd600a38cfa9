"""The online bench: traces are cut and sized as it says, and its figures are those of replays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import online
from cli.main import app


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with small traces in the formats and places of the public ones."""
    rng = np.random.default_rng(7)
    n = 500
    rows = []
    for k in range(n):
        urgent, best = rng.uniform() < 0.5, rng.uniform() < 0.2
        at, length = int(rng.integers(0, 20160)), int(rng.integers(20, 90) if urgent else rng.integers(600, 4000))
        steps, value, kind = (at, "10", "best") if best else (int(length * rng.uniform(1.1, 3)), "10", "strict")
        rows.append(f"{k},vc,{rng.choice([32, 64])},{at},1,vgg16,{length},1,{steps},{value},{int(best)},{kind}")
    folder = tmp_path / "chronus-philly"
    folder.mkdir()
    header = (
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
        "best_effort,job_type"
    )
    (folder / "trace_job_Philly_MIX1.csv").write_text("\n".join([header, *rows]) + "\n")
    folder = tmp_path / "elasticflow"
    folder.mkdir()
    lines = ["job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"]
    lines += [f"{k},{k * 100},1,vgg16,{k * 100 + (400 if k % 2 else 5000)},1,{1 + k % 4},{700 + k}" for k in range(100)]
    (folder / "cluster03.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_cases_are_what_they_say(data: Path) -> None:
    """Chronus is cut after a week; ElasticFlow keeps what can be on time, on the GPUs that make a load of 1.05."""
    mix = online.load(data, "MIX1")
    assert (mix.history.submit < mix.trace.submit[0] + online.WEEK).all()
    assert (mix.rest.submit >= mix.trace.submit[0] + online.WEEK).all()
    assert mix.capacity == 960
    flow = online.load(data, "EF03")
    assert len(flow.trace) == 50
    assert flow.cut == 25
    assert flow.capacity == round(flow.trace.load(1) / 1.05)


def test_noise_is_what_it_says() -> None:
    """Of 100,000 estimates 23 % are wrong by a factor of two or more, as many too low as too high."""
    from simulator.traces.trace import Trace

    column = np.full(100_000, 3_600_000)
    wrong = online.noisy(Trace("", column, column, column, column, column > 0, column), seed=1) / column
    assert ((wrong <= 0.5) | (wrong >= 2)).mean() == pytest.approx(0.23, abs=0.01)
    assert (wrong < 1).mean() == pytest.approx(0.5, abs=0.01)


def test_the_command_prints_its_bars(data: Path) -> None:
    """Ratios are those of the figures, waits have bars where there is best effort, the exit code says what holds."""
    options = ["bench", "online", "--data", str(data), "-t", "MIX1", "--seeds", "2", "-o", "json"]
    result = CliRunner().invoke(app, options)
    told = json.loads(result.stdout)
    assert told["bench"] == "online"
    ours, edf = told["figures"]["MIX1"]["exact"], told["reference"]["MIX1"]["exact"]["EDF"]
    assert ours["lost"] == pytest.approx(ours["missed"] + ours["missed GPU-hours"])
    assert told["bars"]["lost / EDF"]["is"]["MIX1"] == pytest.approx(ours["lost"] / edf["lost"])
    key = "best-effort wait, p95 min"
    assert told["bars"]["best-effort p95 wait / EDF"]["is"]["MIX1"] == pytest.approx(ours[key] / edf[key])
    assert told["bars"]["lost / EDF, noise"]["most"] == {"MIX1": 0.27}
    holds = all(value <= bar["most"]["MIX1"] for bar in told["bars"].values() for value in bar["is"].values())
    assert told["holds"] == holds
    assert result.exit_code == (0 if holds else 3)
    for policy in ("FIFO", "EASY", "conservative", "least slack", "EDF"):
        assert told["reference"]["MIX1"]["exact"][policy]["lost"] > 0


def test_a_missing_or_broken_file_is_told(data: Path) -> None:
    """No traceback: the message names the file and the line, and an unknown trace is a wrong option."""
    missing = CliRunner().invoke(app, ["bench", "online", "--data", str(data), "-t", "SLO"])
    assert missing.exit_code == 1
    assert "trace_job_Philly_SLO.csv: no such file" in missing.stderr
    path = data / "elasticflow" / "cluster03.csv"
    path.write_text(path.read_text().replace(",1,1,700\n", ",1,1,soon\n"))
    broken = CliRunner().invoke(app, ["bench", "online", "--data", str(data), "-t", "EF03"])
    assert broken.exit_code == 1
    assert "cluster03.csv, line 2: duration is 'soon', not a whole number" in broken.stderr
    assert CliRunner().invoke(app, ["bench", "online", "--data", str(data), "-t", "EF99"]).exit_code == 2
