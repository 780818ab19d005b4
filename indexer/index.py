"""Who holds how much of a prompt: hashes -> matched blocks per replica.

Rules (design, decisions 1, 6, 10):

* A match never looks outside the pool of one served base model.
* The deepest resident hash is the match: a resident block of a full-attention group proves its
  ancestors resident. With a complete history bisection finds it.
* While the history is incomplete the prompt is scanned from its end, so that blocks announced
  before the cut still count. The known blocks of a prompt are then runs of neighbours: what was
  announced since the cut. The scan looks ever more sparsely the further it is from the end, and so
  takes hundreds of look-ups, not as many as there are blocks. It misses a run shorter than a 64th
  of its distance from the end, unless the run is the prompt's beginning: the match is then too
  small, which ``incomplete_history`` says it may be.
* Lower tiers are not closed under ancestors: they are scanned from the front, on from where the GPU
  match ends, and each level's figure includes the levels above it.
* Where two schemes stay possible for a replica, the larger match counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NewType, Protocol

from indexer.residency import CPU, STORAGE, ReplicaBlocks
from proto.blockhash import BlockHash

ReplicaId = NewType("ReplicaId", str)
PoolName = NewType("PoolName", str)
SchemeId = str
Hashes = Sequence[BlockHash]

# A bisection of the cells, and one within a cell, take one look-up more than one of the blocks.
CELL_BLOCKS = 16
# A scan finds every run that is at least this part of its distance from the end; and looks at
# (1 + ln(length / 64)) * 64 blocks.
_RUN_PART = 64
_SCAN_BLOCKS_MAX = 2**20


def _scan_distances() -> Iterator[int]:
    distance = 0
    while distance < _SCAN_BLOCKS_MAX:
        yield distance
        distance += max(1, distance // _RUN_PART)


_SCAN_DISTANCES = tuple(_scan_distances())


class Match(NamedTuple):
    """Matched blocks from the start of the prompt, cumulated over tiers in order."""

    gpu: int
    gpu_or_cpu: int
    any_tier: int


@dataclass(slots=True)
class IndexedReplica:
    """One replica as the index sees it; its owner keeps the fields current."""

    pool: PoolName
    blocks: ReplicaBlocks
    scheme_ids: tuple[SchemeId, ...] = ()
    history_complete: bool = False


class BlockIndex(Protocol):
    """What answers a match. The in-memory index is the specification of every other."""

    def match(
        self, pool: PoolName, hashes_by_scheme: Mapping[SchemeId, Hashes]
    ) -> dict[ReplicaId, Match]: ...


class MemoryIndex:
    """One dict of blocks per replica: pools and replicas never touch each other."""

    def __init__(self, replicas: Mapping[ReplicaId, IndexedReplica] | None = None) -> None:
        self._pools: dict[PoolName, dict[ReplicaId, IndexedReplica]] = {}
        for replica_id, replica in (replicas or {}).items():
            self.add(replica_id, replica)

    def __repr__(self) -> str:
        return f"<MemoryIndex { ({pool: len(held) for pool, held in self._pools.items()}) }>"

    def add(self, replica_id: ReplicaId, replica: IndexedReplica) -> None:
        """From now on it is matched. Its id is unique among all pools."""
        self._pools.setdefault(replica.pool, {})[replica_id] = replica

    def remove(self, replica_id: ReplicaId, pool: PoolName) -> None:
        del self._pools[pool][replica_id]
        if not self._pools[pool]:
            del self._pools[pool]

    def match(
        self, pool: PoolName, hashes_by_scheme: Mapping[SchemeId, Hashes]
    ) -> dict[ReplicaId, Match]:
        """Replicas of the pool that hold at least the first block. Linear in replicas."""
        matches = {}
        prompts = {scheme: Prompt(hashes) for scheme, hashes in hashes_by_scheme.items() if hashes}
        for replica_id, replica in self._pools.get(pool, {}).items():
            blocks, scheme_ids = replica.blocks, replica.scheme_ids
            if len(scheme_ids) == 1 and replica.history_complete and not blocks.has_lower_tiers:
                # Nearly all replicas, hence ``deepest_by_bisection`` spelt out: two calls for each
                # replica would cost a sixth of the whole match.
                prompt = prompts.get(scheme_ids[0])
                holds = blocks.primary.counts.__contains__
                if prompt is not None and holds(prompt.first):
                    ends = prompt.cell_ends
                    start = (len(ends) - bisect_left(ends, True, key=holds)) * CELL_BLOCKS
                    cell = prompt.hashes[start : start + CELL_BLOCKS - 1][::-1]
                    gpu = start + len(cell) - bisect_left(cell, True, key=holds)
                    matches[replica_id] = _new(Match, (gpu, gpu, gpu))
                continue
            best = NOTHING
            for scheme_id in scheme_ids:
                prompt = prompts.get(scheme_id)
                if prompt is not None:
                    best = max(best, _match(replica, prompt))
            if best is not NOTHING:
                matches[replica_id] = best
        return matches


NOTHING = Match(0, 0, 0)
# A named tuple's own constructor is a Python function, three times as slow.
_new = tuple.__new__


class Prompt:
    """One prompt's hashes, as the searches want them; not empty."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes
        self.first = hashes[0]
        # The last block of every full cell, last cell first. Whether each is resident is then
        # False, ..., False, True, ..., True: ascending, which is what ``bisect`` wants. To turn all
        # of a long prompt around would take as long as half of the searches in it.
        self.cell_ends = hashes[CELL_BLOCKS - 1 :: CELL_BLOCKS][::-1]

    @cached_property
    def sparse(self) -> list[BlockHash]:
        """What a scan looks at: the blocks at ``_SCAN_DISTANCES`` from the end."""
        last = len(self.hashes) - 1
        distances = _SCAN_DISTANCES[: bisect_right(_SCAN_DISTANCES, last)]
        return [self.hashes[last - distance] for distance in distances]


