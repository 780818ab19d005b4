"""Names for the blocks of an engine whose own names cannot be computed: engine hash -> canonical.

The root of such an engine is random, so its hashes mean nothing to anyone else; but its events
carry the tokens. Each stored block is named again by ``CanonicalScheme`` under its parent's
canonical name. Rules (design, decision 3): a block whose parent is not known cannot be placed and
is left out; an engine hash keeps its translation at least while a copy of the block is resident,
in whichever tier and group, since each of them removes it under the engine's name.
"""

from collections.abc import Callable
from typing import Any

from indexer.schemes import StoredBlocks
from proto.blockhash import UNSERIALISABLE, BlockHash, CanonicalScheme


class Translator:
    """Engine hash -> canonical hash, for one replica since its last clear."""

    def __init__(self) -> None:
        self._names: dict[int, BlockHash] = {}
        self.block_size = 0

    def __len__(self) -> int:
        return len(self._names)

    def clear(self) -> None:
        self._names.clear()

    @property
    def scheme(self) -> CanonicalScheme | None:
        return CanonicalScheme(self.block_size) if self.block_size else None

    def stored(self, blocks: StoredBlocks, parent: int | None) -> list[BlockHash]:
        """Canonical names of stored blocks; empty where they cannot be placed."""
        if not blocks.dense or (parent is not None and parent not in self._names):
            return []
        if not self.block_size:
            self.block_size = blocks.block_size
        if blocks.block_size != self.block_size:
            return []
        shown = blocks.extra_keys or [None] * len(blocks.block_hashes)
        try:
            names = CanonicalScheme(self.block_size).chain(
                None if parent is None else self._names[parent],
                blocks.token_ids,
                [_canonical_keys(keys) for keys in shown],
            )
        except UNSERIALISABLE:
            return []
        self._names.update(zip(blocks.block_hashes, names, strict=True))
        return names

    def name(self, engine_hash: int) -> BlockHash | None:
        return self._names.get(engine_hash)

    def keep(self, holds: Callable[[int], bool]) -> None:
        """Forgets every translation whose canonical name is not held any more."""
        self._names = {engine: name for engine, name in self._names.items() if holds(name)}


def _canonical_keys(shown: list[Any] | None) -> tuple[Any, ...] | None:
    if not shown:
        return None
    return tuple(tuple(key) if isinstance(key, list) else key for key in shown)
