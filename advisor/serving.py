"""How much a server can take: the highest rate of requests at which all goals hold, measured.

Trials at rates that :mod:`advisor.serving_search` chooses, each of them kept; the goals are those of a service in
``success.yaml``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from advisor.serving_fingerprint import Fingerprint, NoFacts, changes, of_facts, of_machine, of_server
from advisor.serving_judge import Answered, JudgeFailed, scores
from advisor.serving_load import Load, Observed, Sample, generate
from advisor.serving_profile import Profile
from advisor.serving_search import Rules, Step, next_step
from advisor.serving_store import Changed, Store
from advisor.serving_target import Answer, Target, ask, open_many, session
from advisor.serving_trial import GoalWatch, Trial, fault, judged
from advisor.success import Service, percentile
from scheduler.annotations import format_duration

_PROBES = 3
_VOIDS = 3
"""Trials at one rate that this machine may spoil before it is taken to be too slow for it."""
_REPEATS = 10
"""Sendings of one request in one trial from which on a cache is worth a word."""
_RECOVERY = 120.0
"""Seconds that a server has to come back after a trial that it failed."""


class CannotMeasure(RuntimeError):
    """There is nothing to measure, or nothing to measure with; what has been measured is kept."""


class Tell(Protocol):
    """Who hears how it goes."""

    def begins(self, number: int, rate: float, seconds: float, why: str) -> None:
        """A trial begins; it takes about so many seconds."""

    def share(self, done: float) -> None:
        """So much of the trial is done, from 0 to 1."""

    def ended(self, trial: Trial) -> None:
        """A trial has ended, and is kept."""

    def remark(self, text: str) -> None:
        """Something worth knowing."""


@dataclass(frozen=True)
class Options:
    """What is measured, and how. Seconds, requests per second."""

    target: Target
    profile: Profile
    service: Service
    rules: Rules
    seconds: float
    """Measured length of a trial, at least."""
    longest: float
    """And at most, where the rate is so low that it takes longer to see its percentiles."""
    warm_up: float
    seed: int
    facts: str | None
    """A command that says what the server is."""
    given: Fingerprint
    """What else makes this run what it is: digests of profile and goals, options."""

    def length(self, rate: float) -> float:
        """Measured length of a trial at a rate: ten requests beyond the highest percentile, if that can be."""
        limits = self.service.goals.limits()
        highest = max(percentile(name) for named in limits.values() for name in named)
        return min(max(self.seconds, 10 / (1 - highest) / rate), max(self.longest, self.seconds))


async def measure(options: Options, store: Store, tell: Tell) -> Step:
    """Run trials until the bracket is found; says why it ended.

    Raises
    ------
    CannotMeasure
        If the target does not answer or does not come back, or a judge or a command fails.
    Changed
        If configuration or hardware is not what the run began with.
    BadStore
        If a trial cannot be kept.
    """
    open_many()
    fingerprint = await _fingerprint(options)
    store.begin(fingerprint)
    if store.void:
        raise Changed(store.void)
    before = len(store.trials)
    step = _next(store.trials, before, options.rules)
    if step.rate is None:
        return step
    if before:
        tell.remark(f"going on after {before} trials in {store.folder}")
    _warn_of_caches(options, tell)
    await _probe(options, tell)
    while step.rate is not None:
        await _trial(options, store, tell, step)
        if what := changes(fingerprint, await _fingerprint(options)):
            store.invalidate(what)
            raise Changed(what)
        step = _next(store.trials, before, options.rules)
    return step


def _next(trials: Sequence[Trial], before: int, rules: Rules) -> Step:
    """The next trial; one that this machine has spoilt is repeated, but not for ever.

    Parameters
    ----------
    before
        How many of the trials are of former runs: the machine may have been busier then.
    """
    step = next_step([(trial.rate, trial.verdict == "pass") for trial in trials if trial.verdict != "void"], rules)
    spoilt = sum(trial.verdict == "void" and trial.rate == step.rate for trial in trials[before:])
    if step.rate is not None and spoilt >= _VOIDS:
        return Step(None, f"this machine is too slow to send {step.rate:g} requests a second")
    return step


def _warn_of_caches(options: Options, tell: Tell) -> None:
    """Few requests, sent again and again, may be answered from a cache: real ones are not."""
    rate, count = options.rules.start, len(options.profile.requests)
    if (times := options.length(rate) * rate / count) > _REPEATS:
        told = f"{count} requests are each sent {times:.0f} times and more in a trial"
        tell.remark(f"{told}; if the server has a cache, this measures the cache")


async def _fingerprint(options: Options) -> Fingerprint:
    machine = await asyncio.to_thread(of_machine)
    try:
        facts = await asyncio.to_thread(of_facts, options.facts)
    except NoFacts as error:
        raise CannotMeasure(str(error)) from None
    async with session() as connections:
        try:
            server = await of_server(connections, options.target, options.profile.chats)
        except NoFacts as error:
            raise CannotMeasure(str(error)) from None
    return {**options.given, **machine, **facts, **server}


async def _probe(options: Options, tell: Tell) -> None:
    """Ask a few requests one by one, before there is any load: does it answer, and does the judge judge?"""
    requests = options.profile.requests[:_PROBES]
    samples = []
    async with session() as connections:
        for number, request in enumerate(requests):
            begun = time.perf_counter()
            answer = await ask(connections, options.target, request, begun + options.service.timeout / 1000)
            samples.append(_alone(number, answer, begun))
            if why := fault(samples[-1], options.service):
                said = f": {samples[-1].detail}" if samples[-1].detail else ""
                raise CannotMeasure(
                    f"the target gave no result for request {request.id}, without any load: {why}{said}"
                )
    scored = await _scores(options, samples)
    quality = options.service.quality
    if scored and quality and (mean := sum(scored.values()) / len(scored)) < quality.threshold:
        told = f"{mean:.2f}, under the threshold of {quality.threshold:g}"
        tell.remark(f"the first {len(scored)} answers, without any load, score {told}")


def _alone(number: int, answer: Answer, begun: float) -> Sample:
    return Sample(
        number=number, request=number, due=0.0, lag=0.0, ttft=answer.first - begun if answer.first else None,
        end_to_end=answer.end - begun if answer.end else None, per_token=None, tokens=answer.tokens,
        error=answer.error, detail=answer.detail, text=answer.text, finish=answer.finish,
    )  # fmt: skip


async def _trial(options: Options, store: Store, tell: Tell, step: Step) -> None:
    assert step.rate is not None
    number = 1 + max((trial.number for trial in store.trials), default=0)
    load = Load(
        rate=step.rate,
        seconds=options.length(step.rate),
        warm_up=options.warm_up,
        timeout=options.service.timeout / 1000,
        seed=options.seed * 100_003 + number,
    )
    tell.begins(number, load.rate, load.warm_up + load.seconds, step.why)
    started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    watch = GoalWatch(options.service, max(1, round(load.rate * load.seconds)))
    observed = await generate(load, options.target, options.profile.requests, watch, tell.share)
    failure: JudgeFailed | None = None
    scored: dict[int, float] | None = None
    try:
        scored = await _scores(options, observed.samples)
    except JudgeFailed as error:
        failure = error
    trial = judged(number, started, load, observed, options.service, scored, str(failure) if failure else "")
    store.add(trial, _kept(options.profile, observed, scored))
    tell.ended(trial)
    if failure is not None:
        raise CannotMeasure(str(failure))
    if trial.verdict != "pass":
        await _recovered(options, tell)


async def _scores(options: Options, samples: Sequence[Sample]) -> dict[int, float] | None:
    """By the number of each sample that has a result; None without a judge."""
    quality = options.service.quality
    if quality is None:
        return None
    there = [sample for sample in samples if not fault(sample, options.service)]
    answers = [Answered(options.profile.requests[sample.request], sample.text) for sample in there]
    given = await asyncio.to_thread(scores, quality.judge, answers)
    return {sample.number: score for sample, score in zip(there, given, strict=True)}


async def _recovered(options: Options, tell: Tell) -> None:
    """Wait until a server that was overloaded answers a single request as its goals say."""
    begun = time.perf_counter()
    patience = max(_RECOVERY, 2 * options.service.timeout / 1000)
    limits = options.service.goals.limits()
    longest = {goal: max(named.values()) for goal, named in limits.items() if goal != "perToken"}
    request = options.profile.requests[0]
    async with session() as connections:
        while (now := time.perf_counter()) < begun + patience:
            answer = await ask(connections, options.target, request, now + options.service.timeout / 1000)
            sample = _alone(0, answer, now)
            times = {"ttft": sample.ttft, "endToEnd": sample.end_to_end}
            kept = all((times[goal] or 0.0) * 1000 <= limit for goal, limit in longest.items())
            if not fault(sample, options.service) and kept:
                if (waited := time.perf_counter() - begun) > 2.0:
                    tell.remark(f"the target took {format_duration(round(waited) * 1000)} to recover")
                return
            await asyncio.sleep(0.2)
    raise CannotMeasure(f"the target did not recover within {format_duration(round(patience) * 1000)}")


def _kept(profile: Profile, observed: Observed, scored: Mapping[int, float] | None) -> Iterator[dict[str, Any]]:
    """Samples as they are kept: seconds, and what is not there left out."""
    for sample in observed.samples:
        told = {
            "number": sample.number,
            "request": profile.requests[sample.request].id,
            "due": sample.due,
            "lag": sample.lag,
            "ttft": sample.ttft,
            "perToken": sample.per_token,
            "endToEnd": sample.end_to_end,
            "tokens": sample.tokens or None,
            "waited": sample.waited,
            "error": sample.error or None,
            "detail": sample.detail or None,
            "finish": sample.finish or None,
            "score": scored.get(sample.number) if scored is not None else None,
            "answer": sample.text,
        }
        yield {name: value for name, value in told.items() if value is not None}
