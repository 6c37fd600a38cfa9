"""Knows, as long as it runs, whether Kueue heeds gates: it may be restarted without its feature gate at any time.

Asked every few seconds, which stores nothing; tried when there is reason to doubt: at the start, after Kueue did not
answer, when its answer changes, and when work gets quota though our gate is on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from scheduler.apiserver import BUSY, ApiError, ApiServer
from scheduler.canary import SECONDS, ask, try_out
from scheduler.cluster import GATE, Object
from scheduler.ungate import gate_names, gates_of

log = logging.getLogger(__name__)

EVERY = 3.0
"""Seconds between two questions."""

IGNORED = (
    "Kueue ignores admission gates: its feature gate AdmissionGatedBy is off. Until it is on again Kueue alone decides "
    "when work starts, and plans are not enforced"
)
HEEDED = "Kueue heeds admission gates again: plans are enforced"


class CanaryWatch:
    """Asks and tries in a thread of its own.

    Parameters
    ----------
    namespace
        Where a canary may be made.
    workloads
        All Workloads that are known at the moment.
    changed
        Called with what Kueue does now, when that is not what it did before. At first it is taken to heed gates: as
        long as nothing can be found out, work goes on being released.
    needed
        Whether it matters at the moment; while it does not, nobody is asked, and nothing is said.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        workloads: Callable[[], Mapping[str, Object]],
        changed: Callable[[bool], None] = lambda heeded: None,
        needed: Callable[[], bool] = lambda: True,
        *,
        every: float = EVERY,
        seconds: float = SECONDS,
    ) -> None:
        self.heeded = True
        """Whether Kueue heeds gates, as far as is known."""
        self.looked = threading.Event()
        """Set after the first look, whatever it showed."""
        self._api = api
        self._namespace = namespace
        self._workloads = workloads
        self._changed = changed
        self._needed = needed
        self._every, self._seconds = every, seconds
        self._answer: bool | None = None
        self._doubt = True
        self._held: frozenset[str] = frozenset()
        self._told = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End, and leave nothing behind in the cluster."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._every + 2)

    def look(self) -> None:
        """Find out once."""
        if not self._needed():
            self.heeded, self._doubt = True, True
            return
        held = held_in_spite_of_gates(self._workloads())
        if new := held - self._held:
            self._doubt = self._doubt or self.heeded
        self._held = held
        try:
            answer = ask(self._api, self._namespace)
            if answer is not self._answer:
                self._answer, self._doubt = answer, True
            if not self._doubt:
                return
            heeded = try_out(self._api, self._namespace, self._seconds, self._stop.is_set)
        except ApiError as error:
            self._doubt = True
            self._cannot_tell(error, len(new))
            return
        if heeded is None:
            log.info("Kueue says nothing about a gated Workload yet")
            return
        self._doubt, self._told = False, ""
        if heeded is not self.heeded:
            self.heeded = heeded
            log.log(logging.WARNING if heeded else logging.ERROR, HEEDED if heeded else IGNORED)
            self._changed(heeded)

    def _cannot_tell(self, error: ApiError, new: int) -> None:
        if error.status not in BUSY and str(error) != self._told:
            self._told = str(error)
            log.warning("cannot find out whether Kueue heeds gates: %s; apply manifests/controller again", error)
        if new:
            log.error("Kueue has admitted gated work: its feature gate AdmissionGatedBy must be on", extra={"new": new})

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception:
                log.exception("the canary failed")
            self.looked.set()
            self._stop.wait(self._every)


def held_in_spite_of_gates(workloads: Mapping[str, Object]) -> frozenset[str]:
    """Uids of unfinished Workloads that hold quota with our gate on. While Kueue heeds gates none comes to it; those
    that were admitted while it did not remain until they end.
    """
    return frozenset(
        workload["metadata"]["uid"]
        for workload in workloads.values()
        if GATE in gate_names(gates_of(workload))
        and _true(workload, "QuotaReserved")
        and not _true(workload, "Finished")
    )


def _true(workload: Object, kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)
