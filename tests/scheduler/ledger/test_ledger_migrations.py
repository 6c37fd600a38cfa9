"""A ledger that an older version has made."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scheduler.ledger import Ledger, LedgerError, Outcome, ledger_url
from scheduler.ledger_migrations import upgrade
from scheduler.ledger_schema import metadata

OLD = {
    **dict.fromkeys(("name", "namespace", "local_queue", "cluster_queue", "kind", "image", "shape", "stem"), "x"),
    **dict.fromkeys(("label", "flavor", "estimate_source", "reason"), ""),
    "uid": "old",
    "managed": True,
    "submitted_ms": 1,
    "weight": 1.0,
    "hard": False,
    "started_ms": 2,
    "ended_ms": 5,
    "interruptions": 0,
    "gpus": 2,
    "usage": "[]",
    "outcome": "Succeeded",
    "updated_ms": 5,
}


@pytest.fixture
def old(dsn: str) -> str:
    """A ledger with the first schema, and one row."""
    engine = sa.create_engine(ledger_url(dsn))
    with engine.begin() as connection:
        upgrade(connection, "0001")
        columns = ", ".join(f'"{name}"' for name in OLD)
        values = ", ".join(f":{name}" for name in OLD)
        connection.execute(sa.text(f'INSERT INTO "workload" ({columns}) VALUES ({values})'), OLD)
    engine.dispose()
    return dsn


def test_it_is_brought_up_to_date_with_what_it_knows(old: str) -> None:
    """Opening it for writing upgrades it in place; its rows are as they were, what is new has its default."""
    with Ledger(old).open() as ledger:
        (entry,) = ledger.recent()
    assert (entry.uid, entry.duration, entry.outcome, entry.priority_class) == ("old", 3, Outcome.SUCCEEDED, "")


def test_reading_does_not_upgrade(old: str) -> None:
    """Whoever only looks is told; the controller of the older version may still be writing."""
    with pytest.raises(LedgerError, match="schema 0001"):
        Ledger(old).open_for_reading()


def test_an_upgrade_that_fails_midway_changes_nothing(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one transaction: after a crash the old ledger is whole, and the next attempt works."""

    def crash(*_: object) -> None:
        raise OSError("no power")

    monkeypatch.setattr(Ledger, "_write_settings", staticmethod(crash))
    with pytest.raises(OSError, match="no power"):
        Ledger(old).open()
    engine = sa.create_engine(ledger_url(old))
    columns = {column["name"] for column in sa.inspect(engine).get_columns("workload")}
    engine.dispose()
    assert "priority_class" not in columns
    assert "priority_class" in metadata.tables["workload"].columns
    monkeypatch.undo()
    with Ledger(old).open() as ledger:
        assert [entry.uid for entry in ledger.recent()] == ["old"]
