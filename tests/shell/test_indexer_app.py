"""The indexer's app inside another process: started, asked and stopped on the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from aiohttp import web

from indexer.app import IndexerApp
from indexer.config import parse_config
from indexer.listener import ListenError
from proto import indexer_pb2 as pb
from proto.contract import HashedPrefix
from proto.indexer_pb2_grpc import IndexerStub

CONFIG = '[http]\nlisten = "127.0.0.1:0"\n[grpc]\nlisten = "127.0.0.1:{port}"\n'


def app_on(port: int = 0, more: str = "") -> IndexerApp:
    return IndexerApp(parse_config((CONFIG.format(port=port) + more).encode()))


@asynccontextmanager
async def running(app: IndexerApp) -> AsyncIterator[IndexerApp]:
    ready, stopping = asyncio.Event(), asyncio.Event()
    run = asyncio.create_task(app.run(ready, stopping))
    await ready.wait()
    yield app
    stopping.set()
    await run


async def test_it_runs_beside_others_and_stops() -> None:
    """No signal is needed: it answers in-process, over gRPC and HTTP, until told to stop."""
    async with running(app_on()) as app:
        assert await app.local.match("default", [HashedPrefix("x", [1])]) == {}
        states = app.local.watch()
        assert await anext(states) == ()
        await states.aclose()
        async with grpc.aio.insecure_channel(app.grpc_address) as channel:
            assert not (await IndexerStub(channel).ListReplicas(pb.ListReplicasRequest())).replicas
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{app.address[1]}/health") as answer:
                assert answer.status == 200
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", app.address[1]))


async def test_open_streams_do_not_hold_up_a_stop() -> None:
    """A watcher and a match stream are cut off, and learn of it."""
    async with running(app_on()) as app:
        channel = grpc.aio.insecure_channel(app.grpc_address)
        watch = IndexerStub(channel).WatchReplicas(pb.WatchReplicasRequest())
        await watch.read()
        stream = IndexerStub(channel).MatchStream()
        await stream.write(pb.MatchStreamRequest(request_id=1))
        await stream.read()
    for call in (watch, stream):
        with pytest.raises(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
            raise AssertionError("ended as if all were well")
    await channel.close()


async def test_a_taken_port_is_an_error_that_says_so() -> None:
    """Two indexers never share a port silently, and the first one goes on."""
    async with running(app_on()) as app:
        port = int(app.grpc_address.rpartition(":")[2])
        with pytest.raises(ListenError, match=f"127.0.0.1:{port} cannot be listened on"):
            async with asyncio.timeout(60):
                await app_on(port).run(stopping=asyncio.Event())
        assert await app.local.match("default", []) == {}


async def test_an_engine_s_key_goes_where_the_configuration_says() -> None:
    """A replica that somebody registered does not get it, unless registered ones are trusted."""
    seen: dict[str, str | None] = {}
    both = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        seen[request.path.split("/")[1]] = request.headers.get("Authorization")
        if len(seen) == 2:
            both.set()
        return web.Response(status=503)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    for trust in (False, True):
        seen.clear()
        both.clear()
        config = CONFIG.format(port=0) + f"trust_registered = {str(trust).lower()}\n"
        config += f'[[replicas]]\nname = "c"\nurl = "{url}/configured"\n'
        app = IndexerApp(parse_config(config.encode()), {"Authorization": "Bearer key"})
        async with running(app), grpc.aio.insecure_channel(app.grpc_address) as channel:
            request = pb.RegisterReplicaRequest(name="r", url=f"{url}/registered")
            await IndexerStub(channel).RegisterReplica(request)
            await both.wait()
        registered = "Bearer key" if trust else None
        assert seen == {"configured": "Bearer key", "registered": registered}
    await runner.cleanup()


async def test_a_store_that_does_not_start_is_shown_and_costs_nothing_else(tmp_path: Path) -> None:
    """It answers from memory, and whoever asks whether it is ready reads why that is all."""
    (tmp_path / "file").write_text("")
    wanted = {
        f'[redis]\nfolder = "{tmp_path}/file"\n': "file",
        "[redis]\nenabled = false\n": "switched off",
        "": "none is configured",
    }
    for more, error in wanted.items():
        async with running(app_on(more=more)) as app, aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{app.address[1]}/ready") as answer:
                said = await answer.json()
            assert said["durable"] is False and error in said["store_error"]
            assert await app.local.match("default", []) == {}
