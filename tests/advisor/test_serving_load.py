"""Open-loop load: when requests are due, and from when their time counts."""

import asyncio
import time
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_servers import options, reply, serving

from advisor.serving_load import Load, Observed, Pulse, arrivals, generate, picks
from advisor.serving_trial import GoalWatch

GOALS = "{goals: {endToEnd: {p90: 5s}}}"


def run(url: str, load: Load, goals: str = GOALS) -> Observed:
    asked = options(url, goals)
    watch = GoalWatch(asked.service, round(load.rate * load.seconds))
    return asyncio.run(generate(load, asked.target, asked.profile.requests, watch, lambda _: None))


@given(rate=st.floats(0.5, 500), seconds=st.floats(1, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_arrivals(rate: float, seconds: float, seed: int) -> None:
    """There are as many as the rate says, in order, within the trial; the same seed gives the same."""
    load = Load(rate, seconds, 1.0, 5.0, seed)
    due = arrivals(load)
    assert len(due) == max(1, round(rate * seconds))
    assert (np.diff(due) >= 0).all()
    assert 0 <= due[0] <= due[-1] <= seconds
    assert (due == arrivals(load)).all()


def test_arrivals_are_by_chance() -> None:
    """Times between arrivals scatter as those of a Poisson process: by as much as they are long."""
    gaps = np.diff(arrivals(Load(100.0, 100.0, 0.0, 5.0, 1)))
    assert abs(gaps.std() / gaps.mean() - 1) < 0.05


@given(count=st.integers(1, 200), requests=st.integers(1, 30), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_the_whole_profile_is_used(count: int, requests: int, seed: int) -> None:
    """Each request is sent as often as the others, give or take one."""
    counts = np.bincount(picks(count, requests, seed), minlength=requests)
    assert counts.sum() == count
    assert counts.max() - counts.min() <= 1


def test_time_counts_from_when_a_request_was_due() -> None:
    """While a server stands still requests go on being due, and each waits from then: the queue is seen."""
    still: list[float] = []

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        still.append(time.perf_counter())
        await asyncio.sleep(max(0.0, still[0] + 0.5 - time.perf_counter()))
        await reply(writer, {})

    with serving(handle) as url:
        seen = run(url, Load(100.0, 0.6, 0.0, 5.0, 2))
    waits = {sample.due: sample.end_to_end for sample in seen.samples}
    assert len(waits) == seen.planned == 60
    for due, waited in waits.items():
        if due < 0.4:
            assert waited > 0.4 - due  # one at a time would have sent the second after half a second
    assert sum(waited > 0.1 for waited in waits.values()) >= 30


def test_load_goes_on_until_the_last_answer() -> None:
    """Measured requests that come last are under load to their end, and what is sent then is not measured."""
    came: list[float] = []

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        came.append(time.perf_counter())
        await asyncio.sleep(0.3)
        await reply(writer, {})

    with serving(handle) as url:
        seen = run(url, Load(50.0, 0.4, 0.2, 5.0, 3))
    assert len(seen.samples) == 20
    assert len(came) >= 20 + 10 + 5
    assert [sample.number for sample in seen.samples] == list(range(20))


def test_a_hopeless_trial_is_ended() -> None:
    """When no answer comes, the trial ends soon after that many are overdue as can never be made good."""

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    begun = time.perf_counter()
    with serving(handle) as url:
        seen = run(url, Load(40.0, 10.0, 0.0, 5.0, 4), "{goals: {endToEnd: {p90: 200ms}}}")
    assert time.perf_counter() - begun < 5
    assert "of 400 requests are beyond the 200ms of endToEnd p90" in seen.hopeless
    assert all(sample.waited for sample in seen.samples)
    assert seen.seconds < 4


def test_this_machine_knows_when_it_was_late() -> None:
    """What is noticed after this process stood still is known to be late by no less; what came before is not."""

    async def main() -> tuple[float, float]:
        pulse = Pulse()
        beating = asyncio.create_task(pulse.beat())
        await asyncio.sleep(0.2)
        before = time.perf_counter()
        await asyncio.sleep(0.1)
        time.sleep(0.3)
        after = time.perf_counter()
        await asyncio.sleep(0.05)
        beating.cancel()
        return pulse.late(before), pulse.late(after)

    calm, late = asyncio.run(main())
    assert late >= 0.25
    assert calm < late
