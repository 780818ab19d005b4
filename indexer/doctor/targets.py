"""Which engines to look at, and what was said of each beforehand.

It comes from the flags or from a configuration file. Of a file the doctor believes what the indexer
would: what is configured wins over what an engine says of itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from indexer.config import IndexerConfig
from indexer.doctor.places import ToldEndpoints
from indexer.doctor.probes import ChatIds
from proto.replica_config import ReplicaConfig


@dataclass(frozen=True, slots=True)
class Target:
    """One engine. ``blocks``: of all its ranks, where that is configured.

    ``chat_ids``: what its pool's chats are tokenized with; None: they are not compared.
    """

    url: str
    told: ToldEndpoints = field(default_factory=ToldEndpoints)
    blocks: int | None = None
    chat_ids: ChatIds | None = None


def configured_targets(config: IndexerConfig, chat_ids: Mapping[str, ChatIds]) -> list[Target]:
    """Every replica of the file; ``chat_ids`` by the name of the pool.

    Raises DiscoveryError where a replica's endpoints leave no room for its ranks.
    """
    return [
        Target(replica.url, _told(replica), replica.blocks, chat_ids.get(replica.pool))
        for replica in config.replicas
    ]


def _told(replica: ReplicaConfig) -> ToldEndpoints:
    if replica.event_endpoint is None and replica.topic is None:
        return ToldEndpoints()
    return ToldEndpoints(
        replica.event_endpoint,
        replica.replay_endpoint,
        replica.data_parallel_size,
        topic=replica.topic,
        by_file=True,
    )
