"""A shell: where engines connect to us, for as long as the doctor looks.

One for all engines, since several may connect to one address. It is asked from the threads of the
ranks, whoever comes first takes what has arrived for all.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence

from indexer.arrivals import ConnectionOpened, FrameReceived
from indexer.doctor.facts import EarFacts
from indexer.events import peek_rank
from indexer.listener import ListenError
from indexer.subscriber import Subscriber

# libzmq tries again every 0.1 s where nobody listened.
CONNECTED_S_MAX = 3.0
_TURN_S_MAX = 0.05
_TAKEN_MAX = 1000
# Of each rank; they are all there is to read where it has no replay endpoint.
_HEARD_MAX = 1000
# Topics and ranks that are told apart; a hostile peer can make up any number.
_STREAMS_MAX = 4096


class Ears:
    """Listens at every endpoint that it can; ``failed`` says why at one it cannot."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.failed: str | None = None
        self._listening: list[str] = []
        self._lock = threading.Lock()
        self._connections = 0
        self._frames: dict[tuple[bytes, int], list[FrameReceived]] = {}
        self._counts: Counter[tuple[bytes, int]] = Counter()
        self._subscriber = Subscriber(lambda: None)
        self._subscriber.start()
        for endpoint in endpoints:
            self._listen(endpoint)

    def __repr__(self) -> str:
        return f"<Ears {self._listening}, {self._connections} connections>"

    def close(self) -> None:
        self._subscriber.stop()

    def wait_for_a_connection(self) -> None:
        deadline = time.monotonic() + CONNECTED_S_MAX
        while self._listening and time.monotonic() < deadline:
            with self._lock:
                self._take()
                if self._connections:
                    return
            time.sleep(_TURN_S_MAX)

    def heard(self, topic: bytes, rank: int) -> tuple[EarFacts, Sequence[FrameReceived]]:
        """What came of one rank until now, and its first batches."""
        with self._lock:
            self._take()
            others = {topic for topic, _ in self._frames} - {topic}
            facts = EarFacts(
                endpoints=tuple(self._listening),
                failed=self.failed,
                connections=self._connections,
                batches=self._counts[topic, rank],
                other_topics=tuple(sorted(t.decode(errors="replace")[:256] for t in others)),
            )
            return facts, tuple(self._frames.get((topic, rank), ()))

    def _listen(self, endpoint: str) -> None:
        try:
            self._subscriber.bind(endpoint)
            self._listening.append(endpoint)
        except ListenError as error:
            self.failed = self.failed or str(error)

    def _take(self) -> None:
        while taken := self._subscriber.take(_TAKEN_MAX):
            for arrival in taken:
                if isinstance(arrival, ConnectionOpened):
                    self._connections += 1
                elif isinstance(arrival, FrameReceived):
                    self._keep(arrival)

    def _keep(self, frame: FrameReceived) -> None:
        rank = peek_rank(frame.payload)
        if rank is None:
            return
        stream = (frame.topic, rank)
        if stream not in self._frames and len(self._frames) >= _STREAMS_MAX:
            return
        kept = self._frames.setdefault(stream, [])
        self._counts[stream] += 1
        if len(kept) < _HEARD_MAX:
            kept.append(frame)
