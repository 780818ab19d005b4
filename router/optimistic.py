"""Blocks that a replica will hold because a request was just sent there.

An engine announces what it stored a step after the request arrived, so siblings of a request would
miss it. A chosen prompt's blocks are therefore booked on the chosen replica until their event has
surely come, 2 s. Rules:

* Bookings are kept apart from the index: predictions, headers and the audit never see them, only
  the policy does.
* A refused request takes its own bookings back, and no others.
* A replica without events keeps its bookings for as long as its capacity lasts, oldest first out:
  the approximate mode. Tails are booked before heads, so that what goes first is a tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

BOOKED_S_MAX = 2.0
# Where nobody told the size of a replica's pool.
CAPACITY_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class Booking:
    """What one request booked on one replica; ``until`` tells its entries from later ones."""

    replica: str
    block_hashes: Sequence[int]
    until: float


@dataclass(slots=True)
class OptimisticBlocks:
    """Per replica: block hash -> when it is given up, in the order in which that happens."""

    _until: dict[str, dict[int, float]] = field(default_factory=dict)

    def book(self, replica: str, block_hashes: Sequence[int], now: float) -> Booking:
        """Until their event."""
        entries = self._until.setdefault(replica, {})
        _drop_expired(entries, now)
        return _book(replica, entries, block_hashes, now + BOOKED_S_MAX)

    def book_without_events(
        self, replica: str, block_hashes: Sequence[int], capacity_blocks: int
    ) -> Booking:
        """For as long as the capacity lasts; give the whole prompt, so that all of it is recent."""
        entries = self._until.setdefault(replica, {})
        booking = _book(replica, entries, block_hashes, inf)
        surplus = len(entries) - (capacity_blocks or CAPACITY_BLOCKS)
        for block_hash in list(entries)[: max(0, surplus)]:
            del entries[block_hash]
        return booking

    def refuse(self, booking: Booking) -> None:
        entries = self._until.get(booking.replica, {})
        for block_hash in booking.block_hashes:
            if entries.get(block_hash) == booking.until:
                del entries[block_hash]

    def extend(
        self, replica: str, block_hashes: Sequence[int], matched_blocks: int, now: float
    ) -> int:
        """How many leading blocks the replica holds or is about to, on from ``matched_blocks``."""
        entries = self._until.get(replica)
        if not entries:
            return matched_blocks
        get, count = entries.get, len(block_hashes)
        while matched_blocks < count and get(block_hashes[matched_blocks], 0.0) > now:
            matched_blocks += 1
        return matched_blocks

    def forget(self, replica: str) -> None:
        """It left, restarted, or has events now."""
        self._until.pop(replica, None)

    def __len__(self) -> int:
        return sum(map(len, self._until.values()))


def _book(
    replica: str, entries: dict[int, float], block_hashes: Sequence[int], until: float
) -> Booking:
    for block_hash in reversed(block_hashes):
        entries.pop(block_hash, None)
        entries[block_hash] = until
    return Booking(replica, block_hashes, until)


def _drop_expired(entries: dict[int, float], now: float) -> None:
    """Entries are in order of expiry, so this costs what was booked, once."""
    expired = []
    for block_hash, until in entries.items():
        if until > now:
            break
        expired.append(block_hash)
    for block_hash in expired:
        del entries[block_hash]
