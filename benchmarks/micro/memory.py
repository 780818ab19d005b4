"""What holding a block costs: bytes per (replica, block) of 64 replicas with 20,000 blocks each.

Honest because no two replicas share a block, every int is an object of its own, the blocks come 16
per event through ``ReplicaBlocks``, and what is counted is the growth of a fresh process's resident
set, so the allocator's waste is in it. ``churned`` is the same after as many blocks again came as
are held, each in the place of the oldest: removed entries make a dict resize to a larger table.
"""

import gc
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from benchmarks.micro.matching import stored_event
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import process
from benchmarks.micro.workload import SEED, random_hashes
from indexer.events import BlockRemoved
from indexer.residency import ReplicaBlocks
from proto.blockhash import BlockHash

_REPLICAS = 64
_BLOCKS = 20_000
_EVENT_BLOCKS = 16
_RUNS = 3

Grown = tuple[float, float]


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    size = (scaled(_REPLICAS, scale, 2), scaled(_BLOCKS, scale, 64))
    runs: list[Grown] = []
    for _ in range(scaled(_RUNS, scale, 1)):
        with process(fill, size) as (_, grown):
            runs.append(grown)
    for name, figures in zip(("filled", "churned"), zip(*runs, strict=True), strict=True):
        unit = "bytes per replica and block"
        yield Measurement.of(f"memory_64_replicas_20000_blocks_{name}", unit, figures)


def fill(pipe: "Connection[Grown, object]", size: tuple[int, int]) -> None:
    """The measured process: sends bytes per block when filled and when churned."""
    replicas, blocks = size
    rng = Random(SEED)
    # The first block brings in whatever code and caches the others share.
    _replace(ReplicaBlocks(), random_hashes(rng, _EVENT_BLOCKS), blocks)
    before = _resident_bytes()
    all_blocks = [ReplicaBlocks() for _ in range(replicas)]
    for each in all_blocks:
        _replace(each, random_hashes(rng, blocks), blocks)
    filled = (_resident_bytes() - before) / (replicas * blocks)
    for each in all_blocks:
        _replace(each, random_hashes(rng, blocks), blocks)
    churned = (_resident_bytes() - before) / (replicas * blocks)
    assert all(len(each.primary.counts) == blocks for each in all_blocks)
    pipe.send((filled, churned))


def _replace(each: ReplicaBlocks, hashes: list[BlockHash], pool_blocks: int) -> None:
    """Stores the hashes 16 per event; beyond the pool's size the oldest blocks leave first.

    A dict keeps insertion order, so the oldest are its first keys.
    """
    oldest = list(each.primary.counts)
    for first in range(0, len(hashes), _EVENT_BLOCKS):
        arriving = hashes[first : first + _EVENT_BLOCKS]
        excess = len(each.primary.counts) + len(arriving) - pool_blocks
        leaving, oldest = oldest[: max(0, excess)], oldest[max(0, excess) :]
        for block_hash in leaving:
            each.removed(BlockRemoved([block_hash], medium="GPU", group_idx=0))
        each.stored(stored_event(arriving))


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
