"""The gRPC server around the Outcomes service: address, TLS, health and reflection.

Callers send tokens, so on an address that others can reach it speaks TLS or does not speak at all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from advisor.api import outcomes_pb2 as pb
from advisor.api import outcomes_pb2_grpc as rpc
from advisor.outcomes_service import Service
from solver.listening import CannotListen, credentials, listen

SERVICE = pb.DESCRIPTOR.services_by_name["Outcomes"].full_name

LARGEST = 64 << 10
"""Bytes of a message."""

GRACE = 10.0
"""Seconds that calls under way get when it stops."""

_OWN = ("unix:", "127.", "localhost:", "[::1]:")


@dataclass(frozen=True)
class Options:
    """How to serve.

    Attributes
    ----------
    listen
        ``unix:///path/to/socket`` or ``host:port`` (port 0: any).
    certificate, key
        Files in PEM format; with them it speaks TLS.
    client_ca
        CA of the certificates that clients must show (mTLS), beside their token.
    threads
        Calls that are worked on at the same time.
    """

    listen: str
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    threads: int = 8


class Server:
    """A gRPC server with the Outcomes service, health and reflection.

    Raises
    ------
    CannotListen
        If the address is wrong or taken, or would let tokens pass in the clear, or a certificate cannot be used.
    """

    def __init__(self, options: Options, service: Service) -> None:
        own = credentials(options.certificate, options.key, options.client_ca)
        if own is None and not options.listen.startswith(_OWN):
            raise CannotListen(
                f"{options.listen} can be reached by others, and tokens would pass in the clear: "
                "give --tls-cert and --tls-key, or listen on a socket or 127.0.0.1"
            )
        self._server = grpc.server(
            ThreadPoolExecutor(options.threads, thread_name_prefix="call"),
            options=[("grpc.max_receive_message_length", LARGEST), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=8 * options.threads,
        )
        rpc.add_OutcomesServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self.address = listen(self._server, options.listen, own)
        """Where it listens, its port filled in."""

    def start(self) -> None:
        """Take calls."""
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace: float = GRACE) -> None:
        """Take no more calls, and end when those under way have ended or the grace is over."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace).wait()
