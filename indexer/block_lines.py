"""A replica's blocks as JSON lines: what the operator's listener serves and `index dump` prints.

The first line is the head: of which replica, as of which batch, how many blocks. A line for each
block follows, its hash in 16 hex digits as everywhere. A reader counts them: an answer that was cut
off is not taken for a smaller index.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec
from msgspec import Struct

from proto.blockhash import show

LINES_PER_CHUNK = 2_048


class NotBlockLines(ValueError):
    """What was read is not such lines, or not all of them."""


class Head(Struct, frozen=True):
    """``seq`` and ``digest`` are of the last applied batch; None where nothing was.

    ``position``: where a store that holds exactly these blocks stands; None where none does, for
    the reason in ``not_kept``.
    """

    replica: str
    pool: str
    evidence: str
    history_complete: bool
    translated: bool
    seq: int | None
    digest: str | None
    position: str | None
    not_kept: str | None
    blocks: int


class BlockLine(Struct, frozen=True):
    """One block."""

    hash: str
    copies: int


def head_line(head: Head) -> bytes:
    return msgspec.json.encode(head) + b"\n"


def block_lines(counts: Mapping[int, int]) -> Iterator[bytes]:
    """In pieces of about a millisecond's work each."""
    rest = iter(counts.items())
    while chunk := list(islice(rest, LINES_PER_CHUNK)):
        yield "".join(f'{{"hash":"{show(h)}","copies":{n}}}\n' for h, n in chunk).encode()


def read_head(line: bytes) -> Head:
    """Raises NotBlockLines."""
    try:
        return msgspec.json.decode(line, type=Head)
    except msgspec.DecodeError as error:
        raise NotBlockLines(f"its first line is none of ours: {error}") from None


def read_blocks(head: Head, lines: bytes) -> dict[int, int]:
    """All that the head announces. Raises NotBlockLines."""
    try:
        blocks = msgspec.json.Decoder(BlockLine).decode_lines(lines)
        counts = {int(block.hash, 16): block.copies for block in blocks}
    except ValueError as error:
        raise NotBlockLines(f"a line is none of ours: {error}") from None
    if len(counts) != head.blocks:
        raise NotBlockLines(f"{len(counts)} of {head.blocks} blocks arrived")
    return counts
