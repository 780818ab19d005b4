"""The chain of block hashes over CBOR, without building the objects that the CBOR is of.

A block is ``[parent, tokens, extra keys]`` in canonical CBOR. The tokens of a long prompt are
looked up in a table of encoded ids, all at once by numpy, and then cut into blocks; those of a
short one, or of one with ids beyond the table, are left to cbor2. A property test holds both equal
to ``cbor2.dumps(..., canonical=True)``.

numpy is imported by the first long prompt only: a process that merely checks roots, which are
short, does without its 20 MB.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import cbor2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CBOR_NULL = b"\xf6"
# Covers every vocabulary known (the largest is 262,144) and takes 2.3 MB.
_TABLE_TOKENS = 2**18
# From so many tokens on a dozen calls of numpy cost less than a call of cbor2 for each block.
_AT_ONCE_TOKENS_MIN = 192


class Hash(Protocol):
    def digest(self) -> bytes: ...


def cbor_chain(
    hash_function: Callable[[bytes], Hash],
    parent: bytes,
    token_ids: Sequence[int],
    block_size: int,
    extras: Sequence[tuple[Any, ...] | None],
) -> list[bytes]:
    """The chain over ``[parent, tokens, extra]``, one digest for each of ``extras``.

    Raises ValueError for what cannot be a token id.
    """
    head = b"\x83" + _cbor_head(0x40, len(parent))
    digests = []
    for body in cbor_bodies(token_ids, block_size, extras):
        parent = hash_function(head + parent + body).digest()
        digests.append(parent)
    return digests


def cbor_bodies(
    token_ids: Sequence[int], block_size: int, extras: Sequence[tuple[Any, ...] | None]
) -> list[bytes]:
    """What follows the parent in each block's CBOR: its tokens and its extra keys."""
    blocks = min(len(extras), len(token_ids) // block_size)
    ids = _checked(token_ids[: blocks * block_size])
    bodies = _plain_bodies(ids, block_size)
    if any(extras):
        keys = (_CBOR_NULL if e is None else cbor2.dumps(e, canonical=True) for e in extras)
        return [body[: -len(_CBOR_NULL)] + key for body, key in zip(bodies, keys, strict=False)]
    return bodies


def _plain_bodies(ids: "array[int]", block_size: int) -> list[bytes]:
    """Bodies of blocks without extra keys."""
    if len(ids) >= _AT_ONCE_TOKENS_MIN and ids.typecode == "I":
        try:
            items, ends = _items_at_once(ids, block_size)
        except IndexError:
            pass
        else:
            return [items[i:j] for i, j in pairwise((0, *ends))]
    blocks = (ids[i : i + block_size].tolist() for i in range(0, len(ids), block_size))
    return [cbor2.dumps(block) + _CBOR_NULL for block in blocks]


def _cbor_head(major: int, value: int) -> bytes:
    """The shortest head of a CBOR item (RFC 8949, 4.2.1); ``major`` is the type in bits 5-7."""
    if value < 24:
        return bytes((major | value,))
    if value < 0x100:
        return bytes((major | 24, value))
    if value < 0x10000:
        return struct.pack(">BH", major | 25, value)
    return struct.pack(">BI", major | 26, value)


def _checked(token_ids: Sequence[int]) -> "array[int]":
    """As 32-bit numbers, or as 64-bit ones where some id needs them."""
    try:
        return array("I", token_ids)
    except OverflowError:
        pass
    try:
        return array("Q", token_ids)
    except OverflowError as error:
        raise ValueError(f"some number is no token id: {error}") from None


class _TokenTable(NamedTuple):
    """Each token id's CBOR item at the beginning of a word of eight bytes, and its length."""

    words: "NDArray[np.uint64]"
    lengths: "NDArray[np.uint8]"
    # By an item's length: eight truth values of a byte each, whether that byte belongs to it.
    in_use: "NDArray[np.uint64]"


@cache
def _token_table() -> _TokenTable:
    import numpy as np

    ids = np.arange(_TABLE_TOKENS, dtype=np.uint64)
    size_class = np.searchsorted((24, 0x100, 0x10000), ids, side="right")
    heads, shifts = np.array((0, 0x18, 0x19, 0x1A)) << 56, np.array((56, 48, 40, 24))
    words = heads.astype(np.uint64)[size_class] | ids << shifts.astype(np.uint64)[size_class]
    lengths = np.array((1, 2, 3, 5), np.uint8)[size_class]
    in_use = np.arange(8) < np.arange(6)[:, None]
    return _TokenTable(words.astype(">u8").view(np.uint64), lengths, in_use.view(np.uint64).ravel())


def _items_at_once(ids: "array[int]", block_size: int) -> tuple[bytes, list[int]]:
    """All blocks' bodies behind one another, and where each ends.

    A block is a row: the head of its tokens, the tokens, and the null of no extra keys, so that one
    slice of the result is a body. Raises IndexError for an id that is not in the table.
    """
    import numpy as np

    table, head = _token_table(), _cbor_head(0x80, block_size)
    numbers = np.frombuffer(ids, np.uintc).reshape(-1, block_size)
    shape = (len(numbers), block_size + 2)
    words, lengths = np.empty(shape, np.uint64), np.empty(shape, np.uint8)
    words[:, 0], lengths[:, 0] = np.frombuffer(head.ljust(8, b"\0"), np.uint64)[0], len(head)
    words[:, 1:-1], lengths[:, 1:-1] = table.words.take(numbers), table.lengths.take(numbers)
    words[:, -1], lengths[:, -1] = np.frombuffer(_CBOR_NULL.ljust(8, b"\0"), np.uint64)[0], 1
    in_use = table.in_use.take(lengths).view(np.bool_).ravel()
    ends = lengths.sum(axis=1, dtype=np.int64).cumsum()
    return words.view(np.uint8).ravel().compress(in_use).tobytes(), ends.tolist()
