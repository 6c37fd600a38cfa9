"""Long-running processes that outlive us: started, found again by pid and start time, stopped.

A pid alone can belong to somebody else after a while; with the time that the kernel started it, it is certain.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process, whoever started it.

    Parameters
    ----------
    pid
        Its process id.
    started
        When the kernel started it, in clock ticks since boot (field 22 of ``/proc/PID/stat``).
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now."""
        fields = _stat(pid)
        return cls(pid, int(fields[19]) if fields else 0)

    def running(self) -> bool:
        """Whether it is alive: the same process, and no zombie."""
        fields = _stat(self.pid)
        if fields is None or int(fields[19]) != self.started:
            return False
        if fields[0] == "Z":
            with suppress(ChildProcessError):  # somebody else's child
                os.waitpid(self.pid, os.WNOHANG)
            return False
        return True

    def usage(self) -> Usage:
        """Memory and CPU time so far; zeros when it is not running."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return Usage(0, 0, 0.0)
        values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        fields = _stat(self.pid)
        if fields is None or "VmRSS" not in values:
            return Usage(0, 0, 0.0)
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return Usage(_mebibytes(values["VmRSS"]), _mebibytes(values["VmHWM"]), cpu)


@dataclass(frozen=True)
class Usage:
    """What a process uses: resident memory and its peak (MiB), CPU time (seconds)."""

    rss: int
    peak: int
    cpu: float


def start(command: list[str], *, cwd: Path, log: Path, environment: Mapping[str, str]) -> Process:
    """Start a command in a session of its own, its output appended to ``log``."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    child.returncode = 0  # it shall outlive this object, which would warn about that
    return Process.of(child.pid)


def stop(processes: Iterable[Process], *, sort: signal.Signals = signal.SIGTERM, grace: float = 10) -> None:
    """Send a signal to all, wait until none runs any more; SIGKILL for those that still do after ``grace`` seconds."""
    left = [process for process in processes if process.running()]
    end = time.monotonic() + grace
    while left:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, sort)
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = [process for process in left if process.running()]
        sort, end = signal.SIGKILL, time.monotonic() + grace


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the third (the state) on; the second may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _mebibytes(value: str) -> int:
    return int(value.split()[0]) // 1024
