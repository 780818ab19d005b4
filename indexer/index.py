"""Who holds how much of a prompt: hashes -> matched blocks per replica.

Rules (design, decisions 1, 6, 10):

* A match never looks outside the pool of one served base model.
* The deepest resident hash is the match: a resident block of a full-attention group proves its
  ancestors resident. With a complete history bisection finds it; while the history is incomplete
  the prompt is scanned from its end, so that blocks announced before the cut still count.
* Lower tiers are not closed under ancestors: they are scanned from the front, on from where the GPU
  match ends, and each level's figure includes the levels above it.
* Where two schemes stay possible for a replica, the larger match counts.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol

from indexer.residency import CPU, STORAGE, ReplicaBlocks
from proto.blockhash import BlockHash

ReplicaId = NewType("ReplicaId", str)
PoolName = NewType("PoolName", str)
SchemeId = str
Hashes = Sequence[BlockHash]


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


@dataclass(slots=True)
class MemoryIndex:
    """One dict per replica: pools and replicas never touch each other."""

    replicas: dict[ReplicaId, IndexedReplica] = field(default_factory=dict)

    def match(
        self, pool: PoolName, hashes_by_scheme: Mapping[SchemeId, Hashes]
    ) -> dict[ReplicaId, Match]:
        """Replicas of the pool that hold at least the first block. Linear in replicas."""
        matches = {}
        for replica_id, replica in self.replicas.items():
            if replica.pool != pool:
                continue
            best = None
            for scheme_id in replica.scheme_ids:
                hashes = hashes_by_scheme.get(scheme_id)
                if hashes:
                    found = match_replica(replica, hashes)
                    best = found if best is None else max(best, found)
            if best is not None and best.any_tier:
                matches[replica_id] = best
        return matches


def match_replica(replica: IndexedReplica, hashes: Hashes) -> Match:
    """The match of one prompt's hashes on one replica, in its own scheme."""
    blocks = replica.blocks
    resident = blocks.primary.counts
    if not resident:
        gpu = 0
    elif replica.history_complete:
        gpu = deepest_by_bisection(resident, hashes)
    else:
        gpu = deepest_by_scan(resident, hashes)
    cpu, storage = blocks.tier(CPU), blocks.tier(STORAGE)
    if not cpu and not storage:
        return Match(gpu, gpu, gpu)
    gpu_or_cpu = _extend(hashes, gpu, (resident, *cpu))
    return Match(gpu, gpu_or_cpu, _extend(hashes, gpu_or_cpu, (resident, *cpu, *storage)))


def deepest_by_bisection(resident: Container[int], hashes: Hashes) -> int:
    """How many leading blocks are resident, where the resident set is closed under ancestors."""
    low, high = 0, len(hashes)
    if not high or hashes[0] not in resident:
        return 0
    if hashes[-1] in resident:
        return high
    # hashes[low] is resident and hashes[high - 1] is not.
    high -= 1
    while high - low > 1:
        middle = (low + high) >> 1
        if hashes[middle] in resident:
            low = middle
        else:
            high = middle
    return low + 1


def deepest_by_scan(resident: Mapping[int, int], hashes: Hashes) -> int:
    """The depth of the deepest resident block, whatever is known of its ancestors."""
    held = next(filter(resident.__contains__, reversed(hashes)), None)
    return 0 if held is None else _last_position(hashes, held)


def _last_position(hashes: Hashes, block_hash: int) -> int:
    """One-based. A chained hash occurs once in a prompt, so any search finds the same place."""
    return hashes.index(BlockHash(block_hash)) + 1


def _extend(hashes: Hashes, matched: int, tiers: Iterable[Container[int]]) -> int:
    """On from ``matched`` for as long as some tier holds the next block."""
    tiers = tuple(tiers)
    for block_hash in hashes[matched:]:
        if not any(block_hash in tier for tier in tiers):
            break
        matched += 1
    return matched
