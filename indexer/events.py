"""What a batch on the wire says: payload bytes -> events, for every vLLM since 0.9.

Rules (reference, section 1):

* A whole batch is decoded typed in one call, with ``token_ids`` and the other fields that only a
  proof needs left raw. There are four typed decoders (maps since 0.24 or arrays before; hashes as
  ints or as digests); a stream keeps to one form, so the one that worked last is tried first.
* Only when all four fail is a batch decoded event by event: that path takes negative ints and
  mixed forms, and tells an unknown tag from a malformed event.
* What is no batch, or holds a known event with a malformed body, raises ``MalformedBatch``: a hole
  to the index. Unknown fields are ignored. An unknown tag is skipped and reported by name.
* Hashes come out normalised: unsigned low 64 bits.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta, Raw, Struct

from proto.blockhash import BlockHash, normalise

_ABSENT = Raw(b"")
_Unsigned = Annotated[int, Meta(ge=0)]
_UnsignedList = list[_Unsigned]


class MalformedBatch(ValueError):
    """The payload is not a KVEventBatch, or one of its known events has a malformed body."""


class BlockStored(Struct, tag="BlockStored", gc=False, kw_only=False):
    """Blocks became resident, one physical copy per hash. Field order is the array encoding's.

    ``extra_keys`` raw and empty means that the engine's version does not publish them.
    """

    # Asking each event what it is costs a fifth of what ``isinstance`` does, where it says no.
    kind: ClassVar[Literal["stored"]] = "stored"

    block_hashes: list[_Unsigned]
    parent_block_hash: _Unsigned | None
    token_ids: Raw
    block_size: _Unsigned
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = _ABSENT
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    locality: str | None = None
    ownership: str | int | None = None
    session_id: Any = None
    lookahead_token_ids: Raw = _ABSENT

    @property
    def has_extra_keys(self) -> bool:
        """Whether some hash has extra keys, told by the length: each without has one nil byte."""
        hashes = len(self.block_hashes)
        head = 1 if hashes < 16 else 3 if hashes < 65536 else 5
        return len(self.extra_keys) > head + hashes

    def tokens(self) -> list[int]:
        """The token ids of the event. Raises MalformedBatch where they are no list of ids."""
        return cast(list[int], _decode_raw(self.token_ids, _UnsignedList, "token_ids"))

    def keys(self) -> list[list[Any] | None] | None:
        """Extra keys per hash; None where the engine does not publish them."""
        value = _decode_raw(self.extra_keys, list[list[Any] | None] | None, "extra_keys")
        if value is not None and len(value) != len(self.block_hashes):
            raise MalformedBatch(f"{len(value)} extra_keys for {len(self.block_hashes)} hashes")
        return cast(list[list[Any] | None] | None, value)

    def lookahead(self) -> list[list[int]] | None:
        """The lookahead tokens of each hash (vLLM >= 0.33 with EAGLE or MTP), else None."""
        value = _decode_raw(self.lookahead_token_ids, list[_UnsignedList] | None, "lookahead")
        return cast(list[list[int]] | None, value)


class BlockRemoved(Struct, tag="BlockRemoved", gc=False):
    """One physical copy of each hash is gone from one tier of one group."""

    kind: ClassVar[Literal["removed"]] = "removed"

    block_hashes: list[_Unsigned]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | int | None = None


class AllBlocksCleared(Struct, tag="AllBlocksCleared", gc=False):
    """The engine's prefix cache was reset; says neither tier nor group."""

    kind: ClassVar[Literal["cleared"]] = "cleared"


Event = BlockStored | BlockRemoved | AllBlocksCleared


# Each encoding needs classes of its own, since whether a struct is an array is part of its type.
# They only widen how bytes are read: what comes out is used as the three classes above.
class _DigestStored(BlockStored, tag="BlockStored", gc=False):
    block_hashes: list[bytes]  # type: ignore[assignment]  # normalised before anyone sees it
    parent_block_hash: bytes | None  # type: ignore[assignment]  # likewise


