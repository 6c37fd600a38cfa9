"""Open-loop load: requests are sent when they are due, whether or not earlier ones have been answered.

A generator that waits for answers (closed loop) slows down with the server and hides the very queue that users stand
in. So each request has an instant from a Poisson process, drawn before, and its times count from that instant, not
from when it was sent.

MLCommons LoadGen does this too, and was tried (6.0.17): its Python binding cannot be stopped (an interrupt ends the
process with a segmentation fault), waits for ever for one answer that never comes, has no word for an answer that is
an error (a quick 429 counts as a quick answer), tells nobody when a request was due, and has wheels for x86-64 only.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from advisor.serving_profile import Request
from advisor.serving_target import Answer, Target, ask_into, session

_BEAT = 0.01
"""Seconds between two looks at how late this process is."""
_LOOK = 0.2
"""Seconds between two looks at what can still be reached."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured request. Times are seconds from when it was due; None for what never came."""

    number: int
    """In the order in which they were due, from 0."""
    request: int
    """Position in the profile."""
    due: float
    """Seconds after the measured part began."""
    lag: float
    """What this machine, not the server, took of it: how late it was sent, and how late its answer was looked at."""
    ttft: float | None
    end_to_end: float | None
    per_token: float | None
    """Mean seconds from one token to the next; None too for answers of one."""
    tokens: int = 0
    error: str = ""
    detail: str = ""
    text: str = ""
    finish: str = ""
    waited: float | None = None
    """For one that was still under way when the trial was ended early: how long it had been."""


@dataclass(frozen=True)
class Load:
    """How one trial loads the server."""

    rate: float
    """Requests per second."""
    seconds: float
    """Length of the measured part."""
    warm_up: float
    """Seconds at the same rate before it, not measured."""
    timeout: float
    """Seconds after which no one waits for an answer."""
    seed: int


@dataclass
class Flight:
    """A request on its way."""

    number: int
    """Negative if it is not measured."""
    request: int
    due: float
    """On ``time.perf_counter``."""
    answer: Answer = field(default_factory=Answer)
    sent: float = 0.0


@dataclass(frozen=True)
class Observed:
    """What a trial has seen."""

    planned: int
    samples: Sequence[Sample]
    """Those whose fate is known, in the order in which they were due."""
    seconds: float
    """Length of the measured part, as far as it got."""
    hopeless: str
    """Why it was ended early; empty if it was not."""


class Watch(Protocol):
    """Looks on while a trial runs, and says when there is no use in going on."""

    def add(self, sample: Sample) -> None:
        """A request whose fate is known."""

    def hopeless(self, under_way: Sequence[tuple[float, bool]]) -> str:
        """Why the goals cannot be reached any more, whatever comes; empty if they can.

        Parameters
        ----------
        under_way
            Of each request that has been due: seconds since it was sent, and whether its answer has begun.
        """


def arrivals(load: Load) -> npt.NDArray[np.float64]:
    """When the measured requests are due: seconds after the measured part began, in order.

    A Poisson process of which the number of arrivals is known is uniform. The number is the one that the rate stands
    for, so that a trial at 10 a second is one, and not by chance one at 9.
    """
    count = max(1, round(load.rate * load.seconds))
    return np.sort(np.random.default_rng(load.seed).uniform(0.0, load.seconds, count))


