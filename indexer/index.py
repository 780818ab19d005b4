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

from bisect import bisect_left
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

    @property
    def is_plain(self) -> bool:
        """One scheme, a complete history, one tier: bisection is all there is to do."""
        return (
            self.history_complete and len(self.scheme_ids) == 1 and not self.blocks.has_lower_tiers
        )


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
        backwards = {scheme: hashes[::-1] for scheme, hashes in hashes_by_scheme.items() if hashes}
        for replica_id, replica in self.replicas.items():
            if replica.pool != pool:
                continue
            if replica.is_plain:
                # The common case, without a call: what a match costs is what it costs per replica.
                only = backwards.get(replica.scheme_ids[0])
                holds = replica.blocks.primary.counts.__contains__
                if only is not None and holds(only[-1]):
                    gpu = len(only) - bisect_left(only, True, key=holds)
                    matches[replica_id] = Match(gpu, gpu, gpu)
                continue
            best = NOTHING
            for scheme_id in replica.scheme_ids:
                hashes = backwards.get(scheme_id)
                if hashes is not None:
                    best = max(best, _match_backwards(replica, hashes))
            if best is not NOTHING:
                matches[replica_id] = best
        return matches


NOTHING = Match(0, 0, 0)


def match_replica(replica: IndexedReplica, hashes: Hashes) -> Match:
    """The match of one prompt's hashes on one replica, in its own scheme."""
    return _match_backwards(replica, hashes[::-1])


def _match_backwards(replica: IndexedReplica, backwards: Hashes) -> Match:
    """``backwards`` is the prompt's hashes, last first: see ``deepest_by_bisection``."""
    blocks = replica.blocks
    resident = blocks.primary.counts
    if not resident:
        gpu = 0
    elif replica.history_complete:
        gpu = deepest_by_bisection(resident, backwards)
    else:
        gpu = deepest_by_scan(resident, backwards)
    if blocks.has_lower_tiers:
        return _with_lower_tiers(blocks, gpu, backwards[::-1])
    return Match(gpu, gpu, gpu) if gpu else NOTHING


def _with_lower_tiers(blocks: ReplicaBlocks, gpu: int, hashes: Hashes) -> Match:
    resident, cpu, storage = blocks.primary.counts, blocks.tier(CPU), blocks.tier(STORAGE)
    gpu_or_cpu = _extend(hashes, gpu, (resident, *cpu))
    any_tier = _extend(hashes, gpu_or_cpu, (resident, *cpu, *storage))
    return Match(gpu, gpu_or_cpu, any_tier) if any_tier else NOTHING


def deepest_by_bisection(resident: Mapping[int, int], backwards: Hashes) -> int:
    """How many leading blocks are resident, where the resident set is closed under ancestors.

    Last block first, "is it resident" is False, ..., False, True, ..., True: ascending, which is
    what ``bisect`` wants, and so the whole search runs in C.
    """
    return len(backwards) - bisect_left(backwards, True, key=resident.__contains__)


def deepest_by_scan(resident: Mapping[int, int], backwards: Hashes) -> int:
    """The depth of the deepest resident block, whatever is known of its ancestors."""
    held = next(filter(resident.__contains__, backwards), None)
    return 0 if held is None else len(backwards) - backwards.index(held)


def _extend(hashes: Hashes, matched: int, tiers: Iterable[Container[int]]) -> int:
    """On from ``matched`` for as long as some tier holds the next block."""
    tiers = tuple(tiers)
    for block_hash in hashes[matched:]:
        if not any(block_hash in tier for tier in tiers):
            break
        matched += 1
    return matched
