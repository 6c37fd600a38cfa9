"""The gRPC server around the service: addresses, TLS, limits, health, reflection, and an orderly end.

A message that is too large is refused by gRPC itself before it is parsed (RESOURCE_EXHAUSTED).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from solver.api import planner_pb2 as pb
from solver.api import planner_pb2_grpc as rpc
from solver.listening import credentials, listen
from solver.planner import warm_up, warm_up_repair
from solver.service import Service

SERVICE = pb.DESCRIPTOR.services_by_name["Planner"].full_name


@dataclass(frozen=True)
class Options:
    """How to serve.

    Attributes
    ----------
    listen
        Addresses: ``unix:///path/to/socket`` or ``host:port`` (port 0: any).
    certificate, key
        Files in PEM format; with them all addresses speak TLS.
    client_ca
        CA of the certificates that clients must show (mTLS).
    max_message
        A message of this many bytes or more is refused.
    max_concurrent
        Calls that are worked on at the same time.
    grace
        Seconds that calls under way get when the server stops. After three quarters of it they are told to send what
        they have.
    """

    listen: tuple[str, ...]
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    max_message: int = 64 << 20
    max_concurrent: int = 4
    grace: float = 20.0


class Server:
    """A gRPC server with the Planner service, health and reflection.

    Raises
    ------
    CannotListen
        If an address is wrong or taken, or the TLS options make no sense.
    OSError
        If a file of the TLS options cannot be read.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.service = Service(options.max_concurrent)
        # Besides those that plan and those that wait, threads that refuse others and answer health checks.
        threads = ThreadPoolExecutor(2 * options.max_concurrent + 6, thread_name_prefix="call")
        self._server = grpc.server(
            threads,
            options=[
                ("grpc.max_receive_message_length", options.max_message - 1),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two servers on one port are a mistake, not load balancing
            ],
        )
        self._health = health.HealthServicer(experimental_thread_pool=ThreadPoolExecutor(1))
        self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        rpc.add_PlannerServicer_to_server(self.service, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        own = credentials(options.certificate, options.key, options.client_ca)
        self.addresses = tuple(listen(self._server, address, own) for address in options.listen)
        """Where it listens, ports filled in."""

    def start(self) -> None:
        """Answer health checks, and refuse calls until :meth:`warm_up` is through."""
        self._server.start()

    def warm_up(self) -> None:
        """Compile the kernels (or load them from the cache), then take calls.

        What the first plan does not need is compiled beside the first calls.
        """
        warm_up()
        self.service.open()
        self._say(health_pb2.HealthCheckResponse.SERVING)
        threading.Thread(target=warm_up_repair, name="warm-up", daemon=True).start()

    def stop(self) -> None:
        """Take no more calls, and end when those under way have ended or the grace is over."""
        self.service.close()
        self._health.enter_graceful_shutdown()
        grace = self.options.grace
        if not self.service.drained(grace * 3 / 4):
            self.service.hurry()
            self.service.drained(grace / 4)
        # What is left: answers on the wire, and watchers of our health, who never end by themselves.
        self._server.stop(min(1.0, grace)).wait()

    def _say(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE):
            self._health.set(name, status)
