"""Words of the advice: causes, what is known of each, what could be done, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from advisor.advise_demand import Demand
from advisor.advise_fit import Fit
from advisor.advise_timing import Timing
from advisor.capacity import Capacity


class Cause(StrEnum):
    """What may be behind missed deadlines, or results that are too few."""

    TIMING = "timing"
    SERVING = "serving"
    FIT = "fit"


class Standing(StrEnum):
    """Whether a cause is one here."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Sure(IntEnum):
    """How sure something is."""

    ESTIMATED = 1
    """Follows from figures that are known, if the future is like them."""
    SHOWN = 2
    """A verified plan, a replay or a measurement shows it."""
    PROVED = 3
    """Shown, and a bound proves that less does not do."""


class Verdict(StrEnum):
    """The answer."""

    NO = "no"
    NOT_YET = "not yet"
    YES = "yes"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """What is known about one cause."""

    cause: Cause
    standing: Standing
    told: str
    """In a sentence."""
    evidence: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """What is not known, and what would tell."""


@dataclass(frozen=True)
class Remedy:
    """Something that could be done.

    Attributes
    ----------
    extra
        Results more, in the time that was looked at; None: not known.
    cost
        Money more in that time; 0: none; None: not known.
    buying
        Whether it takes more hardware.
    gpu_hours
        That it frees, or buys, in that time.
    good
        Of results that somebody judged, the share that is verified; None: not known.
    """

    name: str
    cause: Cause
    extra: float | None
    cost: float | None
    sure: Sure
    evidence: str
    buying: bool = False
    gpu_hours: float | None = None
    good: float | None = None

    @property
    def each_verified(self) -> float | None:
        """Money for one verified result more, if as many are good as were; None: not known."""
        return self.each / self.good if self.each is not None and self.good else None

    @property
    def each(self) -> float | None:
        """Money for one result more; None: not known."""
        if self.cost == 0:
            return 0.0
        return self.cost / self.extra if self.cost is not None and self.extra else None


@dataclass(frozen=True)
class Facts:
    """What was found out; None, or empty, where nobody could be asked.

    Attributes
    ----------
    past
        Whether the deadlines are those of the past.
    capacity
        Of each pool that some work asks for.
    confirmed
        Of the deadlines that timing rescues, how many are of results that are verified.
    prices
        Of one for an hour, by pool.
    priced
        By whom, in words; empty if that is plain.
    unknown
        Sources that are missing, and what would tell.
    silent
        Names of sources that were asked and did not answer (which is told in ``unknown``).
    """

    timing: Timing | None = None
    past: bool = False
    capacity: Sequence[Capacity] = ()
    confirmed: int | None = None
    fit: Fit | None = None
    demands: Sequence[Demand] = ()
    prices: Sequence[float | None] = ()
    priced: Sequence[str] = ()
    currency: str = ""
    unknown: Sequence[str] = ()
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Advice:
    """The page. ``remedies``: the best first."""

    verdict: Verdict
    told: str
    findings: tuple[Finding, ...]
    remedies: tuple[Remedy, ...]
    unknown: tuple[str, ...] = ()
