"""What an engine says about itself over HTTP, checked: event sources, models, cache, sleep.

Pure functions from bodies to facts; ``discovery`` fetches the bodies. Rules it keeps:

* Everything is untrusted: types, ranges and numbers of entries are checked, and what does not fit
  raises ``DiscoveryError`` with a text that says what to do.
* Endpoints are ``tcp://HOST:PORT`` (an IPv6 host in brackets) or ``ipc://PATH``; no other
  transport reaches another process.
* ``binds`` follows vLLM's own rule for the endpoint it reports (``_is_bind_endpoint``). One case
  cannot be told: since 0.31 a publisher configured as exactly ``tcp://*:0`` has bound, but reports
  the address it resolved to, which looks like one it connects to. ``may_be_resolved`` marks the
  candidates: unless one of our listeners has that address, connecting to it is the way to know.
* vLLM connects to ``tcp://0.0.0.0:PORT`` instead of binding it. The endpoint is left as it is.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

RANK_MAX = 1023
_PORT_MAX = 65_535
# The size of sun_path on Linux, less its terminator.
_IPC_PATH_CHARS_MAX = 107
_MODELS_MAX = 10_000
_TCP = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]{1,253}):([0-9]{1,5})", re.ASCII)
_IPC = re.compile(r"ipc://[^\x00-\x1f\x7f*]+")
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", re.ASCII)
_RANK = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})", re.ASCII)
_WILDCARD_HOSTS = ("*", "[::]")
# What a bound replay socket may also say; a publisher would connect to it.
_REPLAY_WILDCARD_HOSTS = (*_WILDCARD_HOSTS, "0.0.0.0")
_FIRST_WITH_RESOLVED_ENDPOINTS = (0, 31)

_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Body = TypeVar("_Body")


class DiscoveryError(Exception):
    """The replica cannot be used as it answers; the text says what to do."""


class Endpoint(NamedTuple):
    """``port`` None: an ipc path, in ``host``."""

    host: str
    port: int | None


@dataclass(frozen=True, slots=True)
class EventSource:
    """One rank's publisher. The engine binds ``endpoint`` if ``binds``, else connects to it."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
    buffer_steps: int
    binds: bool
    may_be_resolved: bool = False


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """From ``vllm:cache_config_info``. ``blocks_total`` is the sum over the engine's ranks."""

    blocks_total: int | None = None
    block_size_tokens: int | None = None
    hash_algorithm: str | None = None
    prefix_caching: bool | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """``sources`` None: older than 0.31, endpoints are to be configured; empty: events are off."""

    version: str
    sources: tuple[EventSource, ...] | None
    models: tuple[str, ...]
    lora_paths: Mapping[str, str]
    cache: CacheFacts
    sleep_states: Mapping[int, str]

    @property
    def blocks_total(self) -> int | None:
        return self.cache.blocks_total


class MetricSample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class _SourceBody(msgspec.Struct, frozen=True):
    endpoint: _Text | None = None
    replay_endpoint: _Text | None = None
    topic: _Text = ""
    buffer_steps: _Count = 10_000
    enable_kv_cache_events: bool = True
    publisher: _Text | None = "zmq"


class _ModelBody(msgspec.Struct, frozen=True):
    id: _Text
    root: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    parent: _Text | None = None


class _ModelsBody(msgspec.Struct, frozen=True):
    data: Annotated[list[_ModelBody], msgspec.Meta(max_length=_MODELS_MAX)]


class _VersionBody(msgspec.Struct, frozen=True):
    version: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


def parse_endpoint(endpoint: str, *, zero_port: bool = False) -> Endpoint:
    """Raises ``DiscoveryError``. ``zero_port``: a port the kernel may choose is fine."""
    if _IPC.fullmatch(endpoint):
        path = endpoint.removeprefix("ipc://")
        if len(path) > _IPC_PATH_CHARS_MAX:
            raise DiscoveryError(f"ipc path longer than {_IPC_PATH_CHARS_MAX}: {endpoint!r}")
        return Endpoint(path, None)
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise DiscoveryError(
            f"not an endpoint: {endpoint[:200]!r}; use tcp://HOST:PORT, with an IPv6 host in "
            "brackets, or ipc://PATH"
        )
    host, port = match[1], int(match[2])
    if port > _PORT_MAX or (port == 0 and not zero_port):
        raise DiscoveryError(f"port {port} of {endpoint!r} is not in 1..{_PORT_MAX}")
    return Endpoint(host, port)


