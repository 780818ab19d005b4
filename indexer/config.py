"""The indexer's configuration: one TOML file, checked whole before anything starts.

Every key has a default but the replicas' names and URLs. The file may be one that the router reads
too: its sections (``router``, ``admin``, ``pools``, ``tenancy``) are left to it. Secrets are no
keys: they come from the environment.
"""

from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta, Struct

from indexer.sources import DiscoveryError, parse_endpoint
from proto.config_file import ConfigError, decode_config, parse_listen
from proto.replica_config import REPLICAS_MAX, ReplicaConfig, check_replicas

PASSWORD_VARIABLE = "POINTSMAN_REDIS_PASSWORD"
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_REDIS_SETTINGS = {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_Seconds = Annotated[float, Meta(gt=0, le=3600)]


class HttpConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where /metrics, /replicas, /health and /ready are served."""

    listen: str = "127.0.0.1:9464"


class GrpcConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where ``pointsman.indexer.v1.Indexer`` is served.

    ``trust_registered``: send the replicas' API key to replicas that were registered there too.
    """

    listen: str = "127.0.0.1:50051"
    trust_registered: bool = False


class EventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``bind``: where engines connect to us. Rank r connects to its engine's port + r, so each rank
    has an entry of its own."""

    bind: list[str] = []
    queue_frames_max: Annotated[int, Meta(ge=100, le=1_000_000)] = 10_000
    queue_bytes_max: Annotated[int, Meta(ge=2**20, le=2**34)] = 256 * 2**20
    replays_max: Annotated[int, Meta(ge=1, le=64)] = 4


class DiscoveryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How often each replica is asked for its version, pool size, LoRAs and sleep state."""

    interval_s: _Seconds = 5.0
    timeout_s: _Seconds = 5.0


class RedisConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the index is kept beyond the process: at ``url`` (the password is no key), or by a
    server of our own with its data in ``folder``; with neither, where the command says. Without
    ``enabled`` nowhere, whatever the others are.
    """

    enabled: bool = True
    url: str | None = None
    folder: str | None = None


class IndexerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``hash_seeds``: values of PYTHONHASHSEED worth trying beside none.

    ``replicas`` may be empty, since replicas can be registered while it runs.
    """

    replicas: Annotated[list[ReplicaConfig], Meta(max_length=REPLICAS_MAX)] = []
    hash_seeds: Annotated[list[str], Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: ["0"]
    )
    http: HttpConfig = HttpConfig()
    grpc: GrpcConfig = GrpcConfig()
    events: EventsConfig = EventsConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()
    redis: RedisConfig = RedisConfig()
    router: dict[str, Any] = {}
    admin: dict[str, Any] = {}
    pools: dict[str, Any] = {}
    tenancy: dict[str, Any] = {}


def parse_config(text: bytes) -> IndexerConfig:
    """Raises ConfigError for the first thing that is wrong."""
    config = decode_config(text, IndexerConfig)
    parse_listen(config.http.listen, "http.listen")
    parse_listen(config.grpc.listen, "grpc.listen")
    for endpoint in config.events.bind:
        _check_endpoint("events.bind", endpoint)
    if config.redis.url is not None:
        check_redis_url(config.redis.url, "redis.url")
        if config.redis.folder is not None:
            raise ConfigError("redis.folder: a server of our own, or redis.url: not both")
    check_replicas(config.replicas)
    for replica in config.replicas:
        check_endpoints(replica)
    return config


def check_endpoints(replica: ReplicaConfig) -> None:
    """Raises ConfigError where the replica's events could not be dialled."""
    for key in ("event_endpoint", "replay_endpoint"):
        endpoint = getattr(replica, key)
        if endpoint is not None:
            _check_endpoint(f"replicas {replica.name!r}, {key}", endpoint)


def check_redis_url(url: str, key: str) -> None:
    """Raises ConfigError; ``key`` is the key or the flag that says so."""
    try:
        parts = urlsplit(url)
        settings = parse_qs(parts.query, keep_blank_values=True)
        _, _ = parts.port, [int(text) for text in settings.get("db", ())]
    except ValueError:
        # The error's own words could be a password that stands in the wrong place.
        raise ConfigError(f"{key}: its host, port or db is not well formed") from None
    address = parts.path if parts.scheme == "unix" else parts.netloc
    if parts.scheme not in REDIS_SCHEMES or not address:
        raise ConfigError(f"{key}: not one of {', '.join(f'{s}://' for s in REDIS_SCHEMES)}")
    if ":" in parts.netloc.rpartition("@")[0] or "password" in settings:
        raise ConfigError(f"{key}: put the password into the environment, {PASSWORD_VARIABLE}")
    if not settings.keys() <= _REDIS_SETTINGS:
        raise ConfigError(f"{key}: it may set {', '.join(sorted(_REDIS_SETTINGS))}")


def _check_endpoint(key: str, endpoint: str) -> None:
    try:
        parse_endpoint(endpoint)
    except DiscoveryError as error:
        raise ConfigError(f"{key}: {error}") from None
