"""How fast events become an index: stored blocks per second of the consumer's processor time.

Honest because the path is the product's: another process publishes over TCP, the reader thread
receives, and the loop pumps as the indexer's does, proof of roots included. The denominator is the
processor time of the whole process, so ZMQ's threads and the reader count. Everything published is
checked to have arrived. The publisher runs ahead, hence this is the rate of a backlog: a trickle
of single batches pays a wake-up for each. Every chain is 64 blocks of 16 tokens, a root first.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import uvloop

from benchmarks.micro.following import applied, check_complete, following
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import Published, live, process
from benchmarks.micro.workload import Shape

_RUNS = 7
_POOL_BLOCKS = 20_000


def shapes(scale: float) -> list[Shape]:
    """``pool_blocks`` in the last: as many blocks leave as come, each with an event of its own."""
    pool = scaled(_POOL_BLOCKS, scale, 256)

    def blocks(count: int) -> int:
        return scaled(count, scale, 256)

    return [
        Shape("64_blocks_per_event_1_event_per_batch", blocks(131_072), 64),
        Shape(
            "64_blocks_per_event_1_event_per_batch_chains_of_1024",
            blocks(131_072),
            64,
            chain_blocks=1024,
        ),
        Shape("16_blocks_per_event_1_event_per_batch", blocks(131_072), 16),
        Shape("1_block_per_event_32_events_per_batch", blocks(65_536), 1, 32),
        Shape(
            "steady_16_stored_16_removed_per_batch",
            blocks(65_536),
            16,
            pool_blocks=pool,
            warm_blocks=pool,
        ),
    ]


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    for shape in shapes(scale):
        with process(live, shape) as (pipe, published):
            rates = [
                uvloop.run(_rate(pipe, published, shape)) for _ in range(scaled(_RUNS, scale, 2))
            ]
        yield Measurement.of(f"ingest_{shape.name}", "blocks/s of CPU", rates)


async def _rate(pipe: "Connection[object, Published]", published: Published, shape: Shape) -> float:
    """One run with a subscriber and a hub of its own."""
    async with following(published, shape.pool_blocks) as hub:
        await asyncio.to_thread(pipe.send, True)
        await applied(hub, published.warm_batches)
        gc.collect()
        begun = time.process_time()
        pipe.send(True)
        link = await applied(hub, published.batches)
        spent_s = time.process_time() - begun
        check_complete(link, published, shape.pool_blocks)
    return (published.blocks - published.warm_blocks) / spent_s
