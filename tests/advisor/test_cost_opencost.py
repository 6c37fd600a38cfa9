"""Costs from OpenCost: by pod, label and time; and one that does not do as it should. (No real one ran here.)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.cost import Bill, Use, all_costs, costs, reconcile
from advisor.cost_opencost import charge_by_opencost
from advisor.cost_prices import read_prices
from advisor.opencost import OpenCost
from advisor.outcomes import Judge
from advisor.prometheus import SourceError
from advisor.usage import Window, allocate
from advisor.usage_pods import Pods
from scheduler.ledger_entry import Entry
from scheduler.settings import DAY, HOUR
from tests.advisor.fake_opencost import FakeOpenCost, fake_opencost
from tests.advisor.fake_prometheus import slow
from tests.advisor.work import START, work, works

DAYS = Window(START, START + 2 * DAY)
PRICES = read_prices("version: 1\ncurrency: EUR\ngpuHour: {'*': 2}\n")


@pytest.fixture
def fake() -> Iterator[FakeOpenCost]:
    """An OpenCost."""
    with fake_opencost() as running:
        yield running


def bill(fake: FakeOpenCost, *entries: Entry, window: Window = DAYS, currency: str = "EUR", **more: object) -> Bill:
    """Of some work."""
    usage = allocate(entries, window, window.end)
    server = OpenCost(fake.url, timeout=float(more.pop("timeout", 5.0)))  # type: ignore[arg-type]
    pods = Pods(entries, window.end)
    return charge_by_opencost(usage, pods, server, Judge(), entries, currency=currency, **more)  # type: ignore[arg-type]


def uses(found: Bill) -> dict[Use, float]:
    """What the money went for."""
    return {use: round(amount, 6) for use, amount in all_costs(found).uses.items() if amount}


@pytest.mark.parametrize("layout", ["list", "sets", "wrapped"])
def test_each_pod_is_charged_to_its_work(fake: FakeOpenCost, layout: str) -> None:
    """In all layouts that versions emit; what is idle, of all, or of others is a place of its own; it adds up."""
    fake.layout = layout
    fake.add("team", "train-1-bcdf5", START, START + 2 * HOUR, 3.0, gpus=2)
    fake.add("team", "a-bcdf5", START + 20 * HOUR, START + 26 * HOUR, 1.0)
    fake.add("kube-system", "coredns-x7k2p", START, START + 48 * HOUR, 0.1, gpus=0)
    fake.add("", "", START, START + 48 * HOUR, 0.5, name="cluster-one/__idle__")
    fake.add("", "", START, START + 48 * HOUR, 0.25, name="cluster-one//__unmounted__/__unmounted__/__unmounted__")
    found = bill(fake, work(verdict="verified"), work("a", ((20, 26),), verdict="rejected", gpus=1))
    assert uses(found) == {
        Use.VERIFIED: 6.0,
        Use.REJECTED: 6.0,
        Use.ELSEWHERE: 4.8,
        Use.IDLE: 24.0,
        Use.SHARED: 12.0,
    }
    assert found.total == pytest.approx(6 + 6 + 4.8 + 24 + 12)
    assert reconcile(found) == pytest.approx(0, abs=1e-6)
    assert (found.complete, found.remarks, found.currency) == (True, [], "EUR")
    assert {row.key for row in costs(found, "team", Judge())} == {"team", "(idle)", "(shared)", "(elsewhere)"}
    assert [query["window"] for query in fake.requests] == [
        "2026-11-30T00:00:00Z,2026-12-01T00:00:00Z",
        "2026-12-01T00:00:00Z,2026-12-02T00:00:00Z",
    ]


def test_a_pod_is_joined_by_label_and_controller_too(fake: FakeOpenCost) -> None:
    """Where its name alone would do for two, or says nothing."""
    entries = work("train", ((0, 2),)), work("train-7", ((0, 2),)), work("set", ((0, 2),), kind="JobSet")
    fake.add("team", "train-7-bcdf5", START, START + HOUR, 1.0)
    found = bill(fake, *entries)
    assert set(uses(found)) == {Use.ELSEWHERE}
    assert "1 pods could be of two jobs by their name: their cost is of neither" in found.remarks
    fake.containers[0].properties = {"labels": {"batch_kubernetes_io_job_name": "train"}}
    fake.add(
        "team", "whatever", START, START + HOUR, 4.0, properties={"controller": "set-w-0", "controllerKind": "job"}
    )
    rows = {row.key: row.total for row in costs(bill(fake, *entries), "workload", Judge())}
    assert rows == pytest.approx({"team/train": 1.0, "team/set": 4.0})


def test_a_name_that_comes_again_is_told_by_its_time(fake: FakeOpenCost) -> None:
    """A job that is made anew has pods of the same names; each pays for its own hours, an evicted run for its own."""
    first = work(gpus=1, runs=((0, 1), (2, 4)), verdict="verified")
    second = replace(work(gpus=1, runs=((4, 8),), verdict="rejected"), uid="second")
    fake.add("team", "train-1-bcdf5", START, START + 8 * HOUR, 1.0)
    assert set(uses(bill(fake, first, second))) == {Use.INTERRUPTED, Use.VERIFIED, Use.REJECTED}
    amounts = all_costs(bill(fake, first, second)).uses
    assert amounts[Use.REJECTED] == pytest.approx(8 * 4 / 7)
    assert amounts[Use.INTERRUPTED] == pytest.approx(8 * 1 / 7)


def test_figures_that_are_no_numbers_are_said(fake: FakeOpenCost) -> None:
    """A total that is null is added up from its parts; what is null there counts as nothing, and it is said."""
    fake.add(
        "team", "train-1-bcdf5", START, START + 2 * HOUR, 3.0, more={"totalCost": None, "ramCost": None, "cpuCost": 1.5}
    )
    fake.add("team", "train-1-ghjk5", START, START + 2 * HOUR, 3.0, more={"totalCost": float("nan"), "gpuCost": "x"})
    found = bill(fake, work(verdict="verified"))
    assert all_costs(found).total == pytest.approx(7.5)
    assert "2 allocations of OpenCost have figures that are no numbers: they count as 0" in found.remarks


def test_what_is_shared_out_is_told_apart(fake: FakeOpenCost) -> None:
    """A pod's part of shared costs is not its own."""
    fake.add("team", "train-1-bcdf5", START, START + 2 * HOUR, 3.0, more={"sharedCost": 2.0, "totalCost": 8.0})
    found = bill(fake, work(verdict="verified"))
    assert uses(found) == {Use.VERIFIED: 6.0, Use.SHARED: 2.0}
    assert [row.key for row in costs(found, "workload", Judge())] == ["team/train-1"]


