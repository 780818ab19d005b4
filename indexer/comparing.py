"""Are two sets of blocks the same? What `index verify` says of a replica.

Three tell which blocks a replica holds: the memory of the indexer, its store, and, where the engine
is a simulated one, the engine itself. Rules:

* Memory and store are compared at one position, where they have to be equal in every copy and as of
  the same batch.
* Memory and engine are compared while nothing happens. They have to be equal where the history is
  complete; where it is not, the memory may hold less, and never anything that the engine has not.
* What did not hold still, or could not be read, is neither equal nor different.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from indexer.block_lines import Head
from indexer.saved_state import Saved
from proto.blockhash import show

Counts = Mapping[int, int]
EXAMPLES_MAX = 5


class Verdict(StrEnum):
    EQUAL = "equal"
    PART = "part"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_THERE = "not there"

    @property
    def is_fine(self) -> bool:
        return self not in (Verdict.DIFFERS, Verdict.UNDECIDED)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``what`` the memory was compared with; ``why`` where it is not simply equal."""

    what: str
    verdict: Verdict
    blocks: int = 0
    why: str = ""
    examples: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "blocks": self.blocks,
            "why": self.why,
            "examples": list(self.examples),
        }


@dataclass(frozen=True, slots=True)
class Checked:
    """One replica and all that its memory was compared with."""

    replica: str
    evidence: str
    comparisons: tuple[Comparison, ...]

    def as_json(self) -> dict[str, Any]:
        found = {comparison.what: comparison.as_json() for comparison in self.comparisons}
        return {"replica": self.replica, "evidence": self.evidence, **found}


def with_store(head: Head, memory: Counts, saved: Saved) -> Comparison:
    """Both at the head's position."""
    if (saved.state.seq, saved.state.digest.hex()) != (head.seq, head.digest):
        why = f"memory is as of batch {head.seq}, the store as of {saved.state.seq}"
        return Comparison("store", Verdict.DIFFERS, len(memory), why)
    return _compared("store", memory, saved.counts)


def with_engine(head: Head, memory: Counts, truth: Counts) -> Comparison:
    """Both while nothing happened."""
    if head.history_complete or memory == truth:
        return _compared("engine", memory, truth)
    if any(copies > truth.get(block_hash, 0) for block_hash, copies in memory.items()):
        return _compared("engine", memory, truth, more_only=True)
    why = f"the history is incomplete: {len(memory)} of {len(truth)} blocks are known"
    return Comparison("engine", Verdict.PART, len(memory), why)


def _compared(what: str, memory: Counts, other: Counts, *, more_only: bool = False) -> Comparison:
    more = [block_hash for block_hash in memory if block_hash not in other]
    fewer = [] if more_only else [block_hash for block_hash in other if block_hash not in memory]
    copies = [
        block_hash
        for block_hash, held in memory.items()
        if block_hash in other
        and (held > other[block_hash] if more_only else held != other[block_hash])
    ]
    if not more and not fewer and not copies:
        return Comparison(what, Verdict.EQUAL, len(memory))
    counted = (
        (len(more), f"only in memory: {len(more)}"),
        (len(fewer), f"only in the {what}: {len(fewer)}"),
        (len(copies), f"other numbers of copies: {len(copies)}"),
    )
    why = "; ".join(text for count, text in counted if count)
    examples = _examples(memory, other, what, (*more, *fewer, *copies))
    return Comparison(what, Verdict.DIFFERS, len(memory), why, examples)


def _examples(
    memory: Counts, other: Counts, what: str, block_hashes: Iterable[int]
) -> tuple[str, ...]:
    lowest = sorted(block_hashes)[:EXAMPLES_MAX]
    return tuple(
        f"{show(each)}: {memory.get(each, 0)} in memory, {other.get(each, 0)} in the {what}"
        for each in lowest
    )


def exit_status(checked: Sequence[Checked]) -> int:
    """1 where anything differs, 3 where that could not be told of everything, else 0."""
    verdicts = {each.verdict for one in checked for each in one.comparisons}
    if Verdict.DIFFERS in verdicts:
        return 1
    return 0 if all(verdict.is_fine for verdict in verdicts) else 3
