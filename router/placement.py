"""Where a request was put, and what becomes of that: what the relay is given for one attempt."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.fleet import Fleet
from router.load import Lease
from router.optimistic import Booking
from router.policy import Decision
from router.replicas import Replica

# A busy engine is not a broken one.
_FAILURES_OF_THE_REPLICA = frozenset(("refused", "broken", "silent"))


@dataclass(slots=True, eq=False)
class Placement:
    """One attempt on one replica, as the relay wants it. ``release`` is called exactly once."""

    target: Replica
    headers: tuple[tuple[str, str], ...]
    decision: Decision
    matched_blocks: int
    prompt_blocks: int
    predicted_cached_tokens: int | None
    evidence: str
    _fleet: Fleet
    _lease: Lease
    _bookings: Sequence[Booking]

    @property
    def replica(self) -> str:
        return self.target.id

    @property
    def url(self) -> str:
        return self.target.url

    @property
    def rank_header(self) -> int | None:
        return self.target.header_rank

    def first_byte(self) -> None:
        self._lease.first_byte()

    def failed(self, kind: str) -> None:
        """It will not hold what was booked on it; unless it is only busy, it leaves at once."""
        for booking in self._bookings:
            self._fleet.optimistic.refuse(booking)
        engine = self._fleet.replicas.engines.get(self.target.engine)
        if engine is not None and kind in _FAILURES_OF_THE_REPLICA:
            engine.request_failed(kind)

    def release(self) -> None:
        self._lease.release()
