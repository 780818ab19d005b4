"""What an engine says about its block pool: the three KV events, under vLLM's names.

An event holds facts only; how a version of vLLM spells them is `wire`'s business. Rules it keeps:

* Hashes are whole digests. The int form of the wire is their low 64 bits.
* One `BlockStored` names consecutive blocks of one request; `extra_keys` and
  `lookahead_token_ids` have one entry per hash, and `extra_keys` are the untagged ones, which is
  what vLLM shows even where it hashes tagged ones.
* One `BlockRemoved` is one physical copy.
"""

from typing import Any

from msgspec import Struct


class BlockStored(Struct, frozen=True):
    block_hashes: tuple[bytes, ...]
    parent_block_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    extra_keys: tuple[tuple[Any, ...] | None, ...]
    lora_id: int | None = None
    lora_name: str | None = None
    lookahead_token_ids: tuple[tuple[int, ...], ...] | None = None


class BlockRemoved(Struct, frozen=True):
    block_hash: bytes


class AllBlocksCleared(Struct, frozen=True):
    pass


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
