"""One request to servers that answer well, badly, or never; and who may be asked at all."""

import asyncio
import json
import resource
import time
from typing import Any

import pytest
from serving_servers import events, reply, serving

from advisor.serving_profile import read_profile
from advisor.serving_target import LONGEST, NO_SOCKETS, Answer, BadTarget, ask, joined, open_many, session, target_of

CHAT, PLAIN = '{"prompt": "2+2?"}', '{"body": {"n": 1}}'


def answer_of(url: str, line: str = CHAT, seconds: float = 1.0) -> Answer:
    async def main() -> Answer:
        async with session() as connections:
            (request,) = read_profile(line, model="m").requests
            return await ask(connections, target_of(url, [], {}), request, time.perf_counter() + seconds)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://localhost:1/v1/", "http://[::1]:80", "https://127.8.9.1", "http://LOCALHOST."],
)
def test_this_machine_may_be_asked(url: str) -> None:
    """Loopback needs no leave."""
    assert target_of(url, [], {}).url == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://gpu-1:8000",
        "http://10.0.0.1",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "http://0.0.0.0",
    ],
)
def test_others_must_be_named(url: str) -> None:
    """Any other host must be named, exactly; the message says how."""
    with pytest.raises(BadTarget, match=r"is not this machine; if it may be put under load, add --allow-host "):
        target_of(url, ["gpu-2", "example.org"], {})
    assert target_of("http://GPU-1:8000", ["gpu-1"], {}).url == "http://GPU-1:8000"


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://localhost", "http://", "http://localhost:x", "http://me:pw@localhost", "http://[::1"],
)
def test_no_urls(url: str) -> None:
    """What is no URL of a server is refused, and so are keys in it."""
    with pytest.raises(BadTarget):
        target_of(url, ["localhost"], {})


def test_the_path_of_openai_servers() -> None:
    """A URL may end with /v1 or not."""
    for url in ("http://localhost:1", "http://localhost:1/v1"):
        assert joined(url, "/v1/chat/completions") == "http://localhost:1/v1/chat/completions"
    assert joined("http://localhost:1/v1", "/predict") == "http://localhost:1/v1/predict"


def test_a_stream_is_timed() -> None:
    """First token, last token and end of a stream are seen when they come, and its pieces are put together."""

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        assert asked["_path"] == "/v1/chat/completions"
        assert asked["stream"] is True
        await asyncio.sleep(0.1)
        await events(writer, ["2+2", " is", " 4"], pause=0.05)

    begun = time.perf_counter()
    with serving(handle) as url:
        answer = answer_of(url)
    assert (answer.text, answer.tokens, answer.error) == ("2+2 is 4", 3, "")
    assert answer.first - begun >= 0.1
    assert answer.last - answer.first >= 0.09
    assert answer.end >= answer.last + 0.04


def test_whole_answers() -> None:
    """A server that does not stream, and plain HTTP, are understood too; the count of tokens is the server's."""

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "messages" not in asked:
            return await reply(writer, {"label": asked["n"]})
        choice = {"message": {"content": "4"}, "finish_reason": "length"}
        return await reply(writer, {"choices": [choice], "usage": {"completion_tokens": 9}})

    with serving(handle) as url:
        chat, plain = answer_of(url), answer_of(url, PLAIN)
    assert (chat.text, chat.tokens, chat.finish, chat.error) == ("4", 9, "length", "")
    assert (plain.text, plain.error) == ('{"label": 1}', "")


async def busy(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await reply(writer, b"too many", "429 Too Many Requests", "text/plain")


async def broken(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await reply(writer, {"error": "out of memory"}, "503 Service Unavailable")


async def moved(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://stranger.example.org/\r\nContent-Length: 0\r\n\r\n")


async def no_json(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await reply(writer, b"<html>")


async def other_json(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await reply(writer, {"choices": []})


async def no_http(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\r\n\r\n")


async def bad_events(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await events(writer, ["a"], end="{oops")


async def failing(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await events(writer, ["a"], end=json.dumps({"error": {"message": "CUDA"}}))


async def cut(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await events(writer, ["a", "b"], end="")


async def silent(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(5)


async def endless(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    await events(writer, ["again "] * 10_000, pause=0.01)


async def flood(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for _ in range(LONGEST // 65536 + 2):
        writer.write(b"x" * 65536)
        await writer.drain()


async def hangs_up(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("handler", "line", "error", "detail"),
    [
        (busy, CHAT, "429", "too many"),
        (broken, CHAT, "503", "out of memory"),
        (moved, PLAIN, "302", ""),
        (no_json, CHAT, "garbage", "Expecting value"),
        (other_json, CHAT, "garbage", "no choices"),
        (no_http, PLAIN, "garbage", "no HTTP"),
        (bad_events, CHAT, "garbage", "Expecting property name"),
        (failing, CHAT, "garbage", "CUDA"),
        (cut, CHAT, "garbage", "ended without [DONE]"),
        (silent, PLAIN, "timeout", ""),
        (endless, CHAT, "timeout", ""),
        (flood, PLAIN, "garbage", "longer than 8 MiB"),
        (hangs_up, PLAIN, "broken connection", "Disconnected"),
    ],
)
def test_bad_servers(handler: Any, line: str, error: str, detail: str) -> None:
    """Whatever a server does, its request ends in time, has no result, and says why."""
    begun = time.perf_counter()
    with serving(handler) as url:
        answer = answer_of(url, line, 0.3 if error == "timeout" else 5.0)
    assert (answer.error, answer.end) == (error, 0.0)
    assert detail in answer.detail
    assert time.perf_counter() - begun < 5


def test_nobody_there() -> None:
    """A server that is not there is told from one that fails."""
    answer = answer_of("http://127.0.0.1:9")
    assert answer.error == "no connection"
    assert "127.0.0.1" in answer.detail


def test_no_sockets_left() -> None:
    """A request that this machine could not send is told from one that a server refused."""

    async def main(url: str) -> Answer:
        (request,) = read_profile(PLAIN).requests
        async with session() as connections:
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                return await ask(connections, target_of(url, [], {}), request, time.perf_counter() + 2)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert asyncio.run(main("http://127.0.0.1:9")).error == NO_SOCKETS
    open_many()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
