"""What the trials of a run say: the bracket, goodput by rate, how the server broke, what a good answer costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from advisor.serving_search import Bracket, bracket, tally
from advisor.serving_trial import Trial
from advisor.success import Service


@dataclass(frozen=True)
class Hardware:
    """What answers, and what it costs."""

    gpus: float
    """That the server holds."""
    hourly: float | None
    """Price of one GPU for an hour."""
    currency: str


@dataclass(frozen=True)
class Point:
    """All trials at one rate that count. Means over them."""

    rate: float
    passed: int
    failed: int
    goodput: float
    """Good answers per second."""
    answered: float
    """Share of requests."""
    quality: float | None
    times: Mapping[str, Mapping[str, float | None]]
    """Milliseconds by goal and percentile; None where a trial had none."""
    reasons: Sequence[str]
    """Of its first failure."""
    errors: Mapping[str, int]

    def as_data(self) -> dict[str, Any]:
        """As plain data; rates are per second."""
        return {
            "rate": self.rate,
            "passed": self.passed,
            "failed": self.failed,
            "goodput": self.goodput,
            "answered": self.answered,
            "quality": self.quality,
            "milliseconds": {goal: dict(named) for goal, named in self.times.items()},
            "reasons": list(self.reasons),
            "errors": dict(self.errors),
        }


@dataclass(frozen=True)
class Price:
    """What one good answer takes at a rate."""

    gpu_seconds: float
    cost: float | None
    currency: str
    allowed: float | None
    """By the budget."""


@dataclass(frozen=True)
class Report:
    """What a run has found."""

    bracket: Bracket
    width: float
    """That was asked for."""
    curve: Sequence[Point]
    """By rate."""
    broke: str
    """How the server failed at the upper end, in words; empty if it did not."""
    price: Price | None
    """At the lower end."""
    void: int
    """Trials that do not count."""

    @property
    def found(self) -> bool:
        """Whether the bracket is as narrow as was asked for."""
        width = self.bracket.width
        return width is not None and width <= self.width * (1 + 1e-9)


def report(trials: Sequence[Trial], service: Service, width: float, hardware: Hardware | None) -> Report:
    """What the trials say; those that are void do not count."""
    counting = [trial for trial in trials if trial.verdict != "void"]
    found = bracket(tally((trial.rate, trial.verdict == "pass") for trial in counting), width)
    by_rate: dict[float, list[Trial]] = defaultdict(list)
    for trial in counting:
        by_rate[trial.rate].append(trial)
    curve = [_point(rate, by_rate[rate]) for rate in sorted(by_rate)]
    at = {point.rate: point for point in curve}
    broke = _broke(at[found.high]) if found.high is not None else ""
    price = None
    if hardware is not None and found.low is not None:
        price = _price(at[found.low], hardware, service)
    return Report(found, width, curve, broke, price, len(trials) - len(counting))


def _point(rate: float, trials: Sequence[Trial]) -> Point:
    failures = [trial for trial in trials if trial.verdict == "fail"]
    qualities = [trial.quality for trial in trials if trial.quality is not None]
    errors: Counter[str] = Counter()
    for trial in trials:
        errors.update(trial.errors)
    return Point(
        rate=rate,
        passed=len(trials) - len(failures),
        failed=len(failures),
        goodput=mean(trial.goodput for trial in trials),
        answered=sum(trial.answered for trial in trials) / max(1, sum(trial.measured for trial in trials)),
        quality=mean(qualities) if qualities else None,
        times={
            goal: {name: _mean([trial.times[goal][name] for trial in trials]) for name in named}
            for goal, named in trials[0].times.items()
        },
        reasons=failures[0].reasons if failures else (),
        errors=errors,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return mean(there) if len(there) == len(values) else None


def _broke(point: Point) -> str:
    told = "; ".join(point.reasons)
    if point.errors:
        told += " (" + ", ".join(f"{count} × {what}" for what, count in Counter(point.errors).most_common(4)) + ")"
    return told


def _price(point: Point, hardware: Hardware, service: Service) -> Price | None:
    if not point.goodput:
        return None
    seconds = hardware.gpus / point.goodput
    cost = None if hardware.hourly is None else seconds / 3600 * hardware.hourly
    budget = service.budget
    allowed = budget.cost_per_result if budget is not None and budget.currency == hardware.currency else None
    return Price(seconds, cost, hardware.currency, allowed)
