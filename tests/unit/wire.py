"""Events as an engine of vLLM >= 0.24 writes them, for tests that need their own."""

from collections.abc import Sequence
from typing import Any

import msgspec

from indexer.events import BatchDecoder, BlockRemoved, BlockStored

CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int] = (),
    *,
    parent: int | None = None,
    block_size: int = 16,
    **fields: Any,
) -> dict[str, Any]:
    event = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
    }
    return event | fields


def removed(hashes: Sequence[int], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | fields


def payload(*events: Any, rank: int = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def stored_event(event: dict[str, Any]) -> BlockStored:
    decoded = BatchDecoder().decode(payload(event)).events[0]
    assert isinstance(decoded, BlockStored)
    return decoded


def removed_event(event: dict[str, Any]) -> BlockRemoved:
    decoded = BatchDecoder().decode(payload(event)).events[0]
    assert isinstance(decoded, BlockRemoved)
    return decoded
