"""The tokens of one request and the chained digests of its blocks, grown token by token.

A prompt is hashed once, when it arrives; each generated token adds at most one block to the chain,
so no step ever hashes a prompt again. With a lookahead of L tokens a block has a digest only when
the L tokens behind it exist.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.sim.events import BlockStored
from proto.blockhash import (
    NO_KEYS,
    EngineScheme,
    ExtraKeyForm,
    RequestKeys,
    request_extra_keys,
    root_digest,
)

# vLLM's events show the untagged keys in every version simulated here, whatever it hashes.
_SHOWN_FORM: ExtraKeyForm = "untagged_mm_offset"


class BlockChain:
    __slots__ = ("_keys", "_scheme", "digests", "token_ids")

    def __init__(
        self, scheme: EngineScheme, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS
    ) -> None:
        self._scheme = scheme
        self._keys = keys
        self.token_ids = list(token_ids)
        self.digests = scheme.block_digests(self.token_ids, keys)

    def append(self, token_id: int) -> None:
        """One more token; it may complete one more block."""
        self.token_ids.append(token_id)
        size, index = self._scheme.block_size, len(self.digests)
        end = (index + 1) * size
        if len(self.token_ids) < end + self._scheme.lookahead:
            return
        parent = self.digests[-1] if self.digests else self._root()
        tokens = self.token_ids[end - size : end]
        self.digests += self._scheme.chain(parent, tokens, [self._hashed_keys(index)])

    def stored(self, first: int, end: int) -> BlockStored:
        """The event that announces the blocks ``[first, end)``."""
        size, lookahead = self._scheme.block_size, self._scheme.lookahead
        return BlockStored(
            block_hashes=tuple(self.digests[first:end]),
            parent_block_hash=self.digests[first - 1] if first else None,
            token_ids=tuple(self.token_ids[first * size : end * size]),
            block_size=size,
            extra_keys=self._shown_keys(first, end),
            lora_id=self._keys.lora_int_id,
            lora_name=self._keys.lora_name,
            lookahead_token_ids=tuple(self._tokens_behind(index) for index in range(first, end))
            if lookahead
            else None,
        )

    def _root(self) -> bytes:
        return root_digest(self._scheme.algorithm, self._scheme.seed)

    def _tokens_behind(self, index: int) -> tuple[int, ...]:
        end = (index + 1) * self._scheme.block_size
        return tuple(self.token_ids[end : end + self._scheme.lookahead])

    def _hashed_keys(self, index: int) -> tuple[Any, ...] | None:
        if self._keys == NO_KEYS and not self._scheme.lookahead:
            return None
        start = index * self._scheme.block_size
        end = start + self._scheme.block_size + self._scheme.lookahead
        keys = request_extra_keys(self._scheme.extra_keys, self._keys, index, start, end)
        return (keys, *self._tokens_behind(index)) if self._scheme.lookahead else keys

    def _shown_keys(self, first: int, end: int) -> tuple[tuple[Any, ...] | None, ...]:
        if self._keys == NO_KEYS:
            return (None,) * (end - first)
        size, lookahead = self._scheme.block_size, self._scheme.lookahead
        return tuple(
            request_extra_keys(
                _SHOWN_FORM, self._keys, index, index * size, (index + 1) * size + lookahead
            )
            for index in range(first, end)
        )
