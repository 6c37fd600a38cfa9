"""What the ledger remembers, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from scheduler.family import Family
from scheduler.ledger import DeadlineEdit, Entry, Ledger, LedgerError, Outcome, Run, ledger_url
from scheduler.ledger_schema import metadata

HOUR = 3_600_000
FAMILY = Family("team", "lq", "cq", "Job", "registry/train", "1x(nvidia.com/gpu=2)", "nightly", "")

WAITING = Entry(
    uid="u1",
    name="nightly-1",
    family=FAMILY,
    submitted=0,
    updated=0,
    managed=True,
    deadline=5 * HOUR,
    gpus=2,
    estimate=2 * HOUR,
    estimate_source="annotation",
    user_estimate=2 * HOUR,
    deadlines=(DeadlineEdit(0, 5 * HOUR),),
)
RUNNING = replace(
    WAITING,
    updated=HOUR,
    planned_start=HOUR - 1,
    started=HOUR,
    flavor="a100",
    usage=(("a100", "nvidia.com/gpu", 2),),
    runs=(Run(HOUR, HOUR - 1),),
)
DONE = replace(
    RUNNING,
    updated=4 * HOUR,
    ended=4 * HOUR,
    outcome=Outcome.SUCCEEDED,
    reason="Succeeded",
    runs=(Run(HOUR, HOUR - 1, 4 * HOUR, "Finished"),),
)


def all_of(ledger: Ledger) -> list[Entry]:
    """Everything it knows."""
    return list(ledger.recent(details=True))


def test_it_gives_back_what_was_written(ledger: Ledger) -> None:
    """An entry is read as it was written, with its runs and deadlines."""
    ledger.write([DONE])
    assert all_of(ledger) == [DONE]
    assert [*ledger.finished_since(4 * HOUR)] == [replace(DONE, runs=(), deadlines=())]


def test_writing_again_changes_nothing(ledger: Ledger) -> None:
    """A Workload that is written as it waits, runs and ends, each of it twice, is there once, as it is at last."""
    for entry in (WAITING, WAITING, RUNNING, RUNNING, DONE, DONE):
        ledger.write([entry])
    assert all_of(ledger) == [DONE]


def test_a_controller_that_starts_anew_forgets_nothing(ledger: Ledger) -> None:
    """What only the one before knew (plan, estimate, first deadline) stays when the next one writes without it."""
    ledger.write([RUNNING])
    after = replace(
        DONE, planned_start=None, estimate=9 * HOUR, estimate_source="ledger", managed=False, runs=(), deadlines=()
    )
    ledger.write([after])
    assert all_of(ledger) == [replace(DONE, runs=RUNNING.runs)]


def test_an_end_that_is_known_is_not_undone(ledger: Ledger) -> None:
    """A replica that was stopped and writes what it saw before, or that has lost sight of it, changes nothing."""
    ledger.write([DONE])
    ledger.write([replace(RUNNING, deadline=HOUR, updated=9 * HOUR)])
    ledger.write([replace(RUNNING, outcome=Outcome.UNKNOWN, ended=9 * HOUR)])
    assert all_of(ledger) == [DONE]


def test_a_clock_that_was_set_back_loses_nothing(ledger: Ledger) -> None:
    """News counts though its time is before that of what is there; so does how work ended that nobody saw going."""
    ledger.write([RUNNING])
    ledger.write([replace(RUNNING, outcome=Outcome.UNKNOWN, ended=9 * HOUR)])
    ledger.write([replace(DONE, updated=0)])
    assert all_of(ledger) == [replace(DONE, updated=0)]


def test_an_interrupted_workload_is_one_with_two_runs(ledger: Ledger) -> None:
    """Evicted and started again: one row, two runs, each with its own end."""
    first = Run(HOUR, HOUR, 2 * HOUR, "Preempted")
    ledger.write([RUNNING])
    ledger.write([replace(RUNNING, updated=2 * HOUR, interruptions=1, runs=(first,))])
    second = Run(3 * HOUR, 3 * HOUR, 4 * HOUR, "Finished")
    ledger.write([replace(DONE, started=3 * HOUR, interruptions=1, runs=(first, second))])
    (entry,) = all_of(ledger)
    assert entry.runs == (replace(first, planned_start=HOUR), second)
    assert (entry.interruptions, entry.duration) == (1, HOUR)


def test_edits_of_a_deadline_are_kept(ledger: Ledger) -> None:
    """All deadlines that a Workload had are there, with when each was noticed; the entry has the last."""
    ledger.write([WAITING])
    edited = (*WAITING.deadlines, DeadlineEdit(HOUR, None), DeadlineEdit(2 * HOUR, 5 * HOUR))
    ledger.write([replace(WAITING, updated=2 * HOUR, deadlines=edited)])
    (entry,) = all_of(ledger)
    assert entry.deadlines == edited
    assert entry.deadline == 5 * HOUR


def test_queries_take_what_is_asked_for(ledger: Ledger) -> None:
    """By end, queue and family; what has not ended is apart."""
    other = replace(DONE, uid="u2", ended=6 * HOUR, family=replace(FAMILY, cluster_queue="other", stem="weekly"))
    waiting = replace(WAITING, uid="u3", submitted=7 * HOUR)
    ledger.write([DONE, other, waiting])

    def uids(entries: object) -> list[str]:
        return [entry.uid for entry in entries]  # type: ignore[attr-defined]

    assert uids(ledger.finished_since(0)) == ["u1", "u2"]
    assert uids(ledger.finished_since(0, 6 * HOUR)) == ["u1"]
    assert uids(ledger.finished_since(0, cluster_queue="other")) == ["u2"]
    assert uids(ledger.unfinished()) == ["u3"]
    assert uids(ledger.recent()) == ["u3", "u2", "u1"]
    assert uids(ledger.recent(1)) == ["u3"]
    assert uids(ledger.recent(family="weekly")) == ["u2"]
    assert uids(ledger.recent(since=5 * HOUR)) == ["u3", "u2"]
    assert uids(ledger.recent(cluster_queue="nowhere")) == []


def test_old_work_is_forgotten_and_nothing_else(ledger: Ledger) -> None:
    """Pruning takes what ended before the instant, with its runs and deadlines; what waits or runs stays."""
    ledger.write([DONE, replace(DONE, uid="u2", ended=9 * HOUR), replace(RUNNING, uid="u3")])
    assert ledger.prune(9 * HOUR) == 1
    assert {entry.uid for entry in all_of(ledger)} == {"u2", "u3"}
    ledger.write([replace(WAITING, deadlines=())])
    assert next(entry for entry in all_of(ledger) if entry.uid == "u1").runs == ()


def test_an_anonymous_ledger_has_no_names(dsn: str) -> None:
    """Names are salted hashes in it, the same for the same name, and queries by name still work."""
    with Ledger(dsn).open(anonymous=True) as ledger:
        ledger.write([DONE, replace(DONE, uid="u2")])
        one, two = all_of(ledger)
        text = f"{one} {two}"
        for name in ("team", "nightly", "lq'", "'cq'", "registry"):
            assert name not in text
        assert one.family == two.family == ledger.hide_family(FAMILY)
        assert (one.family.kind, one.gpus, one.flavor) == ("Job", 2, "a100")
        assert len(list(ledger.recent(cluster_queue="cq"))) == 2
    with Ledger(dsn).open() as again:
        assert again.anonymous
        assert again.hide_family(FAMILY) == one.family


def test_two_ledgers_hide_names_differently(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows of two anonymous ledgers cannot be matched by name: each has a salt of its own."""
    hidden = []
    for folder in ("a", "b"):
        with Ledger(str(tmp_path_factory.mktemp(folder) / "l.db")).open(anonymous=True) as ledger:
            hidden.append(ledger.hide("nightly"))
    assert hidden[0] != hidden[1]


