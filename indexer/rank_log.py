"""One rank's recorded log: what it leaves resident, and whether its hashes can be reproduced.

Rules it keeps:

* Batches are applied in the order of the file. A sequence number that falls back (or stays) is a
  restart of the engine, a gap or an undecodable batch is a hole. Both clear; a restart also voids
  the proof.
* A stored hash is *reproduced* when chaining whole digests from the root, under the scheme that the
  log itself proves, gives it. It is *not checkable* where something that goes into it is not in
  the log: nothing is proven yet, the parent was not reproduced, the path of the LoRA is unknown, a
  group is sparse, an event carries no tokens, or (before vLLM 0.17) no extra keys.
* Memory is bounded whatever the log holds: by blocks, and by digests kept for children to come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indexer.events import BatchDecoder, BlockRemoved, BlockStored, KVEventBatch, MalformedBatch
from indexer.residency import CPU, ELSEWHERE, FULL_ATTENTION_KINDS, GPU, STORAGE, ReplicaBlocks
from indexer.schemes import NotCheckable, SchemeProof, StoredBlocks, Verdict
from proto.blockhash import UNSERIALISABLE, EngineScheme, normalise, root_digest

# Digests kept for children to come: about 150 bytes each, in two generations.
DIGESTS_MAX = 2**20
_LEVELS = (GPU, CPU, STORAGE, ELSEWHERE)


@dataclass(slots=True)
class Counts:
    """``stored``, ``removed`` and the three that follow ``malformed_batches`` are hashes."""

    batches: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    unknown_events: int = 0
    malformed_batches: int = 0
    reproduced: int = 0
    not_reproduced: int = 0
    not_checkable: int = 0


class _Digests:
    """Whole digests of reproduced blocks: the last ``DIGESTS_MAX`` used, and up to as many more.

    Two generations instead of an order of use: each step is O(1), and no entry knows its age.
    """

    def __init__(self) -> None:
        self._young: dict[int, bytes] = {}
        self._old: dict[int, bytes] = {}

    def keep(self, digest: bytes) -> None:
        if len(self._young) >= DIGESTS_MAX:
            self._old, self._young = self._young, {}
        self._young[normalise(digest)] = digest

    def get(self, block_hash: int) -> bytes | None:
        digest = self._young.get(block_hash)
        if digest is None:
            digest = self._old.get(block_hash)
            if digest is not None:
                self.keep(digest)
        return digest


class RankLog:
    """One rank's log since its last restart: blocks, proof, and digests for the chains."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.blocks = ReplicaBlocks()
        self.proof = SchemeProof()
        self._digests = _Digests()
        self._decoder = BatchDecoder()
        self._last_seq: int | None = None

    def follow(self, seq: int) -> None:
        """Whether this batch continues the log is told by its number alone."""
        last, self._last_seq = self._last_seq, seq
        if last is not None and seq <= last:
            self.hole()
            self.proof.start_over()
            self._digests = _Digests()
        elif last is not None and seq > last + 1:
            self.hole()

    def hole(self) -> None:
        self.blocks.clear()

    def frame(self, seq: int, payload: bytes, counts: Counts) -> None:
        self.follow(seq)
        try:
            batch = self._decoder.decode(payload)
            stored = [StoredBlocks.of(e) for e in batch.events if isinstance(e, BlockStored)]
        except MalformedBatch:
            counts.malformed_batches += 1
            self.hole()
            return
        self._apply(batch, stored, counts)

    def _apply(self, batch: KVEventBatch, stored: Sequence[StoredBlocks], counts: Counts) -> None:
        bodies = iter(stored)
        counts.unknown_events += len(batch.unknown_tags)
        for event in batch.events:
            if isinstance(event, BlockStored):
                counts.stored += len(event.block_hashes)
                self.blocks.stored(event)
                if self.blocks.overflowed:
                    self.hole()
                self._check(event, next(bodies), counts)
            elif isinstance(event, BlockRemoved):
                counts.removed += len(event.block_hashes)
                self.blocks.removed(event)
            else:
                counts.cleared += 1
                self.blocks.clear()

    # Are the hashes what the proven scheme gives?

    def _check(self, event: BlockStored, blocks: StoredBlocks, counts: Counts) -> None:
        schemes, total = self._schemes_for(event, blocks), len(blocks.block_hashes)
        attempts = [self._recompute(scheme, event, blocks) for scheme in schemes]
        known = [attempt for attempt in attempts if attempt is not None]
        # Of several schemes that stay possible the one that reproduces most.
        right: Sequence[bytes] = max(
            (self._right(digests, blocks) for digests in known), key=len, default=()
        )
        conclusive = blocks.fully_shown and known and len(known) == len(attempts)
        if len(right) < total and not conclusive:
            counts.not_checkable += total
            return
        counts.reproduced += len(right)
        counts.not_reproduced += total - len(right)
        for digest in right:
            self._digests.keep(digest)

    def _schemes_for(self, event: BlockStored, blocks: StoredBlocks) -> Sequence[EngineScheme]:
        """What is proven, after a root was heard; also what it has just disproved."""
        before = self.proof.schemes
        if event.parent_block_hash is not None or not self._may_prove(event):
            return before
        if self.proof.observe(blocks) is not Verdict.DISAGREED:
            return self.proof.schemes
        self._digests = _Digests()
        return (*before, *self.proof.schemes)

    def _may_prove(self, event: BlockStored) -> bool:
        """Other groups and tiers have block sizes and sometimes names of their own."""
        primary = self.blocks.primary_key
        return (
            (event.medium or "gpu").lower() == "gpu"
            and event.kv_cache_spec_kind in FULL_ATTENTION_KINDS
            and (primary is None or primary.group_idx == event.group_idx)
        )

    def _recompute(
        self, scheme: EngineScheme, event: BlockStored, blocks: StoredBlocks
    ) -> Sequence[bytes] | None:
        """The digests of an event's blocks; None where they cannot be known."""
        if event.parent_block_hash is None:
            parent: bytes | None = root_digest(scheme.algorithm, scheme.seed)
        else:
            parent = self._digests.get(event.parent_block_hash)
        if parent is None or not blocks.dense or blocks.block_size != scheme.block_size:
            return None
        try:
            keys = blocks.hash_keys(scheme.extra_keys, self.proof.lora_paths)
            return scheme.chain(parent, blocks.token_ids, keys)
        except (NotCheckable, *UNSERIALISABLE):
            # Keys of a hostile event may be of types that no recipe can serialise.
            return None

    @staticmethod
    def _right(digests: Sequence[bytes], blocks: StoredBlocks) -> Sequence[bytes]:
        pairs = zip(digests, blocks.block_hashes, strict=True)
        return [digest for digest, wire in pairs if normalise(digest) == wire]

    # What is left at the end.

    def resident(self) -> set[int]:
        return {h for level in _LEVELS for counts in self.blocks.tier(level) for h in counts}

    def schemes(self) -> list[dict[str, Any]]:
        """One entry per form that stays possible; one without a scheme where nothing is proven."""
        nothing = dict.fromkeys(("algorithm", "seed", "block_size", "extra_keys", "lookahead"))
        described = [s.describe() | {"id": s.id, "proven": True} for s in self.proof.schemes]
        return [
            {"rank": self.rank} | scheme
            for scheme in described or [nothing | {"id": None, "proven": False}]
        ]
