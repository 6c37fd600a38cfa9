"""What is missing or wrong with Punctual on a cluster, in plain words, each with the command that mends it.

A check looks at one thing and yields what it found. What it cannot see it says; it never stops the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from scheduler.apiserver import NOT_FOUND, RESOURCES, ApiError, ApiServer
from scheduler.kinds import ROOTS, RootKind
from scheduler.still import StillCluster, look

log = logging.getLogger(__name__)

PARALLEL = 6


class State(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """Punctual works, but not for everything, or it could not be seen whether it does."""
    FAIL = "fail"
    """Punctual does not work, or not safely."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    what
        What was looked at, in a word or three.
    fix
        A command (or, where there is none, what to do) that mends it; empty where nothing need be done.
    """

    what: str
    state: State
    message: str
    fix: str = ""


@dataclass
class Installation:
    """Where to look, and what several checks look at.

    Attributes
    ----------
    namespace
        Where the controller, its Lease and its account are.
    kueue_namespace, kueue_name
        Where Kueue runs: the name of its Deployment, and of its account.
    solver
        Address of the planner; None: it cannot be reached from here.
    metrics
        URL of the controller's metrics; None: asked for through the apiserver.
    clock
        Milliseconds since the Unix epoch, on the clock of this machine.
    """

    api: ApiServer
    namespace: str = "punctual-system"
    kueue_namespace: str = "kueue-system"
    kueue_name: str = "kueue-controller-manager"
    solver: str | None = None
    metrics: str | None = None
    now: int = 0
    remarks: list[str] = field(default_factory=list)
    """What could not be read, in words."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cluster: StillCluster | None = None

    @property
    def account(self) -> str:
        """User name of the controller's ServiceAccount."""
        return f"system:serviceaccount:{self.namespace}:punctual-controller"

    @property
    def kueue_account(self) -> str:
        """User name of Kueue's ServiceAccount."""
        return f"system:serviceaccount:{self.kueue_namespace}:{self.kueue_name}"

    @property
    def cluster(self) -> StillCluster:
        """All objects that plans are made from, as they are now; listed once.

        Raises
        ------
        ApiError
            They cannot be listed.
        """
        with self._lock:
            if self._cluster is None:
                self._cluster = look(self.api, self.now, told=self.remarks.append)
            return self._cluster

    @cached_property
    def kinds(self) -> tuple[RootKind, ...]:
        """The kinds of jobs that this cluster has."""
        return tuple(root for root in ROOTS if root.builtin or self.serves(root.kind))

    def serves(self, kind: str) -> bool:
        """Whether this cluster has a kind of :data:`scheduler.apiserver.RESOURCES`."""
        try:
            self.api.request("GET", RESOURCES[kind].path(), query={"limit": 1})
        except ApiError as error:
            if error.status == NOT_FOUND:
                return False
        return True


Check = Callable[[Installation], Iterable[Finding]]
"""Raises ApiError when the apiserver gives no answer that it has words for."""


def run(installation: Installation, checks: Sequence[tuple[str, Check]]) -> Iterator[Finding]:
    """Findings in the order of the checks, each as soon as it is known; several checks run at once.

    Parameters
    ----------
    checks
        Each with what it is about, for when it cannot be made.
    """
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="check") as pool:
        for found in pool.map(lambda each: _contained(installation, *each), checks):
            yield from found


def _contained(installation: Installation, what: str, check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check(installation))
    except ApiError as error:
        found.append(_unseen(what, error))
    except Exception as error:  # one that has no words must not stop the others
        log.debug("a check failed", exc_info=True)
        found.append(Finding(what, State.FAIL, f"cannot be checked: {type(error).__name__}: {error}"))
    return found


def _unseen(what: str, error: ApiError) -> Finding:
    if error.status in (401, 403):
        told = f"not for us to see: {error.message}"
        return Finding(what, State.WARN, told, "run it with the rights of cluster-admin")
    return Finding(
        what, State.FAIL, f"cannot be checked: {error.message}", "" if error.status else "kubectl cluster-info"
    )
