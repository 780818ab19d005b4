"""What passes through the relay, and how."""

import asyncio
import gzip
import json

import pytest

from router.usage import Usage
from tests.shell.relay.peers import (
    CLOSE,
    LAST_CHUNK,
    STREAM_HEAD,
    Connection,
    Engine,
    FakePlacer,
    answering,
    chunk,
    head,
    post,
    routing,
    whole,
)


async def test_request_and_response_pass_byte_for_byte() -> None:
    """Path, query, headers, body, status, reason and answer arrive as they were sent."""
    body = b'{"model": "m", "unknown": [1.0, 1e2], "a":1, "a":2}\n\xff'
    answer = b'{"choices": [] }\n'
    received: list[bytes] = []

    async def talk(connection: Connection) -> None:
        received.append(await connection.request())
        await connection.say(
            whole(answer, "418 I'm A Teapot", "X-Mine: \u00fc", "x-b: 1", "x-b: 2")
        )

    async with Engine(talk).running() as url, routing(FakePlacer(url, rank_header=2)) as router:
        path = "/v1/completions?a=%20b&c=/%2F"
        said = await router.ask(
            post(body, "Authorization: Bearer k", "X-Request-Id: 7", CLOSE, path=path)
        )
        sent_head, _, sent_body = received[0].partition(b"\r\n\r\n")
        lines = sent_head.split(b"\r\n")
        assert sent_body == body
        assert lines[0] == f"POST {path} HTTP/1.1".encode()
        names_and_values = [line.split(b": ") for line in lines[1:]]
        assert {name.lower(): value for name, value in names_and_values} == {
            b"accept-encoding": b"identity",
            b"authorization": b"Bearer k",
            b"content-length": b"%d" % len(body),
            b"host": url.removeprefix("http://").encode(),
            b"x-request-id": b"7",
            b"x-data-parallel-rank": b"2",
        }
        assert len(names_and_values) == 6
        assert (
            said
            == (
                b"HTTP/1.1 418 I'm A Teapot\r\nContent-Length: %d\r\nX-Mine: \xc3\xbc\r\nx-b: 1\r\n"
                b"x-b: 2\r\nx-pointsman-replica: r0\r\nConnection: close\r\n\r\n" % len(answer)
            )
            + answer
        )
        result = await router.result()
        assert (result.outcome, result.status, result.attempts) == ("ok", 418, 1)
        assert result.response_bytes == len(answer)
        assert router.placer.placed[0].first_bytes == 1
        assert not router.placer.placed[0].failures