def test_the_tables_are_those_of_the_schema(ledger: Ledger, dsn: str) -> None:
    """What the migrations make is what the code believes in."""
    engine = sa.create_engine(ledger_url(dsn))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_ledger_of_a_newer_version_is_left_alone(dsn: str) -> None:
    """It is refused with words, for writing and reading, and not changed."""
    with Ledger(dsn).open() as ledger:
        ledger.write([DONE])
    engine = sa.create_engine(ledger_url(dsn))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerError, match="newer version"):
        Ledger(dsn).open()
    with pytest.raises(LedgerError, match="9999"):
        Ledger(dsn).open_for_reading()
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT uid FROM workload")).scalars().all() == ["u1"]
    engine.dispose()


def test_reading_makes_nothing(dsn: str, tmp_path: object) -> None:
    """A wrong address is said to be one, instead of becoming an empty ledger."""
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(dsn).open_for_reading()
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(dsn).open_for_reading()


@pytest.mark.parametrize(
    ("text", "driver", "database"),
    [
        ("/var/lib/l.db", "sqlite", "/var/lib/l.db"),
        ("l.db", "sqlite", "l.db"),
        ("sqlite:////var/lib/l.db", "sqlite", "/var/lib/l.db"),
        ("postgresql://u:p@h/d", "postgresql+psycopg", "d"),
        ("postgres://u:p@h/d", "postgresql+psycopg", "d"),
    ],
)
def test_addresses_are_understood(text: str, driver: str, database: str) -> None:
    """A path is a SQLite file; postgres:// is postgresql://."""
    url = ledger_url(text)
    assert (url.drivername, url.database) == (driver, database)


@pytest.mark.parametrize("text", ["", "mysql://u:secret@h/d", "sqlite://", "sqlite:///:memory:", "://secret"])
def test_other_addresses_are_refused_without_their_password(text: str) -> None:
    """What is no ledger is refused, and no password gets into the message."""
    with pytest.raises(ValueError, match=r"postgresql://") as refusal:
        ledger_url(text)
    assert "secret" not in str(refusal.value)
