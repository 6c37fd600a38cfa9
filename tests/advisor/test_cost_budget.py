"""Costs beside the budgets of success.yaml."""

from __future__ import annotations

from advisor.cost import Cost
from advisor.cost_budget import budgets
from advisor.success import read_success
from advisor.usage import Window
from scheduler.settings import DAY
from tests.advisor.work import START

SUCCESS = read_success("""
version: 1
tasks:
  nightly:
    match: {family: train}
    budget: {gpuHours: 100, cost: 300, costPerResult: 20, currency: EUR, per: month}
  free: {match: {family: free}}
services:
  chat:
    match: {namespace: chat}
    goals: {ttft: {p95: 1s}}
    budget: {costPerResult: 0.002, currency: USD}
""")
WEEK = Window(START, START + 7 * DAY)


def test_a_week_is_compared_with_a_month() -> None:
    """As if it went on like that; per result as it is; without a result, and in another currency, not at all."""
    costs = {"nightly": Cost("nightly", total=70.0, gpu_hours=20.0), "chat": Cost("chat", total=9.0)}
    hours, month, result, answer = budgets(SUCCESS, costs, {"nightly": 2}, WEEK, "EUR")
    assert (hours.what, round(hours.spent or 0, 2), hours.over) == ("gpuHours", 85.71, False)
    assert (month.what, month.spent, month.over) == ("cost", 300.0, False)
    assert str(month) == "nightly: 300.00 EUR a month, within its budget of 300"
    assert (result.spent, result.over) == (35.0, True)
    assert str(result) == "nightly: 35.00 EUR a result, over its budget of 20"
    assert (answer.spent, answer.over) == (None, None)
    assert str(answer) == "chat: its budget of 0.002 USD a result is not compared: costs are in EUR"


def test_nothing_that_counts_is_not_free() -> None:
    """Without a result there is no cost of one, and without a currency no comparison."""
    *_, result, answer = budgets(SUCCESS, {}, {}, WEEK, "EUR")
    assert (result.spent, result.why) == (None, "no result counts")
    assert budgets(SUCCESS, {}, {"chat": 1}, WEEK, "")[-1].why == "in which currency costs are is not known"
    assert answer.why == "costs are in EUR"
