"""The store: how fast it is written and read, what a block costs in it, what ingest pays for it.

Honest because everything goes through the product's own client and scripts to a Valkey server of
its own, as ``redis.folder`` runs one (append-only file, an fsync every second, a unix socket), in a
temporary folder. A flush is timed by the clock from the call to the answer, one after another, as
the indexer sends them per replica. Beside the clock's figures are those of processor time, ours or
the server's, which a machine that does other things changes less. Bytes are what the server says of
the keys. The 64 replicas answer when one match finds the same prompt of 512 blocks in each:
connecting, loading, and becoming an index again.

Ingest is a replay from a full buffer, timed until the store has all of it, once without a store and
once with one; the denominator is the processor time of the indexer's side, not of the server.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import redis.asyncio as redis
import uvloop
from structlog.testing import capture_logs

from benchmarks.micro.following import FOLLOWED, applied, check_complete, following
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.network import Unconnected
from benchmarks.micro.publishing import Published, process, replaying
from benchmarks.micro.workload import SEED, Shape, as_decoded, random_hashes, scheme
from indexer.durability import (
    BEHIND_BLOCKS_MAX,
    NOWHERE,
    REWRITE_BLOCKS_MAX,
    Flush,
    Writer,
    Written,
)
from indexer.embedded_store import EmbeddedStore
from indexer.hub import Hub, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.redis_store import RedisStore, keys_of
from indexer.remembering import Remembering
from indexer.residency import GPU, TierKey
from indexer.saved_state import SavedState
from proto.blockhash import BlockHash

_POOL = PoolName("pool")
_RUNS = 7
_FLUSHES = 16
_LOADS = {"20k": (20_000, 21), "100k": (100_000, 11), "1M": (1_000_000, 3)}
_REPLICAS = 64
_REPLICA_BLOCKS = 20_000
_PROMPT_BLOCKS = 512
_POOL_BLOCKS = 20_000
_KEPT_S_MAX = 60.0
# A slow moment of the machine is measured, and ends nothing.
_PATIENCE_S = 60.0


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    with capture_logs(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with tempfile.TemporaryDirectory(prefix="pointsman-bench-") as folder:
            server = EmbeddedStore(Path(folder))
            runner.run(server.start())
            try:
                yield from _store(runner, server.url, scale)
                yield from _ingest(runner, server.url, scale)
            finally:
                runner.run(server.stop())


def _store(runner: asyncio.Runner, url: str, scale: float) -> Iterator[Measurement]:
    runs = scaled(_RUNS, scale, 2)
    for name, added, removed in (
        (f"{BEHIND_BLOCKS_MAX}_new", BEHIND_BLOCKS_MAX, 0),
        ("2048_new_2048_removed", 2_048, 2_048),
        (f"rewrite_in_{REWRITE_BLOCKS_MAX}", REWRITE_BLOCKS_MAX, 0),
    ):
        sizes = scaled(added, scale, 16), scaled(removed, scale, 16) if removed else 0
        pairs = [runner.run(_flush_rates(url, *sizes)) for _ in range(runs)]
        yield Measurement.of(f"store_flush_{name}", "blocks/s", [wall for wall, _ in pairs])
        unit = "blocks/s of the server's CPU"
        yield Measurement.of(f"store_flush_{name}_server", unit, [cpu for _, cpu in pairs])
    for name, (blocks, runs) in _LOADS.items():
        loads, per_block = runner.run(
            _loads(url, scaled(blocks, scale, 64), scaled(runs, scale, 2))
        )
        yield from _spent(f"store_load_{name}", loads)
        yield Measurement.of(f"store_memory_{name}", "bytes per block", [per_block])
    answering = runner.run(_all_answer(url, scale))
    yield from _spent("store_load_64_replicas_20000_blocks_all_answer", answering)


class _Spent(NamedTuple):
    """Seconds by the clock, of our processor time and of the server's."""

    clock_s: float
    ours_s: float
    server_s: float


