"""What a platform team may tune about the controller. One value object; the defaults work on the first day."""

from __future__ import annotations

from dataclasses import dataclass, fields

from scheduler.cluster import PREFIX

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@dataclass(frozen=True)
class Settings:
    """Settings of snapshot, dispatch and loop. Lengths of time are milliseconds.

    Raises
    ------
    ValueError
        If a value makes no sense; the message names the field.
    """

    default_duration_ms: int = HOUR
    """Estimate of the run time of work that says nothing about it."""
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
    newcomer_wait_ms: int = 2 * SECOND
    """After this long (or two budgets) work is released without waiting for a plan that knows all that waits."""
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{field.name} must not be negative, is {value}")
        for name in ("default_duration_ms", "budget_ms", "minimum_remaining_ms", "notices_per_step", "idle_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
