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
from typing import Any

from benchmarks.micro.matching import stored_event
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import Published, process
from benchmarks.micro.workload import SEED, Shape, random_hashes
from indexer.events import BlockRemoved
from indexer.residency import ReplicaBlocks

_REPLICAS = 64
_BLOCKS = 20_000
_EVENT_BLOCKS = 16
_RUNS = 3


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    replicas, blocks = scaled(_REPLICAS, scale, 2), scaled(_BLOCKS, scale, 64)
    names = ("filled", "churned")
    runs = [_grown(replicas, blocks) for _ in range(scaled(_RUNS, scale, 1))]
    for name, figures in zip(names, zip(*runs, strict=True), strict=True):
        unit = "bytes per replica and block"
        yield Measurement.of(f"memory_64_replicas_20000_blocks_{name}", unit, figures)
