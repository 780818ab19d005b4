"""Which event streams a configured replica has: configuration and discovery -> sources per rank.

Rules: a DP rank is a replica of its own, named ``name#rank`` where an engine has several. What is
configured wins over what is discovered. Capacity per rank is the engine's blocks, divided by its
ranks, less the null block (reference, section 6). What cannot work is an error that says what to
change, never a replica that silently stays empty.
"""

from indexer.hub import RankSource
from indexer.index import PoolName, ReplicaId
from indexer.sources import EngineFacts, EventSource, offset_endpoint
from proto.contract import replica_id
from proto.replica_config import ReplicaConfig


class NotFollowable(Exception):
    """The replica's events cannot be followed as things stand; the text says what to change."""


def rank_sources(
    replica: ReplicaConfig, facts: EngineFacts, *, listening: bool
) -> tuple[RankSource, ...]:
    """The sources of every rank. Raises NotFollowable."""
    if replica.event_endpoint is not None or replica.topic is not None:
        return _configured(replica, facts)
    if facts.sources is None:
        raise NotFollowable(
            f"vLLM {facts.version} does not tell where its events are (0.31 does): set"
            f" event_endpoint and replay_endpoint of replica {replica.name!r}"
        )
    if not facts.sources:
        raise NotFollowable(
            "KV events are off: start the engine with --kv-events-config"
            ' \'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557",'
            ' "replay_endpoint": "tcp://*:5558", "buffer_steps": 100000}\''
        )
    return tuple(
        _discovered(replica, facts, source, len(facts.sources), listening)
        for source in facts.sources
    )


def _configured(replica: ReplicaConfig, facts: EngineFacts) -> tuple[RankSource, ...]:
    ranks = replica.data_parallel_size
    return tuple(
        RankSource(
            ReplicaId(replica_id(replica.name, rank, ranks)),
            PoolName(replica.pool),
            engine=replica.name,
            rank=rank,
            endpoint=_offset(replica.event_endpoint, rank),
            replay_endpoint=_offset(replica.replay_endpoint, rank),
            topic=(replica.topic or "").encode(),
            blocks=_capacity(replica, facts, ranks),
            url=replica.url,
        )
        for rank in range(ranks)
    )


def _discovered(
    replica: ReplicaConfig, facts: EngineFacts, source: EventSource, ranks: int, listening: bool
) -> RankSource:
    if not source.binds and not listening:
        raise NotFollowable(
            f"the engine connects to {source.endpoint} instead of listening: set events.bind to"
            " an address that it reaches there, or put a * into its endpoint"
        )
    return RankSource(
        ReplicaId(replica_id(replica.name, source.rank, ranks)),
        PoolName(replica.pool),
        engine=replica.name,
        rank=source.rank,
        endpoint=source.endpoint if source.binds else None,
        replay_endpoint=source.replay_endpoint,
        topic=source.topic.encode(),
        blocks=_capacity(replica, facts, ranks),
        url=replica.url,
    )


def _offset(endpoint: str | None, rank: int) -> str | None:
    return None if endpoint is None else offset_endpoint(endpoint, rank)


def _capacity(replica: ReplicaConfig, facts: EngineFacts, ranks: int) -> int | None:
    total = replica.blocks if replica.blocks is not None else facts.blocks_total
    return None if total is None else max(1, total // ranks - 1)
