"""Processes are known by pid and start time, and end when they are told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localcluster.processes import Process, Usage, start, stop


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Process]:
    """Starts a shell script, its output in ``log``."""

    def run(script: str) -> Process:
        return start(["sh", "-c", script], cwd=tmp_path, log=tmp_path / "log", environment={"PATH": os.environ["PATH"]})

    return run


def test_a_started_process_runs_until_it_is_stopped(run: Callable[[str], Process]) -> None:
    """It runs at once; after an orderly stop it runs no more, and uses nothing."""
    process = run("sleep 60")
    assert process.running()
    stop([process])
    assert not process.running()
    assert process.usage() == Usage(0, 0, 0.0)


def test_usage_is_in_mebibytes_and_seconds() -> None:
    """As the kernel counts it: this Python has more than 10 MiB and less than 10 GiB, and has used its CPU."""
    usage = Process(os.getpid(), 0).usage()
    assert 10 < usage.rss <= usage.peak < 10_240
    assert usage.cpu == pytest.approx(time.process_time(), abs=1)


def test_one_that_does_not_listen_is_killed(run: Callable[[str], Process], tmp_path: Path) -> None:
    """After the grace time SIGTERM becomes SIGKILL."""
    process = run("trap '' TERM; echo ready; while :; do sleep 0.1; done")
    while (tmp_path / "log").read_text() != "ready\n":
        time.sleep(0.01)
    stop([process], grace=0.3)
    assert not process.running()


def test_an_ended_process_does_not_run(run: Callable[[str], Process]) -> None:
    """Nor does a zombie that nobody has asked for its exit code."""
    process = run("exit 3")
    end = time.monotonic() + 10
    while process.running():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_another_process_with_the_same_pid_is_left_alone(run: Callable[[str], Process]) -> None:
    """A pid that the kernel has given to somebody else is not ours: it is not running, and is not stopped."""
    somebody = run("sleep 60")
    ours = replace(somebody, started=somebody.started - 1)
    assert not ours.running()
    stop([ours], sort=signal.SIGKILL)
    assert somebody.running()
    stop([somebody])


def test_output_is_appended_to_the_log(run: Callable[[str], Process], tmp_path: Path) -> None:
    """A second start of the same process keeps what the first one said, and errors are there too."""
    for word in ("first", "second"):
        process = run(f"echo {word} >&2")
        while process.running():
            time.sleep(0.01)
    assert (tmp_path / "log").read_text() == "first\nsecond\n"
