"""Servers for load tests: small ones of our own with a known weakness, in a thread or a process of their own."""

import asyncio
import heapq
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from advisor.serving import Options
from advisor.serving_profile import read_profile
from advisor.serving_search import Rules
from advisor.serving_target import target_of
from advisor.serving_trial import Trial
from advisor.success import read_success

Handler = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
"""Answers one request, whose JSON body it gets."""


async def reply(
    writer: asyncio.StreamWriter, body: Any, status: str = "200 OK", kind: str = "application/json"
) -> None:
    """A whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def events(writer: asyncio.StreamWriter, pieces: list[str], pause: float = 0.0, end: str = "[DONE]") -> None:
    """A stream of chat completions."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for piece in pieces:
        chunk = {"choices": [{"delta": {"content": piece}, "finish_reason": None}]}
        writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await writer.drain()
        await asyncio.sleep(pause)
    if end:
        writer.write(f"data: {end}\n\n".encode())
    await writer.drain()
    writer.close()


async def _serve(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            asked = json.loads(body) if body.startswith(b"{") else {"text": body.decode()}
            await handler({**asked, "_path": head.split(b" ")[1].decode()}, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """A server in a thread; gives its URL."""
    loop = asyncio.new_event_loop()
    ready: list[int] = []
    begun = threading.Event()

    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: _serve(handler, r, w), "127.0.0.1", 0, backlog=1000)
        ready.append(server.sockets[0].getsockname()[1])
        begun.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main())
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(10)
    try:
        yield f"http://127.0.0.1:{ready[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def queue(workers: int, service: Callable[[], float], room: int = 10**9) -> Handler:
    """Workers with one queue, first come first served, in which there is only so much room.

    Being late with an answer does not make the next one late.
    """
    free, inside = [0.0] * workers, [0]

    async def handle(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if inside[0] >= workers + room:
            return await reply(writer, b"full", "503 Service Unavailable", "text/plain")
        inside[0] += 1
        now = time.monotonic()
        end = max(now, heapq.heappop(free)) + service()
        heapq.heappush(free, end)
        try:
            await asyncio.sleep(end - now)
        finally:
            inside[0] -= 1
        return await reply(writer, {"done": True})

    return handle


@contextmanager
def process(command: list[str], port: int, **environment: str) -> Iterator[str]:
    """A server by others in a process of its own; gives its URL once it listens."""
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    try:
        for _ in range(3000):
            assert running.poll() is None, f"{command} ended with {running.returncode}"
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Heard:
    """Listens to a run."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.remarks: list[str] = []

    def begins(self, number: int, rate: float, seconds: float, why: str) -> None:
        """Nothing."""

    def share(self, done: float) -> None:
        """Nothing."""

    def ended(self, trial: Trial) -> None:
        """Remember it."""
        self.trials.append(trial)

    def remark(self, text: str) -> None:
        """Remember it."""
        self.remarks.append(text)


def options(url: str, goals: str, profile: str = '{"body": {}}', *, model: str | None = None, **others: Any) -> Options:
    """Options of a short run; ``goals`` is what a service has in success.yaml."""
    rules = Rules(
        start=others.pop("start", 10.0), least=others.pop("least", 0.1), most=others.pop("most", 1000.0),
        width=others.pop("width", 0.1), trials=others.pop("trials", 40),
    )  # fmt: skip
    service = read_success(f"version: 1\nservices: {{s: {goals}}}").services["s"]
    plain = {"seconds": 0.4, "longest": 0.4, "warm_up": 0.05, "seed": 0, "facts": None, "given": {"target": url}}
    return Options(target_of(url, [], {}), read_profile(profile, model=model), service, rules, **{**plain, **others})


def _main() -> None:
    """Servers with exponential and with fixed service times, as many as there are seeds; prints their URLs."""

    async def main(kind: str, workers: int, mean: float, seeds: list[int]) -> None:
        for seed in seeds:
            draw = random.Random(seed)
            handler = queue(workers, lambda draw=draw: draw.expovariate(1 / mean) if kind == "exponential" else mean)
            server = await asyncio.start_server(
                lambda r, w, handler=handler: _serve(handler, r, w), "127.0.0.1", 0, backlog=1000
            )
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        print("ready", flush=True)
        await asyncio.Event().wait()

    kind, workers, mean, *seeds = sys.argv[1:]
    asyncio.run(main(kind, int(workers), float(mean), [int(seed) for seed in seeds]))


@contextmanager
def queues(kind: str, workers: int, mean: float, seeds: range) -> Iterator[list[str]]:
    """Queues in a process of their own; gives their URLs."""
    root = Path(__file__).parents[2]
    running = subprocess.Popen(
        [sys.executable, __file__, kind, str(workers), str(mean), *map(str, seeds)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    try:
        assert running.stdout is not None
        yield list(iter(lambda: running.stdout.readline().strip(), "ready"))
    finally:
        running.kill()
        running.wait()


if __name__ == "__main__":
    _main()
