"""One trial: a rate, what was seen at it, and whether the goals hold.

All of them must hold in the same trial, on the same requests: a server can buy its response times with worse answers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from advisor.serving_load import Load, Observed, Sample
from advisor.serving_target import NO_SOCKETS
from advisor.success import Service, percentile
from scheduler.annotations import format_duration

Verdict = Literal["pass", "fail", "void"]

_BATCHES = 10
_TREND = 0.01
"""How rarely a server that keeps up may look as if it did not."""
_GROWTH = 1.5
"""By how much response times must have grown as well, from the first to the last third."""
_LATE = 0.1
"""How late this machine may be with 99 % of requests and no more be made of it, as a part of the shortest goal."""


@dataclass(frozen=True)
class Trial:
    """One trial at a rate. Seconds where nothing else is said, requests per second, shares from 0 to 1."""

    number: int
    rate: float
    started: str
    """RFC 3339."""
    seed: int
    seconds: float
    """How long was measured."""
    planned: int
    """Requests due in a full trial."""
    measured: int
    """Requests of which the fate is known; fewer than planned if it was ended early."""
    answered: int
    good: int
    """Answers that came, are good enough, and kept the limit of each goal's highest percentile."""
    quality: float | None
    """Mean score of what was measured; None without a judge."""
    times: Mapping[str, Mapping[str, float | None]]
    """Milliseconds by goal and percentile; None if that many got no answer."""
    errors: Mapping[str, int]
    """How many requests got no result, by why."""
    said: Mapping[str, str]
    """What the server said with the first of each."""
    growth: float
    """Mean response time in the last third of the trial by that in the first."""
    lag: float
    """What this machine took of 99 % of requests at most: sent late, or looked at late."""
    early: str
    """Why it was ended early; empty if it was not."""
    verdict: Verdict
    reasons: Sequence[str] = field(default_factory=tuple)
    """Why it is no pass."""

    @property
    def goodput(self) -> float:
        """Good answers per second."""
        return self.good / self.seconds if self.seconds else 0.0

    def as_data(self) -> dict[str, Any]:
        """As plain data; :func:`trial_of` reads it back."""
        return {**asdict(self), "goodput": self.goodput}


def trial_of(data: Mapping[str, Any]) -> Trial:
    """What :meth:`Trial.as_data` gave.

    Raises
    ------
    KeyError, TypeError
        If it is something else.
    """
    return Trial(**{name: data[name] for name in Trial.__dataclass_fields__})


UNDER_WAY = "under way"
"""Why a request has no result that was not waited for any longer."""


def fault(sample: Sample, service: Service) -> str:
    """Why a request has no result, in a word or two; empty if it has one."""
    if sample.waited is not None:
        return UNDER_WAY
    if sample.error:
        return sample.error
    if len(sample.text.strip()) < service.result.min_length:
        return "empty" if not sample.text.strip() else "too short"
    if service.result.cut_off == "fails" and sample.finish == "length":
        return "cut off"
    return ""


def took(sample: Sample, goal: str, faulty: bool) -> float | None:
    """Milliseconds by a goal, infinite for one without a result; None if the goal is not about this one."""
    begun = sample.waited is not None and goal == "ttft" and sample.ttft is not None
    if faulty and not begun:
        return math.inf
    seconds = {"ttft": sample.ttft, "perToken": sample.per_token, "endToEnd": sample.end_to_end}[goal]
    return None if seconds is None else seconds * 1000


def misses_allowed(share: float, count: int) -> int:
    """How many of ``count`` may miss what a ``share`` of them must keep."""
    return math.floor((1.0 - share) * count + 1e-9)


