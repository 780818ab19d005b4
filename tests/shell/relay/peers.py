"""A router that only relays, engines that say what they are told to, and a raw client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from router.http_server import make_runner, read_body
from router.proxy import NoReplica, RelayResult, relay
from router.upstream import Timeouts, Upstream

# Longer than anything takes here; a test that needs it hangs.
PATIENCE_S = 20.0
BODY_BYTES_MAX = 32 * 2**20


def head(status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode()


def whole(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    return head(status, f"Content-Length: {len(body)}", *headers) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
STREAM_HEAD = head("200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")

Talk = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One connection to an engine or to the router, from either end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> bytes:
        """Head and body of the next request."""
        received = await self.reader.readuntil(b"\r\n\r\n")
        for line in received.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                received += await self.reader.readexactly(int(line.partition(b":")[2]))
        return received

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self, data: bytes) -> None:
        """Waits for exactly these bytes."""
        received = await self.reader.readexactly(len(data))
        assert received == data

    async def rest(self) -> bytes:
        """Until the other end closes or resets."""
        received = b""
        try:
            while data := await self.reader.read(2**16):
                received += data
        except ConnectionError:
            pass
        return received

    def reset(self) -> None:
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Engine:
    """Talks as ``talk`` says on each connection, then closes it."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.connections = 0
        self.open = 0
        self.left = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.idle.clear()
        try:
            await self._talk(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self.left.set()
            if not self.open:
                self.idle.set()
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


def answering(data: bytes) -> Talk:
    """Says the same after each request, and keeps the connection."""

    async def talk(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.say(data)

    return talk


@dataclass(eq=False)
class FakePlaced:
    replica: str
    url: str
    rank_header: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    first_bytes: int = 0
    failures: list[str] = field(default_factory=list)
    releases: int = 0

    def first_byte(self) -> None:
        assert not self.releases
        self.first_bytes += 1

    def failed(self, kind: str) -> None:
        assert not self.releases
        self.failures.append(kind)

    def release(self) -> None:
        self.releases += 1


class FakePlacer:
    """Places on the first URL that is not excluded. Its await is one that can be cancelled."""

    def __init__(self, *urls: str, rank_header: int | None = None) -> None:
        self.urls = {f"r{number}": url for number, url in enumerate(urls)}
        self.rank_header = rank_header
        self.placed: list[FakePlaced] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.asked = asyncio.Event()
        self.has_placed = asyncio.Event()

    async def place(self, excluding: frozenset[str]) -> FakePlaced:
        self.asked.set()
        await asyncio.sleep(0)
        await self.hold.wait()
        for replica, url in self.urls.items():
            if replica not in excluding:
                headers = (("x-pointsman-replica", replica),)
                self.placed.append(FakePlaced(replica, url, self.rank_header, headers))
                self.has_placed.set()
                return self.placed[-1]
        raise NoReplica(503, "All replicas are full.", retry_after_s=0.5)


@dataclass
class Router:
    """``finished`` gets each result."""

    port: int
    placer: FakePlacer
    upstream: Upstream
    finished: "asyncio.Queue[RelayResult]"

    async def connect(self) -> Connection:
        streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        return Connection(*streams)

    async def ask(self, request: bytes) -> bytes:
        """Everything that is answered to a request that says Connection: close."""
        connection = await self.connect()
        try:
            await connection.say(request)
            return await connection.rest()
        finally:
            connection.close()

    async def result(self) -> RelayResult:
        """Of the next request to finish; checks what holds of every one."""
        result = await self.finished.get()
        assert [placed.releases for placed in self.placer.placed] == [1] * len(self.placer.placed)
        assert all(placed.first_bytes <= 1 for placed in self.placer.placed)
        assert all(len(placed.failures) <= 1 for placed in self.placer.placed)
        return result


Relay = Coroutine[Any, Any, web.StreamResponse]


def undisturbed(relaying: Relay) -> Awaitable[web.StreamResponse]:
    return relaying


@asynccontextmanager
async def routing(
    placer: FakePlacer,
    timeouts: Timeouts | None = None,
    disturb: Callable[[Relay], Awaitable[web.StreamResponse]] = undisturbed,
) -> AsyncIterator[Router]:
    """``disturb`` stands between the server and the relay."""
    finished: asyncio.Queue[RelayResult] = asyncio.Queue()
    upstream = Upstream(timeouts)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await read_body(request, BODY_BYTES_MAX)
        return await disturb(relay(request, body, placer, upstream, finished.put_nowait))

    runner = make_runner(handle)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield Router(port, placer, upstream, finished)
    finally:
        await upstream.close()
        await runner.cleanup()


def post(body: bytes = b"{}", *headers: str, path: str = "/v1/chat/completions") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: router", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


CLOSE = "Connection: close"