def test_hours_that_were_asked_for_are_not_those_that_were_granted(fake: FakeOpenCost) -> None:
    """If they differ much, it is said."""
    fake.add("team", "train-1-bcdf5", START, START + HOUR, 3.0, gpus=2)
    (remark,) = bill(fake, work(verdict="verified"), window=Window(START, START + DAY)).remarks
    assert remark.startswith("OpenCost counts 2.0 GPU-hours that pods asked for, Kueue granted 4.0")


# --- one that does not do as it should ----------------------------------------------------------------------------


def test_where_it_has_nothing_a_price_list_stands_in(fake: FakeOpenCost) -> None:
    """Days before it was installed are charged by the list, if both count in one currency; else they are left out."""
    entry = work(gpus=1, runs=((20, 28),), verdict="verified")
    fake.add("team", "train-1-bcdf5", START, START + 48 * HOUR, 1.0)
    fake.since = START + DAY
    alone = bill(fake, entry)
    assert (uses(alone), alone.complete) == ({Use.VERIFIED: 24.0}, False)
    assert "OpenCost has nothing for 1 of 2 days (2026-11-30T00:00:00Z to 2026-12-01T00:00:00Z)" in alone.remarks[-1]
    both = bill(fake, entry, prices=PRICES)
    assert (uses(both), both.complete, both.source) == ({Use.VERIFIED: 32.0}, True, "OpenCost and price list")
    for currency, said in (("USD", "OpenCost counts in USD"), ("", "OpenCost's currency is not known")):
        mixed = bill(fake, entry, prices=PRICES, currency=currency)
        assert (uses(mixed), mixed.complete) == ({Use.VERIFIED: 24.0}, False)
        assert f"the price list is in EUR and {said}" in mixed.remarks[-1]


