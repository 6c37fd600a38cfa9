"""How much is asked of a service, from a Prometheus: the busiest time, growth, and what can be wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advise_demand import Demand, Measured
from advisor.advise_requests import (
    COUNTERS,
    STEP,
    NoRequests,
    Requests,
    check_query,
    growth,
    requests,
    selector,
)
from advisor.prometheus import Prometheus
from advisor.success import Match
from advisor.usage import Window
from scheduler.settings import DAY, HOUR
from tests.advisor.fake_prometheus import FakePrometheus, serving
from tests.advisor.work import START

WINDOW = Window(START - 2 * HOUR, START)
Rate = Callable[[float], float | None]
"""Requests a second at a time (seconds since the Unix epoch); None: no sample."""


class Rates(FakePrometheus):
    """Has requests a second, by metric and pod: what ``rate`` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[tuple[str, str], Rate] = {}

    def answer(self, query: dict[str, str]) -> dict[str, Any]:
        """As ``query_range`` answers."""
        result = []
        for (metric, pod), rate in self.pods.items():
            if f"({metric}{{" not in query["query"] and metric not in query["query"].split("(")[-1].split("["):
                continue
            at, values = float(query["start"]), []
            while at <= float(query["end"]) + 1e-6:
                if (value := rate(at)) is not None:
                    values.append([at, str(value)])
                at += float(query["step"])
            if values:
                result.append({"metric": {"pod": pod} if pod else {}, "values": values})
        return {
            "status": "success", "warnings": self.warnings, "data": {"resultType": "matrix", "result": result},
        }  # fmt: skip


@pytest.fixture
def fake() -> Iterator[Rates]:
    """A Prometheus."""
    rates = Rates()
    with serving(rates, lambda path, query: rates.answer(query)):
        yield rates


def asked(fake: Rates, window: Window = WINDOW, timeout: float = 5, **named: str) -> Requests:
    """What it knows."""
    return requests(Prometheus(fake.url, timeout=timeout), window, **named)


def test_the_busiest_time_of_all_pods_together(fake: Rates) -> None:
    """Rates of pods are added up at each step; those that answered then are counted."""
    busy = START / 1000 - 3600
    fake.pods[COUNTERS[0], "chat-a"] = lambda at: 12.0 if at == busy else 3.0
    fake.pods[COUNTERS[0], "chat-b"] = lambda at: 4.0 if at >= busy else None
    found = asked(fake, pods='namespace="chat"')
    assert (found.rate, found.at, found.servers, found.measured) == (16.0, START - HOUR, 2, 1.0)
    assert found.query == f'sum by (pod) (rate({COUNTERS[0]}{{namespace="chat"}}[5m]))'
    assert (found.growth, found.wrong) == (None, "")


def test_the_first_counter_that_is_there_counts(fake: Rates) -> None:
    """Model servers have different ones."""
    fake.pods[COUNTERS[2], "chat-a"] = lambda at: 3.0
    fake.pods[COUNTERS[4], "chat-a"] = lambda at: 99.0
    assert asked(fake, pods='namespace="chat"').rate == 3.0


def test_a_query_of_ones_own(fake: Rates) -> None:
    """Is asked as it is; one series without pods tells of no number of servers."""
    fake.pods["gateway_requests_total", ""] = lambda at: 7.5
    query = "sum(rate(gateway_requests_total[5m]))"
    found = asked(fake, query=query)
    assert (found.rate, found.servers, found.query) == (7.5, None, query)
    assert {request["query"] for request in fake.requests} == {query}


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum(rate(vllm:request_success_total[5m]))", ""),
        ("job:requests:rate5m", ""),
        ("sum(increase(http_requests_total[1m])) / 60", ""),
        ("vllm:request_success_total", "write sum(rate(vllm:request_success_total[5m]))"),
        ('http_request_duration_seconds_count{job="x"}', "counts all requests since a server started"),
        ("sum(increase(http_requests_total[5m]))", "rate() gives requests a second"),
        (" ", "is empty"),
    ],
)
def test_queries_that_give_no_rate_are_told(query: str, wrong: str) -> None:
    """A counter by itself would be taken for a monstrous demand."""
    said = check_query(query)
    assert (wrong in said) if wrong else said == ""


def test_nothing_is_said_with_what_was_looked_for(fake: Rates) -> None:
    """And what to do."""
    with pytest.raises(NoRequests, match=r"has none of vllm:request_success_total, .* in this time; .*--demand-query"):
        asked(fake, pods='namespace="chat"')
    with pytest.raises(NoRequests, match="has nothing for up in this time"):
        asked(fake, query="up")


def test_what_is_no_number_of_requests_is_refused(fake: Rates) -> None:
    """Negative rates are none; NaN is no sample."""
    fake.pods["odd", ""] = lambda at: -1.0
    with pytest.raises(NoRequests, match="odd gives -1: that is no number of requests a second"):
        asked(fake, query="odd")
    fake.pods["odd", ""] = lambda at: math.nan
    with pytest.raises(NoRequests, match="has nothing for odd"):
        asked(fake, query="odd")


