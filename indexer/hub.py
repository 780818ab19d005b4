"""Which arrival belongs to which replica, and what is asked of the transport in return.

The hub owns one link per rank: its state, its present stream and its connection. It holds no
socket and no clock: the transport comes in through the constructor and ``now`` with every call, so
the same code runs on ZMQ and in a simulated world. Rules (design, decision 7):

* One connection is one stream. A new connection's stream has to prove that it continues what the
  link has applied; a stream that gave its connection up leaves nothing to continue.
* Where engines connect to us, streams are told apart by (connection, topic, rank). Which engine a
  connection is shows with its first frame; until then its replay endpoint is asked. Two live
  connections with the same topic and rank are refused: both are ignored, the index is cleared, and
  the evidence says so until one of them is gone.
* With a ``writer`` each rank that can replay has a journal for a store; its state and its place in
  the log may come from there.
* What streams decide is queued and done one item at a time, so the shell can stop after any.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from indexer.arrivals import (
    Arrival,
    ConnectionId,
    ConnectionLost,
    ConnectionOpened,
    FrameMalformed,
    FrameReceived,
    ReplayBatchReceived,
    ReplayEnded,
    ReplayId,
    ReplayStopped,
)
from indexer.durability import LIMITS, Journal, JournalLimits, Writer
from indexer.events import peek_rank
from indexer.evidence import Evidence
from indexer.index import MemoryIndex, ReplicaId
from indexer.link import RECONNECT_S_MAX, RECONNECT_S_MIN, Link, RankSource
from indexer.replay_queue import REPLAYS_MAX, ReplayQueue, ReplayTransport
from indexer.replica import ReplicaState
from indexer.saved_state import Saved
from indexer.stream import ReplicaStream
from indexer.stream_outputs import (
    Apply,
    CancelReplay,
    Clear,
    Output,
    Reconnect,
    RequestReplay,
)

__all__ = ["Hub", "Link", "RankSource", "Transport"]

# Topics that no replica is configured for, remembered so that each is reported once.
STRANGERS_MAX = 100


class Transport(ReplayTransport, Protocol):
    """What the hub asks of the world; the subscriber, or a simulation."""

    def connect(self, endpoint: str) -> ConnectionId: ...
    def close(self, connection: ConnectionId) -> None: ...


class Hub:
    """See the module's rules."""

    def __init__(
        self,
        transport: Transport,
        *,
        seeds: tuple[str, ...] = ("0",),
        replays_max: int = REPLAYS_MAX,
        writer: str | None = None,
        limits: JournalLimits = LIMITS,
    ) -> None:
        self.index = MemoryIndex()
        self.links: dict[ReplicaId, Link] = {}
        self.strangers: set[tuple[bytes, int]] = set()
        self._transport = transport
        self._seeds = seeds
        self._writer = Writer(writer) if writer is not None else None
        self._limits = limits
        self._work: deque[tuple[Link, Apply | Clear]] = deque()
        self._dialed: dict[ConnectionId, Link] = {}
        self._accepted: dict[ConnectionId, set[Link]] = {}
        self._by_topic: dict[tuple[bytes, int], Link] = {}
        self._replays = ReplayQueue(transport, self.links, replays_max)

    def __repr__(self) -> str:
        return f"<Hub {len(self.links)} ranks, {len(self._work)} to do>"

    # Membership.

    def add(self, source: RankSource, now: float, saved: Saved | None = None) -> Link:
        """Begin to follow a rank, with what a store kept of it: its first stream has to prove that.

        Raises ValueError where its topic is another rank's.
        """
        if source.endpoint is None and (source.topic, source.rank) in self._by_topic:
            other = self._by_topic[(source.topic, source.rank)].source.replica_id
            raise ValueError(
                f"{source.replica_id} and {other} publish under the same topic"
                f" {source.topic.decode(errors='replace')!r}: give each engine a topic of its own"
            )
        state = ReplicaState(
            source.replica_id,
            source.pool,
            seeds=self._seeds,
            capacity=source.blocks,
            track_changes=self.keeps(source),
        )
        link = Link(source, state, reconnect_at=now)
        if self._writer is not None and self.keeps(source):
            position = saved.position if saved is not None else None
            link.journal = Journal(state, self._writer, position, self._limits)
        if saved is not None:
            state.restore(saved)
            link.last = state.applied
        self.links[source.replica_id] = link
        self.index.add(source.replica_id, state.indexed)
        if source.endpoint is None:
            self._by_topic[(source.topic, source.rank)] = link
            self._begin_unheard(link, now)
        return link

    def keeps(self, source: RankSource) -> bool:
        """Whether a store keeps this rank: without a replay nobody can prove what it kept."""
        return self._writer is not None and source.replay_endpoint is not None

    def remove(self, replica_id: ReplicaId) -> None:
        """Stop to follow a rank and forget it."""
        link = self.links.pop(replica_id)
        self.index.remove(replica_id, link.source.pool)
        self._by_topic.pop((link.source.topic, link.source.rank), None)
        self._replays.drop(link)
        for links in self._accepted.values():
            links.discard(link)
        if link.connection in self._dialed:
            del self._dialed[link.connection]
            self._transport.close(link.connection)
        self._work = deque(item for item in self._work if item[0] is not link)

    def begin_anew(self, replica_id: ReplicaId, saved: Saved, now: float) -> None:
        """With what a store kept, in place of what is known: as after a restart of ours."""
        before = self.links[replica_id]
        self.remove(replica_id)
        state = self.add(before.source, now, saved).state
        state.blocks.capacity = before.state.blocks.capacity
        proof = before.state.proof
        state.learn(version=proof.version, lora_paths=proof.lora_paths)

    def evidence(self, replica_id: ReplicaId, now: float) -> Evidence:
        link = self.links[replica_id]
        return link.state.evidence(link.stream, now)

    # What happened.

    def handle(self, arrival: Arrival, now: float) -> None:
        """One arrival; what it leads to is queued for ``step``."""
        match arrival:
            case FrameReceived():
                self._frame(arrival, now)
            case ReplayBatchReceived(replay, seq, payload):
                found = self._replays.running(replay)
                if found is not None and found[0].stream is not None:
                    link, request = found
                    self._do(link, found[0].stream.replay_batch(request, seq, payload, now), now)
            case ReplayEnded(replay) | ReplayStopped(replay):
                self._replay_over(replay, isinstance(arrival, ReplayEnded), now)
            case ConnectionOpened(connection, None):
                self._opened(connection, now)
            case ConnectionOpened(connection):
                self._accepted[connection] = set()
            case FrameMalformed(connection):
                self._malformed(connection)
            case ConnectionLost(connection):
                self._lost(connection, now)

    def tick(self, now: float) -> None:
        """Time passed: connect what is due, probe what is silent, start replays that wait."""
        for link in self.links.values():
            source = link.source
            if source.endpoint is not None and link.connection is None:
                if now >= link.reconnect_at:
                    link.connection = self._transport.connect(source.endpoint)
                    self._dialed[link.connection] = link
            elif link.stream is not None:
                if link.state.wants_replay_from_start and link.stream.can_replay:
                    self._ask_again(link, now)
                else:
                    self._do(link, link.stream.tick(now), now)
        self._replays.start()

    def step(self) -> bool:
        """Does one queued thing; False when there is none."""
        if not self._work:
            return False
        link, output = self._work.popleft()
        if isinstance(output, Apply):
            link.state.apply(output)
        else:
            link.state.clear(output)
        return True

    @property
    def waiting(self) -> int:
        """Things queued for ``step``."""
        return len(self._work)

    # Connections.

    def _opened(self, connection: ConnectionId, now: float) -> None:
        link = self._dialed.get(connection)
        if link is not None:
            link.backoff_s = RECONNECT_S_MIN
            self._begin(link, connection, now)

    def _begin(self, link: Link, connection: ConnectionId | None, now: float) -> None:
        """A stream for this connection, which has to continue what was applied."""
        link.connection = connection
        link.stream = ReplicaStream(
            replay=link.source.replay_endpoint is not None, resume=link.last, now=now
        )
        link.stream.connected = connection is not None
        self._do(link, link.stream.opened(now), now)

    def _begin_unheard(self, link: Link, now: float) -> None:
        """A stream for an engine that will connect to us: what it can replay need not wait."""
        if link.source.replay_endpoint is not None:
            self._begin(link, None, now)

    def _lost(self, connection: ConnectionId, now: float) -> None:
        link = self._dialed.pop(connection, None)
        if link is not None:
            self._end(link)
            link.reconnect_at = now + link.backoff_s
            link.backoff_s = min(link.backoff_s * 2, RECONNECT_S_MAX)
            return
        for accepted in self._accepted.pop(connection, ()):
            accepted.claimants.discard(connection)
            if accepted.connection == connection:
                self._end(accepted)
            if accepted.state.duplicate_publisher and len(accepted.claimants) < 2:
                accepted.state.duplicate_publisher = False
                for survivor in accepted.claimants:
                    self._begin(accepted, survivor, now)
            if accepted.stream is None and not accepted.state.duplicate_publisher:
                self._begin_unheard(accepted, now)

    def _end(self, link: Link) -> None:
        if link.stream is not None:
            link.last = link.stream.last
        link.stream = link.connection = None
        self._replays.drop(link)

    # Frames.

    def _frame(self, frame: FrameReceived, now: float) -> None:
        link = self._dialed.get(frame.connection)
        if link is None:
            link = self._link_of_accepted(frame, now)
        if link is not None and link.stream is not None:
            self._do(link, link.stream.frame(frame.seq, frame.payload, now), now)

    def _link_of_accepted(self, frame: FrameReceived, now: float) -> Link | None:
        """The rank that a frame of an engine's own connection belongs to, if it may be heard."""
        mine = self._accepted.get(frame.connection)
        if mine is None:
            return None
        rank = peek_rank(frame.payload)
        if rank is None:
            # Undecodable: a hole in the one stream that this topic has on this connection.
            known = [link for link in mine if link.source.topic == frame.topic]
            return known[0] if len(known) == 1 else None
        link = self._by_topic.get((frame.topic, rank))
        if link is None:
            if len(self.strangers) < STRANGERS_MAX:
                self.strangers.add((frame.topic[:256], rank))
            return None
        if link not in mine:
            mine.add(link)
            link.claimants.add(frame.connection)
            self._claim(link, frame.connection, now)
        return None if link.state.duplicate_publisher else link

    def _claim(self, link: Link, connection: ConnectionId, now: float) -> None:
        """A connection speaks for a rank for the first time."""
        if len(link.claimants) == 1:
            if link.stream is None:
                self._begin(link, connection, now)
            else:
                link.connection, link.stream.connected = connection, True
        elif not link.state.duplicate_publisher:
            link.state.duplicate_publisher = True
            link.state.notes.add(
                "duplicate_publisher",
                topic=link.source.topic.decode(errors="replace")[:256],
                rank=link.source.rank,
                fix="give each engine a topic of its own in --kv-events-config",
            )
            self._end(link)
            link.last = None
            self._work.append((link, Clear("two live connections publish the same topic and rank")))

    def _malformed(self, connection: ConnectionId) -> None:
        """A message that is no frame breaks nothing that was applied, but is counted."""
        link = self._dialed.get(connection)
        for each in (link,) if link else self._accepted.get(connection, ()):
            each.malformed_frames += 1

    # Outputs.

    def _do(self, link: Link, outputs: Iterable[Output], now: float) -> None:
        for output in outputs:
            match output:
                case Apply() | Clear():
                    self._work.append((link, output))
                case RequestReplay():
                    self._replays.ask(link, output)
                case CancelReplay():
                    self._replays.drop(link)
                case Reconnect():
                    self._reconnect(link, now)

    def _ask_again(self, link: Link, now: float) -> None:
        """Ask for the log from its beginning, on a stream that has nothing to continue."""
        link.state.wants_replay_from_start = False
        self._work.append((link, Clear("the log is asked for again, to be translated")))
        self._reconnect(link, now)

    def _reconnect(self, link: Link, now: float) -> None:
        connection = link.connection
        self._end(link)
        link.last = None
        if connection is not None and self._dialed.pop(connection, None) is not None:
            self._transport.close(connection)
            link.reconnect_at = now
        else:
            # Somebody else's connection cannot be closed from here; its next stream starts over.
            self._begin(link, connection, now)

    def _replay_over(self, replay: ReplayId, ended: bool, now: float) -> None:
        over = self._replays.over(replay)
        if over is not None:
            link, request = over
            if link.stream is not None:
                tell = link.stream.replay_ended if ended else link.stream.replay_stopped
                self._do(link, tell(request, now), now)
            self._replays.start()
