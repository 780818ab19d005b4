"""What a store has to be told of one replica, and what its answers mean: the replica's journal.

Rules (design, decision 8 and the section on Redis):

* A flush brings the store from one *position* to the next and names both: the writer, a random
  number of each process, and a count that only grows. The store compares and sets. A sequence
  number would not do: an engine's restart brings the same ones again.
* One flush at a time. Until its answer is known it is asked again, unchanged: the store takes it
  once however often it comes.
* What the store holds is at each position a state that is safe to go on from: blocks that are
  resident as of the batch whose digest is kept beside them, at worst too few of them. So removals
  are never put off; additions may be, and until the last the history is not called complete.
* A store that stands elsewhere has lost data, or kept older: everything is written anew, from where
  it stands. So it is after more changes than are worth remembering.
* Another writer's living lease is respected. A flush with nothing in it renews our own, and so
  notices within a second what a store has lost, also while nothing happens.
"""

import dataclasses
from dataclasses import dataclass
from typing import cast

from indexer.replica import ReplicaState
from indexer.saved_state import SavedState

# How far the store may be behind: so long, or so many blocks (design, section Redis).
BEHIND_S_MAX = 0.05
BEHIND_BLOCKS_MAX = 4_096
# While the store is slow or away, changes are remembered up to this many.
CHANGES_MAX = 100_000
# Blocks of a full rewrite per flush: about 50 ms of the store's time.
REWRITE_BLOCKS_MAX = 32_768
RENEW_S = 1.0
LEASE_S = 3.0
# A flush whose answer did not come is asked again after this long.
RETRY_S = 1.0
NOWHERE = ""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """See the constants."""

    changes_max: int = CHANGES_MAX
    rewrite_blocks_max: int = REWRITE_BLOCKS_MAX


LIMITS = JournalLimits()


@dataclass(frozen=True, slots=True)
class Flush:
    """One write. ``copies`` are absolute; ``blocks`` is how many the store then has to hold.

    ``state`` None: nothing of the replica is worth keeping. ``lease_s`` 0 gives the lease back.
    """

    writer: str
    from_position: str
    to_position: str
    cleared: bool
    removed: list[int]
    copies: dict[int, int]
    blocks: int
    state: SavedState | None
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Written:
    """The store is where the flush was to bring it, now or already before."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The store is at another position (``NOWHERE``: it holds nothing), and nothing was written."""

    position: str


@dataclass(frozen=True, slots=True)
class Leased:
    """Another writer's lease lives, and nothing was written."""


Answer = Written | Elsewhere | Leased


class Writer:
    """One process that writes. It never gives the same position twice, for whatever replica."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._given = 0

    def new_position(self) -> str:
        self._given += 1
        return f"{self.name}:{self._given}"


class Journal:
    """See the module's rules. ``position``: where what the state was restored from stands."""

    def __init__(
        self,
        state: ReplicaState,
        writer: Writer,
        position: str | None = None,
        limits: JournalLimits = LIMITS,
    ) -> None:
        self._limits = limits
        self.position = NOWHERE if position is None else position
        self.rewrites = 0
        self.written_seq: int | None = None
        self._state, self._writer = state, writer
        self._rewrite = position is None
        # Held, and not written since a rewrite began.
        self._backlog: set[int] = set()
        self._asked: Flush | None = None
        self._ask_again_at = 0.0
        self._asked_at: float | None = None
        self._written_at: float | None = None
        self._mark: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<Journal {self._state.id} at {self.position or 'nowhere'}>"

    def durable(self, now: float) -> bool:
        """Whether the store has all but the last moment, and has said so lately."""
        written_lately = self._written_at is not None and now - self._written_at <= LEASE_S
        return written_lately and not self._rewrite and not self._backlog

    def mirrored(self, now: float) -> str | None:
        """Where the store is led by the flush made ``now``, if it then holds what the memory does.

        None where no flush was made now, or one that does not bring all of it.
        """
        asked = self._asked
        whole = asked is not None and asked.state is not None and not self._backlog
        return asked.to_position if asked and whole and self._asked_at == now else None

    @property
    def behind(self) -> bool:
        """More has changed than should wait for the next flush in time."""
        return self._asked is None and self._state.blocks.changes >= BEHIND_BLOCKS_MAX

    def next(self, now: float) -> Flush | None:
        """What to ask of the store now, if anything; call at least every ``BEHIND_S_MAX``."""
        self.bound_changes()
        if self._asked is not None:
            if now < self._ask_again_at:
                return None
            self._ask_again_at = now + RETRY_S
            return self._asked
        if not self._changed() and self._asked_at is not None and now - self._asked_at < RENEW_S:
            return None
        return self._ask(now)

    def bound_changes(self) -> None:
        """Changes that nobody will read are forgotten; a rewrite needs none of them.

        Call it as often as ``next``, also while the store is away.
        """
        blocks = self._state.blocks
        if blocks.changes and (self._rewrite or blocks.changes > self._limits.changes_max):
            self._rewrite = True
            blocks.take_delta()

    def last(self, now: float) -> Flush:
        """What to ask before the process ends: what is under way, then one with the lease."""
        return self._asked if self._asked is not None else self._ask(now, lease_s=0.0)

    def answered(self, flush: Flush, answer: Answer, now: float) -> None:
        if flush is not self._asked:
            return
        match answer:
            case Written():
                self._asked = None
                self.position = flush.to_position
                self.written_seq = flush.state.seq if flush.state else None
                self._written_at = now
            case Elsewhere(position):
                self._asked = None
                self.position = position
                self._rewrite = True
            case Leased():
                self._ask_again_at = now + RENEW_S

    def unanswered(self, flush: Flush, now: float) -> None:
        """It may have been written or not: the same again, later."""
        if flush is self._asked:
            self._ask_again_at = now + RETRY_S

    # How a flush is made.

    def _changed(self) -> bool:
        counters = self._state.counters
        mark = (counters.batches, counters.clears)
        return self._rewrite or bool(self._backlog) or mark != self._mark

    def _ask(self, now: float, lease_s: float = LEASE_S) -> Flush:
        state, counters = self._state.save(), self._state.counters
        self._mark = (counters.batches, counters.clears)
        cleared, removed, copies = self._changes(keep=state is not None)
        held = len(self._state.blocks.primary.counts) if state is not None else 0
        if state is not None and self._backlog:
            state = dataclasses.replace(state, history_complete=False)
        self._asked_at, self._ask_again_at = now, now + RETRY_S
        self._asked = Flush(
            self._writer.name,
            self.position,
            self._writer.new_position(),
            cleared,
            removed,
            copies,
            held - len(self._backlog),
            state,
            lease_s,
        )
        return self._asked

    def _changes(self, *, keep: bool) -> tuple[bool, list[int], dict[int, int]]:
        """Cleared, removed, copies; and the backlog is what then is left of it."""
        counts = self._state.blocks.primary.counts
        delta = self._state.blocks.take_delta()
        if not keep:
            self._rewrite = False
            self._backlog = set()
            return True, [], {}
        removed = cast(list[int], delta.removed)
        copies = cast(dict[int, int], delta.copies)
        cleared = delta.cleared or self._rewrite
        if self._rewrite:
            self.rewrites += 1
            self._rewrite = False
            removed, copies, self._backlog = [], {}, set(counts)
        elif delta.cleared:
            self._backlog = set()
        self._backlog.difference_update(copies, removed)
        for _ in range(min(self._limits.rewrite_blocks_max, len(self._backlog))):
            block_hash = self._backlog.pop()
            copies[block_hash] = counts[block_hash]
        return cleared, removed, copies
