"""``punctual check`` and ``punctual sweep``: usage, exit codes, what they print."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from scheduler.check import Finding, State


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """The sweeper sends all log lines to the standard error of its command, which ends with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("command", [["check"], ["sweep"]])
def test_no_cluster(tmp_path: Path, command: list[str]) -> None:
    """A kubeconfig that is not there is told with its name, in one line."""
    missing = str(tmp_path / "missing")
    result = CliRunner().invoke(app, [*command, "--kubeconfig", missing])
    assert result.exit_code == 2
    assert "no cluster to talk to" in result.output
    assert missing in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "--anonymise"], "goes with --bundle"),
        (["sweep", "--after", "soon"], "--after"),
        (["sweep", "--after", "-1s"], "not positive"),
        (["sweep", "--rate", "0"], "--rate"),
        (["sweep", "--on-loss", "panic"], "--on-loss"),
    ],
)
def test_wrong_usage(words: list[str], message: str) -> None:
    """Options that make no sense are refused before the cluster is asked anything."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert message in result.output


FINDINGS = [
    Finding("kueue", State.OK, "v0.17.0"),
    Finding("sweeper", State.WARN, "none", "kubectl apply -k manifests/sweeper"),
    Finding("guards", State.FAIL, "missing: x", "kubectl apply -k manifests/guards"),
]


@pytest.mark.parametrize(("findings", "code"), [(FINDINGS, 1), (FINDINGS[:2], 0)])
def test_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], code: int) -> None:
    """One line a finding and the command below it; only failures make the exit code; the same in JSON."""
    monkeypatch.setattr("scheduler.check.run", lambda at, checks: iter(findings))
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    kubeconfig.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})
    )
    result = CliRunner().invoke(app, ["check", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == code
    assert result.output.startswith(
        "ok    kueue: v0.17.0\nwarn  sweeper: none\n      > kubectl apply -k manifests/sweeper\n"
    )
    assert result.output.endswith(f"{code} failed, 1 warned, 1 fine\n")
    machine = CliRunner().invoke(app, ["check", "-o", "json", "--kubeconfig", str(kubeconfig)])
    assert machine.exit_code == code
    answer = json.loads(machine.output)
    assert (answer["failed"], answer["warned"]) == (code, 1)
    assert answer["findings"][1] == {
        "what": "sweeper", "state": "warn", "message": "none", "fix": "kubectl apply -k manifests/sweeper",
    }  # fmt: skip


def test_the_sweeper_needs_no_kernels() -> None:
    """It runs every few minutes in a small pod whose root cannot be written: it imports nothing that compiles."""
    program = (
        "import sys, cli.sweep, scheduler.in_force, scheduler.notices, scheduler.sweep; print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
