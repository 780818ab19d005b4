"""The physical blocks of one engine: which hold what, who uses them, which goes next.

It decides which block is handed out and which copy of a hash is reused, as vLLM's `BlockPool` does.
Rules it keeps:

* Block 0 is the null block, so the capacity is one less than the number of blocks.
* A hash has as many copies as blocks that were filled with it; nothing is ever deduplicated.
* The free queue runs from the block reused next to the one reused last. A request's blocks are
  freed from its tail, so tails are evicted before the heads they hang on. Blocks that hold nothing
  go to the front: reusing one costs nobody a hit. vLLM does so since 0.24; before, every block
  went to the end (`unhashed_first` False).
* A block keeps its hash while it is free. Only handing it out evicts it, which is one event.
* Nothing here takes time in proportion to the pool, but for `reset` and `truth`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NewType

from benchmarks.sim.events import AllBlocksCleared, BlockRemoved, KVEvent
from proto.blockhash import BlockHash, normalise

BlockId = NewType("BlockId", int)


class BlockPool:
    """Raises ValueError for fewer than two blocks: the null block alone holds nothing."""

    def __init__(self, num_blocks: int, unhashed_first: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError(f"{num_blocks} blocks: the first is the null block, so at least 2")
        self.capacity = num_blocks - 1
        self._unhashed_first = unhashed_first
        self._digests: list[bytes | None] = [None] * num_blocks
        self._references = [0] * num_blocks
        self._free = OrderedDict.fromkeys(map(BlockId, range(1, num_blocks)))
        # The copies of a hash in the order they were stored; lookups take the first.
        self._holders: dict[bytes, dict[BlockId, None]] = {}
        self._events: list[KVEvent] = []

    def __repr__(self) -> str:
        return f"<BlockPool {self.used}/{self.capacity} used, {len(self._holders)} hashes>"

    @property
    def used(self) -> int:
        """Blocks that a request holds now."""
        return self.capacity - len(self._free)

    @property
    def unpublished_events(self) -> int:
        """Events that wait for the next step: a reset of an engine that has been idle since."""
        return len(self._events)

    def match(self, digests: Sequence[bytes], blocks_max: int) -> list[BlockId]:
        """The cached blocks of the longest prefix of a chain, at most ``blocks_max`` of them."""
        found = []
        for digest in digests[:blocks_max]:
            holders = self._holders.get(digest)
            if holders is None:
                break
            found.append(next(iter(holders)))
        return found

    def acquire(self, reused: Sequence[BlockId], count: int) -> list[BlockId] | None:
        """Take a reference on ``reused`` and hand out ``count`` more; None, and nothing changed,
        where the pool has too few."""
        revived = sum(1 for block in reused if not self._references[block])
        if count + revived > len(self._free):
            return None
        for block in reused:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
        return [self._hand_out() for _ in range(count)]

    def store(self, block: BlockId, digest: bytes) -> None:
        """The block is full and now a copy of ``digest``."""
        assert self._references[block] and self._digests[block] is None
        self._digests[block] = digest
        self._holders.setdefault(digest, {})[block] = None

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Give back a request's blocks, listed from its head."""
        for block in reversed(blocks):
            assert self._references[block], f"block {block} is freed twice"
            self._references[block] -= 1
            if self._references[block]:
                continue
            self._free[block] = None
            if self._unhashed_first and self._digests[block] is None:
                self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget every hash; False, and nothing changed, while a block is in use."""
        if self.used:
            return False
        for holders in self._holders.values():
            for block in holders:
                self._digests[block] = None
        self._holders = {}
        self._events.append(AllBlocksCleared())
        return True

    def announce(self, event: KVEvent) -> None:
        """Queue an event behind those that the pool queued itself."""
        self._events.append(event)

    def take_events(self) -> tuple[KVEvent, ...]:
        """Every event since the last call, in causal order."""
        events, self._events = tuple(self._events), []
        return events

    def truth(self) -> dict[BlockHash, int]:
        """How many physical copies of each block are cached now."""
        return {normalise(digest): len(holders) for digest, holders in self._holders.items()}

    def eviction_order(self) -> Iterable[BlockHash]:
        """Hashes of the free blocks, next victim first."""
        digests = (self._digests[block] for block in self._free)
        return (normalise(digest) for digest in digests if digest is not None)

    def _hand_out(self) -> BlockId:
        block, _ = self._free.popitem(last=False)
        self._references[block] = 1
        digest = self._digests[block]
        if digest is not None:
            self._evict(block, digest)
        return block

    def _evict(self, block: BlockId, digest: bytes) -> None:
        self._digests[block] = None
        holders = self._holders[digest]
        del holders[block]
        if not holders:
            del self._holders[digest]
        self._events.append(BlockRemoved(digest))
