"""A client that goes away, at each phase and at each await: nothing of its request is left."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from tests.cancellation import Cancelling, at_every_await
from tests.shell.relay.peers import (
    CLOSE,
    LAST_CHUNK,
    STREAM_HEAD,
    Connection,
    Engine,
    FakePlacer,
    Router,
    Talk,
    answering,
    chunk,
    post,
    routing,
    whole,
)

# More than the kernel's buffers on both sides and ours take.
MORE_THAN_BUFFERS = 32 * 2**20
STREAM = STREAM_HEAD + chunk(b"one") + chunk(b"two") + LAST_CHUNK


async def check_gone(router: Router) -> None:
    result = await router.result()
    assert result.outcome == "client_gone"
    assert not router.upstream.in_use


async def test_a_client_gone_while_placing_frees_its_place() -> None:
    """Nothing was placed, nothing was sent, and the request counts as gone."""
    engine = Engine(answering(STREAM))
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        router.placer.hold.clear()
        client = await router.connect()
        await client.say(post())
        await router.placer.asked.wait()
        client.close()
        await check_gone(router)
        assert not router.placer.placed
        assert not engine.connections


async def test_a_client_gone_while_connecting_stops_connecting() -> None:
    """A connection that is being made is given up."""
    with ExitStack() as sockets:
        # Whoever connects to a full backlog waits.
        full = sockets.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with routing(FakePlacer(url)) as router:
            client = await router.connect()
            await client.say(post())
            await router.placer.has_placed.wait()
            client.close()
            await check_gone(router)
            assert router.placer.placed[0].failures == []


@pytest.mark.parametrize(
    "said", [b"", STREAM_HEAD, STREAM_HEAD + chunk(b"one")], ids=["mute", "head", "mid-stream"]
)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_client_gone_while_the_engine_works_ends_its_work(said: bytes, reset: bool) -> None:
    """The engine sees its connection close, whatever it has said so far."""
    working = asyncio.Event()

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(said)
        working.set()
        assert await connection.rest() == b""

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        await client.say(post())
        await working.wait()
        if said.endswith(chunk(b"one")):
            await client.reader.readuntil(chunk(b"one"))
        if reset:
            client.reset()
        else:
            client.close()
        await check_gone(router)
        await engine.left.wait()
        assert router.placer.placed[0].failures == []


async def test_a_client_that_does_not_read_holds_the_engine_back_and_may_leave() -> None:
    """What a slow client has not taken waits at the engine, and ends when the client leaves."""
    stuck = asyncio.Event()

    async def talk(connection: Connection) -> None:
        await connection.request()
        connection.writer.write(whole(b"x" * MORE_THAN_BUFFERS))
        while connection.writer.transport.get_write_buffer_size():
            before = connection.writer.transport.get_write_buffer_size()
            await asyncio.sleep(0.2)
            if connection.writer.transport.get_write_buffer_size() == before:
                stuck.set()
                await connection.rest()
                return

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        await client.say(post())
        await stuck.wait()
        client.reset()
        await check_gone(router)
        await engine.left.wait()


async def _cut_short(connection: Connection) -> None:
    await connection.request()
    await connection.say(STREAM_HEAD + chunk(b"one"))


async def _piece_by_piece(connection: Connection) -> None:
    await connection.request()
    for piece in (STREAM_HEAD, chunk(b"one"), chunk(b"two"), LAST_CHUNK):
        await connection.say(piece)
        # So that each is read by itself; where some are not, there are fewer awaits.
        await asyncio.sleep(0.002)


SCENARIOS: dict[str, tuple[tuple[Talk, ...], int]] = {
    "an answer": ((answering(whole(b"{}")),), 3),
    "a stream at once": ((answering(STREAM),), 3),
    "a stream": ((_piece_by_piece,), 4),
    "a long answer": ((answering(whole(b"x" * 2**22)),), 4),
    "a busy engine, then another": ((answering(whole(b"", "503 Busy")), answering(STREAM)), 6),
    "busy engines only": ((answering(whole(b"no", "503 Busy")),), 4),
    "an answer that breaks": ((_cut_short,), 3),
    "nobody": ((), 1),
}


@pytest.mark.parametrize(("talks", "awaits_min"), SCENARIOS.values(), ids=SCENARIOS)
async def test_a_cancellation_at_any_await_leaves_nothing(
    talks: tuple[Talk, ...], awaits_min: int
) -> None:
    """Whatever is awaited: one release, one result, no connection in use, no task left."""

    async def scenario(cancelling: Cancelling) -> None:
        async with _engines(*talks) as urls:
            async with routing(FakePlacer(*urls), disturb=cancelling) as router:
                said = await router.ask(post(b"{}", CLOSE))
                if cancelling.cancelled:
                    await check_gone(router)
                    assert not said.endswith(LAST_CHUNK)
                else:
                    assert said
                    assert (await router.result()).outcome != "client_gone"
                assert router.finished.empty()

    assert await at_every_await(scenario) >= awaits_min


@asynccontextmanager
async def _engines(*talks: Talk) -> AsyncIterator[list[str]]:
    engines = [Engine(talk) for talk in talks]
    async with AsyncExitStack() as running:
        yield [await running.enter_async_context(engine.running()) for engine in engines]
    for engine in engines:
        await engine.idle.wait()
