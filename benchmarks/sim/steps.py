"""One step of an engine: the requests in it, what it did and how much work that was."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from benchmarks.sim.chain import BlockChain
from benchmarks.sim.events import KVEvent
from benchmarks.sim.pool import BlockId


class Progress(Struct, frozen=True):
    """One token that a request generated in a step."""

    request_id: str
    token_id: int
    cached_tokens: int
    finished: bool


class Step(Struct, frozen=True):
    """What one step did; ``events`` is None where it has nothing to publish.

    ``attended_pairs`` sums, over the chunks of prompts, their tokens times the mean number of
    tokens that each of them attends to; ``context_tokens`` is what the decoding sequences have
    computed already. Both are what its time depends on.
    """

    events: tuple[KVEvent, ...] | None
    progress: tuple[Progress, ...]
    scheduled_tokens: int
    prefill_tokens: int = 0
    attended_pairs: float = 0.0
    decoding_sequences: int = 0
    context_tokens: int = 0


IDLE = Step(None, (), 0)


@dataclass(slots=True, eq=False)
class Request:
    id: str
    chain: BlockChain
    prompt_tokens: int
    length_max: int
    skip_cache: bool
    report_full: bool
    blocks: list[BlockId] = field(default_factory=list)
    computed_tokens: int = 0
    stored_blocks: int = 0
    cached_tokens: int | None = None


def work(scheduled: Sequence[tuple[Request, int]]) -> tuple[int, float, int, int]:
    """What a step is about to do, as the last four fields of `Step`. A decoding request computes
    one token; what was preempted and is computed again is prefill, its output included."""
    prefill_tokens = decoding_sequences = context_tokens = 0
    attended_pairs = 0.0
    for request, tokens in scheduled:
        computed = request.computed_tokens
        if tokens == 1 and computed >= request.prompt_tokens:
            decoding_sequences += 1
            context_tokens += computed
        else:
            prefill_tokens += tokens
            attended_pairs += tokens * (computed + tokens / 2)
    return prefill_tokens, attended_pairs, decoding_sequences, context_tokens
