"""The generated code of the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("planner_pb2.py", "planner_pb2.pyi", "planner_pb2_grpc.py")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same code, generated now, as ``make api`` does it."""
    out = tmp_path_factory.mktemp("api")
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Isolver/api=proto", *outputs, "solver/api/planner.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    return out / "solver" / "api"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_is_not_stale(fresh: Path, name: str) -> None:
    """What is checked in is what ``make api`` makes of proto/planner.proto, byte for byte."""
    assert (ROOT / "solver" / "api" / name).read_bytes() == (fresh / name).read_bytes(), "run: make api"


def test_nothing_else_is_generated(fresh: Path) -> None:
    """The list of files that are compared is complete."""
    assert sorted(file.name for file in fresh.iterdir()) == sorted(GENERATED)
