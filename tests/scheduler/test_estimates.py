"""Estimates from history, against a plain reading of the rule."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import geometric_mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.estimates import (
    DEFAULT,
    KEEP,
    LEDGER,
    STRENGTH,
    Estimates,
    History,
    Said,
    quantile_of,
    rounded,
    shrunk,
    shrunk_total,
)
from scheduler.family import Family, Traits, read_traits, repository, stem

MINUTE = 60_000
HOUR = 60 * MINUTE
FAMILY = Family("team", "lq", "cq", "Job", "train", "1x(nvidia.com/gpu=2)", "nightly", "")
NOTHING = Said(None, None, "", HOUR)
USER = Said(2 * HOUR, None, "", HOUR)
LIMIT = Said(None, 24 * HOUR, "activeDeadlineSeconds", HOUR)

durations = st.integers(1, 10**9)
runs = st.lists(durations, max_size=12).map(sorted)
levels = st.tuples(runs, runs)
sayings = st.builds(Said, st.none() | durations, st.none() | durations, st.just("limit"), durations)
quantiles = st.floats(0, 1)


def naive(said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], quantile: float) -> float:
    """The rule as the module's first lines have it: logarithms, weighted by counting."""
    if said.annotation is not None:
        found, weight, families = math.log(said.annotation), STRENGTH, own
    elif said.limit is not None:
        found, weight, families = math.log(said.limit), 0.0, own
    else:
        found, weight, families = math.log(said.default), STRENGTH, (*like, *own)
    for family in families:
        if family:
            logs = sorted(math.log(run) for run in family)
            at = quantile * (len(logs) - 1)
            low, high = logs[math.floor(at)], logs[math.ceil(at)]
            found = (weight * found + len(logs) * (low + (high - low) * (at % 1))) / (weight + len(logs))
            weight = STRENGTH
    return min(math.exp(found), math.inf if said.limit is None else said.limit)


@given(sayings, levels, levels, quantiles)
def test_the_rule(said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], quantile: float) -> None:
    """It is what the rule says, to a millisecond or a billionth."""
    value, counts = shrunk(said, like, own, quantile)
    if counts:
        assert value == pytest.approx(naive(said, like, own, quantile), rel=1e-9, abs=1)


@given(sayings, levels, levels, quantiles, quantiles)
def test_a_higher_quantile_is_never_shorter(
    said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], one: float, two: float
) -> None:
    """Estimates grow with the quantile."""
    low, high = (shrunk(said, like, own, quantile)[0] for quantile in sorted((one, two)))
    assert low <= high


@given(sayings, levels, levels, quantiles)
def test_it_lies_between_what_is_known(
    said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], quantile: float
) -> None:
    """Never beyond the longest, nor below the shortest, of what was said and what happened."""
    value, _ = shrunk(said, like, own, quantile)
    known = [duration for runs in (*like, *own) for duration in runs]
    known += [duration for duration in (said.annotation, said.limit, said.default) if duration is not None]
    assert min(known) - 1 <= value <= max(known) + 1


@given(st.lists(durations, min_size=1, max_size=12).map(sorted), quantiles)
def test_with_many_runs_what_was_said_is_forgotten(few: list[int], quantile: float) -> None:
    """A thousand times the same runs: the estimate is the quantile of them."""
    many = sorted(few * 1000)
    value, _ = shrunk(USER, (), ((), many), quantile)
    assert math.log(max(1, value)) == pytest.approx(quantile_of(many, quantile), abs=0.1)


@given(sayings, levels, levels, quantiles, st.integers(0, 10**9), st.integers(1, 10**6))
def test_work_that_runs_is_never_expected_to_have_ended(
    said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], quantile: float, elapsed: int, least: int
) -> None:
    """The whole run time is longer than what has passed."""
    assert shrunk_total(said, like, own, quantile, elapsed, least) > elapsed


@given(sayings, levels, levels, quantiles, st.integers(1, 10**9))
def test_only_longer_runs_count_for_work_that_runs(
    said: Said, like: tuple[list[int], ...], own: tuple[list[int], ...], quantile: float, elapsed: int
) -> None:
    """Runs that ended before change nothing, as long as some were longer and what was said is not outlived."""
    longer_like, longer_own = (tuple([run for run in each if run > elapsed] for each in kin) for kin in (like, own))
    if said.annotation is None or said.annotation <= elapsed or not any(longer_own):
        return
    total = shrunk_total(said, like, own, quantile, elapsed, 1)
    assert total == shrunk_total(said, longer_like, longer_own, quantile, elapsed, 1)
    expected = naive(said, longer_like, longer_own, quantile)
    if said.limit is None:
        assert total == pytest.approx(expected, rel=1e-9, abs=2)