def _spent(name: str, runs: list[_Spent]) -> Iterator[Measurement]:
    for suffix, unit, values in zip(
        ("", "_ours", "_server"),
        ("ms", "ms of our CPU", "ms of the server's CPU"),
        zip(*runs, strict=True),
        strict=True,
    ):
        yield Measurement.of(name + suffix, unit, [value * 1e3 for value in values])


class _Replica:
    """What is written of one replica, flush by flush."""

    def __init__(self, store: RedisStore, name: str, writer: Writer) -> None:
        self.store, self.name, self._writer = store, ReplicaId(name), writer
        self.position, self.held = NOWHERE, 0

    async def write(self, added: list[BlockHash], removed: list[BlockHash]) -> float:
        """The seconds that a flush takes."""
        first = self.position == NOWHERE
        self.held += len(added) - len(removed)
        copies = dict.fromkeys(map(int, added), 1)
        after = self._writer.new_position()
        flush = Flush(
            self._writer.name, self.position, after, first, list(removed), copies, self.held, _STATE
        )
        begun = time.perf_counter()
        answer = await self.store.flush(_POOL, self.name, flush)
        spent_s = time.perf_counter() - begun
        assert answer == Written(), answer
        self.position = after
        return spent_s

    async def fill(self, hashes: list[BlockHash]) -> None:
        for first in range(0, len(hashes), REWRITE_BLOCKS_MAX):
            await self.write(hashes[first : first + REWRITE_BLOCKS_MAX], [])


_STATE = SavedState(
    7,
    bytes(32),
    history_complete=True,
    ever_proven=True,
    base=scheme(),
    forms=frozenset(("tagged",)),
    tier=TierKey(GPU, "GPU", 0, None, None),
)


async def _flush_rates(url: str, added: int, removed: int) -> tuple[float, float]:
    """Blocks per second by the clock and of the server's processor time."""
    rng, store = Random(SEED), RedisStore(url, answer_s_max=_PATIENCE_S)
    await _emptied(url)
    replica = _Replica(store, "flushed", Writer("writer"))
    before = random_hashes(rng, removed)
    await replica.fill(before)
    spent_s, cpu_before_s = 0.0, await _server_cpu_s(url)
    for _ in range(_FLUSHES):
        hashes = random_hashes(rng, added)
        spent_s += await replica.write(hashes, before if removed else [])
        before = hashes
    cpu_s = await _server_cpu_s(url) - cpu_before_s
    await store.close()
    blocks = _FLUSHES * (added + removed)
    return blocks / spent_s, blocks / max(cpu_s, 1e-6)


async def _server_cpu_s(url: str) -> float:
    async with redis.Redis.from_url(url) as client:
        info = await client.info("cpu")
    return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])


async def _loads(url: str, blocks: int, runs: int) -> tuple[list[_Spent], float]:
    """Each load, and the bytes that a block takes."""
    store = RedisStore(url, answer_s_max=_PATIENCE_S)
    await _emptied(url)
    replica = _Replica(store, "loaded", Writer("writer"))
    await replica.fill(random_hashes(Random(SEED), blocks))
    per_block = await _bytes_of(url, replica) / blocks

    async def load() -> None:
        saved = await store.load(_POOL, replica.name)
        assert saved is not None and len(saved.counts) == blocks

    spent = [await _spent_on(url, load) for _ in range(runs)]
    await store.close()
    return spent, per_block


async def _spent_on(url: str, work: Callable[[], Awaitable[None]]) -> _Spent:
    gc.collect()
    server_s, ours_s, begun = await _server_cpu_s(url), time.process_time(), time.perf_counter()
    await work()
    clock_s, ours_s = time.perf_counter() - begun, time.process_time() - ours_s
    return _Spent(clock_s, ours_s, await _server_cpu_s(url) - server_s)


