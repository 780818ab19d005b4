"""Which blocks one replica holds: events -> copies per block, tier and group.

Rules (design, decisions 4 and 6; reference 3.3, 3.5, 3.7):

* vLLM announces and removes each physical copy, so copies are counted: a block leaves with its last
  copy. A removal of something unknown changes nothing.
* Tiers (medium, locality, ownership) and groups are kept apart: a removal in one never touches
  another. The *primary* counts are those of the first full-attention group in GPU memory; what a
  match asks first.
* AllBlocksCleared names no tier and clears all of them.
* The GPU copies of a replica can never exceed its pool. Beyond it the counts have drifted (a
  re-announcement adds a copy that does not exist and cannot be told from a true duplicate): the
  caller is told and clears. The same bound limits the memory a hostile stream can take.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from indexer.events import BlockRemoved, BlockStored
from proto.blockhash import BlockHash

# Where the engine does not say how many blocks it has: 2^21 blocks of 16 tokens are 33 million
# tokens, several times what one replica holds today, and cost about 160 MB.
BLOCKS_MAX_UNKNOWN_POOL = 2**21
# A replica has a handful of tiers and groups; a stream that invents more is hostile or unknown.
TIERS_MAX = 64
# Spellings of tiers that are remembered ("GPU", "gpu", ...): a tier has as many as one invents.
ROUTES_MAX = 4 * TIERS_MAX
# Kinds whose resident block proves its ancestors resident. None: engines before 0.22 do not say.
FULL_ATTENTION_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
# An int of 64 bits, as the interpreter allocates it.
HASH_BYTES = 48
_GPU_MEDIA = frozenset({None, "gpu"})
_STORAGE_MEDIA = frozenset({"storage", "fs", "obj"})
# Above this many hashes the C loop of Counter.update repays its call.
_BULK_HASHES_MIN = 6

Level = int
GPU, CPU, STORAGE, ELSEWHERE = range(4)


class TierKey(NamedTuple):
    """Copies that live and die together."""

    level: Level
    medium: str | None
    group_idx: int | None
    locality: str | None
    ownership: str | int | None


class Delta(NamedTuple):
    """What changed in the primary counts since the last delta; applying it twice is harmless.

    ``cleared``: all that was there before went first. ``copies`` are absolute.
    """

    cleared: bool
    removed: list[BlockHash]
    copies: dict[BlockHash, int]


@dataclass(slots=True)
class BlockCounts:
    """Copies of each block in one tier of one group; ``copies`` is their sum."""

    counts: Counter[int]
    copies: int = 0

    @property
    def memory_bytes(self) -> int:
        """About what it takes; the counts themselves are small numbers, which Python shares."""
        return sys.getsizeof(self.counts) + HASH_BYTES * len(self.counts)

    def store(self, hashes: Sequence[int]) -> None:
        counts = self.counts
        if len(hashes) < _BULK_HASHES_MIN:
            for block_hash in hashes:
                counts[block_hash] = counts.get(block_hash, 0) + 1
        else:
            counts.update(hashes)
        self.copies += len(hashes)

    def remove(self, hashes: Sequence[int]) -> int:
        """Returns how many of them were not there."""
        counts, unknown = self.counts, 0
        for block_hash in hashes:
            # One look-up where it was the last copy, as nearly all are.
            copies = counts.pop(block_hash, 0)
            if copies > 1:
                counts[block_hash] = copies - 1
            elif not copies:
                unknown += 1
        self.copies -= len(hashes) - unknown
        return unknown


class ReplicaBlocks:
    """All blocks of one replica. ``capacity`` is its GPU pool in blocks, None where unknown."""

    def __init__(self, capacity: int | None = None, *, track_changes: bool = False) -> None:
        self.capacity = capacity
        self.removed_unknown = 0
        self.primary = BlockCounts(Counter())
        self._touched: set[int] | None = set() if track_changes else None
        self.clear()

    def __repr__(self) -> str:
        return (
            f"<ReplicaBlocks {len(self.primary.counts)} blocks, {self.gpu_copies} copies"
            f" of {self.capacity}, {len(self._tiers)} tiers>"
        )

    def clear(self) -> None:
        """Forgets everything, in every tier."""
        if self._touched is not None:
            self._touched.clear()
        self._cleared = True
        self.primary = BlockCounts(Counter())
        self.primary_key: TierKey | None = None
        self.hybrid = False
        self.has_lower_tiers = False
        # Only the primary counts exist, so their copies are all there are.
        self.single_tier = False
        self._tiers: dict[TierKey, BlockCounts] = {}
        # Raw event fields -> counts; and the fields of the primary tier's events, which are nearly
        # all there are, spelt out for the hot path. No event has a medium that equals a list.
        self._routes: dict[tuple[object, ...], BlockCounts] = {}
        self._medium: object = []
        self._group_idx: object = []

    def stored(self, event: BlockStored) -> None:
        """One more copy of each hash."""
        if (
            event.medium == self._medium
            and event.group_idx == self._group_idx
            and event.locality is None
            and event.ownership is None
        ):
            counts = self.primary
        else:
            counts = self._counts_of(event) or self._open_tier(event)
        hashes = event.block_hashes
        if len(hashes) == 1:
            # One look-up where the block is new, as nearly all are.
            held = counts.counts
            before = len(held)
            held.setdefault(hashes[0], 1)
            if len(held) == before:
                held[hashes[0]] += 1
            counts.copies += 1
        else:
            counts.store(hashes)
        if self._touched is not None and counts is self.primary:
            self._touched.update(hashes)

    def removed(self, event: BlockRemoved) -> None:
        """One copy fewer of each hash."""
        if (
            event.medium == self._medium
            and event.group_idx == self._group_idx
            and event.locality is None
            and event.ownership is None
        ):
            counts = self.primary
        else:
            known = self._counts_of(event)
            if known is None:
                self.removed_unknown += len(event.block_hashes)
                return
            counts = known
        hashes = event.block_hashes
        unknown = counts.remove(hashes)
        if unknown:
            self.removed_unknown += unknown
        if self._touched is not None and counts is self.primary:
            self._touched.update(hashes)

    def _counts_of(self, event: BlockStored | BlockRemoved) -> BlockCounts | None:
        route = (event.medium, event.group_idx, event.locality, event.ownership)
        return self._routes.get(route) or self._tiers.get(_tier_key(event))

    @property
    def copies_max(self) -> int:
        """More copies than this cannot be: the counts have drifted, or a stream is hostile."""
        return self.capacity if self.capacity is not None else BLOCKS_MAX_UNKNOWN_POOL

    @property
    def overflowed(self) -> bool:
        """Some tier holds more than it can."""
        others = sum(c.copies for k, c in self._tiers.items() if k.level != GPU)
        return (
            self.gpu_copies > self.copies_max
            or others > BLOCKS_MAX_UNKNOWN_POOL
            or len(self._tiers) > TIERS_MAX
        )

    @property
    def gpu_copies(self) -> int:
        return sum(c.copies for k, c in self._tiers.items() if k.level == GPU)

    @property
    def fills_pool(self) -> bool:
        """Every block of the pool is accounted for, so nothing can be resident unseen."""
        return self.capacity is not None and self.gpu_copies == self.capacity

    def holds(self, block_hash: int) -> bool:
        """Whether a copy is left in any tier of any group."""
        return any(block_hash in tier.counts for tier in self._tiers.values())

    @property
    def copies(self) -> int:
        """Copies in all tiers and groups."""
        return sum(tier.copies for tier in self._tiers.values())

    def tier(self, level: Level) -> list[Counter[int]]:
        """The counts of a level's tiers in the primary group, for the matching of lower tiers."""
        return [counts.counts for key, counts in self._tiers.items() if key.level == level]

    @property
    def changes(self) -> int:
        """How many blocks the next delta names; 0 without ``track_changes``."""
        return len(self._touched or ())

    def take_delta(self) -> Delta:
        """Changes of the primary counts since the last call; needs ``track_changes``."""
        assert self._touched is not None, "made without track_changes"
        touched, self._touched = self._touched, set()
        cleared, self._cleared = self._cleared, False
        counts = self.primary.counts
        # In C as far as it goes: this is most of what a store costs the indexer.
        copies = dict(zip(touched, map(counts.get, touched), strict=True))
        gone = [block_hash for block_hash, held in copies.items() if held is None]
        for block_hash in gone:
            del copies[block_hash]
        # What is gone after a clear went with it.
        removed = [] if cleared else cast(list[BlockHash], gone)
        return Delta(cleared, removed, cast(dict[BlockHash, int], copies))

    def restore(self, key: TierKey | None, counts: Counter[int], *, hybrid: bool) -> None:
        """``counts``, from a store, are the primary ones from now on: that is no change of them."""
        self.clear()
        self.hybrid = hybrid
        self.primary = BlockCounts(counts, sum(counts.values()))
        if key is not None:
            self.primary_key = key
            self._tiers[key] = self.primary
            self.single_tier = True
        self._cleared = False

    def _open_tier(self, event: BlockStored) -> BlockCounts:
        full_attention = event.kv_cache_spec_kind in FULL_ATTENTION_KINDS
        key = _tier_key(event)
        counts = self._tiers.get(key)
        if counts is None:
            counts = self._counts_for(key, full_attention)
            self._tiers[key] = counts
            self.single_tier = len(self._tiers) == 1 and self.primary_key is not None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[(event.medium, event.group_idx, event.locality, event.ownership)] = counts
        if counts is self.primary and event.locality is None and event.ownership is None:
            self._medium, self._group_idx = event.medium, event.group_idx
        return counts

    def _counts_for(self, key: TierKey, full_attention: bool) -> BlockCounts:
        if key.level != GPU:
            self.has_lower_tiers = True
            return BlockCounts(Counter())
        if self.primary_key is None and full_attention:
            self.primary_key = key
            self.hybrid = self.hybrid or any(k.level == GPU for k in self._tiers)
            return self.primary
        # A second GPU group: a hit needs all groups to agree, so a match is only an upper bound.
        self.hybrid = True
        return BlockCounts(Counter())


def _tier_key(event: BlockStored | BlockRemoved) -> TierKey:
    medium = event.medium.lower() if event.medium else None
    return TierKey(_level(medium), medium, event.group_idx, event.locality, event.ownership)


def _level(medium: str | None) -> Level:
    if medium in _GPU_MEDIA:
        return GPU
    if medium == "cpu":
        return CPU
    return STORAGE if medium in _STORAGE_MEDIA else ELSEWHERE
