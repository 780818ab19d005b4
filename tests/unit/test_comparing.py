"""What is said of two sets of blocks, and how they travel."""

import random

import msgspec
import pytest

from indexer.block_lines import (
    LINES_PER_CHUNK,
    Head,
    NotBlockLines,
    block_lines,
    head_line,
    read_blocks,
    read_head,
)
from indexer.comparing import (
    Checked,
    Comparison,
    Verdict,
    exit_status,
    with_engine,
    with_store,
)
from indexer.index_text import stats_of, stats_table, verify_lines
from indexer.saved_state import Saved, SavedState

MEMORY = {1: 1, 2: 2, 3: 1}
DIGEST = bytes(range(32))
HEAD = Head("a#0", "default", "exact", True, False, 7, DIGEST.hex(), "w:1", None, 3)


def saved(counts: dict[int, int], seq: int = 7, digest: bytes = DIGEST) -> Saved:
    return Saved("w:1", SavedState(seq, digest), counts)  # type: ignore[arg-type]


def test_equal_sets_are_equal() -> None:
    """In every copy, and as of the same batch."""
    for found in (with_store(HEAD, MEMORY, saved(MEMORY)), with_engine(HEAD, MEMORY, MEMORY)):
        assert (found.verdict, found.blocks, found.why) == (Verdict.EQUAL, 3, "")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({1: 1, 2: 2}, "only in memory: 1"),
        ({**MEMORY, 9: 1, 8: 1}, "only in the {}: 2"),
        ({1: 1, 2: 1, 3: 1}, "other numbers of copies: 1"),
        ({1: 2, 4: 1}, "only in memory: 2; only in the {}: 1; other numbers of copies: 1"),
    ],
)
def test_each_kind_of_difference_is_named(other: dict[int, int], why: str) -> None:
    """With how many blocks it concerns, and some of them."""
    for found in (with_store(HEAD, MEMORY, saved(other)), with_engine(HEAD, MEMORY, other)):
        assert (found.verdict, found.why) == (Verdict.DIFFERS, why.format(found.what))
        assert found.examples and all(len(each.split(":")[0]) == 16 for each in found.examples)


def test_another_batch_is_another_state() -> None:
    """Even with the same blocks: what is proven from there would be something else."""
    for other in (saved(MEMORY, seq=6), saved(MEMORY, digest=bytes(32))):
        assert with_store(HEAD, MEMORY, other).verdict is Verdict.DIFFERS


def test_an_incomplete_history_may_know_less_and_never_more() -> None:
    """A part of the engine's blocks is no difference; one block more than it has is."""
    head = msgspec.structs.replace(HEAD, history_complete=False)
    assert with_engine(head, MEMORY, {**MEMORY, 2: 3, 9: 1}).verdict is Verdict.PART
    assert with_engine(head, MEMORY, MEMORY).verdict is Verdict.EQUAL
    more = with_engine(head, MEMORY, {1: 1, 2: 1, 9: 1})
    assert more.verdict is Verdict.DIFFERS
    assert more.why == "only in memory: 1; other numbers of copies: 1"


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["equal", "not there"], 0),
        (["equal", "part"], 0),
        (["equal", "undecided"], 3),
        (["undecided", "differs"], 1),
        ([], 0),
    ],
)
def test_the_exit_status_is_the_worst_that_was_found(verdicts: list[str], status: int) -> None:
    """A difference is worse than what could not be told."""
    comparisons = tuple(Comparison("store", Verdict(verdict)) for verdict in verdicts)
    assert exit_status([Checked("a", "exact", ()), Checked("b", "exact", comparisons)]) == status


@pytest.mark.parametrize("blocks", [0, 1, LINES_PER_CHUNK, LINES_PER_CHUNK + 1, 5000])
def test_blocks_arrive_as_they_were_sent(blocks: int) -> None:
    """Every hash of 64 bits and every count, in pieces of any number."""
    rng = random.Random(blocks)
    counts = {rng.getrandbits(64): rng.choice((1, 2, 2**31)) for _ in range(blocks)}
    head = msgspec.structs.replace(HEAD, blocks=blocks)
    assert read_head(head_line(head)) == head
    assert read_blocks(head, b"".join(block_lines(counts))) == counts


@pytest.mark.parametrize(
    "lines", [b"", b'{"hash":"01","copies":1}\n', b'{"hash":"x","copies":1}\n']
)
def test_what_was_cut_off_or_is_something_else_is_refused(lines: bytes) -> None:
    """Fewer blocks than were announced are no smaller index."""
    with pytest.raises(NotBlockLines):
        read_blocks(HEAD, lines)
    with pytest.raises(NotBlockLines):
        read_head(b"<html>\n")


REPLICA = {
    "replica": "a",
    "pool": "default",
    "evidence": "degraded",
    "reasons": ["silent", "lagging"],
    "blocks": 200,
    "copies": 210,
    "capacity_blocks": None,
    "history_complete": True,
    "seq": 5,
    "lag_batches": None,
    "durable": True,
    "durable_seq": 4,
    "store_rewrites": 0,
    "memory_bytes": 16_000,
}


def test_stats_are_figures_per_block() -> None:
    """What is not known is a dash, and nothing is divided by no blocks."""
    row = stats_of(REPLICA, 8_000)
    assert (row["memory_bytes_per_block"], row["store_bytes_per_block"]) == (80.0, 40.0)
    head, line = stats_table([row])
    assert line.split() == (
        ["a", "degraded(silent|lagging)", "200", "210", "-", "80.0", "40.0", "5", "-", "4"]
    )
    assert head.startswith("replica  evidence")
    empty = stats_of({**REPLICA, "blocks": 0}, None)
    assert empty["memory_bytes_per_block"] is empty["store_bytes_per_block"] is None


def test_what_was_compared_is_told_in_lines() -> None:
    """One for each comparison and each example; what would command a terminal is left out."""
    differs = Comparison("store", Verdict.DIFFERS, 3, "a \x1b[31mred\n text", ("01: 1, 0",))
    checked = [Checked("a", "exact", (differs, Comparison("engine", Verdict.EQUAL, 3)))]
    assert list(verify_lines(checked)) == [
        "a  exact",
        "  memory and store   differs    a  [31mred  text",
        "      01: 1, 0",
        "  memory and engine  equal      3 blocks",
    ]
    assert "\x1b[31mdiffers  \x1b[0m" in list(verify_lines(checked, colour=True))[1]
