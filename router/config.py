"""The router's configuration: the file the indexer reads too, with ``[router]``, ``[admin]``,
``[pools]`` and ``[tenancy]``.

Checked whole before anything starts. Secrets are no keys: they come from the environment.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from proto.config_file import ConfigError, decode_config, parse_listen
from proto.contract import DEFAULT_POOL
from proto.replica_config import REPLICAS_MAX, Name, ReplicaConfig, check_replicas
from router.policy import POLICIES, PolicySettings
from router.replicas import EngineConfig
from router.tenancy_config import TenancyConfig, check_tenancy

_Share = Annotated[float, Meta(ge=0, le=1)]
_Seconds = Annotated[float, Meta(gt=0, le=3600)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class SampleConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``folder`` "": no samples. Bodies hold what users have written: mind who may read them."""

    folder: str = ""
    share: _Share = 0.01
    file_bytes_max: Annotated[int, Meta(ge=2**20, le=2**40)] = 64 * 2**20
    bytes_max: Annotated[int, Meta(ge=2**21, le=2**50)] = 2**30


class RouterConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``indexer``: where its gRPC service is; not read by ``pointsman serve``.

    ``tokenize_s_max`` is beside 1 ms per 1,000 tokens, which a prompt's length is given.
    ``spread_factor`` and ``spread_min`` bound a replica's share of what is in flight: so many times
    the mean, and never less than so many requests. ``work_factor`` bounds its share of recent work,
    for prompts of which nobody holds ``settled_ratio``.
    """

    listen: str = "127.0.0.1:8080"
    indexer: str = "127.0.0.1:50051"
    policy: str = "prefix"
    ratio_min: _Share = 0.1
    settled_ratio: _Share = 0.8
    tie_tolerance: _Share = 0.01
    work_factor: Annotated[float, Meta(ge=1, le=1000)] = 1.25
    spread_factor: Annotated[float, Meta(ge=1, le=1000)] = 1.5
    spread_min: _Count = 16
    inflight_max: _Count = 256
    waiting_max: Annotated[int, Meta(ge=0, le=100_000)] = 512
    wait_s_max: _Seconds = 30.0
    indexer_s_max: _Seconds = 0.05
    tokenize_s_max: _Seconds = 0.05
    probe_interval_s: _Seconds = 2.0
    probe_timeout_s: _Seconds = 2.0
    body_bytes_max: Annotated[int, Meta(ge=1024, le=2**31)] = 64 * 2**20
    expose_matches: bool = False
    sample: SampleConfig = SampleConfig()
    fingerprints_max: Annotated[int, Meta(ge=1, le=1000)] = 64

    @property
    def policy_settings(self) -> PolicySettings:
        return PolicySettings(
            ratio_min=self.ratio_min,
            settled_ratio=self.settled_ratio,
            tie_tolerance=self.tie_tolerance,
            work_factor=self.work_factor,
            spread_factor=self.spread_factor,
            spread_min=self.spread_min,
        )


class AdminConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``listen``: where an operator marks releases and asks; "" for nowhere."""

    listen: str = "127.0.0.1:9465"


class PoolConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """``tokenizer``: a folder with the model's tokenizer.json and tokenizer_config.json.

    The others are what the engines are started with: ``chat_template`` a file, as in
    ``--chat-template`` (an empty one: the model has none); ``chat_template_kwargs`` as in
    ``--default-chat-template-kwargs``. ``warm_up``: a folder of request bodies that a replica gets
    when it joins, for no longer than ``warm_up_s_max``. ``canonical_tools``: tools in one order for
    all clients.
    """

    tokenizer: str
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    exclude_tools_when_tool_choice_none: bool = False
    warm_up: str | None = None
    warm_up_s_max: _Seconds = 60.0
    canonical_tools: bool = False


class RouterFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; the indexer's sections are left to it."""

    replicas: Annotated[list[ReplicaConfig], Meta(min_length=1, max_length=REPLICAS_MAX)]
    router: RouterConfig = RouterConfig()
    admin: AdminConfig = AdminConfig()
    pools: dict[Name, PoolConfig] = {}
    tenancy: TenancyConfig = TenancyConfig()
    hash_seeds: list[Any] = []
    http: dict[str, Any] = {}
    grpc: dict[str, Any] = {}
    events: dict[str, Any] = {}
    discovery: dict[str, Any] = {}
    redis: dict[str, Any] = {}

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        warmed = {name for name, pool in self.pools.items() if pool.warm_up is not None}
        return tuple(
            EngineConfig(r.name, r.url.rstrip("/"), r.pool, r.data_parallel_size, r.pool in warmed)
            for r in self.replicas
        )


def parse_router_config(text: bytes) -> RouterFile:
    """Raises ConfigError for the first thing that is wrong."""
    file = decode_config(text, RouterFile)
    check_replicas(file.replicas)
    parse_listen(file.router.listen, "router.listen")
    parse_listen(file.router.indexer, "router.indexer")
    if file.admin.listen:
        parse_listen(file.admin.listen, "admin.listen")
    if file.router.policy not in POLICIES:
        raise ConfigError(f"router.policy: {file.router.policy!r} is none of {', '.join(POLICIES)}")
    if file.router.sample.bytes_max < 2 * file.router.sample.file_bytes_max:
        raise ConfigError("router.sample.bytes_max: make it twice file_bytes_max at least")
    _check_pools(file)
    check_tenancy(file.tenancy)
    return file


def _check_pools(file: RouterFile) -> None:
    """Only the policy that asks who holds what cannot do without a tokenizer."""
    used = {replica.pool for replica in file.replicas}
    for name in file.pools:
        if name not in used:
            raise ConfigError(f"pools.{name}: no replica is in it; they are in {sorted(used)}")
    for name in sorted(used - set(file.pools)):
        if file.router.policy == "prefix":
            hint = "" if name == DEFAULT_POOL else f" (replicas with pool = {name!r} are in it)"
            raise ConfigError(
                f"pools.{name}.tokenizer: set it to the folder with the model's tokenizer.json"
                f" and tokenizer_config.json{hint}; policy 'prefix' hashes prompts as the engine"
                " does"
            )
