"""How much that was read waits for the event loop: the bounded queue between the two threads.

Rules it keeps:

* Whatever is put is taken in the same order, by any thread.
* Every arrival counts as one toward ``frames_max``, also those that carry no message, so that
  connections which come and go cannot fill the memory either.
* The queue is full from the moment a limit is reached until ``take`` has brought it below both.
  The reader then reads nothing; it never discards. A burst overshoots by at most one message.
* ``wake`` is called when the queue stops being empty, and only then: who takes less than
  everything comes back for the rest unasked.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from indexer.arrivals import Arrival, FrameReceived, ReplayBatchReceived

# Bounds what one socket may hand over before the others get their turn.
BURST_MESSAGES_MAX = 256


@dataclass(frozen=True, slots=True)
class QueueStats:
    queued_frames: int
    queued_bytes: int
    full: bool
    full_total: int
    received_total: int


def size_bytes(arrival: Arrival) -> int:
    """What an arrival counts toward ``bytes_max``: the bytes whose number the sender chooses."""
    if isinstance(arrival, FrameReceived):
        return len(arrival.payload) + len(arrival.topic)
    if isinstance(arrival, ReplayBatchReceived):
        return len(arrival.payload)
    return 0


class Burst:
    """What one visit to one socket reports, and how much of it the queue has room for.

    Whoever reads goes on while ``messages < messages_max`` and ``bytes < bytes_max``; plain
    attributes, because they are looked at for every message.
    """

    __slots__ = ("arrivals", "bytes", "bytes_max", "messages", "messages_max")

    def __init__(self, room_frames: int, room_bytes: int) -> None:
        self.arrivals: list[Arrival] = []
        self.messages = 0
        self.bytes = 0
        self.messages_max = min(BURST_MESSAGES_MAX, room_frames) if room_bytes > 0 else 0
        self.bytes_max = room_bytes

    @property
    def has_room(self) -> bool:
        return self.messages < self.messages_max and self.bytes < self.bytes_max

    def add(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        self.bytes += size_bytes(arrival)


class ArrivalQueue:
    def __init__(
        self,
        *,
        frames_max: int,
        bytes_max: int,
        wake: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        """``resume`` is called by the taking thread when a full queue has room again."""
        assert frames_max > 0 and bytes_max > 0
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._wake = wake
        self._resume = resume
        self._lock = Lock()
        self._arrivals: deque[Arrival] = deque()
        self._bytes = 0
        self._full_total = 0
        self._received_total = 0
        self.full = False

    def __repr__(self) -> str:
        return f"<ArrivalQueue {len(self._arrivals)} queued, {self._bytes} B, full={self.full}>"

    def burst(self) -> Burst:
        with self._lock:
            return Burst(self._frames_max - len(self._arrivals), self._bytes_max - self._bytes)

    def put(self, burst: Burst) -> None:
        with self._lock:
            was_empty = not self._arrivals
            self._arrivals.extend(burst.arrivals)
            self._bytes += burst.bytes
            self._received_total += burst.messages
            if not self.full and self._limit_reached():
                self.full = True
                self._full_total += 1
        if was_empty and burst.arrivals:
            self._wake()

    def take(self, limit: int) -> list[Arrival]:
        assert limit > 0
        with self._lock:
            count = min(limit, len(self._arrivals))
            taken = [self._arrivals.popleft() for _ in range(count)]
            self._bytes -= sum(map(size_bytes, taken))
            has_room_again = self.full and not self._limit_reached()
            if has_room_again:
                self.full = False
        if has_room_again:
            self._resume()
        return taken

    def stats(self) -> QueueStats:
        with self._lock:
            return QueueStats(
                queued_frames=len(self._arrivals),
                queued_bytes=self._bytes,
                full=self.full,
                full_total=self._full_total,
                received_total=self._received_total,
            )

    def _limit_reached(self) -> bool:
        return len(self._arrivals) >= self._frames_max or self._bytes >= self._bytes_max