class GoalWatch:
    """Counts misses while a trial runs, to end it once the goals are out of reach for certain.

    What this machine took of a request does not count here: it may make a trial void, but never end it.
    """

    def __init__(self, service: Service, planned: int) -> None:
        self._service = service
        self._limits = [
            (goal, name, limit, misses_allowed(percentile(name), planned))
            for goal, limits in service.goals.limits().items()
            for name, limit in limits.items()
        ]
        self._unanswered_allowed = misses_allowed(service.answered, planned)
        self._missed: Counter[tuple[str, str]] = Counter()
        self._unanswered = 0
        self._planned = planned

    def add(self, sample: Sample) -> None:
        """A request whose fate is known."""
        faulty = bool(fault(sample, self._service))
        self._unanswered += faulty
        for goal, name, limit, _ in self._limits:
            time = took(sample, goal, faulty)
            if time is not None and time - sample.lag * 1000 > limit:
                self._missed[goal, name] += 1

    def hopeless(self, under_way: Sequence[tuple[float, bool]]) -> str:
        """Which goal cannot be reached any more, whatever comes; empty if all can."""
        if self._unanswered > self._unanswered_allowed:
            return f"{self._unanswered} of {self._planned} requests have no result"
        waited = {
            "ttft": sorted(seconds for seconds, begun in under_way if not begun),
            "endToEnd": sorted(seconds for seconds, _ in under_way),
        }
        for goal, name, limit, allowed in self._limits:
            there = waited.get(goal, [])
            late = len(there) - bisect_right(there, limit / 1000)
            if (missed := self._missed[goal, name] + late) > allowed:
                return f"{missed} of {self._planned} requests are beyond the {format_duration(limit)} of {goal} {name}"
        return ""


def judged(
    number: int,
    started: str,
    load: Load,
    observed: Observed,
    service: Service,
    scores: Mapping[int, float] | None,
    spoilt: str = "",
) -> Trial:
    """A trial, of what was seen.

    Parameters
    ----------
    scores
        Of the answers that came, by the sample's number; None without a judge.
    spoilt
        Why it cannot count, whatever was seen; empty if it can.
    """
    samples = observed.samples
    faults = [fault(sample, service) for sample in samples]
    limits = service.goals.limits()
    times: dict[str, dict[str, float | None]] = {
        goal: {
            name: _percentile([took(s, goal, bool(f)) for s, f in zip(samples, faults, strict=True)], percentile(name))
            for name in named
        }
        for goal, named in limits.items()
    }
    done = sum(sample.waited is None for sample in samples)
    answered = sum(not each for each in faults)
    said: dict[str, str] = {}
    for sample, each in zip(samples, faults, strict=True):
        if each and sample.detail:
            said.setdefault(each, sample.detail)
    quality = None
    if scores is not None and service.quality is not None:
        quality = sum(scores.values()) / max(1, done)
    growth, grows = _trend(samples, faults, load.timeout)
    lag = float(np.quantile([sample.lag for sample in samples], 0.99)) if samples else 0.0
    reasons = [observed.hopeless] if observed.hopeless else _reasons(service, times, answered, len(samples))
    if quality is not None and service.quality is not None and quality < service.quality.threshold:
        reasons.append(f"quality is {quality:.3f}, threshold {service.quality.threshold:g}")
    if grows:
        reasons.append(f"response times grew {growth:.1f} times through the trial: it does not keep up")
    verdict: Verdict = "fail" if reasons else "pass"
    most = max(0.002, _LATE * _shortest(service) / 1000)
    if reasons and not observed.hopeless and lag > most and not _misses(observed, faults, service, scores, most):
        verdict = "void"
        reasons.insert(0, f"this machine was too slow: up to {format_duration(_ms(lag))} late with 99 % of requests")
    if unsent := sum(sample.error == NO_SOCKETS for sample in samples):
        spoilt = spoilt or f"this machine had no sockets left for {unsent} requests (ulimit -n)"
    if spoilt:
        verdict = "void"
        reasons.insert(0, spoilt)
    return Trial(
        number=number, rate=load.rate, started=started, seed=load.seed, seconds=observed.seconds,
        planned=observed.planned, measured=len(samples), answered=answered,
        good=sum(_is_good(s, bool(f), service, scores) for s, f in zip(samples, faults, strict=True)),
        quality=quality, times=times, errors=dict(Counter(filter(None, faults))), said=said, growth=growth, lag=lag,
        early=observed.hopeless, verdict=verdict, reasons=tuple(reasons),
    )  # fmt: skip


