"""``punctual compile`` leaves nothing to compile for those who come after it."""

import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
import typer

from cli.compile import _check


def test_all_kernels_are_there_afterwards() -> None:
    """It ends with success, says so, and what it compiles is what planner and controller warm up."""
    command = [sys.executable, "-c", "from cli.main import main; main()", "compile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout.startswith("all kernels are compiled")) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("no folder to write to"), "no folder to write to"), (BrokenProcessPool(), "out of memory")],
)
def test_what_fails_is_told(error: Exception, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and what went wrong."""
    with pytest.raises(typer.Exit) as exit_:
        _check(error)
    assert exit_.value.exit_code == 1
    assert said in capsys.readouterr().err
