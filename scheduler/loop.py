"""The control loop: look, adopt the plan that came, release what is due, tell owners, ask for the next plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.cluster import Cluster, ReleaseResult
from scheduler.metrics import Metrics
from scheduler.planner_client import Planner
from scheduler.plans import PlanInForce
from scheduler.settings import Settings
from scheduler.snapshot import Item, Snapshot


def always() -> bool:
    """Leave to act of a loop that has no rival."""
    return True


@dataclass(frozen=True)
class Step:
    """What one round of the loop saw and did."""

    snapshot: Snapshot
    plan: PlanInForce | None
    releases: tuple[tuple[Item, ReleaseResult], ...]
    asked: bool
    """Whether a new plan was asked for."""


class Loop:
    """Releases work when its turn has come.

    Parameters
    ----------
    cluster
        Real or simulated.
    planner
        Where plans come from; dispatching never waits for it.
    may_act
        Asked before each release: whether this replica still leads. Without leave the loop plans but changes nothing.
    metrics
        What it counts into; its own by default.
    """

    plan: PlanInForce | None
    """The plan in force."""

    def __init__(
        self,
        cluster: Cluster,
        planner: Planner,
        settings: Settings | None = None,
        may_act: Callable[[], bool] = always,
        metrics: Metrics | None = None,
    ) -> None:
        raise NotImplementedError

    def step(self) -> Step:
        """One round. Never waits for the planner, unless that plans inline."""
        raise NotImplementedError

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop: at once when something changes, else every ``settings.idle_seconds``."""
        raise NotImplementedError