def _reasons(service: Service, times: Mapping[str, Mapping[str, float | None]], answered: int, count: int) -> list[str]:
    reasons = []
    if count - answered > misses_allowed(service.answered, count):
        reasons.append(f"{answered / max(1, count):.1%} of requests got a result, {service.answered:.1%} must")
    for goal, limits in service.goals.limits().items():
        for name, limit in limits.items():
            time = times[goal][name]
            if time is None:
                reasons.append(f"{goal} {name} is for ever, limit {format_duration(limit)}")
            elif time > limit:
                reasons.append(f"{goal} {name} is {format_duration(round(time))}, limit {format_duration(limit)}")
    return reasons


def _misses(
    observed: Observed, faults: Sequence[str], service: Service, scores: Mapping[int, float] | None, most: float
) -> bool:
    """Whether goals are missed even without this machine's part.

    That is what it took of each request's time, and the quality of all that it was later with than ``most`` seconds.
    """
    samples = observed.samples
    if sum(bool(each) and each != UNDER_WAY for each in faults) > misses_allowed(service.answered, observed.planned):
        return True
    for goal, limits in service.goals.limits().items():
        times = [(took(s, goal, bool(f)), s.lag * 1000) for s, f in zip(samples, faults, strict=True)]
        for name, limit in limits.items():
            late = sum(time is not None and time - excuse > limit for time, excuse in times)
            if late > misses_allowed(percentile(name), observed.planned):
                return True
    if scores is None or service.quality is None:
        return False
    done = [sample for sample in samples if sample.waited is None]
    kindly = sum(1.0 if sample.lag > most else scores.get(sample.number, 0.0) for sample in done)
    return kindly / max(1, len(done)) < service.quality.threshold


def _shortest(service: Service) -> int:
    """The shortest response time goal of a request's own, in milliseconds."""
    limits = service.goals.limits()
    return min(min(named.values()) for goal, named in limits.items() if goal != "perToken" or len(limits) == 1)


def _percentile(values: Iterable[float | None], share: float) -> float | None:
    """The value that all but so many keep as may miss it; None if it is infinite. 0 of nothing."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return 0.0
    value = there[len(there) - 1 - misses_allowed(share, len(there))]
    return None if math.isinf(value) else value


def _is_good(sample: Sample, faulty: bool, service: Service, scores: Mapping[int, float] | None) -> bool:
    if faulty:
        return False
    if scores is not None and service.quality is not None:
        score = scores.get(sample.number)
        if score is None or score < service.quality.good_score:
            return False
    for goal, limits in service.goals.limits().items():
        time = took(sample, goal, False)
        if time is not None and time > limits[max(limits, key=percentile)]:
            return False
    return True


def _trend(samples: Sequence[Sample], faults: Sequence[str], timeout: float) -> tuple[float, bool]:
    """By how much response times grew through a trial, and whether that is more than chance (Mann and Kendall's test).

    A queue that grows without end may keep its goals as long as a trial lasts. References: Mann 1945; Kendall 1975.
    """
    spent = [
        (sample.waited or timeout) if each or sample.end_to_end is None else sample.end_to_end
        for sample, each in zip(samples, faults, strict=True)
    ]
    if len(spent) < 3 * _BATCHES:
        return 1.0, False
    means = [float(np.mean(batch)) for batch in np.array_split(np.asarray(spent), _BATCHES)]
    third = _BATCHES // 3
    growth = sum(means[-third:]) / max(1e-9, sum(means[:third]))
    score = sum(int(np.sign(means[j] - means[i])) for i in range(_BATCHES) for j in range(i + 1, _BATCHES))
    deviation = math.sqrt(_BATCHES * (_BATCHES - 1) * (2 * _BATCHES + 5) / 18)
    chance = 0.5 * math.erfc((score - 1) / deviation / math.sqrt(2)) if score > 0 else 1.0
    return growth, chance < _TREND and growth > _GROWTH


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