async def _all_answer(url: str, scale: float) -> list[_Spent]:
    """From nothing to a match that finds the prompt in each of the replicas."""
    replicas, blocks = scaled(_REPLICAS, scale, 2), scaled(_REPLICA_BLOCKS, scale, 64)
    rng, store = Random(SEED), RedisStore(url, answer_s_max=_PATIENCE_S)
    prompt = random_hashes(rng, scaled(_PROMPT_BLOCKS, scale, 16))
    await _emptied(url)
    names = [f"replica-{number}" for number in range(replicas)]
    for name in names:
        others = random_hashes(rng, blocks - len(prompt))
        await _Replica(store, name, Writer(name)).fill([*others, *prompt])
    await store.close()
    asked, spent = as_decoded(prompt), []
    for _ in range(scaled(_RUNS, scale, 2)):
        hub = Hub(Unconnected(), writer="reader")
        remembering = Remembering(RedisStore(url, answer_s_max=_PATIENCE_S), hub)
        spent.append(await _spent_on(url, partial(_answer, hub, remembering, names, asked)))
        await remembering.stop()
    return spent


async def _answer(
    hub: Hub, remembering: Remembering, names: list[str], prompt: list[BlockHash]
) -> None:
    async def join(name: str) -> None:
        source = RankSource(ReplicaId(name), _POOL, name, 0, "tcp://h:1", "tcp://h:2")
        hub.add(source, time.monotonic(), await remembering.load(source))

    await asyncio.gather(*map(join, names))
    matches = hub.index.match(_POOL, {scheme().id: prompt})
    assert len(matches) == len(names), f"{len(matches)} answer"


async def _emptied(url: str) -> None:
    async with redis.Redis.from_url(url) as client:
        await client.flushall()


async def _bytes_of(url: str, replica: _Replica) -> int:
    """Of every element, none of them estimated."""
    async with redis.Redis.from_url(url) as client:
        keys = keys_of(_POOL, replica.name)
        return sum([await client.memory_usage(key, samples=0) or 0 for key in keys])


# Ingest.


def _ingest(runner: asyncio.Runner, url: str, scale: float) -> Iterator[Measurement]:
    for shape in _shapes(scale):
        with process(replaying, shape) as (_, published):
            for name, store_url in (("without_store", None), ("with_store", url)):
                rates = [
                    runner.run(_ingest_rate(published, shape, store_url))
                    for _ in range(scaled(_RUNS, scale, 2))
                ]
                yield Measurement.of(
                    f"ingest_replayed_{shape.name}_{name}", "blocks/s of CPU", rates
                )


def _shapes(scale: float) -> list[Shape]:
    pool = scaled(_POOL_BLOCKS, scale, 256)

    def blocks(count: int) -> int:
        return scaled(count, scale, 256)

    return [
        Shape("64_blocks_per_batch", blocks(131_072), 64, warm_blocks=0),
        Shape("16_blocks_per_batch", blocks(131_072), 16, warm_blocks=0),
        Shape("16_stored_16_removed", blocks(65_536), 16, pool_blocks=pool, warm_blocks=0),
    ]


async def _ingest_rate(published: Published, shape: Shape, url: str | None) -> float:
    """From the connection until everything is applied and, with a store, kept."""
    if url is not None:
        await _emptied(url)
    gc.collect()
    begun = time.process_time()
    async with following(published, shape.pool_blocks, url) as hub:
        link = await applied(hub, published.batches)
        async with asyncio.timeout(_KEPT_S_MAX):
            while url is not None and not _is_kept(hub):  # noqa: ASYNC110  # no event of its own
                await asyncio.sleep(0.005)
        spent_s = time.process_time() - begun
        check_complete(link, published, shape.pool_blocks)
    return published.blocks / spent_s


def _is_kept(hub: Hub) -> bool:
    link = hub.links[FOLLOWED]
    assert link.journal is not None
    written, applied_seq = link.journal.written_seq, link.state.applied_seq
    return written == applied_seq and link.journal.durable(time.monotonic())
