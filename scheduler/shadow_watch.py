"""Says once an hour what our plans would have brought, while some queue is only observed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from scheduler.cluster import View
from scheduler.ledger_entry import Entry
from scheduler.metrics import Metrics
from scheduler.settings import SECOND, Settings
from scheduler.shadow_history import past_of, remembered
from scheduler.shadow_report import WINDOW, Report, report

log = logging.getLogger(__name__)

EVERY = 3600.0
"""Seconds from one report to the next."""

FIRST = 60.0
"""Seconds until the first one."""

SHARE = 0.2
"""Of one processor, that a replay takes at most."""


class Stopped(Exception):
    """The controller ends."""


class ShadowWatch:
    """A thread that reports.

    Parameters
    ----------
    settings
        The ones in force at the moment.
    ledger
        Where it is; None: there is none.
    """

    def __init__(
        self,
        cluster: View,
        settings: Callable[[], Settings],
        metrics: Metrics,
        ledger: str | None = None,
        *,
        first: float = FIRST,
        every: float = EVERY,
    ) -> None:
        self._cluster, self._settings, self._metrics = cluster, settings, metrics
        self._ledger = ledger
        self._first, self._every = first, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observe", daemon=True)
        self._used = 0.0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, also in the midst of a replay."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = self._first
        while not self._stop.wait(pause):
            pause = self._every
            settings = self._settings()
            if not (settings.observed or any(queue.observed for queue in settings.queues.values())):
                continue
            try:
                self._tell(self.report(settings))
            except Stopped:
                return
            except Exception:
                log.exception("what plans would have brought cannot be told")
                self._metrics.error("observe")

    def report(self, settings: Settings) -> Report:
        """Look back once."""
        entries: Sequence[Entry] = ()
        hide: Callable[[str], str] = str
        if self._ledger is not None:
            try:
                entries, hide = remembered(self._ledger, self._cluster.now() - WINDOW)
            except Exception as error:  # whatever a database has: without it there is less to tell, no less true
                log.warning("reporting without the ledger", extra={"error": str(error)})
        past = past_of(self._cluster, settings, entries, hide=hide)
        self._used = time.thread_time()
        return report(past, settings, breath=self._breathe)

    def _breathe(self) -> None:
        """Let the control loop have the processor: a replay is in no hurry."""
        used = time.thread_time() - self._used
        if self._stop.wait(used * (1 / SHARE - 1)):
            raise Stopped
        self._used = time.thread_time()

    def _tell(self, told: Report) -> None:
        data = told.as_data()
        log.info(told.line, extra={"report": data})
        self._metrics.beside((told.until - told.since) / SECOND, told.deadlines, data)
