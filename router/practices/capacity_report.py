"""What a model, its memory and its load come to: figures for a program, and lines for a person."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from router.practices.capacity import Load, Pool, Shape, pool_of
from router.practices.model_layers import ModelLayers
from router.practices.sizes import shown_size, shown_time

_LABEL_CHARS, _VALUE_CHARS = 46, 18


@dataclass(frozen=True, slots=True)
class Memory:
    """On each GPU. Without ``gpu_bytes`` what is left for the cache was given as it stands."""

    kv_bytes: int
    gpu_bytes: int | None = None
    utilization: float | None = None
    weight_bytes: int | None = None
    overhead_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """``seqs_max`` and the two behind it are vLLM's --max-num-seqs, and so on."""

    block_size: int
    seqs_max: int
    model_tokens_max: int
    batched_tokens_max: int
    shape: Shape | None = None
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """``at_once``: how many requests of this length fit; vLLM starts where one does."""

    model_tokens_max: int
    request_blocks: int
    at_once: float
    starts: bool


@dataclass(frozen=True, slots=True)
class Running:
    """While so many of the shape run; ``fit`` of them do so without preemption."""

    running: int
    fit: int
    idle_sessions: int
    survival_s: float | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """With one type of keys and values."""

    kv_dtype: str
    token_bytes: int
    block_bytes: int
    blocks: int
    tokens: int
    longest_request_tokens: int
    lengths: tuple[Length, ...]
    shared_blocks: int | None = None
    shared_bytes: int | None = None
    session_blocks: int | None = None
    running: tuple[Running, ...] = ()


def capacities_of(
    kinds: Sequence[ModelLayers], kv_bytes: int, question: Question
) -> list[Capacity]:
    """One for each type of keys and values; all of them with as many running as the first asks."""
    pools = [pool_of(layers, question.block_size, kv_bytes) for layers in kinds]
    counts = _running_counts(pools[0], question)
    return [
        _capacity(layers, pool, question, counts) for layers, pool in zip(kinds, pools, strict=True)
    ]


def _running_counts(pool: Pool, question: Question) -> Sequence[int]:
    """None, half of what fits, and what --max-num-seqs allows."""
    if question.shape is None:
        return ()
    half = min(question.seqs_max, pool.sessions(question.shape)) // 2
    return sorted({0, half, question.seqs_max})


def _capacity(
    layers: ModelLayers, pool: Pool, question: Question, counts: Sequence[int]
) -> Capacity:
    shape = question.shape
    return Capacity(
        kv_dtype=layers.kv_dtype,
        token_bytes=layers.token_bytes,
        block_bytes=pool.block_bytes,
        blocks=pool.blocks,
        tokens=pool.tokens,
        longest_request_tokens=pool.longest_request_tokens(
            question.model_tokens_max, question.batched_tokens_max
        ),
        lengths=tuple(_length(pool, question, part) for part in (1, 2, 4)),
        shared_blocks=None if shape is None else pool.kept_blocks(shape.shared_tokens),
        shared_bytes=None
        if shape is None
        else pool.kept_blocks(shape.shared_tokens) * pool.block_bytes,
        session_blocks=None if shape is None else pool.own_blocks(shape),
        running=() if shape is None else _while_running(pool, question, shape, counts),
    )


