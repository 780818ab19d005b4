"""One replica's state machine: what its stream applies becomes its index and its evidence.

It joins the parts and owns the order between them: a batch is decoded, its events change the blocks
one after another, its roots feed the proof. Rules (design, decisions 2-6 and 9):

* A batch that cannot be decoded is a hole: clear, and go on.
* The history is complete when it was applied without a hole from sequence number 0 or from an
  AllBlocksCleared, or when the copies fill the pool.
* Counts beyond the pool have drifted: clear. An unknown event may have removed blocks: degraded
  until the next clear.
* An engine whose first plain root no recipe reproduces is translated, and its log asked for again.
"""

from collections.abc import Mapping

from indexer.events import BatchDecoder, BlockRemoved, BlockStored, KVEventBatch, MalformedBatch
from indexer.evidence import Evidence, Facts, judge
from indexer.index import IndexedReplica, PoolName, ReplicaId
from indexer.notes import Counters, Notes
from indexer.residency import FULL_ATTENTION_KINDS, ReplicaBlocks
from indexer.saved_state import Saved, SavedState
from indexer.schemes import SchemeProof, StoredBlocks, Verdict
from indexer.stream import ReplicaStream
from indexer.stream_outputs import Apply, Clear, LastBatch
from indexer.translation import Translator
from proto.blockhash import show

# What is proven goes on being checked: every root while they are rare, else one in so many batches,
# since decoding the tokens of each would cost more than all the rest of ingest does.
CHECK_INTERVAL_BATCHES = 32
# More batches known and not applied than this: matches are visibly behind the engine.
LAGGING_BATCHES = 1000
# Translations beyond twice the copies that are kept before those of gone blocks are dropped, so
# that dropping costs each stored block O(1).
TRANSLATIONS_SPARE = 1024


