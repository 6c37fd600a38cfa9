"""Against queues of which theory knows how much they can take."""

import asyncio
import math
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from serving_servers import Heard, options, queues

from advisor.serving import measure
from advisor.serving_report import report
from advisor.serving_search import Bracket
from advisor.serving_store import Store

LIMIT = 0.2
"""Seconds that half of the requests may take at most."""
AT_A_TIME = 4
"""Runs side by side: some 140 requests a second, a fifth of a core."""


def mmc_beyond(seconds: float, rate: float, service: float, workers: int) -> float:
    """Share of requests that take longer in a queue with exponential service times (Erlang's C)."""
    mu, load = 1 / service, rate * service
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    waits = blocked / (1 - load / workers * (1 - blocked))
    spare = workers * mu - rate
    both = (mu * math.exp(-spare * seconds) - spare * math.exp(-mu * seconds)) / (mu - spare)
    return (1 - waits) * math.exp(-mu * seconds) + waits * both


def md1_beyond(seconds: float, rate: float, service: float, workers: int) -> float:
    """The same with one worker and fixed service times (Erlang 1909)."""
    assert workers == 1
    with localcontext() as context:
        context.prec = 60
        wait, each, arrivals = Decimal(seconds) - Decimal(service), Decimal(service), Decimal(rate)
        terms = (
            (-arrivals * (wait - count * each)) ** count
            / math.factorial(count)
            * (arrivals * (wait - count * each)).exp()
            for count in range(int(wait // each) + 1)
        )
        return float(1 - (1 - arrivals * each) * sum(terms))


def limit(beyond, service: float, workers: int) -> float:
    """The rate at which half of the requests take as long as they may."""
    low, high = 1e-3, workers / service * (1 - 1e-6)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(LIMIT, middle, service, workers) < 0.5 else (low, middle)
    return low


def test_the_formulas() -> None:
    """The limits are those of textbooks: one worker with exponential times is M/M/1, fixed times take more."""
    assert limit(mmc_beyond, 0.1, 1) == pytest.approx(10 - math.log(2) / LIMIT, rel=1e-6)
    assert 1 / 0.04 > limit(md1_beyond, 0.04, 1) > limit(mmc_beyond, 0.04, 1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_theory_is_in_the_bracket(tmp_path: Path) -> None:
    """In nine of ten runs the limit that theory gives lies in the bracket, which is no wider than 10 %."""
    goals = f"{{goals: {{endToEnd: {{p50: {LIMIT * 1000:.0f}ms}}}}, timeout: 20s}}"

    async def run(url: str, number: int, turn: asyncio.Semaphore) -> Bracket:
        async with turn:
            asked = options(
                url, goals, start=10.0 + number / 3, seconds=60.0, longest=60.0, warm_up=10.0, seed=number, most=200.0
            )
            with Store(tmp_path / str(number)) as store:
                ended = await measure(asked, store, Heard())
                found = report(store.trials, asked.service, 0.1, None)
            print(number, found.bracket, ended.why, len(store.trials), flush=True)
            return found.bracket

    async def all_of(urls: list[str]) -> list[Bracket]:
        turn = asyncio.Semaphore(AT_A_TIME)
        return await asyncio.gather(*(run(url, number, turn) for number, url in enumerate(urls)))

    truth = [limit(mmc_beyond, 0.1, 4), limit(md1_beyond, 0.03, 1)] * 5
    with queues("exponential", 4, 0.1, range(5)) as random_ones, queues("fixed", 1, 0.03, range(5)) as fixed_ones:
        brackets = asyncio.run(all_of([url for pair in zip(random_ones, fixed_ones, strict=True) for url in pair]))
    hits = [
        found.low is not None and found.high is not None and found.low <= true <= found.high <= 1.1 * found.low
        for found, true in zip(brackets, truth, strict=True)
    ]
    assert sum(hits) >= 9, list(zip(truth, brackets, strict=True))
