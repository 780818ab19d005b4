"""What `index stats` and `index verify` print for a person, and the figures behind it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from indexer.comparing import Checked, Comparison, Verdict

_COLOURS = {Verdict.DIFFERS: "31", Verdict.UNDECIDED: "33", Verdict.NOT_THERE: "36"}
_COLUMNS = (
    ("replica", "replica"),
    ("evidence", "evidence"),
    ("blocks", "blocks"),
    ("copies", "copies"),
    ("capacity", "capacity_blocks"),
    ("B/block", "memory_bytes_per_block"),
    ("stored B/block", "store_bytes_per_block"),
    ("seq", "seq"),
    ("lag", "lag_batches"),
    ("stored seq", "durable_seq"),
)


def stats_of(replica: Mapping[str, Any], store_bytes: int | None) -> dict[str, Any]:
    """One replica's figures, from what ``GET /replicas`` says of it."""
    blocks, reasons = replica["blocks"], replica["reasons"]
    evidence = f"{replica['evidence']}({'|'.join(reasons)})" if reasons else replica["evidence"]
    kept = ("replica", "pool", "blocks", "copies", "capacity_blocks", "history_complete")
    more = ("seq", "lag_batches", "durable", "durable_seq", "store_rewrites", "memory_bytes")
    return {
        **{name: replica[name] for name in (*kept, *more)},
        "evidence": evidence,
        "store_bytes": store_bytes,
        "memory_bytes_per_block": _per_block(replica["memory_bytes"], blocks),
        "store_bytes_per_block": _per_block(store_bytes, blocks),
    }


def _per_block(size_bytes: int | None, blocks: int) -> float | None:
    return None if size_bytes is None or not blocks else round(size_bytes / blocks, 1)


def stats_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines with a head; what is not known is a dash. The first two columns are texts."""
    cells = [[title for title, _ in _COLUMNS]]
    cells += [["-" if row[key] is None else str(row[key]) for _, key in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        aligned = (
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(aligned).rstrip()


def verify_lines(checked: Sequence[Checked], *, colour: bool = False) -> Iterator[str]:
    for one in checked:
        yield f"{one.replica}  {one.evidence}"
        for each in one.comparisons:
            yield from _comparison(each, colour)


def _comparison(found: Comparison, colour: bool) -> Iterator[str]:
    said = str(found.verdict).ljust(max(map(len, Verdict)))
    if colour and found.verdict in _COLOURS:
        said = f"\x1b[{_COLOURS[found.verdict]}m{said}\x1b[0m"
    text = found.why or f"{found.blocks} blocks"
    yield f"  memory and {found.what.ljust(6)}  {said}  {_printable(text)}"
    for example in found.examples:
        yield f"      {example}"


def _printable(text: str) -> str:
    """Some texts are a server's: what would command a terminal is left out."""
    return "".join(char if char.isprintable() else " " for char in text)
