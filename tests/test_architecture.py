"""What keeps the code in shape: the contracts between the rooms, style, types."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str) -> str:
    """Run a tool of this environment on the repository, and return what it says; that is told if it fails."""
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_arrows_go_one_way() -> None:
    """Every import contract of pyproject.toml holds: layers, and who may know what."""
    run("lint-imports", "--no-cache")


def test_the_verifier_stands_alone() -> None:
    """The verifier builds on the contract and on nothing else of the solver, directly or by a detour."""
    graph = 'grimp.build_graph("solver", cache_dir=None)'
    used = run("python", "-c", f'import grimp; print(*sorted({graph}.find_upstream_modules("solver.verify")))')
    assert used.split() == ["solver.api.planner_pb2", "solver.verify_nodes", "solver.verify_quota"]


@pytest.mark.parametrize("room", ["scheduler", "advisor"])
def test_every_file_is_found_by_its_subject(room: str) -> None:
    """The room's table in docs/developing.md has each file once, and no other."""
    text = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
    table = re.split(r"\n##+ ", text.partition(f"### The {room}'s files by subject")[2])[0]
    names = [name for line in table.splitlines() if line[:2] == "| " for name in re.findall(r"`([a-z_*]+)`", line)]
    files = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
    listed = [stem for name in names for stem in files if fnmatch(stem, name)]
    assert sorted(listed) == sorted(files)
    assert all(any(fnmatch(stem, name) for stem in files) for name in names)


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", ".")], ids=" ".join)
def test_style(command: tuple[str, ...]) -> None:
    """The code has the style that ruff checks, in the format that ruff gives it."""
    run(*command)


@pytest.mark.long
def test_types() -> None:
    """mypy --strict has nothing against any package."""
    run("mypy")
