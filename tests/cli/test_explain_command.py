"""``punctual explain``: why a job is where it is, and what would help."""

import json
import time

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app

NOW = "2027-01-15T08:00:00Z"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Runs ``punctual explain`` as of NOW, in UTC, on the second example."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def run(*arguments: str) -> Result:
        arguments = ("explain", "--now", NOW, "--effort", "10", "-f", "examples/02-two-teams", *arguments)
        return CliRunner().invoke(app, arguments)

    return run


def test_a_job_that_cannot_make_it(run) -> None:
    """It is told since when it is lost, and the deadline that it could keep; the exit code says late."""
    result = run("speech/too-ambitious")
    assert result.exit_code == 3
    assert "LATE by 1h00m: its deadline is 11:00" in result.stdout
    assert "that is proved" in result.stdout
    assert "  - a deadline no earlier than 12:00" in result.stdout
    told = json.loads(run("too-ambitious", "-o", "json").stdout)
    assert (told["onTime"], told["impossible"]) == (False, True)
    assert told["changes"] == [{"kind": "deadline", "finish": "2027-01-15T12:00:00Z"}]


def test_a_job_that_will_be_on_time(run) -> None:
    """Nothing has to be changed: why it starts when it does is said, and the exit code is 0."""
    result = run("vision/pretrain", "-o", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["onTime"], told["changes"]) == (0, True, None)
    assert told["reason"].startswith("waits for quota: 16 of 16 nvidia.com/gpu in flavor h100 in cohort models")


def test_a_job_that_is_not_there(run) -> None:
    """A name that nothing has is wrong usage."""
    result = run("vision/nothing")
    assert result.exit_code == 2
    assert "there is no vision/nothing among the 8 workloads here" in result.stderr


def test_what_is_wrong_with_the_input_is_said(run, tmp_path) -> None:
    """A file that cannot be read is told beside the answer, and --gate-all without files is wrong usage."""
    (tmp_path / "broken.yaml").write_text("{")
    assert "broken.yaml" in run("-f", str(tmp_path), "vision/pretrain").stderr
    result = CliRunner().invoke(app, ["explain", "vision/pretrain", "--gate-all"])
    assert (result.exit_code, "works with files only" in result.stderr) == (2, True)
