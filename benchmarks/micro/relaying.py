"""CPU of the router's process per relayed request, beside that of a bare aiohttp pass-through.

Honest because only the process that relays is measured, by its own processor time, under uvloop,
with engine and client in other processes; and because the bare pass-through, which does nothing but
copy, runs in the same process in turns with ours, so that both see the same machine. Placing costs
nothing here: it is what relaying costs on top of any decision. The engine paces the chunks of a
stream, so each is read and written by itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import aiohttp
import uvloop
from aiohttp import web

from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import process
from router.http_server import make_runner, read_body
from router.proxy import RelayResult, relay
from router.upstream import Upstream

_REQUESTS = 3_000
_STREAMS = 200
_CHUNKS = 64
_CLIENTS = 8
_RUNS = 5
# As fine as timers are in uvloop.
_CHUNK_EVERY_S = 0.001
_BODY_BYTES = 400
_BODY_BYTES_MAX = 2**20

_HEADERS = (
    b"host: router\r\ncontent-type: application/json\r\nauthorization: Bearer key\r\n"
    b"accept: application/json\r\naccept-encoding: gzip, deflate\r\nuser-agent: benchmark\r\n"
    b"x-request-id: 0123456789abcdef\r\n"
)
_ANSWER_HEADERS = b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"
_USAGE = (
    b'"usage":{"prompt_tokens":100,"total_tokens":101,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":96}}'
)
_JSON = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],' + _USAGE + b"}"
)
_SMALL_ANSWER = (
    _ANSWER_HEADERS
    + b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(_JSON)
    + _JSON
)
_EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
_LAST_EVENT = b'data: {"id":"chatcmpl-0","choices":[],' + _USAGE + b"}\n\ndata: [DONE]\n\n"
_STREAM_HEAD = (
    _ANSWER_HEADERS
    + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    requests = scaled(_REQUESTS, scale, _CLIENTS)
    streams = scaled(_STREAMS, scale, _CLIENTS)
    with process(_engine, None) as (_, engine_port), process(_router, engine_port) as (ask, ports):
        runs = [_run(ask, ports, requests, streams) for _ in range(scaled(_RUNS, scale, 2))]
    for name in runs[0]:
        yield Measurement.of(name, "us", [run[name] for run in runs])


def _run(
    ask: "Connection[object, object]", ports: dict[str, int], requests: int, streams: int
) -> dict[str, float]:
    """Microseconds per request of each kind through each server, in turns."""
    figures = {}
    for name, port in ports.items():
        small = _cpu_us(ask, port, requests, _request(b"/small"), _JSON)
        stream = _cpu_us(ask, port, streams, _request(b"/stream"), _END)
        figures[f"{name}_cpu_per_small_request"] = small
        figures[f"{name}_cpu_per_{_CHUNKS}_chunk_stream"] = stream
        figures[f"{name}_cpu_per_chunk"] = max(0.0, stream - small) / _CHUNKS
    return figures


def _cpu_us(
    ask: "Connection[object, object]", port: int, requests: int, request: bytes, end: bytes
) -> float:
    uvloop.run(_send(port, _CLIENTS, request, end))
    before = _cpu_s(ask)
    uvloop.run(_send(port, requests, request, end))
    return (_cpu_s(ask) - before) / requests * 1e6


def _cpu_s(ask: "Connection[object, object]") -> float:
    ask.send(None)
    answer = ask.recv()
    assert isinstance(answer, float)
    return answer


def _request(path: bytes) -> bytes:
    body = b'{"model": "m", "messages": "' + b"x" * _BODY_BYTES + b'"}'
    return (
        b"POST %b HTTP/1.1\r\n" % path + _HEADERS + b"content-length: %d\r\n\r\n" % len(body) + body
    )


async def _send(port: int, requests: int, request: bytes, end: bytes) -> None:
    """Each client sends its next request when the answer to the last has come, up to ``end``."""

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(requests // _CLIENTS):
            writer.write(request)
            await reader.readuntil(end)
        writer.close()

    async with asyncio.TaskGroup() as clients:
        for _ in range(_CLIENTS):
            clients.create_task(client())


# The engine's process.


def _engine(pipe: "Connection[Any, object]", _: None) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_EngineProtocol, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await _closed(pipe)

    uvloop.run(serve())


class _EngineProtocol(asyncio.Protocol):
    """Answers by path. The requests are known, so that nothing has to be parsed."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(b'x"}'):
            return
        small = self._received.startswith(b"POST /small")
        self._received = b""
        if small:
            self._transport.write(_SMALL_ANSWER)
        else:
            self._transport.write(_STREAM_HEAD)
            self._say(_CHUNKS)

    def _say(self, left: int) -> None:
        if self._transport.is_closing():
            return
        event = _EVENT if left > 1 else _LAST_EVENT
        end = b"" if left > 1 else _END
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(event), event, end))
        if left > 1:
            asyncio.get_running_loop().call_later(_CHUNK_EVERY_S, self._say, left - 1)


# The router's process.


def _router(pipe: "Connection[Any, object]", engine_port: int) -> None:
    async def serve() -> None:
        url = f"http://127.0.0.1:{engine_port}"
        async with _relay(url) as relay_port, _bare(url) as bare_port:
            pipe.send({"relay": relay_port, "bare_aiohttp": bare_port})
            await _closed(pipe)

    uvloop.run(serve())


async def _closed(pipe: "Connection[Any, object]") -> None:
    """Answers whatever comes over the pipe with the processor time so far, until it is closed."""
    closed = asyncio.Event()

    def readable() -> None:
        try:
            pipe.recv()
        except EOFError:
            closed.set()
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            return
        pipe.send(time.process_time())

    asyncio.get_running_loop().add_reader(pipe.fileno(), readable)
    await closed.wait()


@dataclass(slots=True)
class _Placed:
    url: str
    replica: str = "a"
    rank_header: int | None = None
    headers: tuple[tuple[str, str], ...] = (
        ("x-pointsman-replica", "a"),
        ("x-pointsman-reason", "prefix"),
        ("x-pointsman-evidence", "exact"),
    )

    def first_byte(self) -> None:
        pass

    def failed(self, kind: str) -> None:
        raise AssertionError(kind)

    def release(self) -> None:
        pass


@dataclass
class _Placer:
    url: str

    async def place(self, excluding: frozenset[str]) -> _Placed:
        return _Placed(self.url)


@asynccontextmanager
async def _relay(url: str) -> AsyncIterator[int]:
    upstream, placer = Upstream(), _Placer(url)

    def finished(result: RelayResult) -> None:
        assert result.outcome == "ok" and result.usage is not None, result

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await read_body(request, _BODY_BYTES_MAX)
        return await relay(request, body, placer, upstream, finished)

    runner = make_runner(handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await upstream.close()
    await runner.cleanup()


@asynccontextmanager
async def _bare(url: str) -> AsyncIterator[int]:
    """The shortest pass-through that aiohttp offers."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k != "Content-Length"}
        target = url + request.path
        async with session.post(target, data=body, headers=headers) as answer:
            relayed = web.StreamResponse(status=answer.status)
            relayed.content_type = answer.content_type
            relayed.content_length = answer.content_length
            await relayed.prepare(request)
            async for chunk in answer.content.iter_any():
                await relayed.write(chunk)
            await relayed.write_eof()
            return relayed

    application = web.Application()
    application.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
        await runner.cleanup()
