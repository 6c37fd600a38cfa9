"""A planner in a process of its own, for as long as a block runs: what ``punctual solver`` starts, from Python."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY = "ready on "
"""What the line that the process prints once it takes calls has in front of its addresses."""

PATIENCE = 30.0
"""Seconds that it gets to end."""


class SidecarFailed(RuntimeError):
    """The process ended before it was ready. The message has what it said."""


@contextmanager
def sidecar(*arguments: str, listen: str | None = None, timeout: float = 300.0) -> Iterator[str]:
    """Start a solver of this very installation, wait until it takes calls, and stop it in the end.

    Parameters
    ----------
    arguments
        More options of ``punctual solver``.
    listen
        Where it is to listen; a socket in a directory of its own by default.
    timeout
        Seconds until it must be ready. Kernels that are compiled for the first time take their time.

    Yields
    ------
    str
        Its address.

    Raises
    ------
    SidecarFailed
        If it ends before it is ready, or is not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="punctual-") as folder:
        command = [sys.executable, "-c", "from cli.main import main; main()", "solver"]
        command += ["--listen", listen or f"unix://{folder}/solver.sock", *arguments]
        errors = Path(folder, "stderr")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            yield _ready(process, command, timeout, errors)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[str], command: Sequence[str], timeout: float, errors: Path) -> str:
    """The address in the line with which the process says that it is ready."""
    assert process.stdout is not None
    late = threading.Timer(timeout, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if READY in line:
                return line.split(READY, 1)[1].split()[0]
    finally:
        late.cancel()
    said = errors.read_text(errors="replace").strip()
    raise SidecarFailed(f"{' '.join(command[2:])} ended with {process.wait()} before it was ready: {said}")
