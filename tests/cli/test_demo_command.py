"""``punctual demo``: two runs of the same jobs, and what is told about them."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.demo import Outcome, _tell
from cli.main import app
from simulator.scenario import run_plain
from simulator.scenarios import four_jobs
from solver.sidecar import SidecarFailed


def test_more_deadlines_are_met_with_the_real_solver_and_control_loop() -> None:
    """A sidecar process plans, the control loop releases: fewer are late, on the GPUs there are."""
    result = CliRunner().invoke(app, ["demo", "-o", "json", "--effort", "1"])
    assert result.exit_code == 0, result.output
    four, night = json.loads(result.stdout)["scenarios"]
    assert four["plain"]["late"] == ["eval-c", "eval-d"]
    assert four["punctual"]["late"] == []
    assert four["plain"]["peakGpus"] == four["punctual"]["peakGpus"] == 4
    assert four["changes"]
    assert len(night["punctual"]["late"]) < len(night["plain"]["late"])
    assert night["punctual"]["peakGpus"] <= night["gpus"]
    assert four["plans"] > 1
    assert night["plans"] > night["jobs"]


def test_the_outcome_is_told_in_a_table_and_in_words() -> None:
    """Figures of both runs side by side, then who gained and who made room; within 80 columns."""
    scenario = four_jobs()
    before = run_plain(scenario)
    reordered = type(scenario)(scenario.name, scenario.queues, scenario.jobs[::-1], scenario.gpus)
    out = io.StringIO()
    _tell(Console(file=out, width=80), 1, Outcome(scenario, before, run_plain(reordered), plans=3, slowest=0.1))
    text = out.getvalue()
    assert "1. Four jobs of two GPUs, on 4 GPUs" in text
    assert " ".join(text.split()).count("deadlines missed, of 4 2 0") == 1
    assert "On time now: eval-d and eval-c" in text
    assert "train-b and train-a start up to 30m later, and still on time." in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_solver_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 and the solver's own words, no traceback."""

    @contextmanager
    def broken() -> Iterator[str]:
        raise SidecarFailed("solver ended with 1 before it was ready: no space left")
        yield ""

    monkeypatch.setattr("solver.sidecar.sidecar", broken)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "no space left" in result.stderr
    assert "Traceback" not in result.output
