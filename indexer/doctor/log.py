"""A rank's batches, read as far as they go: continuity, rate, and the proof of its hash scheme.

Each batch is read and forgotten, so the size of a replay costs no memory. Rules: a batch that was
read is not read again, wherever it comes from a second time. Roots are those that the index would
prove from: on the GPU, of full attention.
"""

from collections.abc import Mapping, Sequence

from indexer.doctor.facts import BATCHES_OF_BUSY, LogFacts
from indexer.events import BatchDecoder, BlockStored, KVEventBatch, MalformedBatch
from indexer.residency import FULL_ATTENTION_KINDS
from indexer.schemes import SchemeProof, StoredBlocks, Verdict

# Tags that are shown; an engine of the future may have many.
_TAGS_MAX = 8


def replay_start(heard_seq: int | None) -> int:
    """Where to ask from, given the number of a batch that came live; None: the engine is idle.

    An idle engine is asked for everything, since a replay stops nothing there.
    """
    return 0 if heard_seq is None else max(0, heard_seq - BATCHES_OF_BUSY)


class ExaminedLog:
    def __init__(
        self, version: str, lora_paths: Mapping[str, str], seeds: Sequence[str] = ("0",)
    ) -> None:
        self._proof = SchemeProof(seeds)
        self._proof.version, self._proof.lora_paths = version, lora_paths
        self._decoder = BatchDecoder()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._batches = self._missing = self._malformed = self._roots = self._unprovable = 0
        self._last_seq: int | None = None
        self._first_seq: int | None = None
        self._tags: dict[str, None] = {}
        self._groups: set[tuple[int | None, str | None]] = set()

    def __repr__(self) -> str:
        return f"<ExaminedLog {self._batches} batches, {self._proof!r}>"

    @property
    def next_seq(self) -> int:
        return 0 if self._last_seq is None else self._last_seq + 1

    def read(self, seq: int, payload: bytes) -> None:
        if self._last_seq is not None:
            if seq <= self._last_seq:
                return
            self._missing += seq - self._last_seq - 1
        else:
            self._first_seq = seq
        self._last_seq = seq
        self._batches += 1
        try:
            batch = self._decoder.decode(payload)
            self._events(batch)
        except MalformedBatch:
            self._malformed += 1
            return
        self._last = (seq, batch.ts)
        self._first = self._first or self._last

    def facts(self) -> LogFacts:
        seconds = 0.0
        if self._first and self._last:
            seconds = max(0.0, self._last[1] - self._first[1])
        kinds = {kind for _, kind in self._groups}
        return LogFacts(
            batches=self._batches,
            first_seq=self._first_seq,
            last_seq=self._last_seq,
            seconds=seconds,
            missing=self._missing,
            malformed=self._malformed,
            unknown_tags=tuple(self._tags),
            hybrid=len(self._groups) > 1 or not kinds <= FULL_ATTENTION_KINDS,
            roots=self._roots,
            unprovable=self._unprovable,
            schemes=self._proof.schemes,
            form_proven=self._proof.form_proven,
        )

    def _events(self, batch: KVEventBatch) -> None:
        for tag in batch.unknown_tags:
            if len(self._tags) < _TAGS_MAX:
                self._tags[tag] = None
        for event in batch.events:
            if isinstance(event, BlockStored) and (event.medium or "gpu").lower() == "gpu":
                if len(self._groups) < _TAGS_MAX:
                    self._groups.add((event.group_idx, event.kv_cache_spec_kind))
                self._root(event)

    def _root(self, event: BlockStored) -> None:
        if event.parent_block_hash is not None or not event.block_hashes:
            return
        if event.kv_cache_spec_kind not in FULL_ATTENTION_KINDS:
            return
        self._roots += 1
        verdict = self._proof.observe(StoredBlocks.of(event))
        # Behind a disagreement the proof has begun again with that root, and may have failed.
        failed = verdict is Verdict.DISAGREED and not self._proof.schemes
        self._unprovable += failed or verdict is Verdict.UNPROVABLE
