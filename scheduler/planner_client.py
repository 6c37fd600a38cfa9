"""Asking the solver for plans: over gRPC, and off the path that releases work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduler.plans import PlanInForce
from solver.api import planner_pb2 as pb


class PlannerUnavailable(Exception):
    """The sidecar did not answer: not there, too slow, or going away. Worth trying again."""


class PlannerRefused(Exception):
    """The sidecar refused the request, or answered nonsense. The same request would fail again."""


@dataclass(frozen=True)
class TLS:
    """Files in PEM format. With certificate and key the client proves who it is (mTLS)."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """Name to expect in the server's certificate, if it is not the one in the address."""


class PlannerClient:
    """A connection to the sidecar.

    Parameters
    ----------
    address
        ``unix:///path/to/socket`` or ``host:port``.
    tls
        None: without encryption (only for a socket or the loopback).
    """

    def __init__(self, address: str, tls: TLS | None = None) -> None:
        raise NotImplementedError

    def plan(self, request: pb.PlanRequest, timeout: float | None = None) -> pb.PlanResponse:
        """One plan.

        Raises
        ------
        PlannerUnavailable, PlannerRefused
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the connection back."""
        raise NotImplementedError


PlanCall = Callable[[pb.PlanRequest], pb.PlanResponse]
"""Makes one plan: :meth:`PlannerClient.plan`, or the solver itself in the same process."""


@dataclass(frozen=True)
class Answer:
    """What came of one request: a sound plan, or an error."""

    request: pb.PlanRequest
    plan: PlanInForce | None
    error: Exception | None
    seconds: float
    """From asking to having it."""


class Planner(Protocol):
    """Where the loop gets its plans from. None of these blocks, but for a planner that is meant to."""

    def ask(self, request: pb.PlanRequest) -> None:
        """Ask for a plan. A request that still waits for its turn is replaced: only the newest counts."""

    def answer(self) -> Answer | None:
        """The newest answer that has not been fetched yet."""

    def busy(self) -> bool:
        """Whether an answer is on its way."""

    def close(self) -> None:
        """Stop; give up what is under way."""


class InlinePlanner:
    """Plans while the caller waits: for simulations, whose clock stands still meanwhile."""

    def __init__(self, call: PlanCall) -> None:
        self._call = call


class BackgroundPlanner:
    """Plans in a thread of its own: one call under way at a time, the newest request next."""

    def __init__(self, call: PlanCall) -> None:
        self._call = call
