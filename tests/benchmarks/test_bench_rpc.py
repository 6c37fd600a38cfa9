"""The bench of whole Plan calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.rpc import PARTS, QUEUES, instance
from cli.main import app
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.server import Options, Server


def test_instances_are_what_they_say() -> None:
    """Every workload of an instance can be planned, on a tree of 3 cohort levels, 20 queues and 4 flavors."""
    problem = decode(instance(500, seed=3).message())
    assert len(problem) == 500
    assert problem.rejected == ()
    assert len(problem.tree.queue_names) == QUEUES == 20
    assert len(problem.tree.flavors) == 4
    depth = [0] * len(problem.tree.parent)
    for node, parent in enumerate(problem.tree.parent):
        depth[node] = depth[parent] + 1 if parent >= 0 else 0
    assert {depth[node] for node in problem.tree.queue_node} == {3}
    gpus = problem.tree.nominal[:, 2::3].sum()
    assert 0.25 < problem.busy.amount[problem.busy.cell % 3 == 2].sum() / gpus < 0.42


def test_the_seed_decides_the_instance() -> None:
    """The same seed gives the same request, another seed another."""
    first, second, other = (instance(50, seed).message() for seed in (1, 1, 2))
    assert first == second != other


def test_the_parts_of_a_call_add_up(tmp_path: Path) -> None:
    """The command prints one JSON object: medians of a round trip and its parts, with reference, bars and verdict."""
    server = Server(Options((f"unix://{tmp_path}/s",), grace=1))
    server.start()
    server.warm_up()
    arguments = ["bench", "rpc", "-n", "40", "--runs", "1", "--solver", server.addresses[0], "-o", "json"]
    done = CliRunner().invoke(app, arguments)
    server.stop()
    result = json.loads(done.stdout)
    assert done.exit_code == (0 if result["holds"] else 3)
    assert result["bench"] == "rpc"
    figures = result["figures"]["40"]
    assert figures["planned"] == 40
    assert figures["round trip"] == pytest.approx(sum(figures[part] for part in PARTS))
    assert all(figures[part] > 0 for part in PARTS)
    ((_, bar),) = result["bars"].items()
    is_ = (figures["decode"] + figures["encode"]) / (figures["solve"] + figures["verify"])
    assert bar["is"]["40"] == pytest.approx(is_)
    assert result["holds"] == (is_ <= bar["most"])


def test_a_planner_that_is_not_there_is_told() -> None:
    """Without a planner at the address the command fails with one line."""
    done = CliRunner().invoke(app, ["bench", "rpc", "-n", "1", "--solver", "unix:///no/such/socket"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: unix:///no/such/socket: UNAVAILABLE")


def test_the_first_plan_is_measured() -> None:
    """The instance asks for one pass of the greedy engine and no more."""
    request = instance(1).message()
    assert request.policy.engine == pb.GREEDY
    assert request.budget.wall_ms == 1
