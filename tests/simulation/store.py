"""A store in memory: the specification that Redis is held against, and the simulated world's own.

It keeps whole snapshots, so a world can take it back to an older one, as a server does that comes
back with less than it had confirmed.
"""

from collections import Counter
from dataclasses import dataclass, field

from indexer.durability import NOWHERE, Answer, Elsewhere, Flush, Leased, Written
from indexer.saved_state import Saved, SavedState


@dataclass(frozen=True)
class Kept:
    """One replica's state, blocks and copies."""

    position: str = NOWHERE
    writer: str = ""
    lease_until: float = 0.0
    state: SavedState | None = None
    counts: dict[int, int] = field(default_factory=dict)


class SpecifiedStore:
    """``now`` in seconds is the store's own clock."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.now = 0.0
        # Sets of another size than the flush says: here, where nothing is lost, a bug of its maker.
        self.mismatches = 0

    def flush(self, replica: str, flush: Flush) -> Answer:
        kept = self.kept.get(replica, Kept())
        if kept.position == flush.to_position:
            return Written()
        if kept.writer != flush.writer and kept.lease_until > self.now:
            return Leased()
        if kept.position != flush.from_position:
            return Elsewhere(kept.position)
        counts = {} if flush.cleared else dict(kept.counts)
        for block_hash in flush.removed:
            counts.pop(block_hash, None)
        counts.update(flush.copies)
        if len(counts) != flush.blocks:
            self.mismatches += 1
            self.kept.pop(replica, None)
            return Elsewhere(NOWHERE)
        until = self.now + flush.lease_s
        self.kept[replica] = Kept(flush.to_position, flush.writer, until, flush.state, counts)
        return Written()

    def load(self, replica: str) -> Saved | None:
        kept = self.kept.get(replica)
        if kept is None or kept.state is None:
            return None
        return Saved(kept.position, kept.state, Counter(kept.counts))
