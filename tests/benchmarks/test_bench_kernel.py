"""The kernel bench: both scans agree, and what is told is what was measured."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import kernel
from benchmarks.kernel import Case
from cli.main import app

SMALL = {"small tree": Case(5_000, True, 256, 0.0, 1.0), "small flat": Case(5_000, False, 256, 0.0, 1.0)}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_both_find_the_same_starts(case: Case) -> None:
    """With release dates, lending and borrowing, the plain scan gives each row the bucket and option of the kernel."""
    work = kernel.make(case, seed=3)
    mine, theirs = kernel.quick(work), kernel.plain(work)
    assert (mine[0] == theirs[0]).all()
    assert (mine[1] == theirs[1]).all()
    assert (mine[1] >= 0).mean() > 0.9
    assert len(set(mine[0].tolist())) > 10


def test_quota_of_a_tree_can_run_short() -> None:
    """All queues' quota of all flavors is looked at, and rows may run on several flavors."""
    work = kernel.make(SMALL["small tree"], seed=3)
    assert len(work.slots.up) >= kernel.QUEUES * len(kernel.FLAVORS) // 2
    assert (work.rows.last - work.rows.first > 1).all()


def test_the_command_tells_whether_bars_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has the figures, and a bar that cannot be met makes the exit code 3; another case is refused."""
    monkeypatch.setattr(kernel, "CASES", {"small flat": SMALL["small flat"]._replace(times=1e9)})
    result = CliRunner().invoke(app, ["bench", "kernel", "--runs", "1", "-o", "json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 3
    assert not told["holds"]
    assert told["figures"]["small flat"]["same starts"]
    assert told["bars"]["times as fast"]["is"]["small flat"] == told["figures"]["small flat"]["times"]
    assert CliRunner().invoke(app, ["bench", "kernel", "-c", "1G"]).exit_code == 2
