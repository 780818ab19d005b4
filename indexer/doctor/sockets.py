"""A shell: one rank's two sockets, asked as the indexer asks them. Blocking, for a thread.

First ``connect``, so that what comes live is heard; then ``read``, which ends by itself.
"""

import threading
import time
from collections.abc import Iterator

from indexer.arrivals import (
    Arrival,
    ConnectionLost,
    ConnectionOpened,
    FrameReceived,
    ReplayBatchReceived,
    ReplayEnded,
    ReplayStopped,
)
from indexer.doctor.ears import Ears
from indexer.doctor.facts import EarFacts, RankFacts, ReplayFacts
from indexer.doctor.log import ExaminedLog, replay_start
from indexer.doctor.places import is_dialled, rank_facts
from indexer.sources import EventSource
from indexer.subscriber import Subscriber

CONNECT_S_MAX = 3.0
# An engine that is busy publishes many times in such a time, one that does not is idle.
LISTEN_S = 1.0
# Beyond it a replay is broken off: what is known by then is enough, and the engine has work to do.
REPLAY_S_MAX = 15.0
REPLAY_SILENCE_S_MAX = 3.0
_TURN_S_MAX = 0.05
# Without a replay endpoint these are all there is to read.
_HEARD_MAX = 1000


class RankSockets:
    """``ears``: where engines connect to us, None if nobody listens there."""

    def __init__(
        self, source: EventSource, log: ExaminedLog, *, told: bool, ears: Ears | None = None
    ) -> None:
        self._source, self._log, self._told, self._ears = source, log, told, ears
        self._woken = threading.Event()
        self._subscriber = Subscriber(
            self._woken.set,
            connect_ms_max=int(CONNECT_S_MAX * 1000),
            replay_silence_ms_max=int(REPLAY_SILENCE_S_MAX * 1000),
        )
        self._lost: str | None = None
        self._heard: list[FrameReceived] = []
        self._subscriber.start()

    def __repr__(self) -> str:
        return f"<RankSockets {self._source.endpoint}>"

    def connect(self) -> None:
        """Returns once the event socket can be heard, or cannot be."""
        if not is_dialled(self._source):
            if self._ears is not None:
                self._ears.wait_for_a_connection()
            return
        self._subscriber.connect(self._source.endpoint)
        for arrival in self._arrivals(2 * CONNECT_S_MAX):
            if isinstance(arrival, ConnectionOpened):
                return
            if isinstance(arrival, ConnectionLost):
                self._lost = arrival.why
                return
        self._lost = "the connection was not made in time"

    def read(self) -> RankFacts:
        for _ in self._arrivals(LISTEN_S):
            pass
        heard = self._heard_by_ears()
        replay = None
        if self._source.replay_endpoint is not None:
            replay = self._replay(self._source.replay_endpoint)
        else:
            for frame in self._heard:
                self._log.read(frame.seq, frame.payload)
        return rank_facts(
            self._source,
            told=self._told,
            lost=self._lost,
            replay=replay,
            log=self._log.facts(),
            ears=heard,
        )

    def close(self) -> None:
        self._subscriber.stop()

    def _heard_by_ears(self) -> EarFacts | None:
        if self._ears is None or is_dialled(self._source):
            return None
        facts, frames = self._ears.heard(self._source.topic.encode(), self._source.rank)
        self._heard += frames
        return facts

    def _replay(self, endpoint: str) -> ReplayFacts:
        """Asked again where it went silent in the middle, as before 0.33 it may."""
        start = replay_start(self._heard[0].seq if self._heard else None)
        deadline, asked = time.monotonic() + REPLAY_S_MAX, 0
        while True:
            asked += 1
            begin = max(start, self._log.next_seq)
            stopped = self._ask(endpoint, begin, deadline)
            out_of_time = time.monotonic() >= deadline
            if stopped is None or out_of_time or self._log.next_seq <= begin:
                return ReplayFacts(stopped, start, asked)

    def _ask(self, endpoint: str, start: int, deadline: float) -> str | None:
        """None once the end marker came."""
        replay = self._subscriber.replay(endpoint, start)
        for arrival in self._arrivals(deadline - time.monotonic()):
            if isinstance(arrival, ReplayBatchReceived):
                self._log.read(arrival.seq, arrival.payload)
            elif isinstance(arrival, ReplayEnded):
                return None
            elif isinstance(arrival, ReplayStopped):
                return arrival.why
        self._subscriber.cancel_replay(replay)
        return f"it was not at its end after {REPLAY_S_MAX:g} s"

    def _arrivals(self, seconds: float) -> Iterator[Arrival]:
        """What comes within so long. The first live batches are kept, whoever stops listening."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._woken.clear()
            taken = self._subscriber.take(1000)
            live = [arrival for arrival in taken if isinstance(arrival, FrameReceived)]
            self._heard += live[: _HEARD_MAX - len(self._heard)]
            yield from taken
            if not taken:
                self._woken.wait(_TURN_S_MAX)