@given(st.lists(st.integers(10 * MINUTE, 100 * HOUR), min_size=30, max_size=60), st.integers(1, 50 * HOUR))
def test_remaining_time_is_that_of_the_longer_runs(times: list[int], elapsed: int) -> None:
    """With a limit only: the median of the family's runs that were longer, less what has passed."""
    longer = [time for time in times if time > elapsed]
    if not longer:
        return
    said = LIMIT._replace(limit=1000 * HOUR)
    estimates = Estimates()
    for time in times:
        estimates.learn(replace(FAMILY, image="another"), time)
    logs = sorted(math.log(time) for time in longer)
    expected = math.exp(median(logs)) - elapsed
    total = estimates.kin(FAMILY).estimate(said).duration
    if elapsed >= min(times) or elapsed >= total:
        assert estimates.kin(FAMILY).remaining(said, elapsed, 1) == pytest.approx(expected, abs=2)
    else:
        assert estimates.kin(FAMILY).remaining(said, elapsed, 1) == total - elapsed


def test_what_is_said_counts_as_three_runs() -> None:
    """Three runs of an hour and a user who says four: two hours, the middle on a logarithmic scale."""
    estimates = Estimates()
    assert estimates.kin(FAMILY).estimate(USER).duration == 2 * HOUR
    for _ in range(3):
        estimates.learn(replace(FAMILY, shape="another"), HOUR)
    said = USER._replace(annotation=4 * HOUR)
    found = estimates.kin(FAMILY).estimate(said)
    assert found.duration == rounded(2 * HOUR)
    assert found.source == LEDGER
    assert found.basis == "3 runs of team/nightly, and the user's 4h"


def test_a_limit_is_no_estimate_once_the_family_is_known() -> None:
    """Stopped after a day: a day, until it has run once for ten minutes; and never longer than that day."""
    estimates = Estimates()
    assert estimates.kin(FAMILY).estimate(LIMIT)[:2] == (24 * HOUR, "activeDeadlineSeconds")
    estimates.learn(FAMILY, 10 * MINUTE)
    assert estimates.kin(FAMILY).estimate(LIMIT).duration == 10 * MINUTE
    assert estimates.kin(FAMILY).estimate(LIMIT._replace(limit=5 * MINUTE)).duration == 5 * MINUTE


def test_work_like_it_speaks_where_nobody_else_does() -> None:
    """Without annotation and limit, runs of the same shape in the queue correct the default; they correct no user."""
    estimates = Estimates()
    assert estimates.kin(FAMILY).estimate(NOTHING)[:2] == (HOUR, DEFAULT)
    for _ in range(30):
        estimates.learn(replace(FAMILY, namespace="other", stem="weekly"), 10 * MINUTE)
    found = estimates.kin(FAMILY).estimate(NOTHING)
    assert found.duration == pytest.approx(geometric_mean([HOUR] * 3 + [10 * MINUTE] * 30), rel=0.05)
    assert found.basis == "30 runs like it, and the default 1h"
    assert estimates.kin(FAMILY).estimate(USER).duration == 2 * HOUR
    assert estimates.kin(FAMILY).estimate(LIMIT).duration == 24 * HOUR


def test_a_label_makes_a_family_across_names() -> None:
    """Work with the same label is kin whatever its name, and not that of another namespace."""
    estimates = Estimates()
    labelled = replace(FAMILY, label="bert")
    for number in range(50):
        estimates.learn(replace(labelled, stem=f"try-{'abcde'[number % 5]}"), HOUR)
    assert estimates.kin(labelled).estimate(USER).duration == pytest.approx(HOUR, rel=0.06)
    assert estimates.kin(replace(labelled, namespace="other")).estimate(USER).duration == 2 * HOUR


