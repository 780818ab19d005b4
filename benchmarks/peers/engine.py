"""A shell: engines that cost next to nothing, in a process of their own, for what relays to them.

Two of them. Each answers a chat at once with a fixed completion, or with a stream of 64 events, one
a millisecond, so that each event is read and written by itself. What a router asks an engine about
itself is answered as vLLM 0.33 would. Each has published, and replays, the blocks of one prompt:
the first those that all requests share, so that a router which follows events has something true
to say.
"""

import asyncio
import json
import re
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple, cast

import uvloop

from benchmarks.micro.workload import scheme
from benchmarks.sim.chain import BlockChain
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.publisher import EventPublisher
from benchmarks.sim.wire import WireFormat

MODEL = "benchmark"
CHUNKS = 64
POOL_BLOCKS = 10_000
# As fine as timers are in uvloop.
_CHUNK_EVERY_S = 0.001
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_STREAMED = re.compile(rb'"stream": *true')

_USAGE = {
    "prompt_tokens": 100,
    "total_tokens": 101,
    "completion_tokens": 1,
    "prompt_tokens_details": {"cached_tokens": 96},
}
_COMPLETION = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello"},
            "finish_reason": "stop",
        }
    ],
    "usage": _USAGE,
}
_CHUNK = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
_DELTA = [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]


class Engine(NamedTuple):
    url: str
    event_endpoint: str
    replay_endpoint: str


class Prompts(NamedTuple):
    """The token ids of what each engine holds."""

    of_engines: list[list[int]]


def engines(pipe: "Pipe[list[Engine], object]", prompts: Prompts) -> None:
    """Says where they are; ends when the pipe closes."""
    uvloop.run(_serve(pipe, prompts))


async def _serve(pipe: "Pipe[list[Engine], object]", prompts: Prompts) -> None:
    loop, publishers, found = asyncio.get_running_loop(), [], []
    for token_ids in prompts.of_engines:
        server = await loop.create_server(_Protocol, "127.0.0.1", 0)
        publisher = _publisher_of(token_ids)
        publishers.append(publisher)
        assert publisher.replay_endpoint is not None
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        found.append(Engine(url, publisher.endpoint, publisher.replay_endpoint))
    pipe.send(found)
    with suppress(EOFError):
        await asyncio.to_thread(pipe.recv)
    for publisher in publishers:
        publisher.close()


def _publisher_of(token_ids: list[int]) -> EventPublisher:
    settings = PublisherSettings(
        endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", bind=True
    )
    publisher = EventPublisher(WireFormat("0.33", int_hashes=True), settings)
    chain = BlockChain(scheme(), token_ids)
    publisher.publish([chain.stored(0, len(chain.digests))])
    publisher.flush(10)
    return publisher


def _answer(body: object, status: bytes = b"200 OK") -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n" % status + (
        b"content-length: %d\r\n\r\n" % len(data) + data
    )


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(_CHUNK | fields).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_SMALL_ANSWER = _answer(_COMPLETION)
_NOT_FOUND = _answer({"detail": "Not Found"}, b"404 Not Found")
_ANSWERS = {
    b"/health": _answer({}),
    b"/version": _answer({"version": "0.33.0"}),
    b"/v1/models": _answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]}),
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_STREAM_EVENT = _chunk(_event({"choices": _DELTA}))
_STREAM_END = _chunk(_event({"choices": [], "usage": _USAGE}) + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Protocol(asyncio.Protocol):
    """One request at a time on each connection, as every client of HTTP/1.1 here sends them."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        path = head.split(b" ", 2)[1]
        if path != b"/v1/chat/completions":
            self._transport.write(_ANSWERS.get(path, _NOT_FOUND))
        elif _STREAMED.search(body):
            self._transport.write(_STREAM_HEAD)
            self._say(CHUNKS)
        else:
            self._transport.write(_SMALL_ANSWER)

    def _say(self, left: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_STREAM_EVENT if left > 1 else _STREAM_END)
        if left > 1:
            asyncio.get_running_loop().call_later(_CHUNK_EVERY_S, self._say, left - 1)
