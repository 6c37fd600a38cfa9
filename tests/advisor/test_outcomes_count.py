"""Which results count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from advisor.outcomes import ENDED, Judge, Result, matches, tally, together
from advisor.success import Match, Success, read_success
from scheduler.ledger_entry import Entry, Judgement, Outcome, Verdict
from scheduler.settings import DAY
from tests.advisor.work import START, work, works

SUCCESS = """
version: 1
tasks:
  nightly:
    match: {family: train*}
    quality: {judge: {kind: command, command: [judge]}, threshold: 0.8}
    deadline: 3h
  chores:
    match: {family: chore, namespace: team}
    result: {count: 10}
  tries:
    match: {family: try}
    result: {when: finished}
services:
  chat: {match: {namespace: chat}, goals: {ttft: {p95: 1s}}}
"""


@pytest.fixture
def success() -> Success:
    """Two tasks without a judge and one with, and a service."""
    return read_success(SUCCESS)


@pytest.mark.parametrize(
    ("entry", "result"),
    [
        (work(verdict="verified", deadline=3), Result.VERIFIED),
        (work(verdict="verified"), Result.VERIFIED),
        (work(verdict="verified", deadline=1), Result.LATE),
        (work(deadline=1), Result.LATE),
        (work(verdict="rejected", deadline=3), Result.REJECTED),
        (work(deadline=3), Result.UNJUDGED),
        (work(outcome=Outcome.FAILED, verdict="verified"), Result.FAILED),
        (work(outcome=Outcome.DELETED), Result.DELETED),
        (work(outcome=Outcome.UNKNOWN), Result.UNKNOWN),
        (work(outcome=Outcome.UNKNOWN, verdict="verified", deadline=3), Result.VERIFIED),
        (work(outcome=Outcome.UNKNOWN, verdict="verified", deadline=1), Result.UNKNOWN),
        (work(outcome=None, runs=((0, None),)), Result.RUNNING),
        (work(outcome=None, runs=()), Result.WAITING),
        (work(outcome=None, runs=((0, 1),)), Result.WAITING),
    ],
)
def test_a_result_counts_if_it_is_complete_verified_and_in_time(entry: Entry, result: Result) -> None:
    """All three; and what is not known is not guessed."""
    assert Judge().result(entry) is result


def test_the_last_word_counts() -> None:
    """A verdict that was taken back is a rejection."""
    entry = work(verdict="verified")
    later = Judgement(START + 1, Verdict.REJECTED, "dave", "labels were wrong")
    assert Judge().result(replace(entry, judgements=(*entry.judgements, later))) is Result.REJECTED


def test_success_yaml_says_what_is_enough(success: Success) -> None:
    """A task without a judge counts when it ends well; one with a judge must be judged; a failed try is a result."""
    assert Judge(success).result(work("chore-1")) is Result.VERIFIED
    assert Judge(success).result(work("chore-1", verdict="rejected")) is Result.REJECTED
    assert Judge(success).result(work("chore-1", outcome=Outcome.FINISHED)) is Result.UNJUDGED
    assert Judge(success).result(work("chore-1", namespace="other")) is Result.UNJUDGED
    assert Judge(success).result(work("training-1")) is Result.UNJUDGED
    assert Judge(success).result(work("try-1", outcome=Outcome.FAILED)) is Result.VERIFIED


def test_a_task_may_have_a_deadline_of_its_own(success: Success) -> None:
    """It counts in place of the work's: three hours after it was submitted."""
    assert Judge(success).result(work("training-1", ((0, 4),), verdict="verified", deadline=9)) is Result.LATE
    assert Judge(success).result(work("training-1", ((0, 2),), verdict="verified", deadline=1)) is Result.VERIFIED


def test_work_is_tallied_by_task(success: Success) -> None:
    """Results of a task that gives ten at once count ten; services are no results; overdue work is told."""
    entries = [
        work("chore-1"),
        work("chore-2", outcome=Outcome.FAILED, deadline=3),
        work("training-1", verdict="verified"),
        work("training-2", runs=((0, None),), outcome=None),
        work("chat-1", namespace="chat", runs=((0, None),), outcome=None),
    ]
    found = {each.key: each for each in tally(entries, Judge(success), "task", START + DAY)}
    assert set(found) == {"chores", "nightly"}
    chores, nightly = found["chores"], found["nightly"]
    assert (chores.ended, chores.results, chores.deadlines, chores.met, chores.on_time) == (2, 10, 1, 0, 0.0)
    assert (nightly.ended, nightly.results, nightly.met, nightly.overdue) == (1, 1, 1, 1)
    whole = together(found.values())
    assert (whole.ended, whole.results, whole.counts[Result.RUNNING]) == (3, 11, 1)


def test_what_ends_after_the_window_has_not_ended(success: Success) -> None:
    """A window of the past is told as it was at its end."""
    (found,) = tally([work("chore-1", ((0, 5),))], Judge(success), "task", START + 1)
    assert (found.ended, found.counts) == (0, {Result.RUNNING: 1})


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("train", "train", True),
        ("train*", "training", True),
        ("*", "x", True),
        ("train", "training", False),
        ("a.c", "abc", False),
    ],
)
def test_a_star_stands_for_anything(pattern: str, name: str, fits: bool) -> None:
    """And nothing else is special; all that is written must hold."""
    assert matches(Match(family=pattern), work(f"{name}-1")) is fits
    assert not matches(Match(family=pattern, namespace="elsewhere"), work(f"{name}-1"))


@given(entries=works())
@settings(max_examples=25, deadline=None)
def test_every_piece_of_work_is_in_one_place(entries: list[Entry]) -> None:
    """However it is shown, each is counted once, and nothing counts that nobody verified or that was late."""
    judge = Judge()
    for by in ("queue", "team", "task", "family"):
        found = tally(entries, judge, by, START + 2 * DAY)
        assert sum(sum(each.counts.values()) for each in found) == len(entries)
    for entry in entries:
        result = judge.result(entry)
        assert (entry.outcome is None) is (result not in ENDED)
        if result is Result.VERIFIED:
            assert entry.verdict is Verdict.VERIFIED
            assert judge.met(entry) is not False
