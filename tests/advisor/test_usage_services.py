"""In which hours a service was within its goals, from histograms in a Prometheus."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.outcomes import Judge
from advisor.prometheus import Prometheus
from advisor.success import Success, read_success
from advisor.usage import Window, allocate, total
from advisor.usage_services import Answers, answers, within
from scheduler.ledger_entry import Entry
from scheduler.settings import DAY, HOUR
from tests.advisor.fake_prometheus import FakePrometheus, serving
from tests.advisor.work import START, work

WINDOW = Window(START, START + 4 * HOUR)
SUCCESS = """
version: 1
services:
  chat:
    match: {namespace: chat}
    goals: {ttft: {p90: 500ms}, endToEnd: {p99: 10s}}
"""
TTFT, END_TO_END = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"


class Histograms(FakePrometheus):
    """Has histograms by hour: what ``sum by (le) (increase(…))`` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.hours: dict[tuple[str, int], dict[str, float]] = {}

    def put(self, metric: str, hour: int, **bounds: float) -> None:
        """Counts by bound; ``b0_5`` is half a second, ``inf`` all."""
        told = {name.removeprefix("b").replace("_", ".").replace("inf", "+Inf"): each for name, each in bounds.items()}
        self.hours[metric, hour] = told

    def answer(self, query: dict[str, str]) -> dict[str, Any]:
        """As ``query_range`` answers."""
        assert query["step"] == "3600"
        result: dict[str, list[list[Any]]] = {}
        for (metric, hour), bounds in self.hours.items():
            at = START / 1000 + (hour + 1) * 3600
            if f"({metric}_bucket{{" in query["query"] and float(query["start"]) <= at <= float(query["end"]):
                for bound, count in bounds.items():
                    result.setdefault(bound, []).append([at, str(count)])
        matrix = [{"metric": {"le": bound}, "values": values} for bound, values in result.items()]
        return {"status": "success", "data": {"resultType": "matrix", "result": matrix}}


@pytest.fixture
def fake() -> Iterator[Histograms]:
    """A Prometheus."""
    histograms = Histograms()
    with serving(histograms, lambda path, query: histograms.answer(query)):
        yield histograms


@pytest.fixture
def success() -> Success:
    """A service with two goals."""
    return read_success(SUCCESS)


def chat() -> Entry:
    """A pod of it."""
    return work("chat-7d9f8c5b6-x2k7p", ((-1, None),), outcome=None, gpus=1, kind="Pod", namespace="chat")


def asked(fake: Histograms, success: Success, *entries: Entry, window: Window = WINDOW) -> Answers:
    """What it answered."""
    return answers(success, entries or [chat()], window, Prometheus(fake.url))


def test_an_hour_is_good_if_all_goals_are_kept(fake: Histograms, success: Success) -> None:
    """Kept, missed, kept in one and missed in the other, and one without requests, of which nobody knows."""
    good, late = {"b0_5": 95, "b1": 100, "inf": 100}, {"b0_5": 50, "b1": 89, "inf": 100}
    fake.put(TTFT, 0, **good)
    fake.put(TTFT, 1, **late)
    fake.put(TTFT, 2, **good)
    for hour, within_ten in ((0, 99), (1, 100), (2, 90)):
        fake.put(END_TO_END, hour, b10=within_ten, inf=100)
    found = asked(fake, success)
    hours = [found.good_hours["chat", START + hour * HOUR] for hour in range(4)]
    assert hours == [True, False, False, None]
    assert (found.answered["chat"], found.good["chat"], found.wrong) == (300, 100, "")
    assert "chat: in 1 of 4 hours it is not known whether it kept its goals" in found.remarks[0]
    assert 'namespace=~"chat",pod=~"(chat\\\\-7d9f8c5b6\\\\-x2k7p)(-.*)?"' in fake.requests[0]["query"]


def test_productive_is_busy_in_good_hours(fake: Histograms, success: Success) -> None:
    """Busy GPU time of a service counts in hours within its goals; elsewhere it is lost, or not judged."""
    judge = Judge(success, {("chat", START): True, ("chat", START + HOUR): False})
    usage = allocate([chat()], WINDOW, WINDOW.end)
    usage.measured = True
    for slot in usage.slots:
        slot.seen, slot.busy = slot.allocated, slot.allocated / 2
    row = total(usage, judge.worth)
    assert (row.allocated, row.busy, row.productive, row.unjudged) == (4.0, 2.0, 0.5, 1.0)


def test_other_servers_have_other_names(fake: Histograms, success: Success) -> None:
    """The first histogram that is there counts; a goal without any is not known, and said."""
    fake.put("sglang:time_to_first_token_seconds", 0, b0_5=100, inf=100)
    found = asked(fake, success)
    assert found.good_hours["chat", START] is None
    assert "chat: no histogram of endToEnd in Prometheus" in found.remarks[0]
    fake.put("http_request_duration_seconds", 0, b10=100, inf=100)
    assert asked(fake, success).good_hours["chat", START] is True


def test_one_that_does_not_answer_is_said(fake: Histograms, success: Success) -> None:
    """Nothing is taken for good."""
    fake.hooks.append(lambda query: (500, b"oops"))
    found = asked(fake, success)
    assert "answers 500: oops" in found.wrong
    assert found.good_hours == {}


def test_services_without_work_are_not_asked_for(fake: Histograms, success: Success) -> None:
    """Nor is anything in a window that is told by the day."""
    assert asked(fake, success, work()).good_hours == {}
    assert "a month at most" in asked(fake, success, window=Window(START - 60 * DAY, START)).remarks[0]
    assert fake.requests == []


@pytest.mark.parametrize(
    ("share", "limit", "kept"),
    [
        (0.9, 0.5, True),
        (0.95, 0.5, True),
        (0.96, 0.5, False),
        (0.96, 0.7, None),
        (0.99, 0.7, None),
        (0.995, 0.7, False),
        (0.5, 0.1, None),
    ],
)
def test_a_limit_between_two_bounds_is_not_guessed(share: float, limit: float, kept: bool | None) -> None:
    """Kept for sure below it, missed for sure above it."""
    bounds = {0.5: 95.0, 1.0: 99.0, math.inf: 100.0}
    assert within(bounds, share, limit) is kept


def test_no_requests_say_nothing() -> None:
    """Neither kept nor missed."""
    assert within({}, 0.9, 1) is None
    assert within({0.5: 0.0, math.inf: 0.0}, 0.9, 1) is None


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.floats(0.001, 20), min_size=1, max_size=50),
    bounds=st.sets(st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]), min_size=1),
    share=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    limit=st.floats(0.01, 15),
)
def test_what_buckets_say_is_true(times: list[float], bounds: set[float], share: float, limit: float) -> None:
    """Whatever is said to be kept or missed is so by the times themselves."""
    buckets = {bound: float(sum(time <= bound for time in times)) for bound in itertools.chain(bounds, [math.inf])}
    told = within(buckets, share, limit)
    if told is not None:
        assert told is (sum(time <= limit for time in times) >= share * len(times) * (1 - 1e-9))
