"""The ledger: what became of each Workload, in SQLite or PostgreSQL.

It only remembers. No decision waits for it, and :mod:`scheduler.ledger_writer` keeps its troubles away from the loop.
An entry is written as often as something about it changes; writing it again changes nothing.
"""

from __future__ import annotations

import getpass
import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url

from scheduler.family import FAMILY_FIELDS, Family
from scheduler.ledger_entry import DeadlineEdit, Entry, Judgement, Outcome, Run, Verdict
from scheduler.ledger_migrations import lock, revision, revisions, upgrade
from scheduler.ledger_rows import INSERT, read_entry, run_row, upsert_run, upsert_workload, workload_row
from scheduler.ledger_schema import deadline, run, setting, verdict, workload
from scheduler.ledger_verdicts import BY_LEDGER, read_judgements, write_judgements

__all__ = ["DeadlineEdit", "Entry", "Judgement", "Ledger", "LedgerError", "Outcome", "Run", "Verdict", "ledger_url"]

log = logging.getLogger(__name__)

SQLITE_BYTES = 1 << 30
"""Largest SQLite file; what comes after that is refused, as by a full disk."""

BUSY_SECONDS = 5.0
"""How long one writer of a SQLite file waits for another."""

_CHUNK = 500
_NAMES = ("namespace", "local_queue", "cluster_queue", "image", "stem", "label")
"""Fields of a family that an anonymous ledger hides; kind and shape say nothing about people."""


class LedgerError(Exception):
    """The ledger cannot be used, and trying again does not help; the message says what to do."""


def ledger_url(dsn: str) -> URL:
    """Where a ledger is: the path of a SQLite file, or ``postgresql://user:password@host:5432/database``.

    Raises
    ------
    ValueError
        If it is neither; the message holds no password.
    """
    if "://" not in dsn:
        if not dsn.strip():
            raise ValueError("a ledger needs a path or a postgresql:// address")
        return URL.create("sqlite", database=str(Path(dsn).expanduser()))
    try:
        url = make_url(dsn)
    except (sa.exc.ArgumentError, ValueError):
        raise ValueError("not an address; write postgresql://user:password@host:5432/database") from None
    match url.get_backend_name():
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case "sqlite" if url.database and url.database != ":memory:":
            return url
    raise ValueError(f"{url.drivername}: a ledger is a SQLite file (its path) or postgresql://…")


