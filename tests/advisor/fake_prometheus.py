"""A Prometheus small enough to break on purpose: it has samples, and knows avg_over_time and count_over_time."""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Labels = tuple[tuple[str, str], ...]


class FakePrometheus:
    """Holds samples by metric and labels. ``hooks`` see each request and may answer it: (status, body)."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, Labels], dict[float, float]] = {}
        self.hooks: list[Callable[[dict[str, str]], tuple[int, bytes] | None]] = []
        self.requests: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.warnings: list[str] = []
        self.date: str | None = None
        self.url = ""

    def gauge(self, metric: str, value: float, start: float, end: float, every: float = 60, **labels: str) -> None:
        """A gauge that had a value between two instants (milliseconds), scraped every so many seconds."""
        kept = self.samples.setdefault((metric, tuple(sorted(labels.items()))), {})
        at = start / 1000 + every / 2
        while at < end / 1000:
            kept[at] = value
            at += every

    def range(self, query: dict[str, str]) -> dict[str, Any]:
        """As ``query_range`` answers."""
        found = re.fullmatch(r"(avg|count)_over_time\((\w+)\[(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?\]\)", query["query"])
        assert found, query
        over = 3600 * int(found[3] or 0) + 60 * int(found[4] or 0) + int(found[5] or 0)
        start, end, step = float(query["start"]), float(query["end"]), float(query["step"])
        result = []
        for (metric, labels), samples in self.samples.items():
            values, at = [], start
            times = sorted(samples) if metric == found[2] else []
            if times and (times[-1] <= start - over or times[0] > end):
                continue
            while times and at <= end + 1e-6:
                inside = [samples[when] for when in times[bisect_right(times, at - over) : bisect_right(times, at)]]
                if inside:
                    value = sum(inside) / len(inside) if found[1] == "avg" else len(inside)
                    values.append([at, str(value).replace("nan", "NaN")])
                at += step
            if values:
                result.append({"metric": dict(labels), "values": values})
        return {"status": "success", "warnings": self.warnings, "data": {"resultType": "matrix", "result": result}}


@contextmanager
def serving(fake: Any, answer: Callable[[str, dict[str, str]], Any]) -> Iterator[None]:
    """Serve a fake's answers as JSON; its hooks come first."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return fake.date or super().date_time_string(timestamp)

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            fake.requests.append(query)
            fake.headers.append(dict(self.headers))
            status, body = next((said for hook in fake.hooks if (said := hook(query))), (0, b""))
            if not status:
                status, body = 200, json.dumps(answer(url.path, query)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            with suppress(OSError):  # who asked has waited long enough
                self.end_headers()
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def fake_prometheus() -> Iterator[FakePrometheus]:
    """One that runs."""
    fake = FakePrometheus()
    with serving(fake, lambda path, query: fake.range(query)):
        yield fake


def slow(seconds: float) -> Callable[[dict[str, str]], None]:
    """A hook that lets everybody wait."""
    return lambda query: time.sleep(seconds)
