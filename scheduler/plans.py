"""A plan as the scheduler keeps it: by workload, in absolute time, whatever has become of the request's rows since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solver.api import planner_pb2 as pb


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


def read_plan(request: pb.PlanRequest, response: pb.PlanResponse) -> PlanInForce:
    """Check a response against the request it answers, and translate it.

    Raises
    ------
    BadPlan
        If columns differ in length or point outside the request, a workload is planned twice or cannot be planned,
        or an instant is absurd.
    """
    raise NotImplementedError
