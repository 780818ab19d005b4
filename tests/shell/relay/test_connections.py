"""Connections to engines: when one is used again, and how bodies of requests are read."""

import asyncio
import gc
import socket

import pytest
from aiohttp import web

from router.http_server import BodyBroken, BodyTooLarge, make_runner, read_body
from router.upstream import Upstream, UpstreamRefused
from tests.shell.relay.peers import (
    CLOSE,
    LAST_CHUNK,
    PATIENCE_S,
    Connection,
    Engine,
    FakePlacer,
    chunk,
    head,
    post,
    routing,
    whole,
)


async def test_what_an_engine_says_unasked_is_nobodys_answer() -> None:
    """Bytes on an idle connection end its use; the next request gets its own answer."""
    idle = asyncio.Event()

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(whole(b"mine"))
        await idle.wait()
        await connection.say(head("408 Request Timeout", "Content-Length: 0"))
        await connection.rest()

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        assert (await router.ask(post(b"{}", CLOSE))).endswith(b"mine")
        [[kept]] = router.upstream._idle.values()
        idle.set()
        while kept.parser.reusable:  # noqa: ASYNC110  # the connection has no events
            await asyncio.sleep(0.001)
        assert (await router.ask(post(b"{}", CLOSE))).endswith(b"mine")
        assert engine.connections == 2


async def test_an_engine_that_answers_before_it_has_read_all_is_heard() -> None:
    """An early 413 reaches the client although the body could not be sent whole."""

    async def talk(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.say(whole(b"too long", "413 Too Large"))
        await connection.rest()

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        said = await router.ask(post(b"x" * 16 * 2**20, CLOSE))
        assert said.endswith(b"too long")
        assert not router.upstream._idle
        await engine.left.wait()


async def test_nothing_is_kept_of_connections_that_ended() -> None:
    """When an engine closes its idle connections, the pool forgets it."""
    end = asyncio.Event()

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(whole(b"{}"))
        await end.wait()

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        await router.ask(post(b"{}", CLOSE))
        assert repr(router.upstream) == "<Upstream 0 connections in use, 1 idle>"
        end.set()
        async with asyncio.timeout(PATIENCE_S):
            while router.upstream._idle:  # noqa: ASYNC110  # the pool has no events
                await asyncio.sleep(0.001)


async def test_a_dead_address_is_refused_in_time() -> None:
    """A connection that is not made within its time is refused; nothing is left of it."""
    upstream = Upstream()
    with pytest.raises(UpstreamRefused, match="refused the connection"):
        await upstream.send("POST", "http://127.0.0.1:1", (b"", b""))
    await upstream.close()
    gc.collect()
    assert upstream.in_use == 0


async def test_closing_ends_what_is_in_use() -> None:
    """A response that is being read breaks, and its client sees it."""

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(head("200 OK", "Content-Length: 10") + b"half")
        await connection.rest()

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        await client.say(post())
        await client.reader.readuntil(b"half")
        await router.upstream.close()
        assert await client.rest() == b""
        assert (await router.result()).outcome == "broken_midstream"
        client.close()


async def _read(request: bytes, bytes_max: int, wait_s_max: float = 60.0) -> bytes | Exception:
    """What ``read_body`` makes of these bytes from a client."""
    read: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            read.put_nowait(await read_body(request, bytes_max, wait_s_max))
        except (BodyTooLarge, BodyBroken) as error:
            read.put_nowait(error)
        response = web.Response()
        response.force_close()
        return response

    runner = make_runner(handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connection = Connection(*await asyncio.open_connection("127.0.0.1", runner.addresses[0][1]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await connection.say(request)
            return await read.get()
    finally:
        connection.close()
        await runner.cleanup()


CHUNKED = post().replace(b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"x" * 10),
        CHUNKED + chunk(b"xxxxx") + chunk(b"xxxxx") + LAST_CHUNK,
        post(b"x" * 10, "Content-Encoding: gzip"),
    ],
)
async def test_a_body_is_read_up_to_its_limit(request_bytes: bytes) -> None:
    """With a length or in chunks; what says it is compressed stays as it is."""
    assert await _read(request_bytes, 10) == b"x" * 10
    assert isinstance(await _read(request_bytes, 9), BodyTooLarge)


async def test_a_body_that_does_not_end_is_broken() -> None:
    """A client that stops half way does not hold its handler for ever."""
    assert isinstance(await _read(post(b"xx")[:-1], 100, wait_s_max=0.05), BodyBroken)


async def test_no_body_is_an_empty_one() -> None:
    """A GET has none."""
    assert await _read(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n", 100) == b""


async def test_small_writes_are_not_delayed() -> None:
    """TCP_NODELAY is set on both sides."""
    delays: list[int] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        own = request.transport.get_extra_info("socket")
        delays.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return web.Response()

    runner = make_runner(handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = Upstream()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    request = (b"GET / HTTP/1.1\r\nHost: r\r\n\r\n", b"")
    response = await upstream.send("GET", root, request)
    transport = response._connection._transport  # type: ignore[union-attr]
    own = transport.get_extra_info("socket")  # type: ignore[union-attr]
    delays.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    response.close()
    await upstream.close()
    await runner.cleanup()
    assert len(delays) == 2 and all(delays)
