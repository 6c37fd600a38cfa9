"""Verdicts on results in the ledger, on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ledger import Judgement, Ledger, Verdict
from scheduler.settings import HOUR
from tests.scheduler.ledger.test_ledger import DONE

VERIFIED, REJECTED = Verdict.VERIFIED, Verdict.REJECTED


def test_the_ledger_is_written_to_directly(ledger: Ledger) -> None:
    """For work whose object is gone: by whom the database knows; the same word twice is one; unknown work is told."""
    ledger.write([DONE])
    assert ledger.judge("u1", VERIFIED, "score 0.95", 5 * HOUR) is True
    assert ledger.judge("u1", VERIFIED, "score 0.95", 6 * HOUR) is False
    assert ledger.judge("u1", REJECTED, "wrong data", 7 * HOUR) is True
    with pytest.raises(LookupError):
        ledger.judge("u2", VERIFIED, "", 8 * HOUR)
    (entry,) = ledger.recent(details=True)
    assert [(each.noticed, each.verdict) for each in entry.judgements] == [(5 * HOUR, VERIFIED), (7 * HOUR, REJECTED)]
    assert all(each.by.startswith("ledger:") and len(each.by) > 7 for each in entry.judgements)


def test_an_annotation_seen_again_undoes_no_newer_word(ledger: Ledger) -> None:
    """A controller that starts anew sees the old annotation; what was written to the ledger since then counts."""
    annotation = Judgement(5 * HOUR, VERIFIED, "alice", "")
    ledger.write([replace(DONE, judgements=(annotation,))])
    ledger.judge("u1", REJECTED, "wrong data", 6 * HOUR)
    ledger.write([replace(DONE, judgements=(replace(annotation, noticed=7 * HOUR),))])
    (entry,) = ledger.recent(details=True)
    assert entry.verdict is REJECTED


def test_an_anonymous_ledger_has_no_names_and_no_reasons(dsn: str) -> None:
    """Who said it is a hash; what they wrote may name anything, so it is left out. Pruning forgets it with the work."""
    with Ledger(dsn).open(anonymous=True) as ledger:
        ledger.write([replace(DONE, judgements=(Judgement(5, VERIFIED, "alice", "as Bob said"),))])
        (entry,) = ledger.recent(details=True)
        assert entry.judgements == (Judgement(5, VERIFIED, ledger.hide("alice"), ""),)
        assert ledger.prune(5 * HOUR) == 1
        ledger.write([DONE])
        (entry,) = ledger.recent(details=True)
        assert entry.judgements == ()


SAID = st.lists(st.tuples(st.sampled_from([VERIFIED, REJECTED]), st.sampled_from(["alice", "bob"])), max_size=6)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """One ledger for many examples."""
    with Ledger(str(tmp_path_factory.mktemp("verdicts") / "ledger.db")).open() as opened:
        yield opened


@given(said=SAID, again=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_the_last_word_counts(shared: Ledger, said: list[tuple[Verdict, str]], again: int) -> None:
    """Whatever was said, each as often as it was looked at: the last word counts, and no two in a row are the same."""
    work = replace(DONE, uid=str(uuid.uuid4()))
    shared.write([work])
    for number, (verdict, by) in enumerate(said):
        for look in range(again):
            shared.write([replace(work, judgements=(Judgement(10 * number + look, verdict, by, ""),))])
    (entry,) = (each for each in shared.recent(details=True) if each.uid == work.uid)
    words = [(each.verdict, each.by) for each in entry.judgements]
    assert words == [word for number, word in enumerate(said) if number == 0 or said[number - 1] != word]
