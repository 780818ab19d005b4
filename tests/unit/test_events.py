"""Payload bytes -> events, for every version of vLLM's wire format."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.events import (
    AllBlocksCleared,
    BatchDecoder,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    MalformedBatch,
    _decode_event_by_event,
    peek_rank,
)
from proto.blockhash import normalise
from tests.unit.captures import CAPTURES, DP_CAPTURE, frames, records

SAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "wire_samples.json").read_text()
)
encode = msgspec.msgpack.encode

STORED = {
    "type": "BlockStored",
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
CLEARED = {"type": "AllBlocksCleared"}


def batch_of(*events: Any) -> bytes:
    return encode([1.5, list(events), 0])


def decode(payload: bytes) -> KVEventBatch:
    return BatchDecoder().decode(payload)


@pytest.mark.parametrize("version", SAMPLES)
def test_every_version_decodes(version: str) -> None:
    """The sample batch of each vLLM version gives its three events, fields by name."""
    sample = SAMPLES[version]
    batch = decode(bytes.fromhex(sample["hex"]))
    stored, removed, cleared = batch.events
    assert isinstance(stored, BlockStored) and isinstance(removed, BlockRemoved)
    assert isinstance(cleared, AllBlocksCleared)
    generic = sample["generic"][1][0]
    raw = generic["block_hashes"] if isinstance(generic, dict) else generic[1]
    assert stored.block_hashes == [normalise(value) for value in raw]
    assert stored.parent_block_hash is None
    assert (stored.tokens(), stored.block_size) == ([1, 2, 3, 4], 2)
    assert removed.block_hashes == [1]
    assert batch.unknown_tags == () and batch.ts == 1.5
    minor = int(version.split(".")[1])
    assert stored.medium == removed.medium == ("GPU" if minor >= 10 else None)
    assert stored.keys() == ([["tenant-A"], None] if minor >= 17 else None)
    assert stored.group_idx == removed.group_idx == (0 if minor >= 20 else None)
    assert stored.kv_cache_spec_kind == ("full_attention" if minor >= 22 else None)


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_decode_typed(name: str) -> None:
    """Every real batch takes the fast path and equals the event-by-event path."""
    for _, payload in frames(name):
        assert contents(decode(payload)) == contents(_decode_event_by_event(payload))


@pytest.mark.parametrize("rank", [None, 3])
def test_batches_of_two_and_three_elements(rank: int | None) -> None:
    """The rank is read where a version sends it, and is absent where it does not."""
    batch = [1.5, [CLEARED]] if rank is None else [1.5, [CLEARED], rank]
    assert decode(encode(batch)).data_parallel_rank == rank
    assert peek_rank(encode(batch)) == (rank or 0)


def test_ranks_of_a_data_parallel_engine() -> None:
    """Both ranks of a real engine show their number without a whole decode."""
    payloads = [bytes.fromhex(r["payload_hex"]) for r in records(DP_CAPTURE) if "payload_hex" in r]
    assert {peek_rank(payload) for payload in payloads} == {0, 1}
    assert peek_rank(b"\xc1") is None


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4), st.integers(8, 40))
def test_digests_equal_ints(hashes: list[int], length: int) -> None:
    """A hash is the same whether the engine publishes it as a digest or as an int."""
    digests = [b"\x01" * (length - 8) + value.to_bytes(8, "big") for value in hashes]
    as_ints = STORED | {"block_hashes": hashes, "parent_block_hash": hashes[0]}
    as_digests = STORED | {"block_hashes": digests, "parent_block_hash": digests[0]}
    assert contents(decode(batch_of(as_ints))) == contents(decode(batch_of(as_digests)))


def test_negative_ints_are_unsigned() -> None:
    """Old engines publish negative hashes; they are the same 64 bits."""
    (stored,) = decode(batch_of(STORED | {"block_hashes": [-1, 5], "parent_block_hash": -2})).events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [2**64 - 1, 5]
    assert stored.parent_block_hash == 2**64 - 2


def test_mixed_forms_in_one_batch() -> None:
    """Arrays beside maps and digests beside ints decode event by event."""
    array = ["BlockRemoved", [b"\x00" * 31 + b"\x07"], "GPU"]
    batch = decode(batch_of(STORED, array, REMOVED))
    assert [getattr(event, "block_hashes", None) for event in batch.events] == [[1, 2], [7], [1]]


def test_unknown_fields_are_ignored() -> None:
    """A field of a later version changes nothing, in either encoding."""
    later_map = REMOVED | {"from_the_future": {"a": [1]}}
    later_array = ["BlockRemoved", [1], "GPU", 0, None, None, "more", 7]
    for event in (later_map, later_array):
        (removed,) = decode(batch_of(event)).events
        assert isinstance(removed, BlockRemoved) and removed.block_hashes == [1]


@pytest.mark.parametrize("unknown", [{"type": "BlockMoved", "to": 1}, ["BlockMoved", [1], 2]])
def test_an_unknown_tag_is_skipped_and_reported(unknown: Any) -> None:
    """The rest of the batch is applied, and the tag is named."""
    batch = decode(batch_of(STORED, unknown, REMOVED))
    assert [type(event) for event in batch.events] == [BlockStored, BlockRemoved]
    assert batch.unknown_tags == ("BlockMoved",)


@pytest.mark.parametrize(
    "event",
    [
        STORED | {"block_hashes": 5},
        STORED | {"block_hashes": ["x"]},
        STORED | {"block_hashes": [True]},
        STORED | {"block_hashes": [b"short"]},
        STORED | {"block_hashes": [1.5]},
        STORED | {"parent_block_hash": "x"},
        STORED | {"token_ids": None},
        STORED | {"block_size": -1},
        STORED | {"medium": 5},
        STORED | {"group_idx": "x"},
        {key: value for key, value in STORED.items() if key != "token_ids"},
        REMOVED | {"block_hashes": None},
        ["BlockRemoved"],
        ["BlockStored", [1]],
        {"no": "tag"},
        [],
        [5],
        7,
        None,
    ],
)
def test_a_malformed_event_is_a_hole(event: Any) -> None:
    """A known event with a malformed body, or one without a tag, fails the batch."""
    # An unknown tag beside it forces the event-by-event path, which must agree.
    for others in ((), ({"type": "BlockMoved"},)):
        with pytest.raises(MalformedBatch):
            batch = decode(batch_of(event, *others))
            for each in batch.events:
                assert isinstance(each, BlockStored)
                each.tokens()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        encode(5),
        encode([]),
        encode([1.5]),
        encode(["x", [], 0]),
        encode([1.5, None, 0]),
        encode({"ts": 1}),
        b"\x91" * 100_000,
        batch_of(CLEARED) + b"\x00",
    ],
)
def test_what_is_no_batch_is_a_hole(payload: bytes) -> None:
    """Nothing but MalformedBatch comes out of bytes that are no batch."""
    with pytest.raises(MalformedBatch):
        decode(payload)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("token_ids", [1, -2], BlockStored.tokens),
        ("token_ids", [[1, 2]], BlockStored.tokens),
        ("token_ids", "x", BlockStored.tokens),
        ("extra_keys", [["a"]], BlockStored.keys),
        ("extra_keys", ["a", "b"], BlockStored.keys),
        ("lookahead_token_ids", [1], BlockStored.lookahead),
    ],
)
def test_raw_fields_are_checked_when_read(field: str, value: Any, read: Any) -> None:
    """What only a proof needs stays raw, and is a hole when it turns out malformed."""
    event = decode(batch_of(STORED | {field: value})).events[0]
    with pytest.raises(MalformedBatch):
        read(event)


def test_a_decoder_follows_a_change_of_form() -> None:
    """The form that worked last is only a guess: each batch of another form decodes too."""
    decoder = BatchDecoder()
    array = ["BlockRemoved", [9], "GPU"]
    digest = STORED | {"block_hashes": [b"\x00" * 16, b"\x01" * 16]}
    for event, count in ((STORED, 2), (array, 1), (digest, 2), (STORED, 2)):
        assert len(decoder.decode(batch_of(event)).events[0].block_hashes) == count  # type: ignore[union-attr]  # no clear among them


HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=4)
MEDIA = st.sampled_from(["GPU", "cpu", "STORAGE", None])
EVENTS = st.one_of(
    st.builds(
        lambda hashes, parent, medium, tokens: (
            STORED
            | {"block_hashes": hashes, "parent_block_hash": parent}
            | {"medium": medium, "token_ids": tokens}
        ),
        HASHES,
        st.none() | st.integers(0, 2**64 - 1),
        MEDIA,
        st.lists(st.integers(0, 2**20), max_size=8),
    ),
    st.builds(
        lambda hashes, medium: REMOVED | {"block_hashes": hashes, "medium": medium}, HASHES, MEDIA
    ),
    st.just(CLEARED),
)
ARRAY_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size")
ARRAY_FIELDS_AFTER = ("lora_id", "medium", "lora_name")


def as_array(event: dict[str, Any]) -> list[Any]:
    names = (
        (*ARRAY_FIELDS, *ARRAY_FIELDS_AFTER)
        if event["type"] == "BlockStored"
        else (("block_hashes", "medium") if event["type"] == "BlockRemoved" else ())
    )
    return [event["type"], *(event[name] for name in names)]


def as_digests(event: dict[str, Any]) -> dict[str, Any]:
    def digest(value: Any) -> Any:
        return None if value is None else bytes(24) + value.to_bytes(8, "big")

    changed = dict(event)
    if "block_hashes" in event:
        changed["block_hashes"] = [digest(value) for value in event["block_hashes"]]
    if "parent_block_hash" in event:
        changed["parent_block_hash"] = digest(event["parent_block_hash"])
    return changed


def contents(batch: KVEventBatch) -> list[Any]:
    """What a batch says, whatever classes its events are of."""
    said: list[Any] = [batch.ts, batch.data_parallel_rank, batch.unknown_tags]
    for event in batch.events:
        if isinstance(event, BlockStored):
            told = (event.block_hashes, event.parent_block_hash, event.tokens(), event.keys())
            said.append((*told, event.block_size, event.medium, event.group_idx, event.lora_name))
        elif isinstance(event, BlockRemoved):
            said.append((event.block_hashes, event.medium, event.group_idx))
        else:
            said.append("cleared")
    return said


@given(st.lists(EVENTS, max_size=5), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_typed_equals_event_by_event(
    events: list[dict[str, Any]], arrays: bool, digests: bool
) -> None:
    """The fast decoders say what the tolerant one says, in all four forms."""
    shaped: list[Any] = [as_digests(event) if digests else event for event in events]
    payload = batch_of(*[as_array(event) if arrays else event for event in shaped])
    fast, slow = contents(decode(payload)), contents(_decode_event_by_event(payload))
    assert fast == slow
    assert fast == contents(decode(batch_of(*events)))
