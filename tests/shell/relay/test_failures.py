"""Engines that fail: when another one is tried, and what the client sees."""

import asyncio
import json

import pytest

from router.upstream import Timeouts
from tests.shell.relay.peers import (
    CLOSE,
    LAST_CHUNK,
    STREAM_HEAD,
    Connection,
    Engine,
    FakePlacer,
    Talk,
    answering,
    chunk,
    head,
    post,
    routing,
    whole,
)

NOBODY = "http://127.0.0.1:1"
IMPATIENT = Timeouts(connect_s=2.0, silence_s=0.2)


def saying(data: bytes, *, reset: bool = False) -> Talk:
    """Reads one request, says this and closes or resets the connection."""

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(data)
        if reset:
            connection.reset()

    return talk


async def mute(connection: Connection) -> None:
    await connection.request()
    await connection.rest()


async def mute_after_the_head(connection: Connection) -> None:
    await connection.request()
    await connection.say(STREAM_HEAD)
    await connection.rest()


GOOD = answering(whole(b'{"good": 1}'))
BROKEN = {
    "closed before its head": (saying(b""), "broken"),
    "reset before its head": (saying(b"", reset=True), "broken"),
    "half a head": (saying(b"HTTP/1.1 200 OK\r\nConte"), "broken"),
    "no HTTP": (saying(b"SSH-2.0-OpenSSH\r\n\r\n"), "broken"),
    "closed after its head": (saying(STREAM_HEAD), "broken"),
    "reset after its head": (saying(STREAM_HEAD, reset=True), "broken"),
    "mute": (mute, "silent"),
    "mute after its head": (mute_after_the_head, "silent"),
    "503": (answering(whole(b"busy", "503 Busy")), "overloaded"),
    "502": (answering(whole(b"bad", "502 Bad Gateway")), "broken"),
    "504": (answering(whole(b"late", "504 Late")), "silent"),
}


@pytest.mark.parametrize(("talk", "kind"), BROKEN.values(), ids=BROKEN)
async def test_another_replica_is_tried_before_the_first_byte(talk: Talk, kind: str) -> None:
    """However the first one fails, the client sees the second one's answer and nothing else."""
    async with (
        Engine(talk).running() as bad,
        Engine(GOOD).running() as good,
        routing(FakePlacer(bad, good), IMPATIENT) as router,
    ):
        said = await router.ask(post(b"{}", CLOSE))
        assert said.endswith(b'\r\n\r\n{"good": 1}')
        assert b"x-pointsman-replica: r1\r\n" in said
        result = await router.result()
        assert (result.outcome, result.status, result.attempts) == ("ok", 200, 2)
        first, second = router.placer.placed
        assert (first.failures, first.first_bytes) == ([kind], 0)
        assert (second.failures, second.first_bytes) == ([], 1)
        assert len(result.failures) == 1


@pytest.mark.parametrize("url", [NOBODY, "http://no-such-host.invalid:80", "no url at all"])
async def test_a_replica_that_cannot_be_reached_is_replaced(url: str) -> None:
    """Refused, unknown or misconfigured addresses count as refused."""
    async with Engine(GOOD).running() as good, routing(FakePlacer(url, good)) as router:
        assert b"200 OK" in await router.ask(post(b"{}", CLOSE))
        await router.result()
        assert router.placer.placed[0].failures == ["refused"]


async def test_tls_that_is_none_counts_as_refused() -> None:
    """Nothing reached an engine whose TLS handshake failed."""
    async with (
        Engine(saying(b"")).running() as plain,
        Engine(GOOD).running() as good,
        routing(FakePlacer(plain.replace("http:", "https:"), good), Timeouts(0.3)) as router,
    ):
        assert b"200 OK" in await router.ask(post(b"{}", CLOSE))
        await router.result()
        assert router.placer.placed[0].failures == ["refused"]


