"""What a replica tells over HTTP about itself: Prometheus text and model list, as vLLM words them.

Blocks are summed over the ranks in `vllm:cache_config_info`, as vLLM does; usage counts blocks in
use, so cached but free blocks do not show in it.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.replica import ReplicaSettings, SimulatedReplica

_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


def metrics_text(replica: SimulatedReplica) -> str:
    """Every metric of every rank in the Prometheus text format."""
    lines: list[str] = []
    for name, kind, samples in _families(replica):
        lines.append(f"# TYPE {name} {kind}")
        suffix = "_total" if kind == "counter" else ""
        lines += [f"{name}{suffix}{{{labels}}} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def models(settings: ReplicaSettings, created_seconds: int) -> dict[str, Any]:
    """The body of GET /v1/models: the base model, then its LoRA adapters."""
    base = settings.model
    cards = [_card(base, base, None, created_seconds)]
    cards[0]["max_model_len"] = settings.context_tokens_max
    cards += [_card(name, path, base, created_seconds) for name, path in settings.loras.items()]
    return {"object": "list", "data": cards}


def _card(name: str, root: str, parent: str | None, created_seconds: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created_seconds,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": None,
    }


_Sample = tuple[str, float]
_Family = tuple[str, str, list[_Sample]]


def _families(replica: SimulatedReplica) -> Iterator[_Family]:
    settings, engines = replica.settings, replica.engines
    yield (
        "vllm:cache_config_info",
        "gauge",
        [(_cache_config(settings, rank), 1.0) for rank in range(len(engines))],
    )
    yield (
        "vllm:engine_sleep_state",
        "gauge",
        [
            (_labels(settings, rank, sleep_state=state), float(level == engine.sleep_level))
            for rank, engine in enumerate(engines)
            for level, state in enumerate(_SLEEP_STATES)
        ],
    )
    for name, kind in _PER_ENGINE.items():
        samples = [
            (_labels(settings, rank), _value(name, engine)) for rank, engine in enumerate(engines)
        ]
        yield f"vllm:{name}", kind, samples


_PER_ENGINE = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
}


def _value(name: str, engine: SimulatedEngine) -> float:
    values: dict[str, float] = {
        "num_requests_running": engine.running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.pool.used / engine.pool.capacity,
        "prefix_cache_queries": engine.counters.prefix_cache_queries,
        "prefix_cache_hits": engine.counters.prefix_cache_hits,
        "num_preemptions": engine.counters.preemptions,
    }
    return float(values[name])


def _cache_config(settings: ReplicaSettings, rank: int) -> str:
    labels = {
        "block_size": str(settings.block_size),
        "enable_prefix_caching": "True",
        "engine": str(rank),
        "num_gpu_blocks": str(settings.num_blocks * settings.data_parallel_size),
        "prefix_caching_hash_algo": settings.algorithm,
        "sliding_window": "None",
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _labels(settings: ReplicaSettings, rank: int, **more: str) -> str:
    labels = {"engine": str(rank), "model_name": settings.model} | more
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
