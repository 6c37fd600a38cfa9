"""The server under test: who may be asked, and one request to it, timed.

A load test must not hit a stranger by a typo: besides this machine only hosts that are named may be asked. Redirects
are not followed and proxies of the environment not used, for the same reason.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from advisor.serving_profile import Request

if TYPE_CHECKING:
    import aiohttp

LONGEST = 8 << 20
"""Bytes of an answer; who sends more does not come to an end."""
_EXCERPT = 200
NO_SOCKETS = "no sockets left here"
"""The error of a request that this machine could not send."""


class BadTarget(ValueError):
    """A target that cannot be one, or that nobody has allowed."""


@dataclass(frozen=True)
class Target:
    """A server that may be asked."""

    url: str
    """Without a slash at its end."""
    headers: Mapping[str, str]
    """Sent with each request; never kept."""


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are seconds of ``time.perf_counter``, 0 for what never came."""

    first: float = 0.0
    """First token of a chat, first byte otherwise."""
    last: float = 0.0
    """Last token."""
    end: float = 0.0
    tokens: int = 0
    text: str = ""
    finish: str = ""
    """Why the server ended it (``stop``, ``length`` …), if it says so."""
    error: str = ""
    """Empty, or what went wrong in a word or two: ``429``, ``timeout`` …"""
    detail: str = ""
    """What the server said about it, cut."""


def target_of(url: str, allowed: Iterable[str], headers: Mapping[str, str]) -> Target:
    """A target, if its host is this machine or one of those allowed.

    Raises
    ------
    BadTarget
        If the URL is none, or its host is not allowed.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").lower()
        _ = parts.port
    except ValueError as error:
        raise BadTarget(f"{url} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadTarget(f"{url} is no URL of a server; write one like http://127.0.0.1:8000")
    if parts.username or parts.query or parts.fragment:
        raise BadTarget(f"{url}: only a scheme, a host, a port and a path may be there; keys go into --api-key-env")
    if not _is_here(host) and host not in {name.rstrip(".").lower() for name in allowed}:
        raise BadTarget(f"{host} is not this machine; if it may be put under load, add --allow-host {host}")
    return Target(url.rstrip("/"), headers)


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def joined(url: str, path: str) -> str:
    """A path under a target's URL; the ``/v1`` that many write at the end of an OpenAI-compatible one is there once."""
    if url.endswith("/v1") and path.startswith("/v1/"):
        url = url.removesuffix("/v1")
    return url + path


def session() -> aiohttp.ClientSession:
    """Connections for a load test: as many as there are requests at a time."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=3600)
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None), trust_env=False, raise_for_status=False,
        auto_decompress=True, cookie_jar=aiohttp.DummyCookieJar(),
    )  # fmt: skip


def open_many() -> None:
    """Let this process have all the connections that the system allows: an overloaded server keeps many waiting."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def ask(connections: aiohttp.ClientSession, target: Target, request: Request, until: float) -> Answer:
    """Send one request and read its answer to the end, or to an instant (``time.perf_counter``)."""
    answer = Answer()
    await ask_into(answer, connections, target, request, until)
    return answer


async def ask_into(
    answer: Answer, connections: aiohttp.ClientSession, target: Target, request: Request, until: float
) -> None:
    """As :func:`ask`, into an answer that can be looked at meanwhile. Raises nothing but a cancellation."""
    import aiohttp

    try:
        async with asyncio.timeout(max(0.0, until - time.perf_counter())):
            await _exchange(answer, connections, target, request)
    except TimeoutError:
        answer.error = "timeout"
    except aiohttp.ClientConnectorError as error:
        answer.error, answer.detail = "no connection", str(error.os_error.strerror or error)[:_EXCERPT]
        if error.os_error.errno in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL):
            answer.error = NO_SOCKETS
    except aiohttp.ClientResponseError as error:
        answer.error, answer.detail = "garbage", f"no HTTP: {error.message}"[:_EXCERPT]
    except (aiohttp.ClientError, OSError) as error:
        answer.error, answer.detail = "broken connection", f"{type(error).__name__}: {error}"[:_EXCERPT]
    except ValueError as error:
        answer.error, answer.detail = "garbage", str(error)[:_EXCERPT]
    if answer.error:
        answer.end = 0.0


async def _exchange(answer: Answer, connections: aiohttp.ClientSession, target: Target, request: Request) -> None:
    headers = {"Content-Type": request.content_type, **target.headers}
    if request.chat:
        headers["Accept"] = "text/event-stream"
    async with connections.request(
        request.method,
        joined(target.url, request.path),
        data=request.payload or None,
        headers=headers,
        allow_redirects=False,
    ) as response:
        if response.status != 200:
            answer.error = str(response.status)
            answer.detail = (await response.content.read(_EXCERPT)).decode(errors="replace")
            return
        if request.chat and response.content_type == "text/event-stream":
            await _read_stream(answer, response)
        else:
            await _read_whole(answer, response, request.chat)
    answer.end = time.perf_counter()


async def _read_whole(answer: Answer, response: aiohttp.ClientResponse, chat: bool) -> None:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        answer.first = answer.first or time.perf_counter()
        size += len(part)
        if size > LONGEST:
            raise ValueError(f"the answer is longer than {LONGEST >> 20} MiB")
        parts.append(part)
    answer.first = answer.first or time.perf_counter()
    answer.last = time.perf_counter()
    text = b"".join(parts).decode()
    if not chat:
        answer.text = text
        return
    # A server that was asked for a stream and answered in one piece: its first token came with the last.
    whole = _object(text)
    choice = _choice(whole)
    message = choice.get("message")
    answer.text = str((message if isinstance(message, dict) else {}).get("content") or "")
    answer.finish = str(choice.get("finish_reason") or "")
    answer.tokens = _usage(whole)
    answer.first = answer.last


async def _read_stream(answer: Answer, response: aiohttp.ClientResponse) -> None:
    """Server-sent events of chat completions, to ``[DONE]``."""
    pieces: list[str] = []
    chunks = counted = size = 0
    done = False
    rest = b""
    async for part in response.content.iter_any():
        now = time.perf_counter()
        size += len(part)
        if size > LONGEST:
            raise ValueError(f"the answer is longer than {LONGEST >> 20} MiB")
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                continue
            event = _object(data.decode())
            if "error" in event:
                raise ValueError(f"error in the stream: {json.dumps(event['error'])}")
            counted = _usage(event) or counted
            if not event.get("choices"):
                continue
            choice = _choice(event)
            answer.finish = str(choice.get("finish_reason") or answer.finish)
            delta = choice.get("delta")
            if piece := _said(delta if isinstance(delta, dict) else {}):
                chunks += 1
                answer.first = answer.first or now
                answer.last = now
                pieces.append(piece)
        if done:
            break
    if not done and not answer.finish:
        raise ValueError("the stream ended without [DONE] or a finish_reason")
    answer.text, answer.tokens = "".join(pieces), counted or chunks


def _said(delta: dict[str, Any]) -> str:
    """What a piece of a stream says; what a model thinks aloud counts too: someone waits for it and sees it come."""
    return str(delta.get("content") or delta.get("reasoning_content") or "")


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"no JSON object: {text[:80]}")
    return found


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    raise ValueError("no choices in the answer")


def _usage(event: dict[str, Any]) -> int:
    usage = event.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else 0