def picks(count: int, requests: int, seed: int) -> list[int]:
    """Which request is sent when: the whole profile in random order, again and again."""
    draw = np.random.default_rng(seed)
    rounds = [draw.permutation(requests) for _ in range(-(-count // requests))]
    return [int(pick) for pick in np.concatenate(rounds)[:count]]


async def generate(
    load: Load, target: Target, requests: Sequence[Request], watch: Watch, progress: Callable[[float], None]
) -> Observed:
    """Load a server for one trial.

    Load goes on, unmeasured, until the last measured request has its answer: a server that empties is quicker than
    one under load.

    Parameters
    ----------
    progress
        Called now and then with the share that is done.
    """
    trial = _Trial(load, target, requests)
    try:
        return await trial.run(watch, progress)
    finally:
        await trial.close()


class Pulse:
    """Notes when this process came late to what it meant to do, be it for its own work or for others on the machine."""

    def __init__(self) -> None:
        self._beats: list[float] = []
        self._late: list[float] = []

    async def beat(self) -> None:
        """Note it until cancelled."""
        while True:
            meant = time.perf_counter() + _BEAT
            await asyncio.sleep(_BEAT)
            self._beats.append(time.perf_counter())
            self._late.append(self._beats[-1] - meant)

    def late(self, instant: float) -> float:
        """How many seconds too late, at most, something may have been noticed that was noticed at an instant."""
        after = bisect_left(self._beats, instant)
        return max(self._late[max(0, after - 1) : after + 1], default=0.0)


class _Trial:
    def __init__(self, load: Load, target: Target, requests: Sequence[Request]) -> None:
        self._load = load
        self._target = target
        self._requests = requests
        self._draw = np.random.default_rng([load.seed, 1])
        self._connections = session()
        self._tasks: set[asyncio.Task[None]] = set()
        self._measured: dict[int, Flight] = {}
        self._samples: list[Sample] = []
        self._pulse = Pulse()
        self._start = 0.0
        """When the measured part begins."""

    async def run(self, watch: Watch, progress: Callable[[float], None]) -> Observed:
        load = self._load
        due = arrivals(load)
        order = picks(len(due), len(self._requests), load.seed)
        self._start = time.perf_counter() + load.warm_up + 0.05
        sender, heart = asyncio.create_task(self._send(due, order)), asyncio.create_task(self._pulse.beat())
        reason, seen = "", 0
        try:
            while len(self._samples) < len(due):
                await asyncio.sleep(_LOOK)
                if sender.done():
                    sender.result()
                elapsed = time.perf_counter() - self._start
                progress(min(1.0, max(0.0, (elapsed + load.warm_up) / (load.seconds + load.warm_up))))
                while seen < len(self._samples):
                    watch.add(self._blamed(self._samples[seen]))
                    seen += 1
                now = time.perf_counter()
                flights = [flight for flight in self._measured.values() if now > flight.due]
                # From when it was sent: what this machine was late with is no reason to give up.
                if reason := watch.hopeless([(now - (f.sent or now), f.answer.first > 0) for f in flights]):
                    self._samples += [self._sample(flight, now - flight.due) for flight in flights]
                    break
        finally:
            sender.cancel()
            heart.cancel()
            await asyncio.gather(sender, heart, return_exceptions=True)
        seconds = min(load.seconds, time.perf_counter() - self._start) if reason else load.seconds
        samples = [self._blamed(sample) for sample in sorted(self._samples, key=lambda sample: sample.number)]
        return Observed(len(due), samples, seconds, reason)

    def _blamed(self, sample: Sample) -> Sample:
        """The same, with what this machine took of its end as well."""
        if sample.end_to_end is None:
            return sample
        return replace(sample, lag=sample.lag + self._pulse.late(self._start + sample.due + sample.end_to_end))

    async def _send(self, due: npt.NDArray[np.float64], order: Sequence[int]) -> None:
        before = self._draw.uniform(-self._load.warm_up, 0.0, round(self._load.rate * self._load.warm_up))
        for instant in np.sort(before):
            await self._fly(-1, int(self._draw.integers(len(self._requests))), float(instant))
        for number, (instant, pick) in enumerate(zip(due, order, strict=True)):
            await self._fly(number, pick, float(instant))
        instant = self._load.seconds
        while True:
            instant += float(self._draw.exponential(1.0 / self._load.rate))
            await self._fly(-1, int(self._draw.integers(len(self._requests))), instant)

    async def _fly(self, number: int, pick: int, instant: float) -> None:
        flight = Flight(number, pick, self._start + instant)
        delay = flight.due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        elif number % 64 == 0:
            await asyncio.sleep(0)  # behind: others must get their turn all the same
        if number >= 0:
            self._measured[number] = flight
        task = asyncio.create_task(self._ask(flight))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, flight: Flight) -> None:
        flight.sent = time.perf_counter()
        request = self._requests[flight.request]
        await ask_into(flight.answer, self._connections, self._target, request, flight.due + self._load.timeout)
        if flight.number >= 0:
            del self._measured[flight.number]
            self._samples.append(self._sample(flight))

    def _sample(self, flight: Flight, waited: float | None = None) -> Sample:
        answer, due = flight.answer, flight.due
        apart = (answer.last - answer.first) / (answer.tokens - 1) if answer.end and answer.tokens > 1 else None
        return Sample(
            number=flight.number,
            request=flight.request,
            due=due - self._start,
            lag=max(0.0, (flight.sent or time.perf_counter()) - due),
            ttft=answer.first - due if answer.first else None,
            end_to_end=answer.end - due if answer.end else None,
            per_token=apart,
            tokens=answer.tokens,
            error=answer.error,
            detail=answer.detail,
            text=answer.text,
            finish=answer.finish,
            waited=waited,
        )

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connections.close()