def test_old_runs_make_room() -> None:
    """Only the newest runs of a family count: work that has become slower is believed after a while."""
    estimates = Estimates()
    for duration in [MINUTE] * 1000 + [HOUR] * KEEP:
        estimates.learn(FAMILY, duration)
    assert estimates.kin(FAMILY).estimate(LIMIT).duration == HOUR


def test_what_was_asked_before_is_asked_anew() -> None:
    """An estimate follows what is learnt, whoever asked for it before, also of a family that was not known then."""
    estimates = Estimates()
    for expected in (HOUR, 2 * HOUR):
        for _ in range(KEEP):
            estimates.learn(FAMILY, expected)
        assert estimates.kin(FAMILY).estimate(LIMIT).duration == expected
        estimates.kin(replace(FAMILY, stem="weekly")).estimate(LIMIT)
    version = estimates.version
    estimates.learn(replace(FAMILY, stem="weekly"), MINUTE)
    assert estimates.version != version
    assert estimates.kin(replace(FAMILY, stem="weekly")).estimate(LIMIT).duration == MINUTE


def test_families_are_forgotten_before_memory_is_full() -> None:
    """Those that ran last are kept; of the others only what is said counts."""
    history = History(families=30)
    estimates = Estimates()
    estimates.adopt(history, None, ())
    for number in range(100):
        estimates.learn(replace(FAMILY, stem=f"job-{number}", shape=str(number), image=str(number)), MINUTE)
        assert estimates.kin(replace(FAMILY, stem=f"job-{number}")).estimate(LIMIT).duration == MINUTE
    assert estimates.kin(replace(FAMILY, stem="job-0")).estimate(LIMIT).duration == 24 * HOUR


def test_a_written_history_and_what_came_since_are_one() -> None:
    """What is adopted counts together with what was learnt meanwhile, under the names that the ledger has."""
    estimates, history = Estimates(), History()
    estimates.learn(FAMILY, HOUR)
    estimates.kin(FAMILY).estimate(USER)

    def hide(family: Family) -> Family:
        return replace(family, namespace="x", stem="y")

    history.learn(hide(FAMILY), HOUR)
    estimates.adopt(history, hide, [(FAMILY, HOUR)])
    assert estimates.kin(FAMILY).estimate(USER).basis == "2 runs of team/nightly, and the user's 2h"


@given(st.integers(1, 10**12))
def test_rounding_promises_no_more_than_two_digits(duration: int) -> None:
    """Within a twentieth of the value, and the same for all that are near."""
    value = rounded(duration)
    assert abs(value - duration) <= duration / 20
    assert len(str(value).rstrip("0")) <= 2


@pytest.mark.parametrize(
    ("name", "generate_name", "expected"),
    [
        ("nightly", "", "nightly"),
        ("nightly-28929130", "", "nightly"),
        ("nightly-x7k2p", "", "nightly"),
        ("nightly-tiger", "", "nightly-tiger"),
        ("nightly-tpqrs", "nightly-", "nightly"),
        ("sweep-3-17", "", "sweep"),
        ("eval-2026-12-01", "", "eval"),
        ("eval-20261201t060000", "", "eval"),
        ("run-3f2a9c1", "", "run"),
        ("run-123e4567-e89b-12d3-a456-426614174000", "", "run"),
        ("llama-7b", "", "llama-7b"),
        ("2026", "", "2026"),
        ("job-1-2", "", "job"),
    ],
)
def test_generated_ends_of_names_do_not_count(name: str, generate_name: str, expected: str) -> None:
    """Runs of one job under many names are one family."""
    assert stem(name, generate_name) == expected


def test_another_tag_is_the_same_program() -> None:
    """Tags and digests do not count, ports do."""
    assert (
        repository("registry:5000/train:1.2") == repository("registry:5000/train@sha256:abc") == "registry:5000/train"
    )
    assert repository("train") == "train"


def test_traits_of_a_workload() -> None:
    """Image of the first container that has one, pods and requests of each pod set, GPUs of all."""
    gpus = {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}, "requests": {"cpu": "500m"}}
    head = {"count": 1, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": 1}}}]}}}
    worker = {"count": 3, "template": {"spec": {"containers": [{"image": "a/b:1", "resources": gpus}]}}}
    assert read_traits({"podSets": [head, worker]}) == Traits("a/b", "1x(cpu=1000)+3x(cpu=500,nvidia.com/gpu=2)", 6)
