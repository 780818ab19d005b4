"""A router's routing beside an index in the same process, for measuring the whole way of a request.

Every replica holds blocks of other prompts; what a placed request computes is held by its replica
from then on, as if its events had come. There is no engine and no socket.
"""

from collections.abc import AsyncIterator, Sequence
from random import Random

from benchmarks.micro.matching import stored_event
from benchmarks.micro.workload import BLOCK_TOKENS, SEED, random_hashes, scheme
from indexer.index import IndexedReplica, MemoryIndex, PoolName, ReplicaId
from indexer.residency import ReplicaBlocks
from proto.blockhash import BlockHash
from proto.contract import DEFAULT_POOL, HashedPrefix, ReplicaMatch, ReplicaView
from router.fleet import Fleet, HashedRequest
from router.load import InflightLoad
from router.policy import PolicySettings, PrefixPolicy
from router.replicas import EngineConfig, ProbeAnswer, ServedModel
from router.routing import Hasher, PoolRouting, Routing
from router.waiting import WaitingRoom

MODEL = "any"
_REPLICAS = 8
_OTHER_BLOCKS = 10_000


class InProcessIndex:
    """``proto.contract.Indexer`` over dicts of its own."""

    def __init__(self) -> None:
        rng = Random(SEED)
        self.replicas = {f"r{number}": ReplicaBlocks() for number in range(_REPLICAS)}
        self._index = MemoryIndex()
        for name, blocks in self.replicas.items():
            blocks.stored(stored_event(random_hashes(rng, _OTHER_BLOCKS)))
            indexed = IndexedReplica(PoolName(DEFAULT_POOL), blocks, (scheme().id,), True)
            self._index.add(ReplicaId(name), indexed)

    async def match(self, pool: str, prefixes: Sequence[HashedPrefix]) -> dict[str, ReplicaMatch]:
        hashes = {prefix.scheme_id: prefix.block_hashes for prefix in prefixes}
        matches = self._index.match(PoolName(pool), hashes)  # type: ignore[arg-type]
        return {
            name: ReplicaMatch(name, *match, BLOCK_TOKENS, "exact", (), 0)
            for name, match in matches.items()
        }

    async def watch(self) -> AsyncIterator[tuple[ReplicaView, ...]]:
        yield self.views()

    def computed(self, replica: str, hashed: HashedRequest) -> None:
        """The replica holds the whole prompt from now on."""
        for prefix in hashed.prefixes:
            stored = [BlockHash(block_hash) for block_hash in prefix.block_hashes]
            self.replicas[replica].stored(stored_event(stored))

    def views(self) -> tuple[ReplicaView, ...]:
        schemes = (scheme(),)
        return tuple(
            ReplicaView(name, DEFAULT_POOL, "", 0, "exact", (), schemes, 0, 0, 0, 0)
            for name in self.replicas
        )


def routing_of(hasher: Hasher, index: InProcessIndex) -> Routing:
    fleet = Fleet(InflightLoad())
    fleet.replicas.reset(EngineConfig(name, "", DEFAULT_POOL) for name in index.replicas)
    for engine in fleet.replicas.engines.values():
        engine.answered(ProbeAnswer((ServedModel(MODEL),)))
    fleet.learn(index.views())
    pools = {DEFAULT_POOL: PoolRouting(hasher, WaitingRoom(512))}
    return Routing(fleet, pools, index, PrefixPolicy(PolicySettings()))
