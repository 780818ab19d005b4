"""One rank of one engine as the hub follows it: where its events come from, and how it stands."""

from dataclasses import dataclass, field

from indexer.arrivals import ConnectionId, ReplayId
from indexer.durability import Journal
from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.stream import ReplicaStream
from indexer.stream_outputs import LastBatch, RequestReplay

RECONNECT_S_MIN = 0.2
RECONNECT_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class RankSource:
    """Where one rank's events come from. ``endpoint`` None: the engine connects to us.

    ``url``: root of the engine's HTTP server, for whoever sends requests there.
    """

    replica_id: ReplicaId
    pool: PoolName
    engine: str
    rank: int = 0
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: bytes = b""
    blocks: int | None = None
    url: str = ""


@dataclass(slots=True, eq=False)
class Link:
    """One rank and its present connection."""

    source: RankSource
    state: ReplicaState
    # None: nothing of this rank is kept beyond the process.
    journal: Journal | None = None
    stream: ReplicaStream | None = None
    connection: ConnectionId | None = None
    last: LastBatch | None = None
    reconnect_at: float = 0.0
    backoff_s: float = RECONNECT_S_MIN
    wanted: RequestReplay | None = None
    replay: tuple[ReplayId, int] | None = None
    claimants: set[ConnectionId] = field(default_factory=set)
    malformed_frames: int = 0
