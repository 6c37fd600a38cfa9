"""The backlog bench: instances are what they say, and figures are those of verified plans."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import backlog
from cli.main import app
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.schedule import Scheduler
from solver.verify import verify


def test_an_instance_is_what_it_says():
    """Same seed, same backlog; no row is rejected, nobody is hopeless, and half of the pool is busy."""
    asked = backlog.instance(200, 1.1, seed=5)
    assert asked == backlog.instance(200, 1.1, seed=5)
    assert asked != backlog.instance(200, 1.1, seed=6)
    problem = decode(asked)
    assert len(problem) == 200
    assert not problem.rejected
    assert (problem.duration <= problem.due).all()
    assert problem.busy.amount[problem.busy.start == 0].sum() == backlog.POOL // 2


def test_the_load_is_what_is_asked_for_until_the_end():
    """Work of a load of 1.3 needs 1.3 times the quota × time that is free until the last due date."""
    problem = decode(backlog.instance(5_000, 1.3, seed=5))
    energy = float(
        (problem.options.amount[problem.options.need[problem.options.first[problem.pair]]] * problem.duration).sum()
    )
    end = float(np.quantile(problem.due, 0.99))
    busy = float((problem.busy.amount * problem.busy.end).sum())
    assert energy / (backlog.POOL * end - busy) == pytest.approx(1.3, rel=0.05)


def test_rules_make_thirteen_plans_that_hold():
    """Each rule has a name of its own and a plan that passes the verifier."""
    asked = backlog.instance(60, 1.3, seed=5)
    problem = decode(asked)
    made = list(backlog.rules(Scheduler(problem)))
    assert len({plan.engine for plan in made}) == 13
    for plan in made:
        response = encode(problem, plan, pb.Policy())
        assert verify(asked, response.plan, response.objective) == []


def test_the_command_prints_its_bars():
    """JSON has figures beside the rules, the ratio is that of the figures, and the exit code says whether it holds."""
    result = CliRunner().invoke(app, ["bench", "backlog", "-n", "200", "--seeds", "1", "-o", "json"])
    told = json.loads(result.stdout)
    late, best = told["figures"]["200"]["punctual"], told["reference"]["200"]["best rule of each instance"]
    assert told["bench"] == "backlog"
    assert told["figures"]["200"]["bound"] <= late
    assert best <= min(v for k, v in told["reference"]["200"].items() if not k.startswith("best"))
    (bar,) = told["bars"].values()
    assert bar["is"]["200"] == pytest.approx(late / best)
    assert told["holds"] == (bar["is"]["200"] <= bar["most"]["200"])
    assert result.exit_code == (0 if told["holds"] else 3)
