"""The network between simulated engines and the hub: ordered, lossy, late, and half-open at times.

It is the hub's transport. Each connection and each replay is a queue of arrivals in order; the
world decides when the next arrival of which queue is delivered. What a real network can do to one
TCP connection is done here: it drops with or without its last frames, it goes half-open (the peer
is gone, nobody says so until the heartbeat does), it stalls.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from indexer.arrivals import (
    Arrival,
    ConnectionId,
    ConnectionLost,
    ConnectionOpened,
    FrameReceived,
    ListenerId,
    ReplayBatchReceived,
    ReplayEnded,
    ReplayId,
    ReplayStopped,
)
from tests.simulation.engine import WorldEngine

HEARTBEAT_S = 6.0
REPLAY_SILENCE_S = 2.0
LISTENER = ListenerId(1)


@dataclass(eq=False)
class Connection:
    id: ConnectionId
    engine: WorldEngine
    incarnation: int
    queue: deque[Arrival] = field(default_factory=deque)
    half_open_since: float | None = None
    lost: bool = False
    stalled_until: float = 0.0


@dataclass(eq=False)
class Replay:
    id: ReplayId
    engine: WorldEngine
    start_seq: int
    queue: deque[Arrival] = field(default_factory=deque)
    served: bool = False
    asked_at: float = 0.0


class Network:
    """See the module's text. ``reliable`` switches every fault off."""

    def __init__(self, rng: random.Random, engines: dict[str, WorldEngine]) -> None:
        self.rng, self.engines = rng, engines
        self.now = 0.0
        self.reliable = False
        self.replays_max = rng.choice((1, 4))
        self.connections: dict[ConnectionId, Connection] = {}
        self.replays: dict[ReplayId, Replay] = {}
        self._ids = 0

    # The hub's transport.

    def connect(self, endpoint: str) -> ConnectionId:
        connection = self._open(self.engines[endpoint], listener=None)
        if not self.reliable and self.rng.random() < 0.1:
            connection.queue.clear()
            self._lose(connection, "refused")
        return connection.id

    def close(self, connection: ConnectionId) -> None:
        self.connections.pop(connection, None)

    def replay(self, endpoint: str, start_seq: int) -> ReplayId:
        assert len(self.replays) < self.replays_max, "too many replays at a time"
        assert all(r.engine.name != endpoint for r in self.replays.values()), "two of one engine"
        self._ids += 1
        replay = Replay(ReplayId(self._ids), self.engines[endpoint], start_seq, asked_at=self.now)
        self.replays[replay.id] = replay
        return replay.id

    def cancel_replay(self, replay: ReplayId) -> None:
        self.replays.pop(replay, None)

    # The engines' side.

    def dial_in(self, engine: WorldEngine) -> None:
        """The engine connects to the indexer, which listens."""
        self._open(engine, LISTENER)

    def _open(self, engine: WorldEngine, listener: ListenerId | None) -> Connection:
        self._ids += 1
        connection = Connection(ConnectionId(self._ids), engine, engine.incarnation)
        connection.queue.append(ConnectionOpened(connection.id, listener))
        self.connections[connection.id] = connection
        return connection

    def of(self, engine: WorldEngine) -> list[Connection]:
        """Connections on which the engine's present process can still send."""
        return [
            c
            for c in self.connections.values()
            if c.engine is engine
            and c.incarnation == engine.incarnation
            and c.half_open_since is None
            and not c.lost
        ]

    def publish(self, engine: WorldEngine, batch: tuple[int, bytes] | None) -> None:
        if batch is None:
            return
        for connection in self.of(engine):
            connection.queue.append(FrameReceived(connection.id, engine.topic, *batch))

    # Faults.

    def drop(self, connection: Connection, frames_kept: int) -> None:
        """The connection breaks; of what was under way only the first frames still arrive."""
        while len(connection.queue) > max(frames_kept, 1):
            connection.queue.pop()
        self._lose(connection, "reset")

    def half_open(self, connection: Connection) -> None:
        """Nothing arrives any more, and only the heartbeat will tell."""
        connection.half_open_since = self.now
        while len(connection.queue) > 1:
            connection.queue.pop()

    def indexer_died(self) -> None:
        """Every connection and replay ends with the indexer that asked for it."""
        self.connections.clear()
        self.replays.clear()

    def process_died(self, engine: WorldEngine) -> None:
        """Every connection to the old process ends, in one way or another."""
        for connection in list(self.connections.values()):
            if connection.engine is engine and not connection.lost:
                if not self.reliable and self.rng.random() < 0.3:
                    self.half_open(connection)
                else:
                    self.drop(connection, self.rng.randint(0, 4))
        for replay in self.replays.values():
            if replay.engine is engine and replay.served and self.rng.random() < 0.7:
                while len(replay.queue) > 1:
                    replay.queue.pop()
                replay.queue.append(ReplayStopped(replay.id, "connection closed"))

    def _lose(self, connection: Connection, why: str) -> None:
        connection.lost = True
        connection.queue.append(ConnectionLost(connection.id, why))

    # Time.

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for connection in list(self.connections.values()):
            since = connection.half_open_since
            if since is not None and not connection.lost and self.now - since > HEARTBEAT_S:
                self._lose(connection, "heartbeat")

    def deliver_one(self) -> Arrival | None:
        """The next arrival of a queue chosen at random; replays are served when first chosen."""
        ready: list[Connection | Replay] = [
            c for c in self.connections.values() if c.queue and c.stalled_until <= self.now
        ]
        ready += self.replays.values()
        if not ready:
            return None
        source = self.rng.choice(ready)
        if isinstance(source, Replay):
            if not source.served:
                self._serve(source)
            if not source.queue:
                return None
        arrival = source.queue.popleft()
        if isinstance(arrival, ReplayEnded | ReplayStopped):
            self.replays.pop(arrival.replay, None)
        elif isinstance(arrival, ConnectionLost):
            self.connections.pop(arrival.connection, None)
        return arrival

    def _serve(self, replay: Replay) -> None:
        """The engine's answer, as far as it gets."""
        replay.served = True
        batches = [b for b in replay.engine.buffer if b[0] >= replay.start_seq]
        stop: Arrival = ReplayEnded(replay.id)
        chance = 1.0 if self.reliable else self.rng.random()
        if replay.engine.replay_is_dead:
            batches, stop = [], ReplayStopped(replay.id, "silent")
        elif chance < 0.05:
            batches, stop = [], ReplayStopped(replay.id, "silent")
        elif chance < 0.10:
            # The sender's queue overflowed: a tail, or something in the middle, is never sent.
            kept = self.rng.randint(0, len(batches))
            batches, stop = batches[:kept], ReplayStopped(replay.id, "silent")
        elif chance < 0.15 and len(batches) > 2:
            # The first two always find room in the sender's queue.
            del batches[self.rng.randint(2, len(batches) - 1)]
        for seq, payload in batches:
            replay.queue.append(ReplayBatchReceived(replay.id, seq, payload))
        replay.queue.append(stop)
