"""The second cause: serving. What a server can take, as it was measured, beside what is asked of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import Any


class BadReport(ValueError):
    """Not what ``punctual advise serving -o json`` writes."""


@dataclass(frozen=True)
class Measured:
    """What ``punctual advise serving`` has found out about one server of a service. Rates are requests per second.

    Attributes
    ----------
    sustainable
        The highest rate that passed; None: none did.
    too_much
        The lowest rate that failed; None: none did.
    gpu_seconds, cost
        Of one good answer at the sustainable rate; None where it was not said what answers, and what that costs.
    """

    service: str
    sustainable: float | None
    too_much: float | None
    broke: str
    gpu_seconds: float | None
    cost: float | None
    currency: str


@dataclass(frozen=True)
class Demand:
    """What is asked of a service at its busiest, beside what it can take.

    Attributes
    ----------
    rate
        Requests a second; None: not known, ``why`` says why.
    servers
        That answer now.
    growth
        By so much the rate grows in a week; None: not known.
    evidence
        Where the rate is from, in words.
    """

    measured: Measured
    rate: float | None
    servers: int
    growth: float | None = None
    evidence: tuple[str, ...] = ()
    why: str = ""

    @property
    def needed(self) -> int | None:
        """Servers like the one that was measured that take this rate; None: it is not known."""
        rate = self.measured.sustainable
        return None if not rate or self.rate is None else max(1, ceil(self.rate / rate - 1e-9))

    @property
    def short(self) -> bool | None:
        """Whether it is more than the servers can take.

        None: the rate is not known, lies between what passed and what failed, or nothing passed.
        """
        low, high = self.measured.sustainable, self.measured.too_much
        if self.rate is None:
            return None
        if low is not None and self.rate <= low * self.servers:
            return False
        if high is not None and self.rate >= high * self.servers:
            return True
        return None

    @property
    def weeks(self) -> float | None:
        """Until it is more than is known to pass, if it goes on growing like that; None if it does not."""
        low = self.measured.sustainable
        if low is None or self.rate is None or not self.growth or self.growth < 0:
            return None
        return max(0.0, (low * self.servers - self.rate) / self.growth)


def read_report(text: str) -> Measured:
    """Read what ``punctual advise serving -o json`` has written.

    Raises
    ------
    BadReport
        If it is something else, or the run was void.
    """
    try:
        data: Any = json.loads(text)
        bracket, each = data["bracket"], data["perGoodAnswer"] or {}
        found = Measured(
            service=str(data["service"]),
            sustainable=_number(bracket["highestPassing"]),
            too_much=_number(bracket["lowestFailing"]),
            broke=str(data["broke"]),
            gpu_seconds=_number(each.get("gpuSeconds")),
            cost=_number(each.get("cost")),
            currency=str(each.get("currency") or ""),
        )
        void = bool(data["void"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadReport("is not what punctual advise serving -o json writes") from None
    if void:
        raise BadReport(f"is a run that is void: {data.get('why', '')}")
    return found


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
