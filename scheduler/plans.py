"""A plan as the scheduler keeps it: by workload, in absolute time, whatever has become of the request's rows since."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.api import planner_pb2 as pb
from solver.problem import MAX_TIME
from solver.quota import Int64s


class BadPlan(ValueError):
    """A response that makes no sense for its request; the message says where."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What a plan says about one workload. Instants are milliseconds since the Unix epoch."""

    rank: int
    """Place in the order of admission."""
    start: int
    not_before: int
    """A rule, 0 for none."""
    finish: int
    tardiness: int
    reason: int
    """A value of the proto's ``Reason``."""
    flavors: Mapping[str, str]
    """Expected flavor of each resource."""


class PlannedColumns(NamedTuple):
    """Some of what a plan says, ``int64 [n]`` each."""

    place: Mapping[str, int]
    """Place in the columns, by uid."""
    rank: Int64s
    start: Int64s
    not_before: Int64s


@dataclass(frozen=True)
class PlanInForce:
    """The last sound plan."""

    made_for: int
    """The instant of its request, milliseconds since the Unix epoch."""
    placements: Mapping[str, Placement]
    """By uid of the Workload."""
    rejections: Mapping[str, str]
    """Why a workload is not planned, by uid."""
    engine: str
    objective: tuple[float, ...]
    """Value of each level."""
    bound: float
    gap: float

    @cached_property
    def columns(self) -> PlannedColumns:
        """The placements as columns."""
        n = len(self.placements)
        return PlannedColumns(
            dict(zip(self.placements, range(n), strict=True)),
            np.fromiter((placement.rank for placement in self.placements.values()), np.int64, n),
            np.fromiter((placement.start for placement in self.placements.values()), np.int64, n),
            np.fromiter((placement.not_before for placement in self.placements.values()), np.int64, n),
        )


def read_plan(request: pb.PlanRequest, response: pb.PlanResponse) -> PlanInForce:
    """Check a response against the request it answers, and translate it.

    Raises
    ------
    BadPlan
        If columns differ in length or point outside the request, a workload is planned twice or cannot be planned,
        or an instant is absurd.
    """
    columns = response.plan
    row = _column(columns.workload, "workload", len(columns.workload))
    n = len(row)
    now, latest = request.now_ms, request.now_ms + MAX_TIME
    state = np.fromiter(request.workloads.state, np.int64, len(request.workloads.state))
    _within(row, 0, len(request.workloads.id) - 1, "workload")
    if len(np.unique(row)) != n:
        raise BadPlan("plan.workload has a row twice")
    if len(state) and (state[row] == pb.RUNNING).any():
        raise BadPlan("plan.workload has a row that runs already")
    start = _within(_column(columns.start_ms, "start_ms", n), now, latest, "start_ms")
    not_before = _within(_column(columns.not_before_ms, "not_before_ms", n), 0, latest, "not_before_ms")
    finish = _within(_column(columns.finish_ms, "finish_ms", n), now, latest + MAX_TIME, "finish_ms")
    tardiness = _within(_column(columns.tardiness_ms, "tardiness_ms", n), 0, MAX_TIME << 1, "tardiness_ms")
    reason = _column(columns.reason, "reason", n)
    assignment = _column(columns.assignment, "assignment", n)
    _within(assignment, 0, len(columns.assignments) - 1, "assignment")
    if (finish < start).any():
        raise BadPlan("plan.finish_ms is before plan.start_ms")
    flavors = [_flavors(request.quota, held, k) for k, held in enumerate(columns.assignments)]
    ids = request.workloads.id
    listed = zip(
        *(column.tolist() for column in (row, start, not_before, finish, tardiness, reason, assignment)), strict=True
    )
    placements = {
        ids[row]: Placement(rank, start, not_before, finish, tardiness, reason, flavors[assignment])
        for rank, (row, start, not_before, finish, tardiness, reason, assignment) in enumerate(listed)
    }
    rejections = {}
    for rejection in response.rejections:
        if rejection.workload >= len(ids):
            raise BadPlan(f"rejections name row {rejection.workload} of {len(ids)}")
        rejections[ids[rejection.workload]] = rejection.message
    objective = response.objective
    values = tuple(level.value for level in objective.levels)
    if not all(map(math.isfinite, (*values, objective.bound, objective.gap))):
        raise BadPlan("objective has a value that is not finite")
    return PlanInForce(
        made_for=now,
        placements=placements,
        rejections=rejections,
        engine=objective.engine,
        objective=values,
        bound=objective.bound,
        gap=objective.gap,
    )


def _column(column: Collection[int], name: str, length: int) -> Int64s:
    if len(column) != length:
        raise BadPlan(f"plan.{name} has {len(column)} entries where plan.workload has {length}")
    return np.fromiter(column, np.int64, length)


def _within(values: Int64s, least: int, most: int, name: str) -> Int64s:
    wrong = np.flatnonzero((values < least) | (values > most))
    if len(wrong):
        raise BadPlan(f"plan.{name}[{wrong[0]}] is {values[wrong[0]]}, not between {least} and {most}")
    return values


def _flavors(quota: pb.Quota, held: pb.Assignment, position: int) -> Mapping[str, str]:
    if not len(held.flavors) == len(held.resources) == len(held.amounts):
        raise BadPlan(f"plan.assignments[{position}] has columns of different lengths")
    if any(flavor >= len(quota.flavors) for flavor in held.flavors):
        raise BadPlan(f"plan.assignments[{position}] names a flavor that the request does not have")
    if any(resource >= len(quota.resources) for resource in held.resources):
        raise BadPlan(f"plan.assignments[{position}] names a resource that the request does not have")
    return {quota.resources[r]: quota.flavors[f].name for f, r in zip(held.flavors, held.resources, strict=True)}
