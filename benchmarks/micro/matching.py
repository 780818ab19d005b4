"""How long one match takes: a prompt of 8,192 blocks against every replica of a pool.

Honest because the ints of the prompt are other objects than those in the index, as in a process
that decodes both; because every replica holds 10,000 blocks of which most are of other prompts; and
because the caches are overwritten before each call of a ``cold`` figure. The replicas' events went
through ``ReplicaBlocks``. One scheme, no lower tiers.

An incomplete history cannot be bisected: it is scanned, and a replica that holds nothing of the
prompt costs most.
"""

import time
from collections.abc import Callable, Iterator
from random import Random

from msgspec import Raw

from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.workload import BLOCK_TOKENS, SEED, as_decoded, random_hashes
from indexer.events import BlockStored
from indexer.index import IndexedReplica, MemoryIndex, PoolName, ReplicaId
from indexer.residency import ReplicaBlocks
from proto.blockhash import BlockHash

_POOL = PoolName("model")
_SCHEME = "scheme"
_PROMPT_BLOCKS = 8192
_REPLICA_BLOCKS = 10_000
_RUNS = 201
_SCAN_RUNS = 21
_CACHE_BYTES = 64 * 2**20

Depths = Callable[[Random, int], int]


def uniform(rng: Random, prompt_blocks: int) -> int:
    return rng.randint(1, prompt_blocks)


def half(rng: Random, prompt_blocks: int) -> int:
    return prompt_blocks // 2


def none(rng: Random, prompt_blocks: int) -> int:
    return 0


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    runs = scaled(_RUNS, scale, 2)
    few, many = scaled(64, scale, 2), scaled(256, scale, 4)
    evict = bytearray(scaled(_CACHE_BYTES, scale, 1024))
    cases: list[tuple[str, int, Depths, bool]] = [
        ("64_replicas_random_depths", few, uniform, True),
        ("64_replicas_equal_depths", few, half, True),
        ("64_replicas_none_holds_any", few, none, True),
        ("256_replicas_random_depths", many, uniform, True),
        ("64_replicas_random_depths_incomplete_history", few, uniform, False),
        ("64_replicas_none_holds_any_incomplete_history", few, none, False),
    ]
    for name, replicas, depths, complete in cases:
        rng = Random(SEED)
        prompt = random_hashes(rng, scaled(_PROMPT_BLOCKS, scale, 16))
        index = MemoryIndex(filled_replicas(rng, prompt, replicas, depths, scale, complete))
        asked = as_decoded(prompt)
        n = runs if complete else scaled(_SCAN_RUNS, scale, 2)
        times = [_match_us(index, asked) for _ in range(n)]
        yield Measurement.of(f"match_8192_hashes_{name}", "us", times)
        if complete and replicas == few and depths is uniform:
            cold = [_match_us(index, asked, evict) for _ in range(n)]
            yield Measurement.of(f"match_8192_hashes_{name}_cold", "us", cold)


def filled_replicas(
    rng: Random,
    prompt: list[BlockHash],
    replicas: int,
    depths: Depths,
    scale: float,
    complete: bool = True,
) -> dict[ReplicaId, IndexedReplica]:
    """Each replica holds a prefix of the prompt and, up to its pool, blocks of other prompts."""
    filled = {}
    for number in range(replicas):
        depth = depths(rng, len(prompt))
        filler = random_hashes(rng, scaled(_REPLICA_BLOCKS, scale, len(prompt)) - depth)
        blocks = ReplicaBlocks()
        for hashes in (filler, as_decoded(prompt[:depth])):
            blocks.stored(stored_event(hashes))
        filled[ReplicaId(f"replica-{number}")] = IndexedReplica(
            _POOL, blocks, (_SCHEME,), history_complete=complete
        )
    return filled


def stored_event(hashes: list[BlockHash]) -> BlockStored:
    return BlockStored(
        list(hashes),
        None,
        Raw(b"\x90"),
        BLOCK_TOKENS,
        medium="GPU",
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def _match_us(index: MemoryIndex, asked: list[BlockHash], evict: bytearray | None = None) -> float:
    """``evict`` is larger than the caches: writing it leaves little of the index in them."""
    if evict is not None:
        evict[:] = bytes(len(evict))
    by_scheme = {_SCHEME: asked}
    begun = time.perf_counter()
    index.match(_POOL, by_scheme)
    return (time.perf_counter() - begun) * 1e6
