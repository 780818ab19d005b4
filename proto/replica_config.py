"""One engine as a configuration file or a registration names it: ``[[replicas]]``.

Both services read the same entries: the indexer follows an engine's events, the router sends it
requests. Whether an event endpoint can be dialled is for the indexer to check.
"""

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from proto.config_file import ConfigError
from proto.contract import DEFAULT_POOL

REPLICAS_MAX = 10_000
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]


class ReplicaConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine. What it tells about itself (vLLM >= 0.31) need not be written here."""

    name: Name
    url: str
    pool: Name = DEFAULT_POOL
    event_endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: Annotated[str, Meta(max_length=256)] | None = None
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    blocks: Annotated[int, Meta(ge=1)] | None = None


def check_replicas(replicas: Iterable[ReplicaConfig]) -> None:
    """Raises ConfigError for a name that occurs twice and for what ``check_replica`` refuses."""
    names = set()
    for replica in replicas:
        if replica.name in names:
            raise ConfigError(f"replicas.name: {replica.name!r} occurs twice; names are unique")
        names.add(replica.name)
        check_replica(replica)


def check_replica(replica: ReplicaConfig) -> None:
    """Raises ConfigError for what types alone do not refuse."""
    where = f"replicas {replica.name!r}"
    try:
        parts = urlsplit(replica.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        # Reading it is what checks it.
        usable = usable and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{where}, url: {replica.url!r} is not http://HOST:PORT")
    if replica.replay_endpoint and not replica.event_endpoint and replica.topic is None:
        raise ConfigError(f"{where}, replay_endpoint: give event_endpoint (or topic) with it")
