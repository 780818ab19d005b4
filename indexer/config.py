"""The indexer's configuration: one TOML file, checked whole before anything starts.

Every key has a default but the replicas' names and URLs; an unknown key is an error, so a typing
mistake never passes for a default. Secrets are no keys: they come from the environment.
"""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from indexer.sources import DiscoveryError, parse_endpoint

_Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$")]
_Seconds = Annotated[float, Meta(gt=0, le=3600)]


class ConfigError(ValueError):
    """The text names the key and says what to put there."""


class HttpConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where /metrics, /replicas, /health and /ready are served."""

    listen: str = "127.0.0.1:9464"


class EventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``bind``: where engines connect to us; rank r of an engine uses its port + r."""

    bind: list[str] = []
    queue_frames_max: Annotated[int, Meta(ge=100, le=1_000_000)] = 10_000
    queue_bytes_max: Annotated[int, Meta(ge=2**20, le=2**34)] = 256 * 2**20
    replays_max: Annotated[int, Meta(ge=1, le=64)] = 4


class DiscoveryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How often each replica is asked for its version, pool size, LoRAs and sleep state."""

    interval_s: _Seconds = 5.0
    timeout_s: _Seconds = 5.0


class ReplicaConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine. What it tells about itself (vLLM >= 0.31) need not be written here."""

    name: _Name
    url: str
    pool: _Name = "default"
    event_endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: Annotated[str, Meta(max_length=256)] | None = None
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    blocks: Annotated[int, Meta(ge=1)] | None = None


class IndexerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``hash_seeds``: values of PYTHONHASHSEED worth trying beside none."""

    replicas: Annotated[list[ReplicaConfig], Meta(min_length=1, max_length=10_000)]
    hash_seeds: Annotated[list[str], Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: ["0"]
    )
    http: HttpConfig = HttpConfig()
    events: EventsConfig = EventsConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()


def parse_config(text: bytes) -> IndexerConfig:
    """Raises ConfigError for the first thing that is wrong."""
    try:
        config = msgspec.toml.decode(text, type=IndexerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_readable(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}") from None
    parse_listen(config.http.listen)
    for endpoint in config.events.bind:
        _check_endpoint("events.bind", endpoint)
    names = set()
    for replica in config.replicas:
        if replica.name in names:
            raise ConfigError(f"replicas.name: {replica.name!r} occurs twice; names are unique")
        names.add(replica.name)
        _check_replica(replica)
    return config


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``http.listen``; port 0 lets the kernel choose."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http.listen: {listen!r} is not HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def _check_replica(replica: ReplicaConfig) -> None:
    where = f"replicas {replica.name!r}"
    try:
        parts = urlsplit(replica.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{where}, url: {replica.url!r} is not http://HOST:PORT")
    for key in ("event_endpoint", "replay_endpoint"):
        endpoint = getattr(replica, key)
        if endpoint is not None:
            _check_endpoint(f"{where}, {key}", endpoint)
    if replica.replay_endpoint and not replica.event_endpoint and replica.topic is None:
        raise ConfigError(f"{where}, replay_endpoint: give event_endpoint (or topic) with it")


def _check_endpoint(key: str, endpoint: str) -> None:
    try:
        parse_endpoint(endpoint)
    except DiscoveryError as error:
        raise ConfigError(f"{key}: {error}") from None


def _readable(message: str) -> str:
    """msgspec's "... - at `$.a.b`" with the key in front, as it is written in the file."""
    text, at, path = message.rpartition(" - at `$")
    if not at:
        return message
    return f"{path.rstrip('`').lstrip('.')}: {text}" if path.strip("`") else text