class ReplicaState:
    """Index, proof and evidence of one replica (one DP rank)."""

    def __init__(
        self,
        replica_id: ReplicaId,
        pool: PoolName,
        *,
        seeds: tuple[str, ...] = ("0",),
        capacity: int | None = None,
        track_changes: bool = False,
    ) -> None:
        self.id = replica_id
        self.blocks = ReplicaBlocks(capacity, track_changes=track_changes)
        self.indexed = IndexedReplica(pool, self.blocks)
        self.proof = SchemeProof(seeds)
        self.translator: Translator | None = None
        self.wants_replay_from_start = False
        self.duplicate_publisher = False
        self.counters = Counters()
        self.notes = Notes()
        # What the blocks are the result of; None where nothing that is known led to them.
        self.applied: LastBatch | None = None
        self.applied_seq = -1
        self._ever_proven = False
        self._next_check = 0
        self._drifted = False
        self._unknown_event = False
        self._decoder = BatchDecoder()

    def __repr__(self) -> str:
        return f"<ReplicaState {self.id} seq {self.applied_seq} {self.blocks!r}>"

    # What the stream says.

    def clear(self, output: Clear) -> None:
        """Forget the blocks. A restart also voids the proof: the engine may hash otherwise now."""
        self.applied_seq = -1
        if output.restart:
            self.counters.restarts += 1
            self.proof.start_over()
            self._ever_proven = False
            self.translator = None
            self._publish_schemes()
        self.applied = None
        self._forget(output.reason)

    def apply(self, output: Apply) -> None:
        """One batch, whole. Never raises for anything that is in the payload."""
        self.applied_seq = output.seq
        self.applied = LastBatch(output.seq, output.payload)
        self.counters.batches += 1
        try:
            batch = self._decoder.decode(output.payload)
            if output.seq == 0:
                self.indexed.history_complete = True
            self._apply_events(batch)
        except MalformedBatch as error:
            self.counters.malformed_batches += 1
            self._forget("a batch that cannot be decoded", quiet=True)
            self.notes.add("batch_malformed", seq=output.seq, error=str(error)[:200])
            return
        if not self.indexed.history_complete and self.blocks.fills_pool:
            self.indexed.history_complete = True
            self._drifted = False

    def slept(self) -> None:
        """The engine dropped its cache; its AllBlocksCleared comes only with its next step."""
        if self.blocks.primary.counts:
            self._forget("the engine sleeps")

    # What outlives the process.

    def save(self) -> SavedState | None:
        """What beside the blocks a store has to keep; None where the blocks are not worth keeping.

        The names of translated blocks cannot be removed again without their translations.
        """
        if self.applied is None or self.translator is not None:
            return None
        return SavedState(
            seq=self.applied.seq,
            digest=self.applied.sha256(),
            # Lower tiers are not kept, so they would be incomplete.
            history_complete=self.indexed.history_complete and not self.blocks.has_lower_tiers,
            unknown_event=self._unknown_event,
            counts_drifted=self._drifted,
            hybrid_groups=self.blocks.hybrid,
            ever_proven=self._ever_proven,
            base=self.proof.base,
            forms=self.proof.proven_forms,
            tier=self.blocks.primary_key,
        )

    def restore(self, saved: Saved) -> None:
        """Begin with what a store kept: as after a reconnect, continuity has to be proven."""
        state = saved.state
        self.applied = LastBatch(state.seq, digest=state.digest)
        self.applied_seq = state.seq
        self.blocks.restore(state.tier, saved.counts, hybrid=state.hybrid_groups)
        self.indexed.history_complete = state.history_complete
        self._unknown_event, self._drifted = state.unknown_event, state.counts_drifted
        # The same incarnation hashes as it did; its next root is checked as always.
        self.proof.base, self.proof.proven_forms = state.base, state.forms
        self._ever_proven = state.ever_proven
        self._publish_schemes()

    # What it amounts to.

    def evidence(self, stream: ReplicaStream | None, now: float) -> Evidence:
        return judge(self.facts(stream, now))

    def facts(self, stream: ReplicaStream | None, now: float) -> Facts:
        return Facts(
            streaming=stream is not None and not stream.closed,
            nothing_published=stream is not None and stream.nothing_published,
            duplicate_publisher=self.duplicate_publisher,
            scheme_proven=bool(self.indexed.scheme_ids),
            translating=self.translator is not None,
            history_complete=self.indexed.history_complete,
            recovering=stream is not None and stream.recovering,
            counts_drifted=self._drifted,
            unknown_event=self._unknown_event,
            hybrid_groups=self.blocks.hybrid,
            silent=stream is not None and stream.silent(now),
            lagging=stream is not None and stream.lag_batches > LAGGING_BATCHES,
            holds_blocks=bool(self.blocks.primary.counts),
        )

    def learn(self, *, version: str | None, lora_paths: Mapping[str, str]) -> None:
        """What discovery told: both decide how extra keys are hashed."""
        self.proof.version = version
        self.proof.lora_paths = lora_paths
        self._publish_schemes()

    # How events change it.

    def _apply_events(self, batch: KVEventBatch) -> None:
        checked, blocks, counters = False, self.blocks, self.counters
        copies_max = blocks.copies_max
        for event in batch.events:
            if event.kind == "removed":
                if self.translator is not None:
                    self._translate_removed(event)
                blocks.removed(event)
                counters.removed += len(event.block_hashes)
            elif event.kind == "stored":
                if event.parent_block_hash is None and not checked and self._check_is_due(event):
                    checked = self._check_root(event)
                if self.translator is not None:
                    self._translate(event)
                blocks.stored(event)
                counters.stored += len(event.block_hashes)
                if blocks.primary.copies > copies_max or not blocks.single_tier:
                    self._check_bound()
            else:
                self._cleared()
        if batch.unknown_tags:
            self._unknown(batch.unknown_tags)

    def _check_bound(self) -> None:
        if self.blocks.overflowed:
            self._drift()

    def _cleared(self) -> None:
        self.counters.cleared += 1
        self.blocks.clear()
        if self.translator is not None:
            self.translator.clear()
        self.indexed.history_complete = True
        self._drifted = self._unknown_event = False

    def _drift(self) -> None:
        self.counters.drifts += 1
        self.notes.add("counts_drifted", copies=self.blocks.gpu_copies, pool=self.blocks.capacity)
        self._forget("more copies than the pool has blocks", quiet=True)
        self._drifted = True

    def _unknown(self, tags: tuple[str, ...]) -> None:
        self.counters.unknown_events += len(tags)
        if not self._unknown_event:
            self.notes.add("event_unknown", tags=sorted({tag[:64] for tag in tags})[:8])
        self._unknown_event = True

    def _forget(self, reason: str, *, quiet: bool = False) -> None:
        self.counters.clears += 1
        held = len(self.blocks.primary.counts)
        self.blocks.clear()
        if self.translator is not None:
            self.translator.clear()
        self.indexed.history_complete = False
        self._drifted = self._unknown_event = False
        if not quiet:
            self.notes.add("index_cleared", reason=reason, blocks=held, warning=bool(held))

    # The proof.

    def _check_is_due(self, event: BlockStored) -> bool:
        """Always before a proof, and for a root whose extra keys may prove their form."""
        due = self.counters.batches >= self._next_check or self.proof.base is None
        return due or (not self.proof.form_proven and event.has_extra_keys)

    def _check_root(self, event: BlockStored) -> bool:
        """Feeds one root to the proof; whether that used up the batch's check."""
        if not event.block_hashes or not self._is_primary(event):
            return False
        verdict = self.proof.observe(StoredBlocks.of(event))
        self._next_check = self.counters.batches + CHECK_INTERVAL_BATCHES
        if verdict is Verdict.CONFIRMED or verdict is Verdict.NOT_CHECKABLE:
            return verdict is Verdict.CONFIRMED
        if verdict is Verdict.UNPROVABLE and not self._ever_proven and self.translator is None:
            self._start_translating()
        elif verdict is Verdict.DISAGREED:
            self.notes.add(
                "scheme_disagreed",
                block_hash=show(event.block_hashes[0]),
                block_size=event.block_size,
                lora_name=event.lora_name,
                tokens=event.tokens()[:32],
            )
        elif verdict is not Verdict.UNPROVABLE:
            self._ever_proven = True
            self._publish_schemes()
            self.notes.add(
                "scheme_proven",
                warning=False,
                schemes=[scheme.describe() | {"id": scheme.id} for scheme in self.proof.schemes],
            )
        self._publish_schemes()
        return True

    def _is_primary(self, event: BlockStored) -> bool:
        """Other tiers and groups have block sizes, and sometimes names, of their own."""
        primary = self.blocks.primary_key
        return (
            (event.medium or "gpu").lower() == "gpu"
            and event.kv_cache_spec_kind in FULL_ATTENTION_KINDS
            and (primary is None or primary.group_idx == event.group_idx)
        )

    def _publish_schemes(self) -> None:
        if self.translator is not None:
            scheme = self.translator.scheme
            self.indexed.scheme_ids = (scheme.id,) if scheme else ()
        else:
            self.indexed.scheme_ids = tuple(scheme.id for scheme in self.proof.schemes)

    # Translation.

    def _start_translating(self) -> None:
        """Names so far are the engine's: what is held under them has to be told again."""
        self.translator = Translator()
        self.notes.add("scheme_unprovable", translating=True)
        if self.blocks.primary.counts:
            self.wants_replay_from_start = self.indexed.history_complete
            self._forget("translation begins", quiet=True)

    def _translate(self, event: BlockStored) -> None:
        """Puts canonical names in place of the engine's."""
        assert self.translator is not None
        known = len(self.translator)
        if known > 2 * self.blocks.copies + TRANSLATIONS_SPARE:
            self.translator.keep(self.blocks.holds)
        names = self.translator.stored(StoredBlocks.of(event), event.parent_block_hash)
        event.block_hashes = list(names)
        if not known and names:
            self._publish_schemes()

    def _translate_removed(self, event: BlockRemoved) -> None:
        assert self.translator is not None
        names = map(self.translator.name, event.block_hashes)
        event.block_hashes = [name for name in names if name is not None]
