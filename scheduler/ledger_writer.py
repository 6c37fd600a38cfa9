"""Writes to the ledger in a thread of its own, so that no trouble of a database reaches the control loop.

What is to be written waits, one entry a Workload, until the database has it. While that is locked, full or away, one
warning says so, and it is tried again, less and less often. Should too much wait, the oldest is dropped; what the
cluster still shows of it is written when the database is back.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from scheduler.estimates import REMEMBERED, History
from scheduler.family import Family
from scheduler.ledger import Ledger, LedgerError
from scheduler.ledger_entry import Entry

log = logging.getLogger(__name__)

BATCH = 500
"""Entries written in one transaction."""

WAITING = 50_000
"""Entries that may wait for the database."""

GATHER = 0.2
"""Seconds in which more may come, before what waits is written."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts while the database does not work."""

PRUNE_SECONDS = 3600.0
"""How often old entries are forgotten."""


@dataclass(frozen=True)
class Past:
    """What the ledger knew when it was opened."""

    unfinished: tuple[Entry, ...]
    """With runs and deadlines, under the names that the ledger has."""
    history: History
    ended: frozenset[str]
    """Uids of the runs in ``history``."""
    hide: Callable[[Family], Family] | None
    """How an anonymous ledger names families; None for others."""


class LedgerWriter:
    """A ledger and its thread.

    Parameters
    ----------
    ledger
        Not open yet; the thread's own from now on.
    keep_ms
        How long after its end a Workload is kept, in milliseconds; 0: for ever.
    anonymous
        Whether names are written as salted hashes only.
    registry
        Where its metrics go.
    gather
        Seconds in which more may come, before what waits is written.
    first_pause
        Seconds until the second attempt.
    waiting
        Entries that may wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        keep_ms: int,
        anonymous: bool = False,
        registry: CollectorRegistry | None = None,
        gather: float = GATHER,
        first_pause: float = FIRST_PAUSE,
        waiting: int = WAITING,
    ) -> None:
        self._ledger, self._name = ledger, str(ledger)
        self.keep_ms, self._anonymous = keep_ms, anonymous
        self._gather, self._first_pause, self._most = gather, first_pause, waiting
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._wanted, self._stop = threading.Event(), threading.Event()
        self._idle = threading.Condition(self._lock)
        self._past: Past | None = None
        self._read_past = self._open = self._fails = self._over = False
        self._lost: set[str] = set()
        """Uids of entries that were dropped since the last time that all was written."""
        self._again: set[str] = set()
        self._prune_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        registry = registry or CollectorRegistry()
        self._up = Gauge("punctual_ledger_up", "1 while the ledger can be written.", registry=registry)
        waits = Gauge("punctual_ledger_waiting", "Workloads that wait to be written to the ledger.", registry=registry)
        waits.set_function(lambda: len(self._entries))
        self._writes = Counter("punctual_ledger_writes", "Entries written to the ledger.", registry=registry)
        self._failures = Counter("punctual_ledger_failures", "Attempts to write that failed.", registry=registry)
        self._dropped = Counter(
            "punctual_ledger_dropped", "Entries given up: too many waited, or one was refused.", registry=registry
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Write what waits, if that works within ``seconds``, and end."""
        self._stop.set()
        self._wanted.set()
        self._thread.join(seconds)
        if self._entries:
            log.warning("ended before all was in the ledger", extra={"waiting": len(self._entries)})

    def put(self, entries: Iterable[Entry]) -> None:
        """Write these soon. Never waits for the database, never raises."""
        with self._lock:
            if self._over:
                return
            for entry in entries:
                self._entries.pop(entry.uid, None)
                self._entries[entry.uid] = entry
            too_many = len(self._entries) - self._most
            if too_many > 0:
                for uid in list(islice(self._entries, too_many)):
                    del self._entries[uid]
                    self._lost.add(uid)
                self._dropped.inc(too_many)
        self._wanted.set()

    def past(self) -> Past | None:
        """What the ledger knew when it was opened: once, as soon as it is open; None otherwise.

        Nothing is written before somebody has taken it: what is to be written may depend on it.
        """
        with self._lock:
            past, self._past = self._past, None
        if past is not None:
            self._wanted.set()
        return past

    def waits(self, uid: str) -> bool:
        """Whether something about this Workload waits to be written."""
        return uid in self._entries

    def wanted(self) -> set[str]:
        """Uids of entries that were dropped and could be written now: told once."""
        with self._lock:
            again, self._again = self._again, set()
        return again

    def flush(self, seconds: float) -> bool:
        """Wait until all is written. False when the time is over before."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._entries, seconds)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._first_pause
        while True:
            last = self._stop.is_set()
            try:
                self._round()
            except Exception as error:
                self._failed(error)
                if last or isinstance(error, LedgerError):
                    break
                self._stop.wait(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if last:
                    break
                pause = self._first_pause
                self._wanted.wait(PRUNE_SECONDS)
                self._stop.wait(self._gather)
        self._ledger.close()
        with self._lock:
            self._over = True

    def _round(self) -> None:
        """Open it if need be, and write all that waits."""
        self._wanted.clear()
        if not self._open:
            self._ledger.open(anonymous=self._anonymous)
            self._open = True
        if not self._read_past:
            past = self._read()
            with self._lock:
                self._past = past
            self._read_past = True
        if self._past is not None and not self._stop.is_set():
            return
        while batch := self._batch():
            self._write(batch)
        if self.keep_ms and time.monotonic() >= self._prune_at:
            gone = self._ledger.prune(time.time_ns() // 1_000_000 - self.keep_ms)
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            if gone:
                log.info("old work is forgotten", extra={"workloads": gone})
        if self._fails:
            log.info("the ledger works again", extra={"ledger": self._name})
        self._fails = False
        self._up.set(1)
        with self._lock:
            self._again, self._lost = self._again | self._lost, set()

    def _batch(self) -> list[Entry]:
        with self._lock:
            return list(islice(self._entries.values(), BATCH))

    def _write(self, batch: list[Entry]) -> None:
        try:
            self._ledger.write(batch)
            self._writes.inc(len(batch))
        except Exception as error:
            if not _is_refusal(error):
                raise
            if len(batch) > 1:  # one of them spoils the others
                for entry in batch:
                    self._write([entry])
                return
            log.warning("the ledger refuses an entry", extra={"workload": batch[0].uid, "error": str(error)})
            self._dropped.inc()
        with self._idle:
            for entry in batch:
                if self._entries.get(entry.uid) is entry:  # else there is news
                    del self._entries[entry.uid]
            self._idle.notify_all()

    def _read(self) -> Past:
        history, ended = History(), []
        for uid, family, duration in self._ledger.completed(REMEMBERED):
            history.learn(family, duration)
            ended.append(uid)
        return Past(
            unfinished=tuple(self._ledger.unfinished(details=True)),
            history=history,
            ended=frozenset(ended),
            hide=self._ledger.hide_family if self._ledger.anonymous else None,
        )

    def _failed(self, error: Exception) -> None:
        self._failures.inc()
        self._up.set(0)
        if not self._fails:
            for_good = isinstance(error, LedgerError)
            expected = for_good or isinstance(error, SQLAlchemyError | OSError)
            log.warning(
                "going on without the ledger" if for_good else "the ledger cannot be written; going on, trying again",
                extra={
                    "ledger": self._name,
                    "error": str(getattr(error, "orig", None) or error).strip().partition("\n")[0],
                },
                exc_info=None if expected else error,
            )
        self._fails, self._open = True, False
        self._ledger.close()


def _is_refusal(error: Exception) -> bool:
    """Whether it is about what was to be written, and not about the database."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return True
    return isinstance(error, DataError | IntegrityError | ValueError | TypeError | OverflowError)
