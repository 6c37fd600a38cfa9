"""The repair bench: each event changes what it says, and figures are those of verified plans."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import repair
from cli.main import app
from solver.api import planner_pb2 as pb
from solver.decode import decode


@pytest.mark.parametrize("name", repair.INSTANCES)
@pytest.mark.parametrize("kind", repair.EVENTS)
def test_events_make_sense(name, kind):
    """After each event all work can still be planned, and the request is another one; the seed decides which."""
    base = repair.INSTANCES[name](60, 3)

    def changed(seed: int) -> pb.PlanRequest:
        request = pb.PlanRequest()
        request.CopyFrom(base)
        repair.EVENTS[kind](request, np.random.default_rng(seed))
        return request

    assert changed(1) == changed(1) != base
    assert len(decode(changed(1))) == 60 + (kind == "arrival")
    assert not decode(changed(1)).rejected


def test_the_command_prints_its_bars(monkeypatch):
    """JSON has figures beside plans made anew, ratios are those of the figures; the exit code says what holds."""
    monkeypatch.setattr(repair, "BEFORE_MS", 100)
    monkeypatch.setattr(repair, "AFTER_MS", 50)
    done = CliRunner().invoke(app, ["bench", "repair", "-n", "40", "--events", "1", "-o", "json"])
    told = json.loads(done.stdout)
    assert told["bench"] == "repair"
    assert done.exit_code == (0 if told["holds"] else 3)
    assert set(told["figures"]) == {*repair.EVENTS, "all"}
    assert told["bars"]["plans over capacity"] == {"most": 0, "is": 0}
    late = told["bars"]["late weight a second after / planned anew"]
    for kind, ratio in late["is"].items():
        mine = told["figures"][kind]["late weight"]["a second after"]
        anew = told["reference"]["planned anew"][kind]["late weight"]
        assert ratio == pytest.approx(mine / anew if anew else 1 + mine)
    assert told["holds"] == all(ratio <= late["most"] for ratio in late["is"].values())
