"""Asks a Prometheus (or Thanos, Mimir, VictoriaMetrics: whatever speaks its HTTP API) for ranges of samples.

Whatever it answers is taken for what it is: a sample that is no finite number is none, and an answer that cannot be
used is an error that says what to do.
"""

from __future__ import annotations

import json
import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, MaxRetryError, ReadTimeoutError

from scheduler.annotations import format_instant
from scheduler.settings import HOUR

TIMEOUT = 30.0
"""Seconds for one answer."""

SKEW_SECONDS = 30.0
"""By so much a server's clock may differ from ours before it is said."""

SHORTEST = HOUR
"""Less than that is not asked for at once, however slow it is."""

_LARGEST = 1 << 28
"""Bytes of an answer."""


T = TypeVar("T")


class SourceError(Exception):
    """A source of figures gave no answer that can be used; the message says which, and what to do.

    Attributes
    ----------
    down
        Whether asking for something else is no use either: nothing answers there, or not to us.
    slow
        Whether it took too long, or was too much: asking for less may help.
    """

    def __init__(self, message: str, *, down: bool = False, slow: bool = False) -> None:
        super().__init__(message)
        self.down, self.slow = down, slow


@dataclass(frozen=True)
class Answer:
    """What a server sent, and how far its clock is ahead of ours (seconds; None if it does not say)."""

    data: Any
    skew: float | None


class JsonSource:
    """A server that answers GET with JSON.

    Parameters
    ----------
    name
        What it is called in messages.
    url
        Where it is; may hold ``user:password@``.
    token
        Bearer token; empty for none.
    timeout
        Seconds for one answer.

    Raises
    ------
    ValueError
        If the address is none.
    """

    def __init__(self, name: str, url: str, token: str = "", timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{name}: write its address as http://host:port")
        place = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
        place += f":{parts.port}" if parts.port else ""
        self.name, self.timeout = name, timeout
        self.url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/json", "User-Agent": "punctual"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._pool = urllib3.PoolManager(retries=False)

    def get(self, path: str, query: Mapping[str, str]) -> Answer:
        """What is at a path.

        Raises
        ------
        SourceError
            If there is no answer, or one that is no JSON.
        """
        at = f"{self.name} {self.url}"
        wait = urllib3.Timeout(connect=min(5.0, self.timeout), read=self.timeout)
        end = time.monotonic() + self.timeout
        try:
            response = self._pool.request(
                "GET", self.url + path, fields=dict(query), headers=self._headers, timeout=wait, preload_content=False
            )
            body = bytearray()
            for part in response.stream(1 << 16):
                body += part
                if time.monotonic() > end:  # it sends, but never ends
                    raise SourceError(f"{at} was not done after {self.timeout:g} s", slow=True)
                if len(body) > _LARGEST:
                    raise SourceError(f"{at} sends more than {_LARGEST >> 20} MiB", slow=True)
        except ReadTimeoutError:
            raise SourceError(f"{at} did not answer within {self.timeout:g} s", slow=True) from None
        except (ConnectTimeoutError, MaxRetryError, HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise SourceError(f"{at} does not answer: {str(reason).rpartition(': ')[2]}", down=True) from None
        try:
            data = json.loads(bytes(body).decode("utf-8"))
        except (ValueError, RecursionError):
            data = None
        finally:
            response.release_conn()
        if response.status != 200:
            said = _error(data) or bytes(body[:200]).decode(errors="replace").strip() or "it says nothing"
            down = response.status in (401, 403, 404)
            slow = response.status in (422, 503, 504)
            raise SourceError(f"{at} answers {response.status}: {said}", down=down, slow=slow)
        if not isinstance(data, dict):
            raise SourceError(f"{at} answers something that is no JSON object: is it a {self.name}?", down=True)
        return Answer(data, _skew(response.headers.get("Date")))


def _error(data: Any) -> str:
    if not isinstance(data, dict):
        return ""
    return str(data.get("error") or data.get("message") or "")


def _skew(date: str | None) -> float | None:
    """By how many seconds a server's clock is ahead of ours."""
    if not date:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Series:
    """Samples of one metric with the same labels: (seconds since the Unix epoch, value), finite ones only."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


class Prometheus(JsonSource):
    """A Prometheus.

    Parameters
    ----------
    url
        Without ``/api/v1``.
    """

    def __init__(self, url: str, token: str = "", timeout: float = TIMEOUT) -> None:
        super().__init__("Prometheus", url, token, timeout)
        self.skew: float | None = None
        """By how many seconds its clock is ahead of ours, by its last answer."""
        self.warnings: set[str] = set()
        """What it warned about (an answer that is not all, say)."""

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """What a query gives at ``start``, ``start + step`` … ``end`` (seconds since the Unix epoch).

        Raises
        ------
        SourceError
            If it gives no answer that can be used.
        """
        words = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        words["timeout"] = f"{max(1, int(self.timeout))}s"
        answer = self.get("/api/v1/query_range", words)
        self.skew = answer.skew
        data = answer.data
        if data.get("status") != "success":
            raise SourceError(f"Prometheus {self.url} answers: {_error(data) or data.get('status')}")
        self.warnings.update(str(each) for each in data.get("warnings") or ())
        try:
            if data["data"]["resultType"] != "matrix":
                raise ValueError
            return [_series(each) for each in data["data"]["result"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SourceError(f"Prometheus {self.url} answers no matrix: is it a Prometheus?", down=True) from None


def _series(item: Mapping[str, Any]) -> Series:
    samples = ((float(at), float(value)) for at, value in item["values"])
    return Series(
        {str(key): str(value) for key, value in item["metric"].items()},
        tuple((at, value) for at, value in samples if math.isfinite(value)),
    )


class Reading(Generic[T]):
    """Asks for a stretch of time; for parts of it, where it is too much at once. After two failures it asks no more.

    Parameters
    ----------
    ask
        What there is between two instants (milliseconds since the Unix epoch); raises :class:`SourceError`.
    step
        Stretches are cut at multiples of so many milliseconds from their begin.

    Attributes
    ----------
    failures
        Why there is no answer, in words, each with its time.
    stopped
        Whether it asks no more.
    """

    def __init__(self, ask: Callable[[int, int], T], step: int) -> None:
        self._ask, self._step = ask, step
        self.failures: list[str] = []
        self.stopped = False

    def read(self, start: int, end: int) -> Iterator[T]:
        """What is known of that time."""
        if self.stopped:
            return
        try:
            yield self._ask(start, end)
        except SourceError as error:
            half = start + (end - start) // 2 // self._step * self._step
            if error.slow and not self.failures and end - start > SHORTEST and start < half < end:
                yield from self.read(start, half)
                yield from self.read(half, end)
                return
            self.stopped = error.down or bool(self.failures)
            self.failures.append(f"{error} (from {format_instant(start)} to {format_instant(end)})")


def skew_told(source: str, seconds: float | None) -> str:
    """That a source's clock is far from ours, in words; empty if it is not."""
    if seconds is None or abs(seconds) <= SKEW_SECONDS:
        return ""
    return f"the clock of {source} is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} ours"
