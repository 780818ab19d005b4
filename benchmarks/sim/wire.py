"""How each version of vLLM spells a batch of events, byte for byte.

It decides field order, what is omitted and which headers are written, by declaring each version's
structs as vLLM does and leaving the bytes to msgspec. Rules it keeps:

* 0.23 writes positional arrays; from 0.24 on events are maps with a ``type``.
* A map omits fields that equal a declared default and writes the others always, possibly as nil.
* The batch is an array of three in every version, and its rank is always filled in.
* ``extra_keys`` is always there, with one entry per hash, nil where a block has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.sim.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from proto.blockhash import ExtraKeyForm, normalise

_Hash = int | bytes

_MEDIUM = "GPU"
_GROUP = 0
_KIND = "full_attention"


class _ArrayStored(Struct, array_like=True, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class _ArrayRemoved(Struct, array_like=True, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[_Hash]
    medium: str | None
    group_idx: int | None = None


class _ArrayCleared(Struct, array_like=True, omit_defaults=True, tag="AllBlocksCleared"):
    pass


class _Stored28(Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class _Stored31(_Stored28, omit_defaults=True, tag="BlockStored"):
    ownership: str | None = None
    session_id: str | None = None


# The tag makes it 16 keys, and msgspec sizes a map's header by the keys that a struct declares:
# this version writes map16 however few of them are present.
class _Stored33(_Stored31, omit_defaults=True, tag="BlockStored"):
    lookahead_token_ids: Sequence[Sequence[int]] | None = None


class _Removed28(Struct, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[_Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class _Removed31(_Removed28, omit_defaults=True, tag="BlockRemoved"):
    ownership: str | None = None


class _MapCleared(Struct, omit_defaults=True, tag="AllBlocksCleared"):
    pass


@dataclass(frozen=True, slots=True)
class _Version:
    stored: Callable[..., Struct]
    removed: Callable[..., Struct]
    cleared: Callable[[], Struct]
    extra_keys: ExtraKeyForm
    lookahead: bool = False
    # Replies to a replay request carry the topic since 0.26.
    replay_topic: bool = True
    # GET /kv_event_sources exists since 0.31.
    event_sources: bool = True
    # 0.33 sizes the replay socket's queue to the buffer; before, zmq's 1000 cuts replays short.
    replay_queue_fits_buffer: bool = False
    # Since 0.24 a pool reuses blocks that hold nothing first.
    unhashed_first: bool = True


_VERSIONS = {
    "0.23": _Version(
        _ArrayStored,
        _ArrayRemoved,
        _ArrayCleared,
        "untagged_mm_offset",
        replay_topic=False,
        event_sources=False,
        unhashed_first=False,
    ),
    "0.28": _Version(_Stored28, _Removed28, _MapCleared, "untagged_mm_offset", event_sources=False),
    "0.31": _Version(_Stored31, _Removed31, _MapCleared, "tagged"),
    "0.33": _Version(
        _Stored33,
        _Removed31,
        _MapCleared,
        "tagged",
        lookahead=True,
        replay_queue_fits_buffer=True,
    ),
}
VLLM_VERSIONS = tuple(_VERSIONS)


class WireFormat:
    """One version's way of writing. Raises ValueError for a version it does not know."""

    def __init__(self, version: str, int_hashes: bool = True) -> None:
        if version not in _VERSIONS:
            raise ValueError(f"vLLM version {version!r}: known are {', '.join(VLLM_VERSIONS)}")
        self.version = version
        self.int_hashes = int_hashes
        self._facts = _VERSIONS[version]
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def extra_keys(self) -> ExtraKeyForm:
        """The form of extra keys that this version hashes."""
        return self._facts.extra_keys

    @property
    def hashes_lookahead(self) -> bool:
        return self._facts.lookahead

    @property
    def has_replay_topic(self) -> bool:
        return self._facts.replay_topic

    @property
    def has_event_sources(self) -> bool:
        return self._facts.event_sources

    @property
    def replay_queue_fits_buffer(self) -> bool:
        return self._facts.replay_queue_fits_buffer

    @property
    def unhashed_first(self) -> bool:
        return self._facts.unhashed_first

    def encode(
        self, timestamp_seconds: float, events: Sequence[KVEvent], data_parallel_rank: int
    ) -> bytes:
        """The payload of one batch."""
        batch = (float(timestamp_seconds), [self._spell(e) for e in events], data_parallel_rank)
        return self._encoder.encode(batch)

    def _spell(self, event: KVEvent) -> Struct:
        match event:
            case BlockStored():
                return self._stored(event)
            case BlockRemoved(block_hash=digest):
                return self._facts.removed([self._hash(digest)], _MEDIUM, group_idx=_GROUP)
            case AllBlocksCleared():
                return self._facts.cleared()

    def _stored(self, event: BlockStored) -> Struct:
        parent = event.parent_block_hash
        lookahead: dict[str, Any] = {}
        if self._facts.lookahead:
            lookahead["lookahead_token_ids"] = event.lookahead_token_ids
        return self._facts.stored(
            [self._hash(digest) for digest in event.block_hashes],
            None if parent is None else self._hash(parent),
            event.token_ids,
            event.block_size,
            event.lora_id,
            _MEDIUM,
            event.lora_name,
            extra_keys=event.extra_keys,
            group_idx=_GROUP,
            kv_cache_spec_kind=_KIND,
            **lookahead,
        )

    def _hash(self, digest: bytes) -> _Hash:
        return normalise(digest) if self.int_hashes else digest