def is_bind_endpoint(endpoint: str) -> bool:
    """vLLM's ``_is_bind_endpoint``, verbatim in meaning: also true of any host with ``::``."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def offset_endpoint(endpoint: str, rank: int) -> str:
    """Where rank ``rank`` publishes if ``endpoint`` is configured (``offset_endpoint_port``)."""
    assert 0 <= rank <= RANK_MAX
    host, port = parse_endpoint(endpoint, zero_port=True)
    if rank == 0 or port == 0:
        return endpoint
    if port is None:
        raise DiscoveryError(f"{endpoint!r} cannot be shared by ranks: vLLM refuses ipc with DP")
    if port + rank > _PORT_MAX:
        raise DiscoveryError(f"rank {rank} of {endpoint!r} is beyond port {_PORT_MAX}")
    return f"tcp://{host}:{port + rank}"


def host_of(replica_url: str) -> str:
    """As it is written in an endpoint, so an IPv6 host has brackets. Raises ``DiscoveryError``."""
    try:
        host = urlsplit(replica_url).hostname
    except ValueError:
        host = None
    if not host:
        raise DiscoveryError(f"no host in {replica_url!r}; use http://HOST:PORT")
    return f"[{host}]" if ":" in host else host


def substitute_host(
    endpoint: str, host: str, *, wildcards: tuple[str, ...] = _WILDCARD_HOSTS
) -> str:
    """``host`` in place of "any address"; every other endpoint is returned as it is."""
    written, port = parse_endpoint(endpoint)
    return f"tcp://{host}:{port}" if port and written in wildcards else endpoint


def parse_sources(body: bytes, host: str, version: str) -> tuple[EventSource, ...]:
    """The body of ``/kv_event_sources``, by rank; ``host`` as ``host_of`` gives it."""
    by_rank = _decode(body, dict[str, _SourceBody], "/kv_event_sources")
    if len(by_rank) > RANK_MAX + 1:
        raise DiscoveryError(f"/kv_event_sources lists {len(by_rank)} ranks")
    resolves = is_at_least(version, _FIRST_WITH_RESOLVED_ENDPOINTS)
    sources = [
        _source(_rank(key), source, host, resolves)
        for key, source in by_rank.items()
        if source.enable_kv_cache_events and source.publisher != "null"
    ]
    return tuple(sorted(sources, key=lambda source: source.rank))


def parse_version(body: bytes) -> str:
    return _decode(body, _VersionBody, "/version").version


def is_at_least(version: str, wanted: tuple[int, int]) -> bool:
    """False for a version that cannot be read."""
    match = _VERSION.match(version)
    return match is not None and (int(match[1]), int(match[2])) >= wanted


def parse_models(body: bytes) -> tuple[tuple[str, ...], dict[str, str]]:
    """The body of ``/v1/models``: names of the base model, and the paths of the LoRAs by name.

    A LoRA is an entry with a parent. Without a path it is no candidate for anything, and left out.
    """
    entries = _decode(body, _ModelsBody, "/v1/models").data
    bases = tuple(entry.id for entry in entries if entry.parent is None)
    if not bases:
        raise DiscoveryError("/v1/models lists no base model; is this a vLLM server?")
    loras = {entry.id: entry.root for entry in entries if entry.parent is not None and entry.root}
    return bases, loras


def parse_cache(samples: Iterable[MetricSample]) -> CacheFacts:
    """Every rank repeats the labels; where they contradict each other nothing is known."""
    labels = [sample.labels for sample in samples if sample.name == "vllm:cache_config_info"]
    caching = _unanimous(labels, "enable_prefix_caching")
    return CacheFacts(
        blocks_total=_positive(_unanimous(labels, "num_gpu_blocks")),
        block_size_tokens=_positive(_unanimous(labels, "block_size")),
        hash_algorithm=_unanimous(labels, "prefix_caching_hash_algo"),
        prefix_caching=None if caching is None else caching == "True",
    )


def parse_sleep_states(samples: Iterable[MetricSample]) -> dict[int, str]:
    """The state whose gauge is 1, by engine index; engines without a valid index are left out."""
    return {
        int(sample.labels["engine"]): sample.labels["sleep_state"]
        for sample in samples
        if sample.name == "vllm:engine_sleep_state"
        and sample.value == 1
        and "sleep_state" in sample.labels
        and is_rank(sample.labels.get("engine", ""))
    }


def is_rank(text: str) -> bool:
    return _RANK.fullmatch(text) is not None and int(text) <= RANK_MAX


def _rank(key: str) -> int:
    if not is_rank(key):
        raise DiscoveryError(
            f"/kv_event_sources has the rank {key[:40]!r}, not an integer in 0..{RANK_MAX}"
        )
    return int(key)


def _source(rank: int, source: _SourceBody, host: str, resolves: bool) -> EventSource:
    if source.publisher not in ("zmq", None) or source.endpoint is None:
        raise DiscoveryError(
            f"rank {rank} publishes KV events with {source.publisher!r} to {source.endpoint!r}; "
            'only "publisher": "zmq" with an endpoint can be read: see --kv-events-config'
        )
    replay = source.replay_endpoint
    binds = is_bind_endpoint(source.endpoint)
    written = parse_endpoint(source.endpoint)
    return EventSource(
        rank=rank,
        endpoint=substitute_host(source.endpoint, host),
        replay_endpoint=replay and substitute_host(replay, host, wildcards=_REPLAY_WILDCARD_HOSTS),
        topic=source.topic,
        buffer_steps=source.buffer_steps,
        binds=binds,
        may_be_resolved=resolves and not binds and _is_resolved_host(written.host),
    )


def _is_resolved_host(host: str) -> bool:
    """vLLM resolves to a literal address of the machine, and never to a loopback one by itself."""
    literal = host.startswith("[") or _IPV4.fullmatch(host) is not None
    return literal and not host.startswith("127.") and host != "0.0.0.0"


def _decode(body: bytes, kind: type[_Body], path: str) -> _Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(
            f"{path} answered something vLLM does not ({error}); check that the replica's URL "
            "leads to a vLLM server and not to a proxy"
        ) from error


def _unanimous(labels: Iterable[Mapping[str, Any]], name: str) -> str | None:
    values = {entry.get(name) for entry in labels}
    value = values.pop() if len(values) == 1 else None
    return None if value in (None, "", "None") else str(value)


def _positive(text: str | None) -> int | None:
    if text is None or not re.fullmatch(r"[1-9][0-9]{0,14}", text, re.ASCII):
        return None
    return int(text)