class _DigestRemoved(BlockRemoved, tag="BlockRemoved", gc=False):
    block_hashes: list[bytes]  # type: ignore[assignment]  # likewise


class _ArrayStored(BlockStored, tag="BlockStored", gc=False, array_like=True):
    pass


class _ArrayRemoved(BlockRemoved, tag="BlockRemoved", gc=False, array_like=True):
    pass


class _ArrayCleared(AllBlocksCleared, tag="AllBlocksCleared", gc=False, array_like=True):
    pass


class _ArrayDigestStored(_DigestStored, tag="BlockStored", gc=False, array_like=True):
    pass


class _ArrayDigestRemoved(_DigestRemoved, tag="BlockRemoved", gc=False, array_like=True):
    pass


class _MapIntBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class _MapDigestBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[_DigestStored | _DigestRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class _ArrayIntBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[_ArrayStored | _ArrayRemoved | _ArrayCleared]
    data_parallel_rank: int | None = None


class _ArrayDigestBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[_ArrayDigestStored | _ArrayDigestRemoved | _ArrayCleared]
    data_parallel_rank: int | None = None


class _RawBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[Raw]
    data_parallel_rank: int | None = None


class KVEventBatch(Struct, gc=False):
    """One engine step's events in causal order. ``ts`` is the engine's clock, in seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None
    unknown_tags: tuple[str, ...] = ()


_Typed = _MapIntBatch | _MapDigestBatch | _ArrayIntBatch | _ArrayDigestBatch
# Each with whether its hashes are digests.
_TYPED: tuple[tuple[Callable[[bytes], _Typed], bool], ...] = (
    (msgspec.msgpack.Decoder(_MapIntBatch).decode, False),
    (msgspec.msgpack.Decoder(_MapDigestBatch).decode, True),
    (msgspec.msgpack.Decoder(_ArrayIntBatch).decode, False),
    (msgspec.msgpack.Decoder(_ArrayDigestBatch).decode, True),
)
_decode_raw_batch = msgspec.msgpack.Decoder(_RawBatch).decode


class _RankOnly(Struct, array_like=True, gc=False):
    ts: Raw
    events: Raw
    data_parallel_rank: int | None = None


_decode_rank = msgspec.msgpack.Decoder(_RankOnly).decode


def peek_rank(payload: bytes) -> int | None:
    """The DP rank that published a batch, 0 where old engines do not say; None if undecodable."""
    try:
        return _decode_rank(payload).data_parallel_rank or 0
    except (msgspec.DecodeError, RecursionError):
        return None


class BatchDecoder:
    """Decodes one stream's batches; remembers the form that the last one had."""

    __slots__ = ("_form",)

    def __init__(self) -> None:
        self._form = 0

    def decode(self, payload: bytes) -> KVEventBatch:
        """Raises MalformedBatch; never anything else, whatever the bytes."""
        decode, digests = _TYPED[self._form]
        try:
            batch = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_otherwise(payload)
        if digests:
            _normalise_digests(batch.events)
        return KVEventBatch(batch.ts, batch.events, batch.data_parallel_rank)  # type: ignore[arg-type]  # the encodings' classes are used as the three public ones

    def _decode_otherwise(self, payload: bytes) -> KVEventBatch:
        for form, (decode, digests) in enumerate(_TYPED):
            if form == self._form:
                continue
            try:
                batch = decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._form = form
            if digests:
                _normalise_digests(batch.events)
            return KVEventBatch(batch.ts, batch.events, batch.data_parallel_rank)  # type: ignore[arg-type]  # as above
        return _decode_event_by_event(payload)


def _normalise_digests(events: list[Any]) -> None:
    for event in events:
        if isinstance(event, AllBlocksCleared):
            continue
        event.block_hashes = _digests_to_hashes(event.block_hashes)
        parent: Any = getattr(event, "parent_block_hash", None)
        if parent is not None:
            event.parent_block_hash = _digest_to_hash(parent)


def _digests_to_hashes(digests: list[bytes]) -> list[BlockHash]:
    """Low 64 bits of each digest, in one call where all are of one length, as an engine's are."""
    if not digests:
        return []
    length = len(digests[0])
    joined = b"".join(digests)
    if length < 8 or len(joined) != length * len(digests):
        return [_digest_to_hash(digest) for digest in digests]
    return list(struct.unpack(">" + f"{length - 8}xQ" * len(digests), joined))


def _digest_to_hash(digest: bytes) -> BlockHash:
    if len(digest) < 8:
        raise MalformedBatch(f"a block hash of {len(digest)} bytes")
    return normalise(digest)


def _decode_event_by_event(payload: bytes) -> KVEventBatch:
    try:
        batch = _decode_raw_batch(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBatch(f"not a KVEventBatch: {error}") from None
    events: list[Event] = []
    unknown: list[str] = []
    for raw in batch.events:
        tag, fields = _tag_and_fields(_decode_any(raw))
        if tag in _FIELDS:
            events.append(_event(tag, fields))
        else:
            unknown.append(tag)
    return KVEventBatch(batch.ts, events, batch.data_parallel_rank, tuple(unknown))


def _decode_any(raw: Raw) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedBatch(f"undecodable event: {error}") from None


def _tag_and_fields(event: Any) -> tuple[str, Mapping[str, Any]]:
    """The tag of a generically decoded event, and its fields by name in either encoding."""
    if isinstance(event, dict) and isinstance(event.get("type"), str):
        return event["type"], event
    if isinstance(event, list) and event and isinstance(event[0], str):
        names = _FIELDS.get(event[0], ())
        return event[0], dict(zip(names, event[1:], strict=False))
    raise MalformedBatch("an event without a tag")


_FIELDS: dict[str, tuple[str, ...]] = {
    cls.__struct_config__.tag: cls.__struct_fields__  # type: ignore[misc]  # tags are strings here
    for cls in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_CONVERTED: dict[str, Any] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_RAW_FIELDS = ("token_ids", "extra_keys", "lookahead_token_ids")


def _event(tag: str, fields: Mapping[str, Any]) -> Event:
    """One known event from its decoded fields, hashes of any form."""
    known = {name: fields[name] for name in _FIELDS[tag] if name in fields}
    if tag != "AllBlocksCleared":
        hashes = known.get("block_hashes")
        if not isinstance(hashes, list):
            raise MalformedBatch(f"{tag} without a list of block_hashes")
        known["block_hashes"] = [_any_hash(wire_hash) for wire_hash in hashes]
    if known.get("parent_block_hash") is not None:
        known["parent_block_hash"] = _any_hash(known["parent_block_hash"])
    if tag == "BlockStored" and not isinstance(known.get("token_ids"), list):
        raise MalformedBatch("BlockStored without a list of token_ids")
    for name in _RAW_FIELDS:
        if name in known:
            known[name] = Raw(msgspec.msgpack.encode(known[name]))
    try:
        return cast(Event, msgspec.convert(known | {"type": tag}, _CONVERTED[tag]))
    except (msgspec.ValidationError, TypeError) as error:
        raise MalformedBatch(f"{tag}: {error}") from None


def _any_hash(wire_hash: Any) -> BlockHash:
    if isinstance(wire_hash, bytes):
        return _digest_to_hash(wire_hash)
    if isinstance(wire_hash, int) and not isinstance(wire_hash, bool):
        return normalise(wire_hash)
    raise MalformedBatch(f"a block hash of type {type(wire_hash).__name__}")


def _decode_raw(raw: Raw, expected: Any, name: str) -> Any:
    if not raw:
        return None
    try:
        return msgspec.msgpack.decode(raw, type=expected)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedBatch(f"{name}: {error}") from None
