"""What the scheduler goes by: the policy, resolved for each queue and in the units of the code, and the few lengths of
time that no policy says. Plain values; the defaults work on the first day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from scheduler.cluster import PREFIX

if TYPE_CHECKING:
    from scheduler.duedate import DueDate

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@dataclass(frozen=True)
class Reservation:
    """Quota that is kept free from ``start`` to ``end`` (milliseconds since the Unix epoch)."""

    node: str
    """Name of a ClusterQueue or, when no queue has that name, of a Cohort."""
    flavor: str
    resource: str
    amount: int
    """In Kueue's unit."""
    start: int
    end: int


@dataclass(frozen=True)
class QueueSettings:
    """What may differ from one ClusterQueue to another."""

    observed: bool = False
    """Nothing waits for us in this queue: plans are only made beside Kueue."""
    default_deadline: DueDate | None = None
    """Gives work a deadline that says nothing about it; None: such work is best effort."""
    default_duration_ms: int = HOUR
    """Estimate of the run time of work that says nothing about it."""
    learn: bool = True
    """Whether the past of its family corrects what is said about the run time of work."""
    estimate_quantile: float = 0.5
    """Which quantile of its run time an estimate is meant to be, where the past speaks."""
    default_weight: float = 1.0
    """Weight of work that has no annotation and no class of ``class_weights``."""
    class_weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of work without an annotation, by the name of its WorkloadPriorityClass."""
    weight_cap: float = float("inf")
    """Largest weight that an annotation may ask for."""


@dataclass(frozen=True)
class Settings(QueueSettings):
    """Settings of snapshot, dispatch and loop, and of each queue that has none of its own.

    Lengths of time are milliseconds.

    Raises
    ------
    ValueError
        If a value makes no sense; the message names the field.
    """

    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    """Settings of queues that have ones of their own, by the name of the ClusterQueue."""
    objective: tuple[int, ...] = ()
    """Values of the proto's ``ObjectiveLevel``, most important first; empty: the planner's default."""
    stability_threshold: float = 0.1
    """As in the proto's ``Policy``."""
    reservations: tuple[Reservation, ...] = ()
    budget_ms: int = SECOND
    """Wall-clock time the planner may spend on one plan."""
    work_limit: int = 0
    """Deterministic limit of the planner (``Budget.work_limit``); 0: only the wall clock decides."""
    horizon_ms: int = 0
    """How far ahead to plan; 0: far enough for all work."""
    seed: int = 0
    """Source of the planner's random choices."""
    engine: int = 0
    """A value of the proto's ``Engine``; 0: chosen by size and budget."""
    preemption: int = 0
    """A value of the proto's ``Entitlement``: whether work is released that Kueue would admit by evicting others."""
    ageing_ms: int = 3 * DAY
    """Work without a deadline is planned as if due at once after it has waited this long; 0: never."""
    managed_label: str = f"{PREFIX}/managed"
    """Label that opts a namespace in, with the value ``true``."""
    annotate: bool = False
    """Whether the planned start is also written into an annotation of the root object."""
    replan_ms: int = MINUTE
    """A new plan is asked for at least this often, even if nothing seems to have changed."""
    settle_ms: int = 300
    """Work is released this long after it (and what came after it) was first seen: others may be right behind it."""
    newcomer_wait_ms: int = SECOND
    """After this long work is released without waiting for a plan that knows all that waits. (A planner that is busy
    hears of newcomers within 0.3 s: :class:`scheduler.planner_client.BackgroundPlanner`.)"""
    notice_interval_ms: int = 5 * MINUTE
    """At most one Event about its planned start per workload in this time."""
    notices_per_step: int = 20
    """At most so many Events about planned starts per round of the loop; the others follow in later rounds."""
    moved_ms: int = MINUTE
    """A planned start that moves by less than this, or by less than a tenth of the time until it, is not news."""
    in_flight_warning_ms: int = MINUTE
    """Released work that Kueue has not admitted after this long is warned about (never taken back)."""
    minimum_remaining_ms: int = SECOND
    """Work that outlives its estimate is expected to run at least this much longer, or a tenth of its estimate."""
    owner_grace_ms: int = 10 * SECOND
    """How long a Workload's owner may be unknown (watches of two kinds are not in step) before it counts as gone."""
    stranded_ms: int = SECOND
    """Gated work of a missing, stopped or unsupported queue is let go after this long, and not at once: queues, flavors
    and work that are made together are seen one after another."""
    idle_seconds: float = 1.0
    """Longest pause of the loop when nothing changes."""

    def queue(self, cluster_queue: str) -> QueueSettings:
        """What holds for a ClusterQueue."""
        return self.queues.get(cluster_queue, self)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{each.name} must not be negative, is {value}")
        for name in ("default_duration_ms", "budget_ms", "minimum_remaining_ms", "notices_per_step", "idle_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