async def test_when_all_fail_the_client_is_told_what_happened() -> None:
    """Two failures give a 502 in OpenAI's shape that names both; there is no third attempt."""
    async with (
        Engine(saying(b"")).running() as closing,
        Engine(GOOD).running() as third,
        routing(FakePlacer(NOBODY, closing, third)) as router,
    ):
        said = await router.ask(post(b"{}", CLOSE))
        assert said.startswith(b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\n")
        message = json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert "r0 refused the connection" in message
        assert "r1 closed the connection" in message
        result = await router.result()
        assert (result.outcome, result.status, result.attempts) == ("upstream_error", 502, 2)


@pytest.mark.parametrize("second", [(), (NOBODY,)], ids=["no other replica", "another one refuses"])
async def test_the_engines_own_error_is_passed_on_if_nobody_does_better(
    second: tuple[str, ...],
) -> None:
    """A 503 whose retry does not help reaches the client as the engine wrote it."""
    answer = whole(b"busy", "503 Busy", "Retry-After: 7")
    async with (
        Engine(answering(answer)).running() as busy,
        routing(FakePlacer(busy, *second)) as router,
    ):
        said = await router.ask(post(b"{}", CLOSE))
        assert said.startswith(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nRetry-After: 7\r\n")
        assert b"x-pointsman-replica: r0\r\n" in said
        assert said.endswith(b"\r\n\r\nbusy")
        result = await router.result()
        assert (result.outcome, result.status) == ("ok", 503)


async def test_the_second_engines_error_is_passed_on_whatever_it_is() -> None:
    """After one retry the answer is the answer."""
    async with (
        Engine(answering(whole(b"first", "503 Busy"))).running() as first,
        Engine(answering(whole(b"second", "503 Busy"))).running() as second,
        routing(FakePlacer(first, second)) as router,
    ):
        assert (await router.ask(post(b"{}", CLOSE))).endswith(b"second")
        await router.result()
        assert [placed.failures for placed in router.placer.placed] == [["overloaded"]] * 2


async def test_an_error_too_long_to_hold_is_passed_on() -> None:
    """A 503 with a megabyte of body is relayed, not kept."""
    body = b"x" * 2**20
    async with (
        Engine(answering(whole(body, "503 Busy"))).running() as busy,
        Engine(GOOD).running() as good,
        routing(FakePlacer(busy, good)) as router,
    ):
        assert (await router.ask(post(b"{}", CLOSE))).endswith(b"\r\n\r\n" + body)
        assert (await router.result()).attempts == 1


@pytest.mark.parametrize(
    ("status", "failures"), [(400, []), (404, []), (429, ["overloaded"]), (500, [])]
)
async def test_other_errors_are_never_tried_again(status: int, failures: list[str]) -> None:
    """4xx and 500 are the client's answer; 429 is back-pressure on top."""
    async with (
        Engine(answering(whole(b"no", f"{status} No"))).running() as url,
        Engine(GOOD).running() as good,
        routing(FakePlacer(url, good)) as router,
    ):
        assert (await router.ask(post(b"{}", CLOSE))).endswith(b"\r\n\r\nno")
        assert (await router.result()).attempts == 1
        assert router.placer.placed[0].failures == failures


async def test_without_any_replica_the_client_may_come_again() -> None:
    """The placer's status and message, in OpenAI's shape, with Retry-After in whole seconds."""
    async with routing(FakePlacer()) as router:
        said = await router.ask(post(b"{}", CLOSE))
        assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert error["message"] == "All replicas are full."
        result = await router.result()
        assert (result.outcome, result.attempts) == ("no_replica", 0)


BREAKS = {
    "closed": saying(STREAM_HEAD + chunk(b"one")),
    "reset": saying(STREAM_HEAD + chunk(b"one"), reset=True),
    "half a chunk": saying(STREAM_HEAD + chunk(b"one") + b"10\r\nhal"),
    "short of its length": saying(head("200 OK", "Content-Length: 10") + b"one"),
}


@pytest.mark.parametrize("talk", BREAKS.values(), ids=BREAKS)
async def test_a_broken_answer_never_ends_cleanly(talk: Talk) -> None:
    """What came is passed on, then the connection ends without an end of the body."""
    async with (
        Engine(talk).running() as bad,
        Engine(GOOD).running() as good,
        routing(FakePlacer(bad, good)) as router,
    ):
        said = await router.ask(post())
        assert b"good" not in said
        assert not said.endswith(LAST_CHUNK)
        assert b"HTTP/1.1 200 OK\r\n" in said
        result = await router.result()
        assert (result.outcome, result.attempts) == ("broken_midstream", 1)
        assert router.placer.placed[0].failures == ["broken"]


async def test_a_stream_that_falls_silent_is_broken_off() -> None:
    """Silence longer than its bound ends the answer without a clean end."""

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunk(b"one"))
        await connection.rest()

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url), IMPATIENT) as router:
        said = await router.ask(post())
        assert said.endswith(chunk(b"one"))
        assert (await router.result()).outcome == "broken_midstream"
        assert router.placer.placed[0].failures == ["silent"]
        await engine.left.wait()


async def test_an_http_1_0_client_sees_a_reset_where_an_answer_breaks() -> None:
    """Without framing, only a reset differs from a complete answer."""
    sent = asyncio.Event()

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD + chunk(b"one"))
        await sent.wait()

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        await client.say(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        await client.reader.readuntil(b"one")
        sent.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        assert (await router.result()).outcome == "broken_midstream"
        client.close()


async def test_a_stale_connection_is_no_failure_of_the_replica() -> None:
    """An idle connection that breaks when it is used again is replaced by a fresh one, once."""
    requests: list[int] = []

    async def talk(connection: Connection) -> None:
        number = engine.connections
        while True:
            requests.append(number)
            await connection.request()
            if len(requests) == 2:
                return
            await connection.say(whole(b"{}"))

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        for _ in range(2):
            assert b"200 OK" in await router.ask(post(b"{}", CLOSE))
            result = await router.result()
            assert (result.outcome, result.attempts) == ("ok", 1)
        assert engine.connections == 2
        assert not any(placed.failures for placed in router.placer.placed)


async def test_a_replica_that_breaks_a_fresh_connection_too_has_failed() -> None:
    """After a stale connection the replica gets one more chance, not more."""

    async def talk(connection: Connection) -> None:
        await connection.request()
        if engine.connections == 1:
            await connection.say(whole(b"{}"))
            await connection.request()

    engine = Engine(talk)
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        assert b"200 OK" in await router.ask(post(b"{}", CLOSE))
        assert b"502 Bad Gateway" in await router.ask(post(b"{}", CLOSE))
        assert engine.connections == 2
        await router.result()
        await router.result()
        assert [placed.failures for placed in router.placer.placed] == [[], ["broken"]]