def test_one_that_is_down_leaves_the_price_list() -> None:
    """It is asked once, and said."""
    gone = FakeOpenCost()
    gone.url = "http://127.0.0.1:1"
    found = bill(gone, work(verdict="verified"), prices=PRICES)
    assert (uses(found), found.source) == ({Use.VERIFIED: 8.0}, "price list")
    assert "OpenCost http://127.0.0.1:1 does not answer" in found.remarks[0]


def test_one_that_is_slow_is_given_up(fake: FakeOpenCost) -> None:
    """After two days that it did not answer for; what it knew before is kept."""
    fake.add("team", "train-1-bcdf5", START, START + 2 * HOUR, 3.0)

    def tired(query: dict[str, str]) -> tuple[int, bytes] | None:
        if not query["window"].startswith("2026-11-30"):
            slow(0.5)(query)
        return None

    fake.hooks.append(tired)
    found = bill(fake, work(verdict="verified"), window=Window(START, START + 9 * DAY), timeout=0.1)
    assert (uses(found), found.complete, len(fake.requests)) == ({Use.VERIFIED: 6.0}, False, 3)
    assert any("did not answer within 0.1 s" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"code": 500, "status": "error", "message": "no Prometheus"}, "answers: no Prometheus"),
        (500, {"code": 500, "message": "Error: computing"}, "answers 500: Error: computing"),
        (400, "Invalid 'window' parameter", "answers 400: Invalid 'window' parameter"),
        (200, "<html>", "something that is no JSON object"),
        (200, {"code": 200, "data": "x"}, "answers no allocations"),
        (200, {"code": 200, "data": [["x"]]}, "answers no allocations"),
        (200, {"code": 200}, "answers no allocations"),
    ],
)
def test_an_answer_that_is_none_is_told(fake: FakeOpenCost, status: int, body: object, said: str) -> None:
    """With what it was, also where the error hides behind HTTP 200."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    fake.hooks.append(lambda query: (status, data))
    with pytest.raises(SourceError, match=said):
        OpenCost(fake.url).compute(START, START + DAY)


@pytest.mark.parametrize(
    "data", [None, [], [None], [{}], {"sets": []}, {"sets": [{"allocations": None}]}, {"sets": None}]
)
def test_nothing_is_nothing(fake: FakeOpenCost, data: object) -> None:
    """Empty in all layouts."""
    fake.hooks.append(lambda query: (200, json.dumps({"code": 200, "data": data}).encode()))
    if data == {"sets": None}:
        with pytest.raises(SourceError, match="answers no allocations"):
            OpenCost(fake.url).compute(START, START + DAY)
    else:
        assert OpenCost(fake.url).compute(START, START + DAY).allocations == []


def test_another_window_than_asked_for_is_said(fake: FakeOpenCost) -> None:
    """And a clock that is off."""
    week = {"start": "2026-11-24T00:00:00Z", "end": "2026-12-02T00:00:00Z"}
    fake.add("team", "train-1-bcdf5", START, START + 2 * HOUR, 3.0, gpus=2, more={"window": week})
    fake.date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    found = bill(fake, work(verdict="verified"))
    assert not found.complete
    assert "OpenCost answered for another stretch of time" in found.remarks[0]
    assert "s behind ours" in found.remarks[1]


@given(
    entries=works(), costs_=st.lists(st.tuples(st.integers(0, 6), st.integers(-20, 40), st.floats(0, 9)), max_size=6)
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_it_sends_adds_up(
    fake: FakeOpenCost, entries: list[Entry], costs_: list[tuple[int, int, float]]
) -> None:
    """All that OpenCost sends is charged to somebody, once."""
    fake.containers.clear()
    for number, (job, begin, cost) in enumerate(costs_):
        start = START + begin * HOUR
        fake.add("team", f"job-{job}-bcd{number}f".replace("0", "2").replace("1", "4"), start, start + 5 * HOUR, cost)
    found = bill(fake, *entries)
    assert reconcile(found) == pytest.approx(0, abs=1e-6)
    assert all_costs(found).total == pytest.approx(found.total)
