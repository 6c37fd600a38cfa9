"""What results cost, by a price list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from advisor.cost import BY, Bill, Use, all_costs, charge_by_prices, costs, overhead, per_result, reconcile
from advisor.cost_prices import BadPrices, Prices, read_prices
from advisor.outcomes import Judge, tally, together
from advisor.success import read_success
from advisor.usage import Window, allocate
from scheduler.ledger_entry import Entry, Outcome
from scheduler.settings import DAY
from tests.advisor.work import START, work, works

DAY_LONG = Window(START, START + DAY)
PRICES = read_prices("version: 1\ncurrency: EUR\ngpuHour: {a100: 2, l4: 0.5}\n")


def bill(*entries: Entry, prices: Prices = PRICES, judge: Judge | None = None) -> Bill:
    """Of a day that is over."""
    return charge_by_prices(allocate(entries, DAY_LONG, START + DAY), prices, judge or Judge(), START + DAY)


def uses(found: Bill) -> dict[Use, float]:
    """What the money went for."""
    return {use: amount for use, amount in all_costs(found).uses.items() if amount}


def test_gpu_hours_by_their_price() -> None:
    """Two GPUs for two hours at two euros are eight."""
    assert uses(bill(work(verdict="verified"))) == {Use.VERIFIED: 8.0}


def test_money_is_told_by_what_became_of_the_work() -> None:
    """Each run goes to one use; one that was evicted is lost, whatever came of the work afterwards."""
    found = bill(
        work("a", ((0, 1), (2, 4)), verdict="verified"),
        work("b", verdict="verified", deadline=1),
        work("c", verdict="rejected"),
        work("d"),
        work("e", outcome=Outcome.FAILED),
        work("f", ((0, None),), outcome=None),
        work("g", ((0, 1),), outcome=None),
    )
    assert uses(found) == {
        Use.INTERRUPTED: 8.0,
        Use.VERIFIED: 8.0,
        Use.LATE: 8.0,
        Use.REJECTED: 8.0,
        Use.UNJUDGED: 8.0,
        Use.FAILED: 8.0,
        Use.RUNNING: 96.0,
    }


def test_what_is_owned_and_not_granted_is_idle() -> None:
    """Three GPUs for a day are 72 GPU-hours; what was granted of them is not idle."""
    owned = read_prices("version: 1\ncurrency: EUR\ngpuHour: {'*': 2}\nowned: {a100: 3}\n")
    found = bill(work(verdict="verified"), prices=owned)
    assert uses(found) == {Use.VERIFIED: 8.0, Use.IDLE: 2.0 * (72 - 4)}
    assert all_costs(found).efficiency_at_most == pytest.approx(8 / 144)
    assert [cost.key for cost in costs(found, "team", Judge())] == ["(idle)", "team"]
    more = bill(work(gpus=8, runs=((0, 24),)), prices=owned)
    assert "more GPU-hours were granted" in more.remarks[0]
    assert Use.IDLE not in uses(more)


def test_a_flavor_without_a_price_is_left_out_and_said() -> None:
    """The rest is told, and marked as not all."""
    found = bill(work(verdict="verified"), work("b", flavor="h100"))
    assert (uses(found), found.complete) == ({Use.VERIFIED: 8.0}, False)
    assert "h100 has no price: 4.0 GPU-hours" in found.remarks[0]


def test_a_result_costs_what_all_work_cost() -> None:
    """Late, rejected and interrupted work is paid for by those who get results."""
    entries = [work("a", verdict="verified", deadline=3), work("b", verdict="verified"), work("c", verdict="rejected")]
    each = per_result(all_costs(bill(*entries)), together(tally(entries, Judge(), "queue", START + DAY)), 1)
    assert (each.verified, each.own, each.deadline) == (12.0, 8.0, 24.0)
    none = per_result(all_costs(bill(work())), together(tally([work()], Judge(), "queue", START + DAY)), 1)
    assert (none.verified, none.own, none.deadline) == (None, None, None)


def test_idle_costs_are_shared_out_in_proportion() -> None:
    """A result pays for its part of what is idle; services pay for theirs, and give no results."""
    owned = read_prices("version: 1\ncurrency: EUR\ngpuHour: {'*': 2}\nowned: {a100: 2}\n")
    success = read_success("version: 1\nservices: {chat: {match: {namespace: chat}, goals: {ttft: {p95: 1s}}}}\n")
    chat = work("chat-1", ((0, 12),), outcome=None, namespace="chat", gpus=1)
    found = bill(work(verdict="verified"), chat, prices=owned, judge=Judge(success))
    whole = all_costs(found)
    assert (whole.total, whole.direct, whole.serving, whole.results) == (96.0, 32.0, 24.0, 8.0)
    done = together(tally([work(verdict="verified"), chat], Judge(success), "queue", START + DAY))
    each = per_result(whole, done, overhead(whole))
    assert (overhead(whole), each.verified, each.own) == (3.0, 24.0, 8.0)


def test_a_service_is_judged_by_the_hour() -> None:
    """Its money went for results where it was within its goals; what nobody measured is not known."""
    success = read_success("version: 1\nservices: {chat: {match: {namespace: chat}, goals: {ttft: {p95: 1s}}}}\n")
    hour = 3_600_000
    judge = Judge(success, {("chat", START): True, ("chat", START + hour): False})
    found = bill(work("chat-1", ((0, 3),), outcome=None, namespace="chat", gpus=1), judge=judge)
    assert uses(found) == {Use.VERIFIED: 2.0, Use.MISSED: 2.0, Use.UNJUDGED: 2.0}


def test_a_slice_costs_its_part() -> None:
    """Of the price of a GPU."""
    assert all_costs(bill(work(gpus=7, resource="nvidia.com/mig-1g.5gb"))).total == pytest.approx(4.0)


@given(entries=works())
@settings(max_examples=25, deadline=None)
def test_all_money_is_in_one_place(entries: list[Entry]) -> None:
    """However it is shown: rows and uses add up to the bill, the bill to its source, and productive is no more."""
    found = bill(*entries)
    assert reconcile(found) == pytest.approx(0, abs=1e-9)
    for by in BY:
        rows = costs(found, by, Judge())
        assert sum(row.total for row in rows) == pytest.approx(found.total)
        assert all(sum(row.uses.values()) == pytest.approx(row.total) for row in rows)
        assert all(row.productive + row.unmeasured <= row.total + 1e-9 for row in rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\ncurrency: EUR\n", "gpuHour: is missing"),
        ("version: 1\ncurrency: euro\ngpuHour: {a100: 2}\n", "line 2: currency"),
        ("version: 1\ncurrency: EUR\ngpuHour: {a100: -2}\n", "line 3: gpuHour.a100"),
        ("version: 1\ncurrency: EUR\ngpuHour: {a100: 2}\nowned: {l4: 2}\n", "owned.l4 has no price"),
        ("version: 1\ncurrency: EUR\ngpuHour: {'*': 2}\nowned: {'*': 2}\n", r"owned.\*: name the ResourceFlavor"),
    ],
)
def test_a_price_list_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    """With line, path and what is allowed."""
    with pytest.raises(BadPrices, match=said):
        read_prices(text)
