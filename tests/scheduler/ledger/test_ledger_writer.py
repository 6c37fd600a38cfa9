"""The ledger's thread, and what may happen to a database under it."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

import scheduler.ledger
from scheduler.estimates import Estimates, Said
from scheduler.family import Family
from scheduler.ledger import Ledger, ledger_url
from scheduler.ledger_entry import Entry, Outcome
from scheduler.ledger_writer import LedgerWriter, Past
from tests.scheduler.ledger.postgres import Postgres

FAMILY = Family("team", "lq", "cq", "Job", "train", "1x(nvidia.com/gpu=2)", "nightly", "")
HOUR = 3_600_000


def entry(number: int, **changes: Any) -> Entry:
    """A Workload that has run for an hour."""
    done = Entry(uid=f"u{number}", name=f"nightly-{number}", family=FAMILY, submitted=0, updated=HOUR)
    return replace(done, started=0, ended=HOUR, outcome=Outcome.SUCCEEDED, **changes)


def until(check: Callable[[], Any], what: str) -> Any:
    """Wait for something that a thread does."""
    end = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


def flushed(writer: LedgerWriter) -> bool:
    """Wait until all is written, as somebody who takes the past when it is there."""
    return bool(until(lambda: writer.past() is None and writer.flush(0.02), "all to be written"))


class Started:
    """Writers that end with the test."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._running: list[LedgerWriter] = []

    def __call__(self, dsn: str, *, sqlite_bytes: int = 1 << 30, **options: Any) -> LedgerWriter:
        self.registry = CollectorRegistry()
        ledger = Ledger(dsn, sqlite_bytes=sqlite_bytes)
        writer = LedgerWriter(ledger, registry=self.registry, gather=0, first_pause=0.05, **{"keep_ms": 0, **options})
        writer.start()
        self._running.append(writer)
        return writer

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0

    def stop(self) -> None:
        for writer in self._running:
            writer.stop()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Starts writers that lose patience soon."""
    monkeypatch.setattr(scheduler.ledger, "BUSY_SECONDS", 0.05)
    started = Started()
    yield started
    started.stop()


def uids(dsn: str) -> set[str]:
    """What is in a ledger."""
    with Ledger(dsn).open_for_reading() as ledger:
        return {each.uid for each in ledger.recent()}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned about."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_put_is_written(dsn: str, start: Started) -> None:
    """Many entries, some more than once, are there once each, with the last that was said."""
    writer = start(dsn)
    for number in range(1200):
        writer.put([entry(number, weight=2.0), entry(number, weight=3.0)])
    assert flushed(writer)
    with Ledger(dsn).open_for_reading() as ledger:
        assert {each.uid: each.weight for each in ledger.recent()} == {f"u{number}": 3.0 for number in range(1200)}
    assert start.metric("punctual_ledger_up") == 1


def test_what_waits_is_written_before_the_end(dsn: str, start: Started) -> None:
    """Stopping right after putting loses nothing."""
    writer = start(dsn)
    writer.put([entry(1)])
    writer.stop()
    assert uids(dsn) == {"u1"}


def test_the_next_one_knows_what_was(dsn: str, start: Started) -> None:
    """A new writer gives what has not ended, and run times to begin with, once."""
    writer = start(dsn)
    waiting = replace(entry(2), started=None, ended=None, outcome=None)
    writer.put([entry(1), waiting, entry(3, reason="x")])
    writer.stop()
    again = start(dsn)
    past: Past = until(again.past, "the past")
    assert [each.uid for each in past.unfinished] == ["u2"]
    assert past.ended == {"u1", "u3"}
    estimates = Estimates()
    estimates.adopt(past.history, past.hide, ())
    said = Said(None, 9 * HOUR, "limit", HOUR)
    assert estimates.kin(FAMILY).estimate(said).basis == "2 runs of team/nightly"
    assert again.past() is None


def test_an_anonymous_past_is_understood(dsn: str, start: Started) -> None:
    """Families are hashes in the ledger, and estimates still know their own."""
    writer = start(dsn, anonymous=True)
    writer.put([entry(1)])
    writer.stop()
    past: Past = until(start(dsn).past, "the past")
    estimates = Estimates()
    estimates.adopt(past.history, past.hide, [(FAMILY, HOUR)])
    said = Said(None, 9 * HOUR, "limit", HOUR)
    assert estimates.kin(FAMILY).estimate(said).basis == "2 runs of team/nightly"


def test_old_work_is_forgotten(dsn: str, start: Started) -> None:
    """What ended longer ago than is kept goes by itself."""
    now = time.time_ns() // 1_000_000
    with Ledger(dsn).open() as ledger:
        ledger.write([entry(1), entry(2, submitted=now)])
        ledger.write([replace(entry(2), ended=now, updated=now)])
    until(start(dsn, keep_ms=HOUR).past, "the past")
    until(lambda: uids(dsn) == {"u2"}, "the old one to go")


def test_a_locked_database_is_waited_for(tmp_path: Path, start: Started, caplog: pytest.LogCaptureFixture) -> None:
    """While somebody locks the file there is one warning, however often it fails; then all is written."""
    dsn = str(tmp_path / "ledger.db")
    writer = start(dsn)
    writer.put([entry(1)])
    assert flushed(writer)
    locker = sqlite3.connect(dsn, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    writer.put([entry(2)])
    until(lambda: start.metric("punctual_ledger_failures_total") >= 3, "attempts")
    assert start.metric("punctual_ledger_up") == 0
    writer.put([entry(3)])
    locker.execute("ROLLBACK")
    assert flushed(writer)
    assert uids(dsn) == {"u1", "u2", "u3"}
    assert warnings(caplog) == ["the ledger cannot be written; going on, trying again"]
    until(lambda: start.metric("punctual_ledger_up") == 1, "the metric")


def test_a_full_disk_is_waited_for(tmp_path: Path, start: Started, caplog: pytest.LogCaptureFixture) -> None:
    """When no page can be had any more nothing breaks; as soon as what waits fits it is written."""
    dsn = str(tmp_path / "ledger.db")
    writer = start(dsn, sqlite_bytes=400_000)
    until(writer.past, "the past")
    writer.put(entry(number, reason="x" * 2000) for number in range(300))
    until(lambda: start.metric("punctual_ledger_failures_total") >= 2, "attempts")
    assert "full" in caplog.records[-1].error  # type: ignore[attr-defined]
    assert start.metric("punctual_ledger_waiting") == 300
    writer.put(entry(number) for number in range(300))  # the same, in short
    assert flushed(writer)
    assert uids(dsn) == {f"u{number}" for number in range(300)}
    assert warnings(caplog) == ["the ledger cannot be written; going on, trying again"]


def test_a_folder_that_cannot_be_made_is_waited_for(tmp_path: Path, start: Started) -> None:
    """A path that is in the way, at the start already, is as good as a volume that comes late."""
    (tmp_path / "volume").write_text("in the way")
    writer = start(str(tmp_path / "volume" / "ledger.db"))
    writer.put([entry(1)])
    until(lambda: start.metric("punctual_ledger_failures_total") >= 2, "attempts")
    (tmp_path / "volume").unlink()
    assert flushed(writer)


def test_a_broken_file_is_set_aside(tmp_path: Path, start: Started, caplog: pytest.LogCaptureFixture) -> None:
    """What is no database any more is kept under another name, which is said, and a new ledger begins."""
    file = tmp_path / "ledger.db"
    with Ledger(str(file)).open() as ledger:
        ledger.write(entry(number) for number in range(100))
    spoiled = bytearray(file.read_bytes())
    spoiled[4096:] = b"\x55" * (len(spoiled) - 4096)
    file.write_bytes(spoiled)
    writer = start(str(file))
    writer.put([entry(1)])
    assert flushed(writer)
    assert uids(str(file)) == {"u1"}
    (aside,) = tmp_path.glob("ledger.db.broken-*Z")
    assert aside.read_bytes() == bytes(spoiled)
    assert warnings(caplog) == ["the ledger is broken: set aside, a new one begins"]


def test_a_file_that_never_was_a_database_is_set_aside(tmp_path: Path, start: Started) -> None:
    """The same for something else altogether."""
    file = tmp_path / "ledger.db"
    file.write_text("hello " * 1000)
    writer = start(str(file))
    writer.put([entry(1)])
    assert flushed(writer)
    assert len(list(tmp_path.glob("ledger.db.broken-*Z"))) == 1


def test_a_killed_server_is_waited_for(postgres: Postgres, start: Started, caplog: pytest.LogCaptureFixture) -> None:
    """PostgreSQL killed and started again: one warning, and nothing is lost."""
    dsn = postgres.database()
    writer = start(dsn)
    writer.put([entry(1)])
    assert flushed(writer)
    postgres.kill()
    try:
        writer.put([entry(2)])
        until(lambda: start.metric("punctual_ledger_failures_total") >= 2, "attempts")
    finally:
        postgres.start()
    writer.put([entry(3)])
    assert flushed(writer)
    assert uids(dsn) == {"u1", "u2", "u3"}
    assert warnings(caplog) == ["the ledger cannot be written; going on, trying again"]


def test_what_waits_is_bounded(tmp_path: Path, start: Started) -> None:
    """The oldest is dropped and counted; when the database is back everything is asked for anew, once."""
    (tmp_path / "volume").write_text("in the way")
    dsn = str(tmp_path / "volume" / "ledger.db")
    writer = start(dsn, waiting=3)
    writer.put(entry(number) for number in range(10))
    assert start.metric("punctual_ledger_dropped_total") == 7
    assert start.metric("punctual_ledger_waiting") == 3
    assert writer.wanted() == set()
    (tmp_path / "volume").unlink()
    assert flushed(writer)
    wanted: set[str] = set()
    until(lambda: writer.past() is None and (wanted.update(writer.wanted()) or bool(wanted)), "the wish")
    assert wanted == {f"u{number}" for number in range(7)}
    assert writer.wanted() == set()
    assert uids(dsn) == {"u7", "u8", "u9"}


def test_one_entry_that_is_refused_does_not_stop_the_others(
    dsn: str, start: Started, caplog: pytest.LogCaptureFixture
) -> None:
    """Text that no database takes is dropped, and said; all others are written."""
    writer = start(dsn)
    writer.put([entry(1), entry(2, reason="\ud800"), entry(3)])
    assert flushed(writer)
    assert uids(dsn) == {"u1", "u3"}
    assert warnings(caplog) == ["the ledger refuses an entry"]
    assert start.metric("punctual_ledger_dropped_total") == 1


def test_a_newer_ledger_is_done_without(dsn: str, start: Started, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger of a newer version is left alone, with one warning; nothing piles up meanwhile."""
    with Ledger(dsn).open():
        pass
    engine = sa.create_engine(ledger_url(dsn))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    writer = start(dsn)
    until(lambda: start.metric("punctual_ledger_failures_total") == 1, "the attempt")
    writer.stop()
    writer.put([entry(1)])
    assert start.metric("punctual_ledger_waiting") == 0
    assert warnings(caplog) == ["going on without the ledger"]
