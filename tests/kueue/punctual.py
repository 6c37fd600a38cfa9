"""Controller and planner as a cluster runs them: processes of their own, started, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("punctual")
SKEWED = Path(__file__).with_name("skewed.py")
START_SECONDS = 90
"""The first start on a machine compiles the kernels."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Punctual:
    """One controller with its planner.

    Attributes
    ----------
    kubeconfig
        What the controller may do in the cluster.
    folder
        For the socket and the logs.
    identity
        Under which the controller holds the Lease.
    clock
        A file that says by how many seconds the controller's wall clock is off; None: it is right.
    options
        More of the controller's.
    """

    kubeconfig: Path
    folder: Path
    identity: str = "test"
    clock: Path | None = None
    options: tuple[str, ...] = ()
    port: int = field(default_factory=_free_port)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where the planner listens."""
        return f"unix://{self.folder}/solver.sock"

    @property
    def ledger(self) -> Path:
        """Where the controller writes what became of work."""
        return self.folder / "ledger.db"

    def start(self) -> None:
        """Both, until they work."""
        self.start_solver()
        self.start_controller()

    def start_solver(self) -> None:
        """The planner, until it answers."""
        self._start("solver", "--listen", self.address)
        check = [COMMAND, "solver", "--check", self.address]
        self._wait("solver", lambda: subprocess.run(check, capture_output=True).returncode == 0)

    def start_controller(self) -> None:
        """The controller, until it leads."""
        self.launch_controller()
        self._wait("controller", lambda: self._get("/readyz") is not None and self.metric("punctual_leader") == 1)

    def launch_controller(self) -> None:
        """The controller; does not wait until it leads."""
        self._start(
            "controller", "--solver", self.address, "--kubeconfig", str(self.kubeconfig),
            "--http", f"127.0.0.1:{self.port}", "--identity", self.identity, "--log-format", "json",
            "--ledger", str(self.ledger), *self.options,
        )  # fmt: skip

    def runs(self, name: str) -> bool:
        """Whether ``solver`` or ``controller`` was started and has not ended."""
        return name in self._running and self._running[name].poll() is None

    def ended(self, name: str) -> int | None:
        """The exit code of ``solver`` or ``controller`` if it has ended by itself."""
        return self._running[name].poll() if name in self._running else None

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """It does nothing at all (SIGSTOP) while the block runs."""
        process = self._running[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def said(self, name: str) -> list[dict[str, object]]:
        """Its log lines so far, those that are whole."""
        lines = []
        for line in self.log(name).splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict)]

    def peak_mebibytes(self, name: str) -> int:
        """Most memory that it has used so far."""
        status = Path(f"/proc/{self._running[name].pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def kill(self, name: str) -> None:
        """End ``solver`` or ``controller`` without a warning."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def terminate(self, name: str) -> int:
        """End it as the kubelet does; its exit code."""
        self._running[name].terminate()
        return self.wait(name)

    def wait(self, name: str, seconds: float = 30) -> int:
        """Wait until it has ended by itself; its exit code."""
        return self._running.pop(name).wait(seconds)

    def stop(self) -> None:
        """End what runs."""
        for name in list(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.terminate(name)

    def log(self, name: str) -> str:
        """What it has said so far."""
        return (self.folder / f"{name}.log").read_text()

    def metric(self, name: str) -> float | None:
        """The value of a metric without labels, or with ``{label="value"}`` in its name; None if it is not there."""
        lines = (self._get("/metrics") or "").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), None)

    def _get(self, page: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:  # not there, or a status that is no success
            return None

    def _wait(self, name: str, works: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not works():
            if self._running[name].poll() is not None or time.monotonic() > end:
                pytest.fail(f"the {name} does not start:\n{self.log(name)[-4000:]}", pytrace=False)
            time.sleep(0.1)

    def _start(self, name: str, *words: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("POD_", "KUBE"))}
        program = [COMMAND] if self.clock is None else [sys.executable, SKEWED, self.clock]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*program, name, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
