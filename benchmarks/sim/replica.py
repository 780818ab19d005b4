"""A simulated replica: one engine per data-parallel rank, each with an outlet for its events.

It decides nothing; it keeps what a step did and what it published in one order. Rules it keeps:

* Ranks share no blocks, no sequence numbers and no outlet; they share settings and a fate.
* What is stepped and published goes under one lock, which the shell passes in, so that a test may
  step a replica that a server is stepping too.
* A step is published whole and in order, at once or, where it takes time, at its end.
* A restart empties every pool, loses every request and tells nobody: a step that it overtakes is
  never published.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.sim.engine import NextToken, SimulatedEngine, arithmetic_token
from benchmarks.sim.events import KVEvent
from benchmarks.sim.steps import Step
from benchmarks.sim.wire import WireFormat
from proto.blockhash import Algorithm, EngineScheme, RequestKeys


class Outlet(Protocol):
    """Where an engine's batches go: a socket, or a list."""

    def publish(self, events: Sequence[KVEvent]) -> None: ...
    def restart(self) -> None: ...


@dataclass(frozen=True)
class ReplicaSettings:
    """Everything that is configured of a replica. Raises ValueError for what cannot be.

    ``num_blocks`` is per rank and counts the null block. ``loras`` maps a name to its path.
    ``model_tokens_max`` None is as long a context as the pool can hold.
    """

    model: str = "sim"
    vllm_version: str = "0.33"
    algorithm: Algorithm = "sha256_cbor"
    hash_seed: str | None = "0"
    block_size: int = 16
    lookahead: int = 0
    num_blocks: int = 1024
    data_parallel_size: int = 1
    int_hashes: bool = True
    step_tokens_max: int = 2048
    sequences_max: int = 128
    loras: dict[str, str] = field(default_factory=dict)
    next_token: NextToken = arithmetic_token
    model_tokens_max: int | None = None

    def __post_init__(self) -> None:
        if self.data_parallel_size < 1:
            raise ValueError(f"data parallel size {self.data_parallel_size}: at least 1")
        if self.lookahead and not self.wire().hashes_lookahead:
            raise ValueError(f"vLLM {self.vllm_version} does not hash lookahead tokens")
        self.new_engine()

    def wire(self) -> WireFormat:
        return WireFormat(self.vllm_version, self.int_hashes)

    def scheme(self) -> EngineScheme:
        return EngineScheme(
            self.algorithm,
            self.hash_seed,
            self.block_size,
            self.lookahead,
            self.wire().extra_keys,
        )

    def new_engine(self) -> SimulatedEngine:
        return SimulatedEngine(
            self.scheme(),
            self.num_blocks,
            step_tokens_max=self.step_tokens_max,
            sequences_max=self.sequences_max,
            next_token=self.next_token,
            unhashed_first=self.wire().unhashed_first,
        )

    @property
    def context_tokens_max(self) -> int:
        """vLLM's max_model_len: the longest prompt and answer together."""
        return self.model_tokens_max or (self.num_blocks - 1) * self.block_size

    def keys(self, lora_name: str | None = None, cache_salt: str | None = None) -> RequestKeys:
        """What tells a request's blocks apart. Raises ValueError for a LoRA that is not served."""
        if lora_name is None:
            return RequestKeys(cache_salt=cache_salt)
        if lora_name not in self.loras:
            raise ValueError(f"LoRA {lora_name!r} is not served; served: {list(self.loras)}")
        return RequestKeys(
            lora_name=lora_name,
            lora_path=self.loras[lora_name],
            lora_int_id=list(self.loras).index(lora_name) + 1,
            cache_salt=cache_salt,
        )


class SimulatedReplica:
    """``outlets`` has one entry per rank. Raises ValueError where it has not."""

    def __init__(
        self,
        settings: ReplicaSettings,
        outlets: Sequence[Outlet],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if len(outlets) != settings.data_parallel_size:
            raise ValueError(f"{len(outlets)} outlets for {settings.data_parallel_size} ranks")
        self.settings = settings
        self.outlets = tuple(outlets)
        self.engines = [settings.new_engine() for _ in outlets]
        self._lock = nullcontext() if lock is None else lock

    def __repr__(self) -> str:
        return f"<SimulatedReplica {self.settings.model} {self.engines}>"

    @property
    def sleep_level(self) -> int:
        return self.engines[0].sleep_level

    def add_request(
        self,
        rank: int,
        request_id: str,
        token_ids: Sequence[int],
        max_tokens: int,
        keys: RequestKeys,
        skip_cache: bool = False,
        report_full: bool = False,
    ) -> None:
        with self._lock:
            self.engines[rank].add_request(
                request_id, token_ids, max_tokens, keys, skip_cache, report_full
            )

    def abort(self, rank: int, request_id: str) -> bool:
        with self._lock:
            return self.engines[rank].abort(request_id)

    def step(self, rank: int = 0) -> Step:
        """Step one rank and publish what it says."""
        with self._lock:
            engine = self.engines[rank]
            step = engine.step()
            self.publish(rank, engine, step)
            return step

    def compute(self, rank: int) -> tuple[SimulatedEngine, Step]:
        """Step one rank; `publish` takes what this returns, when the step has had its time."""
        with self._lock:
            return self.engines[rank], self.engines[rank].step()

    def publish(self, rank: int, engine: SimulatedEngine, step: Step) -> None:
        with self._lock:
            if step.events is not None and engine is self.engines[rank]:
                self.outlets[rank].publish(step.events)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """False where a rank has blocks in use; the other ranks are reset all the same."""
        with self._lock:
            done = [engine.reset_prefix_cache(reset_running_requests) for engine in self.engines]
            return all(done)

    def sleep(self, level: int = 1) -> tuple[str, ...]:
        """Ids of the requests that this aborted."""
        with self._lock:
            return tuple(name for engine in self.engines for name in engine.sleep(level))

    def wake(self) -> None:
        with self._lock:
            for engine in self.engines:
                engine.wake()

    def restart(self) -> None:
        """As if the engines' processes were killed and started again."""
        with self._lock:
            self.engines = [self.settings.new_engine() for _ in self.engines]
            for outlet in self.outlets:
                outlet.restart()
