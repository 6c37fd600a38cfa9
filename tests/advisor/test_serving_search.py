"""The search for the limit, on servers of which the limit is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.serving_search import Bracket, Rules, bracket, next_step, tally

RULES = Rules(start=10.0, least=0.1, most=1e4, width=0.1, trials=40)


def search(passes, rules: Rules = RULES) -> tuple[list[tuple[float, bool]], str]:
    """All trials of a search, and why it ended."""
    trials: list[tuple[float, bool]] = []
    while (step := next_step(trials, rules)).rate is not None:
        trials.append((step.rate, passes(step.rate)))
        assert len(trials) <= rules.trials
    return trials, step.why


@given(limit=st.floats(0.5, 5000), width=st.sampled_from([0.02, 0.05, 0.1, 0.5, 1.0]), start=st.floats(0.2, 500))
@settings(max_examples=30, deadline=None)
def test_a_sharp_limit_is_found(limit: float, width: float, start: float) -> None:
    """The bracket holds the limit, is as narrow as asked, and each of its ends has shown itself twice."""
    trials, why = search(lambda rate: rate < limit, Rules(start, 0.1, 1e4, width, 40))
    found = bracket(tally(trials), width)
    assert why == "the bracket is found"
    assert found.low is not None
    assert found.high is not None
    assert found.low < limit <= found.high <= found.low * (1 + width)
    assert trials.count((found.low, True)) >= 2 <= trials.count((found.high, False))


def test_chance_near_the_edge() -> None:
    """Where trials go wrong by chance near the limit, the bracket still holds it in nearly all runs."""
    draw = np.random.default_rng(7)
    hits = 0
    for _ in range(50):
        limit = math.exp(draw.uniform(1, 5))
        trials, _ = search(lambda rate, limit=limit: rate < limit * math.exp(draw.normal(0, 0.02)))
        found = bracket(tally(trials), 0.1)
        hits += found.low is not None and found.high is not None and found.low <= limit <= found.high
    assert hits >= 46


@given(limit=st.floats(0.5, 5000), stop=st.integers(0, 12))
@settings(max_examples=30, deadline=None)
def test_a_search_goes_on_where_it_was(limit: float, stop: int) -> None:
    """The next rate depends on the trials alone, so one that was interrupted ends as one that was not."""
    whole, _ = search(lambda rate: rate < limit)
    assert next_step(whole[:stop], RULES).rate == (whole[stop][0] if stop < len(whole) else None)


def test_a_server_without_a_limit() -> None:
    """What passes at the highest rate has a lower end only, and that is said."""
    trials, why = search(lambda _: True, Rules(10, 0.1, 50, 0.1, 40))
    assert [rate for rate, _ in trials] == [10, 20, 40, 50, 50]
    assert why == "the highest rate, 50 a second, passes (--max-rate)"
    assert bracket(tally(trials), 0.1) == Bracket(50, None)


def test_a_server_that_always_fails() -> None:
    """What fails at the lowest rate has an upper end only, and that is said."""
    trials, why = search(lambda _: False, Rules(10, 2, 50, 0.1, 40))
    assert [rate for rate, _ in trials] == [10, 5, 2.5, 2, 2]
    assert why == "the lowest rate, 2 a second, fails (--min-rate)"
    assert bracket(tally(trials), 0.1) == Bracket(None, 2)


@pytest.mark.parametrize("limit", [7, 700])
def test_trials_may_run_out(limit: float) -> None:
    """With too few trials the bracket is as wide as it has become, and that is said."""
    trials, why = search(lambda rate: rate < limit, Rules(10, 0.1, 1e4, 0.1, 5))
    assert len(trials) == 5
    assert why == "--max-trials 5 is used up"


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 5.5]), st.booleans()), max_size=30))
@settings(max_examples=30, deadline=None)
def test_contradictory_trials(trials: list[tuple[float, bool]]) -> None:
    """Whatever trials say, there is a next step, and a bracket is never upside down."""
    next_step(trials, RULES)
    found = bracket(tally(trials), 0.1)
    assert found.low is None or found.high is None or found.low < found.high
