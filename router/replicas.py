"""Which replicas there are, what they serve, and which of them can be sent requests.

Rules:

* The configuration names engines; each engine says how many ranks it has and which models it
  serves. A rank is a replica of its own, an engine is healthy or not as a whole.
* Hysteresis: one failed request, or ``FAILED_PROBES`` failed probes in a row, takes an engine out;
  ``GOOD_PROBES`` in a row bring it back. Nobody has to do anything about it.
* An engine that has never answered is out.
* Health never touches load.
* An engine that comes in, for the first time or again, has an empty cache for all that is known.
  Where its pool has bodies to warm up with, it is *warming*: if somebody else of the pool is warm,
  it is *held* and gets no request until they were sent, or could not be. Where nobody is, it takes
  requests at once and is warmed meanwhile: traffic waits for no cold fleet.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proto.contract import replica_id
from router.warm_up import WarmUpReport

FAILED_PROBES = 3
GOOD_PROBES = 2


@dataclass(frozen=True, slots=True)
class Replica:
    """``header_rank`` is what ``X-data-parallel-rank`` has to say; None where there is one rank."""

    id: str
    engine: str
    pool: str
    url: str
    rank: int = 0
    header_rank: int | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of an engine's ``/v1/models``; ``lora_path`` None: a base model."""

    id: str
    lora_path: str | None = None
    entry: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    name: str
    url: str
    pool: str
    data_parallel_size: int = 1
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What an engine said of itself. ``ranks``: the global ranks it serves, where it told."""

    models: tuple[ServedModel, ...]
    ranks: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class Engine:
    """One engine's state. It begins out, one good probe from being in.

    ``joins`` tells one stay in service from the next; ``warmed_up``: what its last warm-up came to,
    and ``warm_ups``: how many came to what.
    """

    config: EngineConfig
    up: bool = False
    failed_probes: int = 0
    good_probes: int = GOOD_PROBES - 1
    error: str | None = None
    models: dict[str, ServedModel] = field(default_factory=dict)
    replicas: tuple[Replica, ...] = ()
    joins: int = 0
    warming: bool = False
    held: bool = False
    warmed_up: WarmUpReport | None = None
    warm_ups: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> str:
        """ "up", "warming" where it gets no request for now, else what is wrong with it."""
        if self.up:
            return "warming" if self.held else "up"
        return self.error or "down"

    @property
    def warm_up_state(self) -> dict[str, Any]:
        """What an operator may read of it."""
        last = None if self.warmed_up is None else self.warmed_up.described()
        return {"warming": self.warming, "last": last}

    def answered(self, answer: ProbeAnswer, *, somebody_warm: bool = False) -> None:
        self.models = {model.id: model for model in answer.models}
        self.replicas = _replicas_of(self.config, answer.ranks)
        self.failed_probes, self.error = 0, None
        self.good_probes += 1
        if not self.up and self.good_probes >= GOOD_PROBES:
            self._join(somebody_warm)

    def _join(self, somebody_warm: bool) -> None:
        self.up, self.joins = True, self.joins + 1
        self.warming, self.held = self.config.warm_up, self.config.warm_up and somebody_warm

    def warmed(self, join: int, report: WarmUpReport) -> bool:
        """The warm-up of a stay is over, however it went; whether that stay is still the one."""
        if not self.warming or join != self.joins:
            return False
        self.warming, self.held, self.warmed_up = False, False, report
        self.warm_ups[report.outcome] += 1
        return True

    def _leave(self) -> None:
        self.up, self.warming, self.held = False, False, False

    def probe_failed(self, error: str) -> None:
        self.failed_probes += 1
        self.good_probes = 0
        self.error = error
        if self.failed_probes >= FAILED_PROBES:
            self._leave()

    def request_failed(self, error: str) -> None:
        """It could not be reached, or broke off: it leaves at once."""
        self.good_probes, self.error = 0, error
        self._leave()


@dataclass(slots=True)
class ReplicaSet:
    """All engines, in the order of the configuration."""

    engines: dict[str, Engine] = field(default_factory=dict)

    def reset(self, configs: Iterable[EngineConfig]) -> tuple[list[str], list[str]]:
        """The engines are these from now on; returns the names that came and that left.

        An engine whose configuration stays keeps its state.
        """
        wanted = {config.name: config for config in configs}
        stays = {n: e for n, e in self.engines.items() if wanted.get(n) == e.config}
        left = [name for name in self.engines if name not in stays]
        came = [name for name in wanted if name not in stays]
        self.engines = {n: stays.get(n) or Engine(config) for n, config in wanted.items()}
        return came, left

    def answered(self, engine: Engine, answer: ProbeAnswer) -> None:
        """An engine's good probe, beside what the others of its pool are."""
        others = (e for e in self.engines.values() if e.config.pool == engine.config.pool)
        engine.answered(answer, somebody_warm=any(e.up and not e.warming for e in others))

    def pool_of(self, model: str | None) -> str | None:
        """The pool that serves a model. Where nobody does, the one pool there is, if it is one."""
        for engine in self.engines.values():
            if model in engine.models:
                return engine.config.pool
        pools = {engine.config.pool for engine in self.engines.values()}
        return pools.pop() if len(pools) == 1 else None

    def candidates(self, pool: str, model: str | None) -> list[Replica]:
        """Replicas that can be sent a request for the model.

        A replica that does not list it is none, unless nobody in the pool does: then any may say
        no to it. One that is held is none, unless there is no other.
        """
        up = [e for e in self.engines.values() if e.up and e.config.pool == pool]
        serving = [engine for engine in up if model in engine.models] or up
        ready = [engine for engine in serving if not engine.held] or serving
        return [replica for engine in ready for replica in engine.replicas]

    def lora_paths(self, pool: str, model: str | None) -> tuple[str, ...]:
        """Where the replicas of a pool have the adapter from; () for a base model."""
        served = (e.models.get(model or "") for e in self.engines.values() if e.config.pool == pool)
        paths = (model.lora_path for model in served if model is not None)
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    def models(self) -> list[ServedModel]:
        """Every model that some engine in service lists, each once."""
        listed: dict[str, ServedModel] = {}
        for engine in self.engines.values():
            if engine.up:
                for model in engine.models.values():
                    listed.setdefault(model.id, model)
        return list(listed.values())

    @property
    def replicas(self) -> list[Replica]:
        return [replica for engine in self.engines.values() for replica in engine.replicas]


def _replicas_of(config: EngineConfig, ranks: tuple[int, ...] | None) -> tuple[Replica, ...]:
    """A front end that serves local engines only counts the ranks in the header from 0."""
    ranks = ranks or tuple(range(config.data_parallel_size))
    several = len(ranks) > 1
    return tuple(
        Replica(
            replica_id(config.name, rank, len(ranks)),
            config.name,
            config.pool,
            config.url,
            rank,
            rank - min(ranks) if several else None,
        )
        for rank in ranks
    )