def test_a_prometheus_that_is_down_or_no_prometheus(fake: Rates) -> None:
    """Says which, and is asked no more."""
    with pytest.raises(NoRequests, match=r"does not answer: .*Connection refused"):
        requests(Prometheus("http://127.0.0.1:1"), WINDOW, pods="x")
    fake.hooks.append(lambda query: (200, b'{"hello": 1}'))
    with pytest.raises(NoRequests, match=r"Prometheus .* answers: None"):
        asked(fake, pods="x")
    fake.hooks[:] = [lambda query: (403, b"no")]
    fake.requests.clear()
    with pytest.raises(NoRequests, match="answers 403"):
        asked(fake, pods="x")
    assert len(fake.requests) == 1


def test_what_is_too_much_at_once_is_asked_for_in_parts(fake: Rates) -> None:
    """As long as the parts are answered nothing is missing."""

    def heavy(query: dict[str, str]) -> tuple[int, bytes] | None:
        long = float(query["end"]) - float(query["start"]) > 40 * HOUR / 1000
        return (422, json.dumps({"error": "query processing would load too many samples"}).encode()) if long else None

    fake.hooks.append(heavy)
    fake.pods["r", ""] = lambda at: at / 1e9
    window = Window(START - 7 * DAY, START)
    found = asked(fake, window, query="r")
    assert (found.at, found.measured, found.wrong) == (START, 1.0, "")


def test_what_was_answered_before_it_broke_is_kept_and_marked(fake: Rates) -> None:
    """The second week is not known: it may have been asked for more then."""
    middle = START / 1000 - 7 * 86400

    def breaks(query: dict[str, str]) -> tuple[int, bytes] | None:
        return (500, b"disk full") if float(query["start"]) > middle else None

    fake.hooks.append(breaks)
    fake.pods["r", ""] = lambda at: 2.0
    found = asked(fake, Window(START - 14 * DAY, START), query="r")
    assert (found.rate, found.measured) == (2.0, 0.5)
    assert "answers 500: disk full (from " in found.wrong


def test_a_gap_is_not_a_quiet_time(fake: Rates) -> None:
    """A quarter was not scraped."""
    fake.pods["r", ""] = lambda at: None if at > START / 1000 - 1800 else 2.0
    assert asked(fake, query="r").measured == pytest.approx(0.75)


def weeks(slope: float, length: int = 21) -> dict[int, float]:
    """Days with a quiet weekend and a busy noon, growing by so much a week."""
    rates = {}
    for number in range(length * DAY // STEP):
        at = START - length * DAY + (number + 1) * STEP
        day, noon = number * STEP // DAY, number * STEP % DAY // HOUR == 12
        rates[at] = (10 if noon else 1) * (0.5 if day % 7 >= 5 else 1.0) + slope * day / 7
    return rates


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 5), st.sampled_from([14, 17, 21, 28]))
def test_growth_is_found_whatever_the_days_of_the_week(slope: float, length: int) -> None:
    """Days are compared with their like only, so a weekend is no fall."""
    assert growth(weeks(slope, length), START) == pytest.approx(slope, rel=1e-6)


def test_growth_that_is_not_known_or_none() -> None:
    """Less than two weeks tell nothing; the same every week is none, and neither is what goes to and fro."""
    assert growth(weeks(1.0, 13), START) is None
    assert growth(weeks(0.0), START) == 0.0
    to_and_fro = {at: rate + number // (7 * 288) % 2 for number, (at, rate) in enumerate(weeks(0.0, 28).items())}
    assert growth(to_and_fro, START) == 0.0
    holes = {at: rate for number, (at, rate) in enumerate(weeks(1.0).items()) if number % 2}
    assert growth(holes, START) is None
    shrinking = growth({at: 50 + rate for at, rate in weeks(-1.0).items()}, START)
    assert shrinking == pytest.approx(-1.0)


def test_how_long_it_still_fits() -> None:
    """Two servers of 10 a second, 14 are asked, half a one more every week: twelve weeks."""
    measured = Measured("chat", 10.0, 11.0, "", None, None, "")
    assert Demand(measured, 14.0, 2, 0.5).weeks == pytest.approx(12)
    assert Demand(measured, 14.0, 2, 0.0).weeks is None
    assert Demand(measured, 14.0, 2, -1.0).weeks is None
    assert Demand(measured, None, 2, why="down").short is None


def test_pods_of_a_service_by_success_yaml() -> None:
    """Its namespace, and its family where that is said; stars stand for anything. A queue alone does not tell."""
    assert selector(Match(namespace="chat")) == 'namespace=~"chat"'
    assert selector(Match(namespace="chat-*", family="vllm")) == 'namespace=~"chat\\\\-.*",pod=~"vllm(-.*)?"'
    assert selector(Match(clusterQueue="serving")) == selector(None) == ""
