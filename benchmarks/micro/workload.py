"""What an engine would publish, from a seed: tokens, chains of blocks, batches of events.

Token ids follow Zipf's law with exponent 1 over Qwen's vocabulary, so that their encodings have the
lengths of real text and the lookups miss the caches as often as real text does. Hashes are real:
the chain's recipe reproduces them, hence the consumer's proof does its whole work.
"""

import math
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.sim.chain import BlockChain
from benchmarks.sim.events import BlockRemoved, BlockStored, KVEvent
from benchmarks.sim.wire import WireFormat
from proto.blockhash import BlockHash, EngineScheme

VOCABULARY = 151_936
BLOCK_TOKENS = 16
SEED = 20_261_130


@dataclass(frozen=True, slots=True)
class Shape:
    """How events come. With ``pool_blocks`` every block stored beyond it evicts the oldest one.

    ``warm_blocks`` come first and are not measured: connecting, the proof, filling the pool.
    """

    name: str
    blocks: int
    blocks_per_event: int
    events_per_batch: int = 1
    chain_blocks: int = 64
    pool_blocks: int | None = None
    warm_blocks: int = 2048


def scheme() -> EngineScheme:
    return EngineScheme("sha256_cbor", "0", BLOCK_TOKENS)


def zipf_tokens(rng: Random, count: int) -> list[int]:
    """P(id) falls as 1 / (id + 1): the inverse of its distribution function is an exponential."""
    span = math.log(VOCABULARY)
    return [min(VOCABULARY - 1, int(math.exp(span * rng.random())) - 1) for _ in range(count)]


def random_hashes(rng: Random, count: int) -> list[BlockHash]:
    """Distinct, and spread like digests."""
    return list(struct.unpack(f"<{count}Q", rng.randbytes(8 * count)))


def as_decoded(hashes: Sequence[BlockHash]) -> list[BlockHash]:
    """Equal ints that are other objects, as those of another message are: ``is`` finds nothing."""
    return list(struct.unpack(f"<{len(hashes)}Q", struct.pack(f"<{len(hashes)}Q", *hashes)))


def payloads(shape: Shape) -> Iterator[tuple[int, bytes]]:
    """Each batch as vLLM 0.33 encodes it with int hashes, and how many blocks it stores."""
    wire = WireFormat("0.33", int_hashes=True)
    for number, events in enumerate(batches(shape)):
        stored = sum(len(e.block_hashes) for e in events if isinstance(e, BlockStored))
        yield stored, wire.encode(1_764_460_800.0 + number / 100, events, 0)


def batches(shape: Shape) -> Iterator[list[KVEvent]]:
    """Blocks leave before others take their place, as in vLLM's pool."""
    held: deque[bytes] = deque()
    batch: list[KVEvent] = []
    stored = 0
    for event in _stored(shape):
        if shape.pool_blocks is not None:
            held.extend(event.block_hashes)
            while len(held) > shape.pool_blocks:
                batch.append(BlockRemoved(held.popleft()))
        batch.append(event)
        stored += 1
        if stored % shape.events_per_batch == 0:
            yield batch
            batch = []
    if batch:
        yield batch


def _stored(shape: Shape) -> Iterator[BlockStored]:
    rng, made, step = Random(SEED), 0, shape.blocks_per_event
    while made < shape.warm_blocks + shape.blocks:
        chain = BlockChain(scheme(), zipf_tokens(rng, shape.chain_blocks * BLOCK_TOKENS))
        for first in range(0, shape.chain_blocks, step):
            yield chain.stored(first, min(first + step, shape.chain_blocks))
        made += shape.chain_blocks
