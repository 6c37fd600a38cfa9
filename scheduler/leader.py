"""Leader election on a Lease: one replica releases, the others stand by.

The ``kubernetes`` package has an elector. It takes times from the wall clock, writes the Lease without comparing its
version when the record is incomplete, and never says whether the lease is still good *now*. So here is our own.

No two clocks are ever compared. A lease is stale once its resourceVersion has not changed for its duration on *our*
monotonic clock. Its holder stopped acting before: a shorter time after it sent its last successful renewal, on *its*
clock. The times written into the Lease are for people.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.apiserver import ApiError, ApiServer, Resource

log = logging.getLogger(__name__)

REQUEST_SECONDS = 4.0
"""One call that hangs must leave time for another before the lease is lost."""

LEASES = Resource("Lease", "coordination.k8s.io/v1", "leases")

LEASE = "punctual-controller"
"""Name of the Lease that the replicas of the controller compete for."""


def steady() -> float:
    """Seconds on a clock that nobody can set, and that goes on while the machine sleeps (where the system has one)."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True)
class Timing:
    """Seconds of an election. The defaults are those of Kubernetes' own controllers.

    Raises
    ------
    ValueError
        Unless ``0 < retry < renew < lease``.
    """

    lease: float = 15.0
    """Others wait so long without a renewal before they take over. Written into the Lease in whole seconds."""
    renew: float = 10.0
    """Who has not renewed for so long stops acting."""
    retry: float = 2.0
    """Between two attempts to renew or to acquire."""

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew < self.lease:
            raise ValueError(f"want 0 < retry < renew < lease, got {self.retry}, {self.renew}, {self.lease}")


class Elector:
    """Tries to hold a Lease, and says whether it does.

    Parameters
    ----------
    identity
        Who we are. Two processes alive at the same time must never share it. One that replaces a dead one may: then
        it goes on at once with its lease.
    clock
        Seconds on a clock that never jumps.
    """

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._api = api
        self._path = LEASES.path(namespace, name)
        self._collection = LEASES.path(namespace)
        self._metadata = {"namespace": namespace, "name": name}
        self._identity = identity
        self._timing = timing or Timing()
        self._clock = clock
        self._renewed: float | None = None
        self._observed: tuple[str, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader election", daemon=True)
        self.acquired = threading.Event()
        """Set when the lease has become ours."""
        self.lost = threading.Event()
        """Set when it was ours and is not any more. There is no way back: the process should end."""
        self.holder = ""
        """Who held the lease when we looked last."""

    def may_act(self) -> bool:
        """Whether the lease is ours at this moment, by our own clock."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < self._timing.renew

    def start(self) -> None:
        """Begin to try, and to renew from then on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing. A lease that is ours is given back, so that another replica need not wait: act no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * REQUEST_SECONDS)
        if self.may_act():
            self._give_back()

    def attempt(self) -> bool:
        """Try once to acquire or renew. Whether the lease is ours now.

        Raises
        ------
        ApiError
            No answer, or a refusal that is not about who holds the lease.
        """
        try:
            lease = self._call("GET", self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            return self._write("POST", self._collection, self._metadata, {})
        metadata, spec = lease["metadata"], lease.get("spec") or {}
        version, now = metadata["resourceVersion"], self._clock()
        if self._observed is None or self._observed[0] != version:
            self._observed = (version, now)
        self.holder = spec.get("holderIdentity") or ""
        if self.holder not in ("", self._identity):
            self._renewed = None
            if now - self._observed[1] < spec.get("leaseDurationSeconds", self._timing.lease):
                return False
            log.info("the lease of %s is stale", self.holder)
        return self._write("PUT", self._path, {**self._metadata, "resourceVersion": version}, spec)

    def _write(self, method: str, path: str, metadata: dict[str, str], old: dict[str, Any]) -> bool:
        """Make the lease ours. False when somebody else was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._timing.lease),
            "renewTime": now,
        }
        if old.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": old.get("leaseTransitions", -1) + 1}
        sent = self._clock()
        try:
            self._call(method, path, _lease(metadata, spec))
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        self._renewed, self.holder = sent, self._identity
        return True

    def _give_back(self) -> None:
        self._renewed = None
        try:
            lease = self._call("GET", self._path)
            if lease["spec"]["holderIdentity"] == self._identity:
                version = lease["metadata"]["resourceVersion"]
                spec = {**lease["spec"], "holderIdentity": ""}
                self._call("PUT", self._path, _lease({**self._metadata, "resourceVersion": version}, spec))
        except ApiError as error:
            log.info("the lease was not given back, it runs out by itself: %s", error)

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return self._api.request(method, path, body=body, seconds=REQUEST_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            held = False
            try:
                held = self.attempt()
            except ApiError as error:
                log.warning("leader election: %s", error)
            except Exception:
                log.exception("leader election failed")  # then the lease runs out, and we say so below
            if held and not self.acquired.is_set():
                log.info("%s leads", self._identity)
                self.acquired.set()
            if self.acquired.is_set() and not self.may_act():
                log.error("%s does not lead any more", self._identity, extra={"holder": self.holder})
                self.lost.set()
                return
            self._stop.wait(self._timing.retry * random.uniform(0.9, 1.1))


def _lease(metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": LEASES.version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