class Ledger:
    """An open ledger. One thread at a time.

    Parameters
    ----------
    dsn
        See :func:`ledger_url`.
    """

    def __init__(self, dsn: str | URL, *, sqlite_bytes: int = SQLITE_BYTES) -> None:
        self.url = dsn if isinstance(dsn, URL) else ledger_url(dsn)
        self._engine = _engine(self.url, sqlite_bytes)
        self._salt = b""
        self._anonymous = False

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    # --- opening ---------------------------------------------------------------------------------------------------

    def open(self, *, anonymous: bool = False) -> Self:
        """Open for writing: make the tables or bring them up to date; a SQLite file that is broken is set aside.

        Parameters
        ----------
        anonymous
            Whether names are written as salted hashes from now on. A ledger that has been anonymous stays it.

        Raises
        ------
        LedgerError
            If a newer version has made it.
        sqlalchemy.exc.SQLAlchemyError, OSError
            If the database cannot be reached or written; may work later.
        """
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._set_aside_if_broken(self.file)
        with self._engine.begin() as connection:
            lock(connection)
            found, (newest, *_) = revision(connection), revisions()
            if found is not None and found not in revisions():
                raise LedgerError(f"{self} was made by a newer version (its schema is {found}): use that, or another")
            if found != newest:
                upgrade(connection)
                if found is not None:
                    log.info("ledger upgraded", extra={"from": found, "to": newest})
            self._write_settings(connection, anonymous)
            self._read_settings(connection)
        return self

    def open_for_reading(self) -> Self:
        """Open without changing anything.

        Raises
        ------
        LedgerError
            If it is not there, or its schema is of another version.
        sqlalchemy.exc.SQLAlchemyError
            If the database cannot be reached.
        """
        if self.file is not None and not self.file.is_file():
            raise LedgerError(f"there is no ledger at {self.file}")
        with self._engine.connect() as connection:
            found, (newest, *_) = revision(connection), revisions()
            if found is None:
                raise LedgerError(f"{self} is no ledger: the controller has not written to it yet")
            if found != newest:
                raise LedgerError(
                    f"{self} has schema {found}, this version reads {newest}: use the controller's version"
                )
            self._read_settings(connection)
        return self

    def close(self) -> None:
        """Let its connections go."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def anonymous(self) -> bool:
        """Whether it has names as hashes only."""
        return self._anonymous

    def hide(self, name: str) -> str:
        """A name as an anonymous ledger has it; empty stays empty."""
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=6).hexdigest() if name else ""

    def hide_family(self, family: Family) -> Family:
        """A family as an anonymous ledger has it."""
        return replace(family, **{field: self.hide(getattr(family, field)) for field in _NAMES})

    def hidden(self, entry: Entry) -> Entry:
        """An entry as an anonymous ledger has it."""
        return replace(
            entry,
            name=self.hide(entry.name),
            family=self.hide_family(entry.family),
            bypassed_by=self.hide(entry.bypassed_by),
            judgements=tuple(self._hidden(each) for each in entry.judgements),
        )

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, entries: Iterable[Entry]) -> None:
        """Write entries, all or none. What is known already and not said again is kept; older news never wins.

        Raises
        ------
        sqlalchemy.exc.SQLAlchemyError
            If the database does not take them.
        """
        entries = [self.hidden(entry) if self._anonymous else entry for entry in entries]
        if not entries:
            return
        runs = [run_row(entry.uid, each) for entry in entries for each in entry.runs]
        edits = [
            {"uid": entry.uid, "noticed_ms": edit.noticed, "deadline_ms": edit.deadline}
            for entry in entries
            for edit in entry.deadlines
        ]
        with self._engine.begin() as connection:
            insert = INSERT[connection.dialect.name]
            connection.execute(upsert_workload(insert), [workload_row(entry) for entry in entries])
            if runs:
                connection.execute(upsert_run(insert), runs)
            if edits:
                connection.execute(insert(deadline).on_conflict_do_nothing(), edits)
            for entry in entries:
                if entry.judgements:
                    write_judgements(connection, entry.uid, entry.judgements)

    def judge(self, uid: str, verdict: Verdict, reason: str, now: int) -> bool:
        """Write a verdict on a Workload's result, by who we are to the database; whether that is news.

        Raises
        ------
        LookupError
            If no such Workload is in the ledger.
        sqlalchemy.exc.SQLAlchemyError
            If the database does not take it.
        """
        judgement = Judgement(now, verdict, BY_LEDGER + self._person(), reason)
        if self._anonymous:
            judgement = self._hidden(judgement)
        with self._engine.begin() as connection:
            if connection.execute(sa.select(workload.c.uid).where(workload.c.uid == uid)).first() is None:
                raise LookupError(uid)
            return write_judgements(connection, uid, (judgement,))

    def _hidden(self, judgement: Judgement) -> Judgement:
        ours = BY_LEDGER if judgement.by.startswith(BY_LEDGER) else ""
        return replace(judgement, by=ours + self.hide(judgement.by.removeprefix(ours)), reason="")

    def _person(self) -> str:
        """Who writes, as the database knows them; of a file, the user of the operating system."""
        if self.file is None:
            with self._engine.connect() as connection:
                return str(connection.execute(sa.text("SELECT session_user")).scalar_one())
        return getpass.getuser()

    def prune(self, before: int) -> int:
        """Forget what ended before an instant; how many Workloads those were.

        Raises
        ------
        sqlalchemy.exc.SQLAlchemyError
            If the database does not let us.
        """
        old = sa.select(workload.c.uid).where(workload.c.ended_ms < before, workload.c.outcome.is_not(None))
        with self._engine.begin() as connection:
            for table in (run, deadline, verdict):
                connection.execute(sa.delete(table).where(table.c.uid.in_(old)))
            return connection.execute(
                sa.delete(workload).where(workload.c.ended_ms < before, workload.c.outcome.is_not(None))
            ).rowcount

    def ended_before(self, instant: int) -> int:
        """How many Workloads :meth:`prune` would forget."""
        count = sa.select(sa.func.count()).where(workload.c.ended_ms < instant, workload.c.outcome.is_not(None))
        with self._engine.connect() as connection:
            return connection.execute(count).scalar_one()

    # --- reading ---------------------------------------------------------------------------------------------------

    def finished_since(
        self, since: int, until: int | None = None, cluster_queue: str | None = None, *, details: bool = False
    ) -> Iterator[Entry]:
        """What ended at or after an instant (and before ``until``), oldest first.

        Parameters
        ----------
        details
            With all runs and deadlines of each.
        """
        wanted = [workload.c.outcome.is_not(None), workload.c.ended_ms >= since]
        if until is not None:
            wanted.append(workload.c.ended_ms < until)
        if cluster_queue is not None:
            wanted.append(workload.c.cluster_queue == self._written(cluster_queue))
        query = sa.select(workload).where(*wanted).order_by(workload.c.ended_ms, workload.c.uid)
        return self._entries(query, details)

    def unfinished(self, *, details: bool = False) -> Iterator[Entry]:
        """What waits or runs, as far as the ledger knows; oldest first."""
        query = sa.select(workload).where(workload.c.outcome.is_(None))
        return self._entries(query.order_by(workload.c.submitted_ms, workload.c.uid), details)

    def completed(self, limit: int) -> Iterator[tuple[str, Family, int]]:
        """Uid, family and run time of what ran to its end: the newest ``limit``, oldest first."""
        columns = workload.c.uid, workload.c.ended_ms, workload.c.started_ms
        newest = (
            sa.select(*columns, *(workload.c[field] for field in FAMILY_FIELDS))
            .where(workload.c.outcome.in_([Outcome.SUCCEEDED, Outcome.FINISHED]), workload.c.started_ms.is_not(None))
            .order_by(workload.c.ended_ms.desc())
            .limit(limit)
            .subquery()
        )
        query = sa.select(newest).order_by(newest.c.ended_ms)
        with self._engine.connect().execution_options(yield_per=_CHUNK) as connection:
            for uid, ended, started, *family in connection.execute(query):
                yield uid, Family(*family), max(0, ended - started)

    def recent(
        self,
        limit: int | None = None,
        *,
        cluster_queue: str | None = None,
        namespace: str | None = None,
        family: str | None = None,
        since: int | None = None,
        details: bool = False,
    ) -> Iterator[Entry]:
        """What something has been written about, the newest first.

        Parameters
        ----------
        family
            The stem of its name, or its label.
        since
            Only what was there at or after this instant.
        """
        wanted = []
        if cluster_queue is not None:
            wanted.append(workload.c.cluster_queue == self._written(cluster_queue))
        if namespace is not None:
            wanted.append(workload.c.namespace == self._written(namespace))
        if family is not None:
            name = self._written(family)
            wanted.append((workload.c.stem == name) | (workload.c.label == name))
        if since is not None:
            wanted.append(workload.c.outcome.is_(None) | (workload.c.ended_ms >= since))
        last = sa.func.coalesce(workload.c.ended_ms, workload.c.started_ms, workload.c.submitted_ms)
        query = sa.select(workload).where(*wanted).order_by(last.desc(), workload.c.uid)
        return self._entries(query if limit is None else query.limit(limit), details)

    def _written(self, name: str) -> str:
        return self.hide(name) if self._anonymous else name

    def _entries(self, query: sa.Select[Any], details: bool) -> Iterator[Entry]:
        with self._engine.connect().execution_options(yield_per=_CHUNK) as connection:
            for rows in connection.execute(query).partitions(_CHUNK):
                entries = [read_entry(row) for row in rows]
                yield from self._detailed(entries) if details else entries

    def _detailed(self, entries: Sequence[Entry]) -> list[Entry]:
        uids = [entry.uid for entry in entries]
        runs: dict[str, list[Run]] = {uid: [] for uid in uids}
        edits: dict[str, list[DeadlineEdit]] = {uid: [] for uid in uids}
        with self._engine.connect() as connection:
            for row in connection.execute(sa.select(run).where(run.c.uid.in_(uids)).order_by(run.c.started_ms)):
                runs[row.uid].append(Run(row.started_ms, row.planned_start_ms, row.ended_ms, row.ending))
            query = sa.select(deadline).where(deadline.c.uid.in_(uids)).order_by(deadline.c.noticed_ms)
            for row in connection.execute(query):
                edits[row.uid].append(DeadlineEdit(row.noticed_ms, row.deadline_ms))
            said = read_judgements(connection, uids)
        return [
            replace(
                each,
                runs=tuple(runs[each.uid]),
                deadlines=tuple(edits[each.uid]),
                judgements=tuple(said.get(each.uid, ())),
            )
            for each in entries
        ]

    # --- opening, in detail ----------------------------------------------------------------------------------------

    def _read_settings(self, connection: Connection) -> None:
        known = {row.name: row.value for row in connection.execute(sa.select(setting))}
        self._salt, self._anonymous = bytes.fromhex(known["salt"]), "anonymous" in known

    @staticmethod
    def _write_settings(connection: Connection, anonymous: bool) -> None:
        rows = [{"name": "salt", "value": secrets.token_hex(16)}]
        if anonymous:
            rows.append({"name": "anonymous", "value": "true"})
        connection.execute(INSERT[connection.dialect.name](setting).on_conflict_do_nothing(), rows)

    def _set_aside_if_broken(self, file: Path) -> None:
        if not file.exists():
            return
        try:
            with self._engine.connect() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
            if found == "ok":
                return
        except sa.exc.DatabaseError as error:
            if not _is_broken(error):
                raise
            found = str(error.orig)
        self._engine.dispose()
        aside = file.with_name(f"{file.name}.broken-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        file.rename(aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
        log.error("the ledger is broken: set aside, a new one begins", extra={"aside": str(aside), "error": found})


def _engine(url: URL, sqlite_bytes: int) -> Engine:
    if url.get_backend_name() == "postgresql":
        arguments = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "options": "-c statement_timeout=30000"}
        return sa.create_engine(url, connect_args=arguments, pool_size=1, max_overflow=1)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # so that tables are made and altered in transactions too
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {max(1, sqlite_bytes // page)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _is_broken(error: sa.exc.DBAPIError) -> bool:
    text = str(error.orig)
    return "malformed" in text or "not a database" in text
