"""How late a match answers while 10,000 batches are replayed: the 99th percentile per run.

Honest because the clock starts when a match was due, not when it began: a schedule every 2 ms that
does not wait for the answers, so a blocked loop delays, and counts, each match that it holds up. It
includes the timer's own lateness, up to 1 ms in uvloop. Another process replays from a full buffer
in vLLM 0.33's format, as fast as ZMQ takes it; the index meanwhile answers for 64 replicas, of
which one is the replayed one. A batch stores 32 blocks and removes as many. The table of encoded
tokens is made beforehand: what it costs the first time is in ``hashing``.
"""

import asyncio
import gc
import math
import time
from collections.abc import Iterator
from random import Random

import uvloop

from benchmarks.micro.following import POOL, applied, check_complete, following
from benchmarks.micro.matching import filled_replicas, uniform
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import Published, process, replaying
from benchmarks.micro.workload import BLOCK_TOKENS, SEED, Shape, as_decoded, random_hashes, scheme
from indexer.index import IndexedReplica, MemoryIndex, ReplicaId
from proto.blockhash import BlockHash

_BATCHES = 10_000
_BATCH_BLOCKS = 32
_POOL_BLOCKS = 20_000
_PROMPT_BLOCKS = 512
_REPLICAS = 64
_EVERY_S = 0.002
_RUNS = 7


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    shape = Shape(
        "replay",
        scaled(_BATCHES, scale, 64) * _BATCH_BLOCKS,
        _BATCH_BLOCKS,
        pool_blocks=scaled(_POOL_BLOCKS, scale, 256),
        warm_blocks=0,
    )
    rng = Random(SEED)
    prompt = random_hashes(rng, _PROMPT_BLOCKS)
    others = filled_replicas(rng, prompt, scaled(_REPLICAS, scale, 2) - 1, uniform, scale)
    scheme().block_hashes([0] * BLOCK_TOKENS)
    runs = []
    with process(replaying, shape) as (_, published):
        for _ in range(scaled(_RUNS, scale, 2)):
            runs.append(uvloop.run(_run(published, shape, others, as_decoded(prompt))))
    name = "match_512_hashes_64_replicas_during_10000_batch_replay"
    for kind, figures in zip(("p50", "p99", "max"), zip(*runs, strict=True), strict=True):
        yield Measurement.of(f"{name}_{kind}", "ms", figures)


async def _run(
    published: Published,
    shape: Shape,
    others: dict[ReplicaId, IndexedReplica],
    prompt: list[BlockHash],
) -> tuple[float, float, float]:
    """Matches from before the replay's first batch to after its last: p50, p99 and maximum."""
    gc.collect()
    asking = Asking(prompt)
    async with following(published, shape.pool_blocks) as hub:
        for replica_id, replica in others.items():
            hub.index.add(replica_id, replica)
        asking.begin(hub.index)
        link = await applied(hub, published.batches)
        asking.over = True
        check_complete(link, published, shape.pool_blocks)
    ordered = sorted(asking.late_ms)
    return ordered[len(ordered) // 2], ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1]


class Asking:
    """Asks for one match every ``_EVERY_S`` by the clock, and notes how late each answer was."""

    def __init__(self, prompt: list[BlockHash]) -> None:
        self.late_ms: list[float] = []
        self.over = False
        self._hashes_by_scheme = {"scheme": prompt}

    def begin(self, index: MemoryIndex) -> None:
        self._index, self._loop = index, asyncio.get_running_loop()
        self._schedule(time.monotonic() + _EVERY_S)

    def _schedule(self, due: float) -> None:
        self._loop.call_at(due, self._ask, due)

    def _ask(self, due: float) -> None:
        """Answers everything that is due by now: nothing queues behind another one's timer."""
        if self.over:
            return
        # The loop's own clock stands still within a turn, and has steps of 1 ms.
        now = time.monotonic()
        while due <= now:
            self._index.match(POOL, self._hashes_by_scheme)
            self.late_ms.append((time.monotonic() - due) * 1e3)
            due += _EVERY_S
        self._schedule(due)