def _length(pool: Pool, question: Question, part: int) -> Length:
    tokens = max(1, question.model_tokens_max // part)
    blocks = pool.request_blocks(tokens, question.batched_tokens_max)
    return Length(tokens, blocks, pool.blocks / blocks, blocks <= pool.usable_blocks)


def _while_running(
    pool: Pool, question: Question, shape: Shape, counts: Sequence[int]
) -> tuple[Running, ...]:
    fit, load = pool.sessions(shape), question.load
    return tuple(
        Running(
            running,
            min(running, fit),
            pool.sessions(shape, running),
            None if load is None else pool.survival_s(shape, load, running),
        )
        for running in counts
    )


def as_json(
    model_type: str,
    layers: ModelLayers,
    memory: Memory,
    question: Question,
    capacities: Sequence[Capacity],
    assumed: Sequence[str],
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "layers": [asdict(kind) for kind in layers.kinds],
        "memory": asdict(memory),
        "question": asdict(question),
        "capacities": [asdict(each) for each in capacities],
        "assumed": list(assumed),
    }


def as_text(
    model_type: str,
    layers: ModelLayers,
    memory: Memory,
    question: Question,
    capacities: Sequence[Capacity],
    assumed: Sequence[str],
) -> Iterator[str]:
    for kind in layers.kinds:
        yield f"{model_type}: {kind.layers} layers of {kind.name}"
    yield from _memory_lines(memory)
    yield ""
    yield _row("with keys and values in", [each.kv_dtype for each in capacities])
    yield _row("a token", [shown_size(each.token_bytes) for each in capacities])
    name = f"a block of {question.block_size} tokens"
    yield _row(name, [shown_size(each.block_bytes) for each in capacities])
    yield _row("blocks", [f"{each.blocks:,}" for each in capacities])
    yield _row("tokens", [f"{each.tokens:,}" for each in capacities])
    yield from _session_lines(question, capacities)
    yield from _length_lines(capacities)
    if assumed:
        yield ""
        yield from (f"assumed: {text}" for text in assumed)


def _memory_lines(memory: Memory) -> Iterator[str]:
    left = f"{shown_size(memory.kv_bytes)} on each GPU for keys and values"
    if memory.gpu_bytes is None:
        yield left
        return
    assert memory.weight_bytes is not None and memory.overhead_bytes is not None
    yield (
        f"{left}: {shown_size(memory.gpu_bytes)} x {memory.utilization:g}"
        f" - weights {shown_size(memory.weight_bytes)}"
        f" - everything else {shown_size(memory.overhead_bytes)}"
    )


def _session_lines(question: Question, capacities: Sequence[Capacity]) -> Iterator[str]:
    shape = question.shape
    if shape is None:
        return
    yield ""
    if shape.shared_tokens:
        shared = f"the shared prefix of {shape.shared_tokens:,} tokens"
        yield _row(
            shared,
            [f"{c.shared_blocks:,} ({shown_size(c.shared_bytes or 0)})" for c in capacities],
        )
    own = f"beside it a session of {shape.session_tokens:,} tokens"
    if not shape.shared_tokens:
        own = f"a session of {shape.session_tokens:,} tokens"
    yield _row(own, [f"{each.session_blocks:,} blocks" for each in capacities])
    yield "sessions that stay whole while they are idle"
    for rows in zip(*(each.running for each in capacities), strict=True):
        yield _row(f"  with {rows[0].running} running", [_idle_text(row) for row in rows])
    if question.load is None:
        return
    load = question.load
    yield (
        "an idle one begins to lose its end, at"
        f" {load.requests_per_s:g} requests/s with {load.new_tokens:,} new tokens each, after"
    )
    for rows in zip(*(each.running for each in capacities), strict=True):
        yield _row(f"  with {rows[0].running} running", [_survival_text(row) for row in rows])


def _idle_text(row: Running) -> str:
    if row.fit < row.running:
        return f"only {row.fit:,} fit"
    return f"{row.idle_sessions:,}"


def _survival_text(row: Running) -> str:
    return shown_time(row.survival_s) if row.survival_s and row.idle_sessions else "no room for it"


def _length_lines(capacities: Sequence[Capacity]) -> Iterator[str]:
    yield ""
    yield "requests that fit at once, if each is as long as --max-model-len allows"
    for rows in zip(*(each.lengths for each in capacities), strict=True):
        yield _row(
            f"  --max-model-len {rows[0].model_tokens_max:,}",
            [f"{row.at_once:.1f}" if row.starts else "does not start" for row in rows],
        )
    longest = [each.longest_request_tokens for each in capacities]
    yield _row("the longest that fits", [f"{tokens:,}" for tokens in longest])


def _row(label: str, values: Sequence[str]) -> str:
    return label.ljust(_LABEL_CHARS) + "".join(value.rjust(_VALUE_CHARS) for value in values)
