"""The sweeper: when no controller runs, work that waits behind our gate must not wait for ever.

It shares nothing with the controller but the Lease that the controller renews. A Lease counts as abandoned once its
resourceVersion has not changed for so long *on our own monotonic clock*, looked at again and again: no two clocks are
compared, and nothing is remembered from one run to the next, so a sweeper that starts anew can only be late. Time in
which the apiserver did not answer does not count: nobody could have renewed. Nor does time in which we slept ourselves.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol

from scheduler.annotations import format_duration
from scheduler.apiserver import NOT_FOUND, ApiError, ApiServer
from scheduler.cluster import Reference, Release
from scheduler.gated import Gated, find_gated
from scheduler.leader import LEASES, Timing, steady
from scheduler.settings import SECOND
from scheduler.ungate import ungate

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at the Lease."""

GAP = 15.0
"""Two looks that are further apart than so many seconds say nothing about the time between them."""

LIST_EVERY = 10.0
"""Seconds after which what waits is listed anew: what came meanwhile may be due sooner."""


class Tells(Protocol):
    """Where Events go: :class:`scheduler.notices.Notices`."""

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        """Queue an Event; ``kind`` is Normal or Warning."""


class End(Enum):
    """Why a sweeper ended."""

    ALIVE = "the controller renews its Lease"
    HELD = "the controller is gone, and work is held"
    STOPPED = "told to stop"


class Look(NamedTuple):
    """What one look at the Lease showed."""

    moved: bool
    """It has changed since the look before."""
    silent: float
    """Seconds for which it has certainly not changed."""
    floor: float
    """Seconds for which its holder may be silent and alive."""


class Silence:
    """Measures for how long a Lease does not change.

    Parameters
    ----------
    clock
        Seconds on a clock that never jumps.
    """

    def __init__(
        self, api: ApiServer, namespace: str, name: str, *, clock: Callable[[], float] = steady, gap: float = GAP
    ) -> None:
        self._api = api
        self._path = LEASES.path(namespace, name)
        self._clock, self._gap = clock, gap
        self._version: str | None = None
        self._since = self._looked = 0.0
        self.uid = ""
        """Of the Lease, when there is one."""

    def look(self) -> Look:
        """Look now. A Lease that does not exist does not change either.

        Raises
        ------
        ApiError
            No answer; the time since the last look will not count.
        """
        asked = self._clock()
        version, floor = "none", Timing().lease
        try:
            lease = self._api.request("GET", self._path)
            metadata, spec = lease["metadata"], lease.get("spec") or {}
            version, self.uid = f"{metadata['uid']} {metadata['resourceVersion']}", str(metadata["uid"])
            floor = float(spec.get("leaseDurationSeconds") or floor)
        except ApiError as error:
            if error.status != NOT_FOUND:
                self._looked = float("-inf")
                raise
        moved = self._version is not None and version != self._version
        if moved or self._version is None or asked - self._looked > self._gap:
            self._since = self._clock()
        self._version, self._looked = version, self._clock()
        return Look(moved, max(0.0, asked - self._since), floor)


@dataclass(frozen=True)
class Orders:
    """What a sweeper is to do.

    Attributes
    ----------
    hold
        Only say that the controller is gone; release nothing.
    after
        Seconds for which the Lease must not have changed. Its own duration counts, if that is longer.
    rate
        Releases a second at most.
    """

    hold: bool = False
    after: float = 600.0
    rate: float = 5.0


