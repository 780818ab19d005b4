"""A hub that follows replicas which nobody runs: their events come from the simulator's encoder."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.sim.chain import BlockChain
from benchmarks.sim.wire import WireFormat
from indexer.arrivals import ConnectionId, ConnectionLost, ConnectionOpened, FrameReceived, ReplayId
from indexer.hub import Hub, Link, RankSource
from indexer.index import PoolName, ReplicaId
from proto.blockhash import NO_KEYS, EngineScheme, RequestKeys

SHA = EngineScheme("sha256_cbor", "0", 16)
XXH = EngineScheme("xxhash", "0", 32)
NOW = 100.0


class NoTransport:
    """Every connection is opened by the test."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def connect(self, endpoint: str) -> ConnectionId:
        return ConnectionId(next(self.numbers))

    def close(self, connection: ConnectionId) -> None:
        pass

    def replay(self, endpoint: str, start_seq: int) -> ReplayId:
        raise AssertionError("nobody can replay here")

    def cancel_replay(self, replay: ReplayId) -> None:
        pass


@dataclass
class Followed:
    """One replica: what it publishes is applied at once."""

    hub: Hub
    link: Link
    scheme: EngineScheme
    wire: WireFormat = field(default_factory=lambda: WireFormat("0.33", int_hashes=True))
    seq: int = 0

    def holds(self, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS) -> None:
        """A request with these tokens ran."""
        chain = BlockChain(self.scheme, token_ids, keys)
        self.says(self.wire.encode(1.0, [chain.stored(0, len(chain.digests))], 0))

    def says(self, payload: bytes) -> None:
        assert self.link.connection is not None
        self.hub.handle(FrameReceived(self.link.connection, b"", self.seq, payload), NOW)
        self.seq += 1
        while self.hub.step():
            pass

    def leaves(self) -> None:
        assert self.link.connection is not None
        self.hub.handle(ConnectionLost(self.link.connection, "gone"), NOW)


def follow(
    hub: Hub,
    name: str,
    scheme: EngineScheme = SHA,
    *,
    pool: str = "default",
    lora_paths: Mapping[str, str] | None = None,
    version: str = "0.33.0",
) -> Followed:
    """A replica that has just connected and said nothing yet."""
    source = RankSource(
        ReplicaId(name), PoolName(pool), name, endpoint=f"tcp://{name}:1", url=f"http://{name}"
    )
    link = hub.add(source, NOW)
    hub.tick(NOW)
    assert link.connection is not None
    hub.handle(ConnectionOpened(link.connection, None), NOW)
    link.state.learn(version=version, lora_paths=lora_paths or {})
    return Followed(hub, link, scheme)


def new_hub() -> Hub:
    return Hub(NoTransport())