def match_replica(replica: IndexedReplica, hashes: Hashes) -> Match:
    """The match of one prompt's hashes on one replica, in its own scheme."""
    return _match(replica, Prompt(hashes)) if hashes else NOTHING


def _match(replica: IndexedReplica, prompt: Prompt) -> Match:
    blocks = replica.blocks
    resident = blocks.primary.counts
    if not resident:
        gpu = 0
    elif replica.history_complete:
        gpu = deepest_by_bisection(resident, prompt)
    else:
        gpu = deepest_by_scan(resident, prompt)
    if blocks.has_lower_tiers:
        return _with_lower_tiers(blocks, gpu, prompt.hashes)
    return Match(gpu, gpu, gpu) if gpu else NOTHING


def _with_lower_tiers(blocks: ReplicaBlocks, gpu: int, hashes: Hashes) -> Match:
    resident, cpu, storage = blocks.primary.counts, blocks.tier(CPU), blocks.tier(STORAGE)
    gpu_or_cpu = _extend(hashes, gpu, (resident, *cpu))
    any_tier = _extend(hashes, gpu_or_cpu, (resident, *cpu, *storage))
    return Match(gpu, gpu_or_cpu, any_tier) if any_tier else NOTHING


def deepest_by_bisection(resident: Container[int], prompt: Prompt) -> int:
    """How many leading blocks are resident, where the resident set is closed under ancestors."""
    ends = prompt.cell_ends
    cells = len(ends) - bisect_left(ends, True, key=resident.__contains__)
    start = cells * CELL_BLOCKS
    return _end_of_run(resident, prompt.hashes, start, start + CELL_BLOCKS - 1)


def deepest_by_scan(resident: Container[int], prompt: Prompt) -> int:
    """The depth of the deepest resident block that a sparse look from the end finds."""
    held = next(filter(resident.__contains__, prompt.sparse), None)
    if held is None:
        return deepest_by_bisection(resident, prompt) if prompt.first in resident else 0
    seen, blocks = prompt.sparse.index(held), len(prompt.hashes)
    depth = blocks - _SCAN_DISTANCES[seen]
    not_resident = blocks - _SCAN_DISTANCES[seen - 1] if seen else depth + 1
    return _end_of_run(resident, prompt.hashes, depth, not_resident - 1)


def _end_of_run(resident: Container[int], hashes: Hashes, start: int, stop: int) -> int:
    """The depth at which a run of resident blocks that covers ``start`` blocks ends."""
    backwards = hashes[start:stop][::-1]
    return start + len(backwards) - bisect_left(backwards, True, key=resident.__contains__)


def _extend(hashes: Hashes, matched: int, tiers: Iterable[Container[int]]) -> int:
    """On from ``matched`` for as long as some tier holds the next block."""
    tiers = tuple(tiers)
    for block_hash in hashes[matched:]:
        if not any(block_hash in tier for tier in tiers):
            break
        matched += 1
    return matched
