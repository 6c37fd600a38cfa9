"""What the ledger knows of one Workload.

Instants and lengths of time are milliseconds, instants since the Unix epoch. Kueue's own instants are whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.family import Family


class Outcome(StrEnum):
    """How a Workload ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    FINISHED = "Finished"
    """Finished, with a reason that says neither: that of an ownerless Workload is its maker's."""
    DELETED = "Deleted"
    """Gone before it had finished."""
    UNKNOWN = "Unknown"
    """Gone while nobody looked: it may have finished before."""


@dataclass(frozen=True, slots=True)
class Run:
    """One time that it held quota."""

    started: int
    planned_start: int | None = None
    """Of the last plan before it started."""
    ended: int | None = None
    ending: str = ""
    """Empty while it runs; ``Finished``, ``Deleted``, or Kueue's reason of an eviction (``Preempted`` …)."""


@dataclass(frozen=True, slots=True)
class DeadlineEdit:
    """A deadline that it had, and since when; the first one counts from its creation."""

    noticed: int
    deadline: int | None


class Verdict(StrEnum):
    """What somebody who may has said of a result."""

    VERIFIED = "verified"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on the result of a Workload; the last one counts."""

    noticed: int
    """When the controller saw it first (its clock), or when it was written to the ledger."""
    verdict: Verdict
    by: str
    """A user of the cluster, as its apiserver knows them; ``ledger:`` and a name for who wrote to the ledger itself."""
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One Workload.

    Attributes
    ----------
    uid
        Of the Workload.
    name
        Of its root object.
    submitted
        Creation of its root object.
    managed
        Whether our gate was seen on it, or was taken off by us.
    priority_class
        Name of its WorkloadPriorityClass; empty without one.
    bypassed_by
        Who let it pass by the plan; empty if nobody did.
    planned_start, started
        Of its last run; None while there was none (or nobody had planned it).
    ended
        When it finished, or was gone. None while it is there.
    interruptions
        How often it was evicted after it had been admitted.
    flavor
        That its GPUs (else its first resource) were granted on; empty before.
    gpus
        It asks for.
    usage
        Flavor, resource and amount (cpu in millicores) that Kueue granted; what finished pods gave back counts too.
    estimate, estimate_source
        What the plan reckoned with when it first started (before that: now), and why.
    user_estimate
        Its annotation ``punctual.kueue/duration``.
    outcome
        None while it waits or runs.
    reason
        Kueue's word on how it finished.
    updated
        When this was seen.
    runs, deadlines, judgements
        Oldest first. Left out by queries unless asked for.
    """

    uid: str
    name: str
    family: Family
    submitted: int
    updated: int
    managed: bool = False
    deadline: int | None = None
    earliest_start: int | None = None
    weight: float = 1.0
    hard: bool = False
    priority_class: str = ""
    bypassed_by: str = ""
    planned_start: int | None = None
    started: int | None = None
    ended: int | None = None
    interruptions: int = 0
    flavor: str = ""
    gpus: int = 0
    usage: tuple[tuple[str, str, int], ...] = ()
    estimate: int | None = None
    estimate_source: str = ""
    user_estimate: int | None = None
    outcome: Outcome | None = None
    reason: str = ""
    runs: tuple[Run, ...] = ()
    deadlines: tuple[DeadlineEdit, ...] = ()
    judgements: tuple[Judgement, ...] = ()

    @property
    def duration(self) -> int | None:
        """How long its last run took; None if it has not ended, or never ran."""
        return None if self.started is None or self.ended is None else max(0, self.ended - self.started)

    @property
    def completed(self) -> bool:
        """Whether it ran to an end of its own, not a failure: what says how long such work takes."""
        return self.duration is not None and self.outcome in (Outcome.SUCCEEDED, Outcome.FINISHED)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that counts; None while nobody has said anything."""
        return self.judgements[-1].verdict if self.judgements else None

    @property
    def late(self) -> bool | None:
        """Whether it missed its deadline; None without one, or while it is not known.

        Work that failed or was deleted before its deadline has not missed it, nor met it.
        """
        if self.deadline is None or self.outcome is None or self.ended is None:
            return None
        if self.ended > self.deadline:
            return True
        return False if self.completed else None
