"""A server that adds numbers, two at a time, a tenth of a second each; under pressure it guesses.

It stands for a model behind a bounded queue: with four waiting, it gives the next ones the answer of a cheaper model
(the largest of the numbers, rounded) at once, so that its response times stay short while its answers get worse.

    python server.py 8000
"""

import asyncio
import json
import sys

WORKERS, WAITING, SECONDS = 2, 4, 0.1


async def main(port: int) -> None:
    free, waiting = asyncio.Semaphore(WORKERS), 0

    async def add(numbers: list[int]) -> int:
        nonlocal waiting
        if waiting >= WAITING:
            return round(max(numbers), -1)
        waiting += 1
        async with free:
            waiting -= 1
            await asyncio.sleep(SECONDS)
            return sum(numbers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                body = json.loads(await reader.readexactly(int(fields.get(b"content-length", 0))))
                answer = json.dumps({"sum": await add(body["add"])}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000))
