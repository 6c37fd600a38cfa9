"""The controller's HTTP port: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for the kubelet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import ClassVar

from prometheus_client import MetricsHandler

from scheduler.metrics import Metrics

Check = Callable[[], str]
"""Says what is wrong; an empty string when nothing is."""


class HealthServer:
    """Serves the three pages from threads of its own.

    Parameters
    ----------
    address
        ``host:port``; port 0 takes a free one.
    alive
        Wrong means: restart the process.
    ready
        Wrong means: wait.
    remark
        What is to be said on ``/readyz`` though all is well.

    Raises
    ------
    ValueError
        The address is no ``host:port``.
    OSError
        The port is taken, or not ours.
    """

    def __init__(
        self, address: str, metrics: Metrics, *, alive: Check, ready: Check, remark: Check = lambda: ""
    ) -> None:
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{address!r} is no address to listen on; write HOST:PORT, e.g. 127.0.0.1:8080")

        class Handler(MetricsHandler):
            registry = metrics.registry
            checks: ClassVar[dict[str, Check]] = {"/healthz": alive, "/readyz": ready}
            timeout = 10

            def do_GET(self) -> None:
                page = self.path.partition("?")[0]
                if page == "/metrics":
                    super().do_GET()
                elif page in self.checks:
                    problem = self.checks[page]()
                    told = remark() if page == "/readyz" else ""
                    self.answer(503 if problem else 200, problem or (f"ok, but: {told}" if told else "ok"))
                else:
                    self.answer(404, "there are /metrics, /healthz and /readyz")

            def answer(self, status: int, text: str) -> None:
                body = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host.strip("[]"), int(port)), Handler)
        self.port = int(self._server.server_address[1])
        """The port it listens on."""
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.1,), name="http", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
