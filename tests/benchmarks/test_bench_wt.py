"""The weighted tardiness bench: instances reach the planner as they are, and values are told by what is best."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import wt
from benchmarks.wt import Instance, Job
from cli.main import app
from solver.planner import warm_up

JOBS = [Job(4, 3, 6), Job(7, 1, 5), Job(2, 9, 11), Job(5, 4, 9), Job(3, 2, 3), Job(6, 5, 20)]


def optimum(jobs: list[Job]) -> int:
    """The best of all orders, one after another."""
    values = []
    for order in itertools.permutations(jobs):
        end, value = 0, 0
        for job in order:
            end += job.duration
            value += job.weight * max(0, end - job.due)
        values.append(value)
    return min(values)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two small instances of each set in the files of the public data; the second one's value is below its optimum."""
    folder = tmp_path / "weighted-tardiness"
    folder.mkdir()
    lines, best = ["set,instance,job,p,w,d"], ["set,instance,value,is_optimal_known,basis,rdd,tf"]
    for name, instance in itertools.product(wt.LIMITS_MS, (1, 2)):
        lines += [f"{name},{instance},{k + 1},{job.duration},{job.weight},{job.due}" for k, job in enumerate(JOBS)]
        best.append(f"{name},{instance},{optimum(JOBS) if instance == 1 else 1},1,,0.2,0.2")
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")
    (folder / "best_known.csv").write_text("\n".join(best) + "\n")
    return tmp_path


def test_a_plan_s_tardiness_is_the_value() -> None:
    """On six jobs the planner finds the best of all 720 orders, and its objective is that order's value."""
    warm_up()
    value, _ = wt.solve(Instance(1, tuple(JOBS), 0), 1_000, seed=1)
    assert value == optimum(JOBS)


def test_the_command_tells_what_was_not_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the instances are solved and half cannot be: parts, gaps, bars and exit code say so."""
    monkeypatch.setattr(wt, "LIMITS_MS", dict.fromkeys(wt.LIMITS_MS, 500))
    result = CliRunner().invoke(app, ["bench", "wt", "--data", str(data), "-n", "2", "-o", "json"])
    told = json.loads(result.stdout)
    assert {name: figures["best known"] for name, figures in told["figures"].items()} == dict.fromkeys(wt.LEAST, 0.5)
    assert told["figures"]["wt40"]["most gap"] == pytest.approx(100 * (optimum(JOBS) - 1))
    assert not told["holds"]
    assert result.exit_code == 3
    solved = CliRunner().invoke(app, ["bench", "wt", "--data", str(data), "-n", "1", "-o", "json"])
    assert json.loads(solved.stdout)["holds"]
    assert solved.exit_code == 0


def test_a_broken_file_is_told(data: Path) -> None:
    """The message names the file and the line."""
    path = data / "weighted-tardiness" / "best_known.csv"
    path.write_text(path.read_text().replace("wt40,2,", "wt40,9,"))
    result = CliRunner().invoke(app, ["bench", "wt", "--data", str(data)])
    assert result.exit_code == 1
    assert "best_known.csv, line 3: no instance 9 of wt40 in instances.csv" in result.stderr
