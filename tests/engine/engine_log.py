"""An engine's whole log of KV events, asked from its replay socket, and what it says of a prompt.

This is what predictions are held against where they differ: it reads the engine itself, and shares
with the index only the decoder of batches and the names of blocks.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from indexer.events import BatchDecoder, Event
from proto.blockhash import show

_REPLY_MS_MAX = 10_000


@dataclass(frozen=True)
class Entry:
    """One event of the log."""

    seq: int
    ts: float
    event: Event


class EngineLog:
    """Copies of every block after every event. Positions are indices of ``entries``."""

    def __init__(self, batches: Sequence[tuple[int, bytes]]) -> None:
        decoder = BatchDecoder()
        self.entries: list[Entry] = []
        for seq, payload in batches:
            batch = decoder.decode(payload)
            self.entries += (Entry(seq, batch.ts, event) for event in batch.events)
        # Per block: positions at which its copies changed, and the copies from there on.
        self._changes: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._clears: list[int] = []
        for position, entry in enumerate(self.entries):
            self._follow(position, entry.event)

    @classmethod
    def of(cls, replay_endpoint: str) -> "EngineLog":
        """The log as the engine can replay it now, from its first batch."""
        return cls(list(replayed(replay_endpoint)))

    def _follow(self, position: int, event: Event) -> None:
        if event.kind == "cleared":
            self._clears.append(position)
            return
        for block_hash in event.block_hashes:
            before = self.copies(block_hash, position)
            positions, copies = self._changes[block_hash]
            positions.append(position)
            copies.append(before + 1 if event.kind == "stored" else max(0, before - 1))

    def copies(self, block_hash: int, position: int) -> int:
        """Copies of a block after the event at this position; -1: before all events."""
        positions, copies = self._changes.get(block_hash, ((), ()))
        found = bisect_right(positions, position)
        cleared = bisect_right(self._clears, position)
        if not found or (cleared and self._clears[cleared - 1] > positions[found - 1]):
            return 0
        return copies[found - 1]

    def matched(self, block_hashes: Sequence[int], position: int) -> int:
        """Leading blocks of a prompt that the engine held after the event at this position."""
        for count, block_hash in enumerate(block_hashes):
            if not self.copies(block_hash, position):
                return count
        return len(block_hashes)

    def position_of(self, seq: int) -> int:
        """The last event of the batch with this number, or of those before."""
        return bisect_right(self.entries, seq, key=lambda entry: entry.seq) - 1

    def matched_between(
        self, block_hashes: Sequence[int], since: float, until: float
    ) -> list[tuple[int, int]]:
        """The matches of a time, by the engine's clock, as (position, blocks) where they change."""
        first = bisect_right(self.entries, since, key=lambda entry: entry.ts) - 1
        last = bisect_right(self.entries, until, key=lambda entry: entry.ts) - 1
        matches: list[tuple[int, int]] = []
        for position in range(first, last + 1):
            matched = self.matched(block_hashes, position)
            if not matches or matches[-1][1] != matched:
                matches.append((position, matched))
        return matches

    def table(self, block_hashes: Sequence[int], seq: int) -> str:
        """Each block of a prompt with its copies at a sequence number, and now."""
        then, now = self.position_of(seq), len(self.entries) - 1
        lines = [
            f"  block {index:4} {show(block_hash)}"
            f" copies at seq {seq}: {self.copies(block_hash, then)},"
            f" now: {self.copies(block_hash, now)}"
            for index, block_hash in enumerate(block_hashes)
        ]
        return "\n".join(lines)


def replayed(endpoint: str) -> "list[tuple[int, bytes]]":
    """(seq, payload) of every batch that the engine keeps."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    batches = []
    try:
        socket.connect(endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while socket.poll(_REPLY_MS_MAX):
            *_, seq, payload = socket.recv_multipart()
            if not payload:
                return batches
            batches.append((int.from_bytes(seq, "big"), payload))
        raise AssertionError(f"the replay at {endpoint} did not end")
    finally:
        socket.close()
        context.term()
