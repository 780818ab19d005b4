"""A cluster of three masters: each replica's keys are in one slot, wherever that is or goes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import redis

from indexer.durability import Written
from indexer.index import ReplicaId
from indexer.redis_store import RedisStore, keys_of
from indexer.saved_state import Saved
from tests.contract.conftest import POOL
from tests.contract.test_store import FIRST, STATE, flush
from tests.ports import free_port_pair
from tests.processes import WAIT_S
from tests.valkey import plain_client, valkey

MASTERS = 3
SLOTS = 16_384


@asynccontextmanager
async def cluster(folder: Path, binary: Path | None) -> AsyncIterator[list[redis.Redis]]:
    """A client of each master, once they agree on who has which slots."""
    with ExitStack() as stack:
        clients = []
        for number in range(MASTERS):
            config = {"cluster-enabled": "yes", "cluster-port": free_port_pair()}
            server = stack.enter_context(valkey(folder / str(number), binary=binary, **config))
            client = stack.enter_context(plain_client(server))
            first, end = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if clients:
                bus = config["cluster-port"]
                clients[0].execute_command("CLUSTER MEET", "127.0.0.1", server.port, bus)
            clients.append(client)
        async with asyncio.timeout(WAIT_S):
            while not all(map(_agrees, clients)):  # noqa: ASYNC110  # servers have no event
                await asyncio.sleep(0.05)
        yield clients


def _agrees(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(MASTERS))


def _port(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


async def test_a_cluster_keeps_every_replica(tmp_path: Path, binary: Path | None) -> None:
    """Twenty replicas, spread over the masters, are written and loaded as by one server."""
    async with cluster(tmp_path, binary) as clients:
        store = RedisStore(f"redis+cluster://127.0.0.1:{_port(clients[0])}")
        replicas = [ReplicaId(f"replica-{number}") for number in range(20)]
        for replica in replicas:
            assert await store.flush(POOL, replica, FIRST) == Written()
            assert await store.load(POOL, replica) == Saved("w:1", STATE, Counter(FIRST.copies))
        assert all(client.dbsize() for client in clients)
        assert await store.warnings() == []
        await store.close()


async def test_a_slot_that_moves_is_followed(tmp_path: Path, binary: Path | None) -> None:
    """Resharding a replica's slot to another master loses neither a flush nor a load."""
    async with cluster(tmp_path, binary) as clients:
        replica = ReplicaId("replica-1")
        store = RedisStore(f"redis+cluster://127.0.0.1:{_port(clients[0])}")
        await store.flush(POOL, replica, FIRST)
        keys = keys_of(POOL, replica)
        slot = int(clients[0].execute_command("CLUSTER KEYSLOT", keys[0]))
        owner = next(client for client in clients if client.dbsize())
        target = next(client for client in clients if client is not owner)
        ids = [client.execute_command("CLUSTER MYID") for client in (owner, target)]
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        owner.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        owner.execute_command(
            "MIGRATE", "127.0.0.1", _port(target), "", 0, 5000, "KEYS", *map(str.encode, keys)
        )
        for client in (target, owner):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert await store.flush(POOL, replica, flush("w:1", "w:2", {9: 1}, held=4)) == Written()
        assert target.dbsize() == 3 and not owner.dbsize()
        assert await store.load(POOL, replica) == Saved(
            "w:2", STATE, Counter({**FIRST.copies, 9: 1})
        )
        await store.close()
