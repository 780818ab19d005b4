"""Events into an index: stored blocks per second of the consumer's processor time.

Both consume what ``benchmarks.micro.ingest`` measures ours with: the same process publishes the
same encoded batches over ZMQ to one after the other, everything at once, so this is the rate of a
backlog. Both are warmed up with 2,048 blocks that are not counted, and both are checked to have
applied every event. Each run has a fresh index in a process that has had some before.

What each does per block: ours takes the engine's hash, having proven from each chain's root that
it can compute it; Dynamo hashes the block's tokens itself and keeps the engine's hash beside it.
Its process has several threads, of which the processor time is added up.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

import uvloop

from benchmarks.micro.following import applied, check_complete, following
from benchmarks.micro.measurement import scaled
from benchmarks.micro.publishing import Published, live, process
from benchmarks.micro.workload import Shape
from benchmarks.peers import dynamo_indexer as dynamo
from benchmarks.peers.figures import OURS, Line
from benchmarks.peers.installing import installed
from benchmarks.peers.keepalive import Connection
from benchmarks.peers.running import Program
from benchmarks.peers.taking_turns import Round, take_turns

_UNIT = "blocks/s of CPU"
_WAIT_S_MAX = 60.0
_LOOK_EVERY_S = 0.02


def measure(rounds: int, scale: float = 1.0) -> Iterator[Line]:
    for shape in _shapes(scale):
        with process(live, shape) as (pipe, published):
            run = _Run(shape, pipe, published)
            entrants = {OURS: run.ours, dynamo.PEER: run.theirs}
            yield from take_turns(run.name, {run.name: _UNIT}, entrants, rounds)


def _shapes(scale: float) -> list[Shape]:
    def blocks(count: int) -> int:
        return scaled(count, scale, 256)

    return [
        Shape("64_blocks_per_event", blocks(131_072), 64),
        Shape("16_blocks_per_event", blocks(131_072), 16),
        Shape("1_block_per_event_32_events_per_batch", blocks(65_536), 1, 32),
    ]


class _Run:
    """One shape, whose publisher begins anew for whoever subscribes."""

    def __init__(self, shape: Shape, pipe: "Pipe[object, Published]", published: Published) -> None:
        self.name = f"ingest_{shape.name}"
        self._shape, self._pipe, self._published = shape, pipe, published

    @contextmanager
    def ours(self) -> Iterator[Round]:
        yield lambda: {self.name: self._rate(uvloop.run(self._ours_cpu_s()))}

    @contextmanager
    def theirs(self) -> Iterator[Round]:
        with dynamo.indexer(installed(dynamo.PACKAGE)) as program:
            # As ours, whose process has run before: its first run finds no memory of its own yet.
            asyncio.run(self._their_cpu_s(program))
            yield lambda: {self.name: self._rate(asyncio.run(self._their_cpu_s(program)))}

    def _rate(self, cpu_s: float) -> float:
        return (self._published.blocks - self._published.warm_blocks) / cpu_s

    async def _ours_cpu_s(self) -> float:
        """In this process, which does nothing else meanwhile."""
        published, pool_blocks = self._published, self._shape.pool_blocks
        async with following(published, pool_blocks) as hub:
            await asyncio.to_thread(self._pipe.send, True)
            await applied(hub, published.warm_batches)
            gc.collect()
            begun = time.process_time()
            self._pipe.send(True)
            link = await applied(hub, published.batches)
            cpu_s = time.process_time() - begun
            check_complete(link, published, pool_blocks)
        return cpu_s

    async def _their_cpu_s(self, program: Program) -> float:
        """It is looked at every 20 ms, over HTTP: well below a percent of its processor time."""
        published, per_batch = self._published, self._shape.events_per_batch
        connection = await Connection.open(program.port)
        try:
            before = await dynamo.events_applied(connection)
            self._pipe.send(True)
            await dynamo.register(connection, 1, published.endpoint)
            await _all_applied(connection, before + published.warm_batches * per_batch)
            begun = program.cpu_s()
            self._pipe.send(True)
            await _all_applied(connection, before + published.batches * per_batch)
            cpu_s = program.cpu_s() - begun
            await dynamo.unregister(connection, 1)
            return cpu_s
        finally:
            connection.close()


async def _all_applied(connection: Connection, events: int) -> None:
    async with asyncio.timeout(_WAIT_S_MAX):
        while await dynamo.events_applied(connection) < events:  # noqa: ASYNC110  # over HTTP
            await asyncio.sleep(_LOOK_EVERY_S)
