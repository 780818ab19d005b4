"""Discovery against HTTP servers: real answers, missing ones, failing ones and hostile ones."""

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from indexer.discovery import BODY_BYTES_MAX, DiscoveryError, ReplicaUnavailable, discover
from indexer.sources import CacheFacts

SOURCES = b"""{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
 "replay_endpoint": "tcp://*:5657", "buffer_steps": 10000, "hwm": 100000, "topic": ""}}"""
MODELS = b"""{"object": "list", "data": [
 {"id": "base", "object": "model", "root": "/m", "parent": null, "max_model_len": 4096},
 {"id": "sql", "object": "model", "root": "/loras/sql", "parent": "base"}]}"""
METRICS = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
num_gpu_blocks="1000",prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="base",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="base",sleep_state="discard_all"} 0.0
this line is of no interest { and would not parse
"""
BODIES = {
    "/version": b'{"version": "0.32.0"}',
    "/kv_event_sources": SOURCES,
    "/v1/models": MODELS,
    "/metrics": METRICS,
}
Answer = bytes | int | Callable[[web.Request], web.StreamResponse]


@pytest.fixture
async def replica() -> AsyncIterator[Callable]:
    """Serves ``BODIES`` with some paths answered otherwise, and discovers it."""
    servers: list[TestServer] = []

    async def discovered(changes: dict[str, Answer] | None = None, timeout_s: float = 5.0):
        answers = {**BODIES, **(changes or {})}

        async def answer(request: web.Request) -> web.StreamResponse:
            found = answers[request.path]
            if isinstance(found, int):
                return web.Response(status=found)
            if isinstance(found, bytes):
                return web.Response(body=found)
            return await found(request)

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        server = TestServer(app)
        servers.append(server)
        await server.start_server()
        async with aiohttp.ClientSession() as session:
            return await discover(session, f"http://127.0.0.1:{server.port}", timeout_s)

    yield discovered
    for server in servers:
        await server.close()


async def test_everything_a_replica_tells(replica):
    """The facts of all four requests come together."""
    facts = await replica()
    assert facts.version == "0.32.0"
    (source,) = facts.sources
    assert (source.endpoint, source.binds) == ("tcp://127.0.0.1:5557", True)
    assert facts.models == ("base",)
    assert facts.lora_paths == {"sql": "/loras/sql"}
    assert facts.cache == CacheFacts(1000, 16, "sha256", True)
    assert facts.blocks_total == 1000
    assert facts.sleep_states == {0: "awake"}


async def test_an_older_engine_has_no_sources_to_tell(replica):
    """A 404 of /kv_event_sources is None, which is not the empty tuple of switched off events."""
    assert (await replica({"/kv_event_sources": 404})).sources is None
    assert (await replica({"/kv_event_sources": b"{}"})).sources == ()


async def test_metrics_are_optional(replica):
    """Without /metrics the cache is unknown, and everything else is known."""
    facts = await replica({"/metrics": 404})
    assert facts.cache == CacheFacts()
    assert facts.sleep_states == {}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_failing_server_may_recover(replica, path, status):
    """Server errors are ReplicaUnavailable on every path."""
    with pytest.raises(ReplicaUnavailable, match=str(status)):
        await replica({path: status})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [204, 301, 400, 401, 403])
async def test_other_statuses_are_no_facts(replica, path, status):
    """They are errors that waiting does not heal; 401 and 403 speak of the API key."""
    with pytest.raises(DiscoveryError, match=str(status)) as caught:
        await replica({path: status})
    assert not isinstance(caught.value, ReplicaUnavailable)
    assert ("API key" in str(caught.value)) == (status in (401, 403))


@pytest.mark.parametrize("path", ["/version", "/v1/models"])
async def test_a_server_without_the_essentials_is_not_vllm(replica, path):
    """A 404 of what every vLLM serves says that the URL is wrong."""
    with pytest.raises(DiscoveryError, match="root of a vLLM server"):
        await replica({path: 404})


@pytest.mark.parametrize("path", ["/version", "/kv_event_sources", "/v1/models"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff", b"[" * 200_000, b'{"data": 1}'])
async def test_a_body_that_is_not_vllms_is_a_typed_error(replica, path, body):
    """Whatever a path answers, the error is a DiscoveryError that names the path."""
    with pytest.raises(DiscoveryError, match=path):
        await replica({path: body})


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:cache_config_info{block_size="16" 1.0',
        b"vllm:cache_config_info{} x",
        b'vllm:cache_config_info{a="\\',
        b"vllm:engine_sleep_state{{{",
        b'vllm:cache_config_info{a="1"} 1.0\n' * 5000,
    ],
)
async def test_metrics_that_do_not_parse_are_a_typed_error(replica, line):
    """A broken or endless line of interest is a DiscoveryError, not the parser's exception."""
    with pytest.raises(DiscoveryError, match="/metrics"):
        await replica({"/metrics": line + b"\n"})


@pytest.mark.parametrize("path", BODIES)
async def test_an_endless_body_is_cut(replica, path):
    """A body above the limit is refused while it still comes."""

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with pytest.raises(ConnectionError):
            while True:
                await response.write(b" " * 2**16)
        return response

    with pytest.raises(DiscoveryError, match=str(BODY_BYTES_MAX)):
        await replica({path: flood})


async def test_a_compressed_bomb_is_not_inflated(replica):
    """A body that claims to be compressed is not unpacked, whoever sends it unasked."""
    bomb = gzip.compress(b" " * 2**26)

    async def compressed(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    tracemalloc.start()
    try:
        with pytest.raises(DiscoveryError, match="/version answered something"):
            await replica({"/version": compressed})
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


async def test_redirects_are_not_followed(replica):
    """A replica cannot send the indexer to another address."""

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/v1/models")

    with pytest.raises(DiscoveryError, match="302"):
        await replica({"/version": elsewhere})


async def test_a_silent_replica_costs_the_timeout(replica):
    """A replica that never answers is ReplicaUnavailable after timeout_s."""

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(ReplicaUnavailable, match=r"within 0\.1 s"):
        await replica({"/metrics": never}, timeout_s=0.1)


async def test_nobody_listening_is_unavailable():
    """A refused connection is ReplicaUnavailable, and names the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ReplicaUnavailable, match=url):
            await discover(session, url, 5.0)


async def test_something_that_is_not_http_is_unavailable():
    """A peer that answers garbage is a DiscoveryError."""

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x01garbage\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session:
        with pytest.raises(DiscoveryError):
            await discover(session, f"http://127.0.0.1:{port}", 5.0)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://127.0.0.1", "http://127.0.0.1:x"])
async def test_a_bad_url_is_a_typed_error(url):
    """What is no URL of an HTTP server raises DiscoveryError."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(DiscoveryError):
            await discover(session, url, 1.0)
