"""The chain of block hashes over CBOR, without building the objects that the CBOR is of.

A block is ``[parent, tokens, extra keys]`` in canonical CBOR. The fast path joins the ready
encodings of its tokens; a property test holds it equal to ``cbor2.dumps(..., canonical=True)``.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Protocol

import cbor2

# Covers every vocabulary known (the largest is 262,144); an id above it is encoded anew each time.
_TOKEN_TABLE_MAX = 2**18
_TOKEN_MAX = 2**64 - 1
_CBOR_NULL = b"\xf6"


class Hash(Protocol):
    def digest(self) -> bytes: ...


def cbor_chain(
    hash_function: Callable[[bytes], Hash],
    parent: bytes,
    token_ids: Sequence[int],
    block_size: int,
    extras: Sequence[tuple[Any, ...] | None],
) -> list[bytes]:
    """The chain over ``[parent, tokens, extra]`` without building those objects.

    Tokens are looked up once for the whole prompt; a block is then one join of ready pieces.
    """
    head = b"\x83" + _cbor_head(0x40, len(parent))
    digests = []
    for body in cbor_bodies(token_ids, block_size, extras):
        parent = hash_function(head + parent + body).digest()
        digests.append(parent)
    return digests


def cbor_bodies(
    token_ids: Sequence[int], block_size: int, extras: Sequence[tuple[Any, ...] | None]
) -> Iterator[bytes]:
    """What follows the parent in each block's CBOR: its tokens and its extra keys."""
    encoded = iter(encode_tokens(token_ids[: len(extras) * block_size]))
    tails: Iterable[bytes] = repeat(_CBOR_NULL)
    if any(extras):
        tails = (_CBOR_NULL if e is None else cbor2.dumps(e, canonical=True) for e in extras)
    heads = repeat(_cbor_head(0x80, block_size), len(extras))
    return map(b"".join, zip(heads, *[encoded] * block_size, tails, strict=False))


def _cbor_head(major: int, value: int) -> bytes:
    """The shortest head of a CBOR item (RFC 8949, 4.2.1); ``major`` is the type in bits 5-7."""
    if not 0 <= value <= _TOKEN_MAX:
        raise ValueError(f"{value} is no token id")
    if value < 24:
        return bytes((major | value,))
    if value < 0x100:
        return bytes((major | 24, value))
    if value < 0x10000:
        return struct.pack(">BH", major | 25, value)
    if value < 0x1_0000_0000:
        return struct.pack(">BI", major | 26, value)
    return struct.pack(">BQ", major | 27, value)


@cache
def token_table() -> list[bytes]:
    """Canonical CBOR of every token id below ``_TOKEN_TABLE_MAX``; 14 MB, made on first use.

    It takes some 50 ms: a process that serves anybody makes it before it starts.
    """
    return [_cbor_head(0x00, token) for token in range(_TOKEN_TABLE_MAX)]


def encode_tokens(token_ids: Sequence[int]) -> Sequence[bytes]:
    """Canonical CBOR of each id. Raises ValueError for what cannot be a token id.

    ``itemgetter`` over a list is three times as fast as a lookup in a loop or a ``map``; making an
    array of unsigned ints is the fastest proof that none is negative and would index from the end.
    """
    try:
        array("I", token_ids)
        encoded: tuple[bytes, ...] = itemgetter(0, 0, *token_ids)(token_table())
        return encoded[2:]
    except (IndexError, OverflowError):
        return [_cbor_head(0x00, token) for token in token_ids]