async def test_a_stream_is_not_held_back() -> None:
    """Each event is with the client before the engine sends the next, in chunks as they came."""
    heard = asyncio.Event()
    events = [b'data: {"id": "%d"}\n\n' % number for number in range(3)]
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}
    events.append(b"data: " + json.dumps({"usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD)
        for event in events:
            await connection.say(chunk(event))
            await heard.wait()
            heard.clear()
        await connection.say(LAST_CHUNK)

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        await client.say(post())
        expected = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-pointsman-replica: r0\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in events:
            await client.hear(expected + chunk(event))
            expected = b""
            heard.set()
        await client.hear(LAST_CHUNK)
        result = await router.result()
        assert result.outcome == "ok"
        assert result.usage == Usage(9, None, 3)
        assert result.ttft_s is not None
        client.close()


async def test_compressed_bodies_stay_compressed() -> None:
    """The bytes of a gzip body are the engine's, and so is its encoding."""
    body = gzip.compress(b'{"usage": {"prompt_tokens": 1}}')
    answer = whole(body, "200 OK", "Content-Encoding: gzip", "Content-Type: application/json")
    async with Engine(answering(answer)).running() as url, routing(FakePlacer(url)) as router:
        said = await router.ask(post(b"{}", CLOSE, "Accept-Encoding: gzip"))
        assert b"\r\nContent-Encoding: gzip\r\n" in said
        assert said.endswith(b"\r\n\r\n" + body)
        assert (await router.result()).usage is None


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000])
async def test_long_bodies_pass_both_ways(size: int) -> None:
    """Megabytes arrive whole in both directions."""
    body, answer = b"q" * size, b"a" * size
    received: list[bytes] = []

    async def talk(connection: Connection) -> None:
        received.append(await connection.request())
        await connection.say(whole(answer))

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        said = await router.ask(post(body, CLOSE))
        assert received[0].endswith(b"\r\n\r\n" + body)
        assert b"content-length: %d\r\n" % size in received[0].lower()
        assert said.endswith(b"\r\n\r\n" + answer)
        assert (await router.result()).response_bytes == size


async def test_a_chunked_request_gets_a_length() -> None:
    """What the client sends in chunks reaches the engine as one body."""
    received: list[bytes] = []

    async def talk(connection: Connection) -> None:
        received.append(await connection.request())
        await connection.say(whole(b"{}"))

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        request = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await router.ask(
            request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            + chunk(b'{"a"')
            + chunk(b": 1}")
            + LAST_CHUNK
        )
        assert received[0].endswith(b'\r\n\r\n{"a": 1}')
        assert b"transfer-encoding" not in received[0].lower()


async def test_huge_headers_pass() -> None:
    """Headers of 60 kB pass in both directions."""
    long = "x" * 60_000
    async with (
        Engine(answering(whole(b"{}", "200 OK", f"X-Long: {long}"))).running() as url,
        routing(FakePlacer(url)) as router,
    ):
        said = await router.ask(post(b"{}", CLOSE, f"X-Long: {long}"))
        assert f"X-Long: {long}".encode() in said
        assert (await router.result()).outcome == "ok"


async def test_a_body_that_ends_with_its_connection_is_passed_on() -> None:
    """An engine that tells no length is relayed in chunks with a proper end."""

    async def talk(connection: Connection) -> None:
        await connection.request()
        await connection.say(head() + b"all of it")

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        said = await router.ask(post(b"{}", CLOSE))
        assert said.endswith(b"\r\n\r\n" + chunk(b"all of it") + LAST_CHUNK)


async def test_an_http_1_0_client_gets_no_chunks() -> None:
    """Its body ends with the connection."""
    answer = STREAM_HEAD + chunk(b"one") + chunk(b"two") + LAST_CHUNK
    async with Engine(answering(answer)).running() as url, routing(FakePlacer(url)) as router:
        said = await router.ask(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert said.startswith(b"HTTP/1.0 200 OK\r\n")
        assert said.endswith(b"Connection: close\r\n\r\nonetwo")
        assert (await router.result()).outcome == "ok"


async def test_head_has_no_body() -> None:
    """The answer to HEAD ends with its head, and the connection goes on."""
    answer = head("200 OK", "Content-Length: 5")
    async with Engine(answering(answer)).running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        for _ in range(2):
            await client.say(b"HEAD /v1/models HTTP/1.1\r\nHost: r\r\n\r\n")
            await client.hear(
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx-pointsman-replica: r0\r\n\r\n"
            )
            assert (await router.result()).outcome == "ok"
        client.close()


async def test_interim_responses_and_expect_are_settled_between_neighbours() -> None:
    """A client that waits for 100 gets it from us, and an engine's own 100 ends here."""
    received: list[bytes] = []

    async def talk(connection: Connection) -> None:
        received.append(await connection.request())
        await connection.say(head("100 Continue") + whole(b"{}"))

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        request = post(b"{}", "Expect: 100-continue")
        await client.say(request[:-2])
        await client.hear(b"HTTP/1.1 100 Continue\r\n\r\n")
        await client.say(request[-2:])
        await client.hear(b"HTTP/1.1 200 OK\r\n")
        assert (await router.result()).outcome == "ok"
        assert b"expect" not in received[0].lower()
        client.close()


async def test_both_sides_keep_their_connections() -> None:
    """A second request uses the client's and the engine's first connection."""
    engine = Engine(answering(whole(b"{}")))
    async with engine.running() as url, routing(FakePlacer(url)) as router:
        client = await router.connect()
        for _ in range(3):
            await client.say(post())
            await client.hear(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-pointsman-replica: r0\r\n\r\n{}"
            )
            await router.result()
        assert engine.connections == 1
        client.close()


async def test_redirects_and_cookies_are_the_clients() -> None:
    """A redirect is passed on, not followed; a cookie of one client never comes with another's."""
    received: list[bytes] = []

    async def talk(connection: Connection) -> None:
        for _ in range(2):
            received.append(await connection.request())
            await connection.say(whole(b"", "307 Go", "Location: /x", "Set-Cookie: a=b"))

    async with Engine(talk).running() as url, routing(FakePlacer(url)) as router:
        for _ in range(2):
            said = await router.ask(post(b"{}", CLOSE))
            assert said.startswith(b"HTTP/1.1 307 Go\r\n")
            assert b"Set-Cookie: a=b" in said
        assert len(received) == 2
        assert b"cookie" not in received[1].lower()