class Sweeper:
    """Waits until the Lease is abandoned, then releases what waits, and what comes, until it moves again.

    Parameters
    ----------
    namespace, name
        Of the Lease.
    orders
        Asked again and again, also in the middle of it: somebody may decide that work is to be held after all. Raises
        ApiError when they cannot be read; then nothing is released.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str, orders: Callable[[], Orders], tells: Tells) -> None:
        self._api = api
        self._lease = Reference("Lease", namespace, name, "")
        self._read_orders = orders
        self._orders = Orders(hold=True)
        self._tells = tells
        self._silence = Silence(api, namespace, name)
        self._stop = threading.Event()
        self._refused: set[str] = set()
        self._attempts: Counter[str] = Counter()
        """How often those were tried in vain that may work later, by uid."""
        self.released = 0
        """How many were released."""

    @property
    def failed(self) -> int:
        """How many could not be released."""
        return len(self._refused)

    def stop(self) -> None:
        """End soon. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> End:
        """Work until the Lease moves, or until stopped; with orders to hold, until it is clear that nobody renews."""
        log.info("watching the Lease", extra={"lease": str(self._lease)})
        while not self._stop.is_set():
            look = self._look()
            if look is not None and look.moved:
                return End.ALIVE
            if look is not None and self._renew_orders() and look.silent >= max(self._orders.after, look.floor):
                return self._lost()
            self._stop.wait(EVERY)
        return End.STOPPED

    def _look(self) -> Look | None:
        """None while the apiserver does not answer."""
        try:
            return self._silence.look()
        except ApiError as error:
            log.warning("the Lease cannot be read: %s", error)
            return None

    def _renew_orders(self) -> bool:
        """False when they cannot be read."""
        try:
            self._orders = self._read_orders()
        except ApiError as error:
            log.warning("the policy cannot be read: %s", error)
            return False
        return True

    def _lost(self) -> End:
        waiting = self._waiting()
        then = "held (onControllerLoss: hold)" if self._orders.hold else "let go, what is due first first"
        message = f"the controller has not renewed its Lease for {self._after()}; {len(waiting)} wait and are {then}"
        log.error("%s", message)
        self._tells.event(replace(self._lease, uid=self._silence.uid), "Warning", "ControllerLost", message)
        while not self._stop.is_set():
            if self._orders.hold:
                return End.HELD
            end = self._round(waiting)
            if end is not None:
                return end
            while not self._renew_orders() and not self._stop.wait(EVERY):
                pass
            waiting = self._waiting()
        return End.STOPPED

    def _round(self, waiting: list[Gated]) -> End | None:
        """Release for as long as the list is fresh. None: list anew."""
        begun = steady()
        for gated in waiting:
            if gated.target.uid in self._refused:
                continue
            if self._moves():
                return End.ALIVE
            if self._stop.is_set():
                return End.STOPPED
            self._release(gated)
            if self._stop.wait(1 / self._orders.rate):
                return End.STOPPED
            if steady() - begun > LIST_EVERY:
                return None
        while steady() - begun < LIST_EVERY and not self._stop.wait(EVERY):
            if self._moves():
                return End.ALIVE
        return None

    def _moves(self) -> bool:
        """Whether the Lease has moved. After a gap (no answer, a list that took long) it takes its duration to know."""
        while True:
            look = self._look()
            if look is not None and (look.moved or look.silent >= look.floor):
                return look.moved
            if self._stop.wait(EVERY):
                return False

    def _release(self, gated: Gated) -> None:
        result = ungate(self._api, gated.target, gated.item)
        outcome = result.release
        log.log(
            logging.INFO if outcome is Release.DONE else logging.WARNING,
            "swept",
            extra={
                "outcome": outcome.value,
                "detail": result.message,
                "root": str(gated.target),
                "deadline_ms": gated.due,
            },
        )
        if outcome is Release.DONE:
            self.released += 1
            message = f"released without a plan: the controller has not renewed its Lease for {self._after()}"
            self._tells.event(gated.target, "Warning", "Swept", message)
        elif outcome is Release.REFUSED:
            self._refused.add(gated.target.uid)
        elif outcome is Release.TRY_AGAIN:
            self._attempts[gated.target.uid] += 1

    def _waiting(self) -> list[Gated]:
        try:
            found = find_gated(self._api, forbidden=self._cannot_list)
        except ApiError as error:
            log.warning("what waits cannot be listed: %s", error)
            self._stop.wait(EVERY)
            return []
        # What failed must not hold up what was not tried yet; among equals what is due first goes first.
        return sorted(found, key=lambda gated: self._attempts[gated.target.uid])

    def _cannot_list(self, kind: str, words: str) -> None:
        """A kind that we may not list must not keep the others waiting."""
        log.error("%s objects that wait cannot be released: %s", kind, words)

    def _after(self) -> str:
        return format_duration(round(self._orders.after * SECOND))
