"""One engine: a scheduler over a block pool, stepped by hand.

It decides, step by step, which request computes how many tokens, as vLLM's scheduler does. Rules it
keeps:

* Running requests come first, in order of arrival; then the waiting queue, first come first served,
  while tokens of the step, sequences and blocks last. A long prompt is computed in chunks.
* When the pool is exhausted the newest running request is preempted: its blocks are freed, and it
  is computed again later, output tokens included. No request is admitted in that step.
* A lookup never covers the last token, so at most ``(n - 1) // block_size`` blocks are reused.
* A block is stored when the step that fills it is scheduled, generated tokens included, with one
  `BlockStored` per request and step.
* Events leave only with a step. An engine without requests, or asleep, says nothing.
* What a request generates is a function of its tokens; there is no clock and no random number.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.sim.chain import BlockChain
from benchmarks.sim.pool import BlockId, BlockPool
from benchmarks.sim.steps import IDLE, Progress, Request, Step, work
from proto.blockhash import NO_KEYS, BlockHash, EngineScheme, RequestKeys

NextToken = Callable[[str, Sequence[int]], int]

_VOCABULARY = 32_000


def arithmetic_token(request_id: str, token_ids: Sequence[int]) -> int:
    """Like greedy sampling: equal tokens go on equally, in whichever request."""
    return (token_ids[-1] * 31 + token_ids[0] * 17 + len(token_ids) * 7 + 11) % _VOCABULARY


@dataclass(slots=True)
class EngineCounters:
    """Tokens looked up and found in the cache, and requests thrown out, since the start."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0


class SimulatedEngine:
    def __init__(
        self,
        scheme: EngineScheme,
        num_blocks: int,
        *,
        step_tokens_max: int = 2048,
        sequences_max: int = 128,
        next_token: NextToken = arithmetic_token,
        unhashed_first: bool = True,
    ) -> None:
        if step_tokens_max < 1 or sequences_max < 1:
            raise ValueError(f"{step_tokens_max} tokens, {sequences_max} sequences: at least 1")
        self.scheme = scheme
        self.pool = BlockPool(num_blocks, unhashed_first)
        self.counters = EngineCounters()
        self.sleep_level = 0
        self._step_tokens_max = step_tokens_max
        self._sequences_max = sequences_max
        self._next_token = next_token
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()

    def __repr__(self) -> str:
        return f"<SimulatedEngine {self.running}+{self.waiting} sleep_level={self.sleep_level}>"

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def truth(self) -> dict[BlockHash, int]:
        """How many physical copies of each block are cached now."""
        return self.pool.truth()

    def add_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        max_tokens: int,
        keys: RequestKeys = NO_KEYS,
        skip_cache: bool = False,
        report_full: bool = False,
    ) -> None:
        """Queue a request. ``skip_cache`` is prompt_logprobs; ``report_full`` is
        kv_cache_report_mode "full".

        Raises ValueError for what could never run: nothing to compute, nothing to generate, or more
        blocks than the pool has (preemption would go on forever); and for an id already in use.
        """
        if not token_ids or max_tokens < 1:
            raise ValueError(f"{len(token_ids)} prompt tokens, max_tokens {max_tokens}: at least 1")
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is already in the engine")
        length_max = len(token_ids) + max_tokens
        # The last generated token is never computed, so it needs no place.
        if self._blocks_for(length_max - 1) > self.pool.capacity:
            raise ValueError(f"{length_max} tokens do not fit into {self.pool.capacity} blocks")
        chain = BlockChain(self.scheme, token_ids, keys)
        request = Request(request_id, chain, len(token_ids), length_max, skip_cache, report_full)
        self._requests[request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request; its full blocks stay cached. False where it is not in the engine."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._release(request)
        return True

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget every block; False while one is in use. The event leaves with the next step."""
        while reset_running_requests and self._running:
            self._preempt()
        return self.pool.reset()

    def sleep(self, level: int = 1) -> tuple[str, ...]:
        """Abort everything, forget every block and stop stepping; the ids that were aborted."""
        if level not in (1, 2):
            raise ValueError(f"sleep level {level}: 1 (weights offloaded) or 2 (all discarded)")
        aborted = tuple(self._requests)
        for request_id in aborted:
            self.abort(request_id)
        self.pool.reset()
        self.sleep_level = level
        return aborted

    def wake(self) -> None:
        self.sleep_level = 0

    def step(self) -> Step:
        """Schedule, compute and sample once."""
        if self.sleep_level or not self._requests:
            return IDLE
        scheduled = self._schedule()
        prefill_tokens, attended_pairs, decoding_sequences, context_tokens = work(scheduled)
        progress = [self._advance(request, tokens) for request, tokens in scheduled]
        return Step(
            self.pool.take_events() or None,
            tuple(made for made in progress if made is not None),
            prefill_tokens + decoding_sequences,
            prefill_tokens,
            attended_pairs,
            decoding_sequences,
            context_tokens,
        )

    def _schedule(self) -> list[tuple[Request, int]]:
        """Requests of this step with the number of tokens each computes."""
        scheduled: list[tuple[Request, int]] = []
        budget, preemptions = self._step_tokens_max, self.counters.preemptions
        while budget and len(scheduled) < len(self._running):
            request = self._running[len(scheduled)]
            tokens = min(len(request.chain.token_ids) - request.computed_tokens, budget)
            if self._make_room(request, tokens):
                self._store_full_blocks(request, request.computed_tokens + tokens)
                scheduled.append((request, tokens))
                budget -= tokens
        if self.counters.preemptions == preemptions:
            scheduled += self._admit(budget)
        return scheduled

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Blocks for the next tokens of a running request; False where it was itself preempted."""
        needed = self._blocks_for(request.computed_tokens + tokens) - len(request.blocks)
        while True:
            blocks = self.pool.acquire((), needed)
            if blocks is not None:
                request.blocks += blocks
                return True
            if self._preempt() is request:
                return False

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        admitted = []
        while budget and self._waiting and self.running < self._sequences_max:
            request = self._waiting[0]
            tokens = self._start(request, budget)
            if not tokens:
                break
            self._running.append(self._waiting.popleft())
            admitted.append((request, tokens))
            budget -= tokens
        return admitted

    def _start(self, request: Request, budget: int) -> int:
        """Reuse what is cached and take blocks for the rest; tokens scheduled, 0 if no room."""
        reused, length = self._look_up(request), len(request.chain.token_ids)
        computed_tokens = len(reused) * self.scheme.block_size
        tokens = min(length - computed_tokens, budget)
        needed = self._blocks_for(computed_tokens + tokens) - len(reused)
        blocks = self.pool.acquire(reused, needed)
        if blocks is None:
            return 0
        request.blocks = reused + blocks
        request.computed_tokens = computed_tokens
        request.stored_blocks = len(reused)
        if request.cached_tokens is None:
            request.cached_tokens = computed_tokens
            self.counters.prefix_cache_queries += 0 if request.skip_cache else length
            self.counters.prefix_cache_hits += computed_tokens
        self._store_full_blocks(request, computed_tokens + tokens)
        return tokens

    def _look_up(self, request: Request) -> list[BlockId]:
        if request.skip_cache:
            return []
        blocks_max = (len(request.chain.token_ids) - 1) // self.scheme.block_size
        reused = self.pool.match(request.chain.digests, blocks_max)
        if request.report_full and reused:
            # vLLM reports at the lookup: a request that then finds no room reports again.
            self.pool.announce(request.chain.stored(0, len(reused)))
        return reused

    def _store_full_blocks(self, request: Request, computed_tokens: int) -> None:
        first, chain = request.stored_blocks, request.chain
        end = min(computed_tokens // self.scheme.block_size, len(chain.digests))
        if end <= first:
            return
        for index in range(first, end):
            self.pool.store(request.blocks[index], chain.digests[index])
        request.stored_blocks = end
        self.pool.announce(chain.stored(first, end))

    def _advance(self, request: Request, tokens: int) -> Progress | None:
        """Count computed tokens; a request that has computed all of its tokens samples one."""
        chain = request.chain
        request.computed_tokens += tokens
        if request.computed_tokens < len(chain.token_ids):
            return None
        token_id = self._next_token(request.id, chain.token_ids)
        chain.append(token_id)
        finished = len(chain.token_ids) >= request.length_max
        if finished:
            self.abort(request.id)
        return Progress(request.id, token_id, request.cached_tokens or 0, finished)

    def _preempt(self) -> Request:
        """Throw out the newest running request; it is the first to come back."""
        request = self._running.pop()
        self._release(request)
        self._waiting.appendleft(request)
        self.counters.preemptions += 1
        return request

    def _release(self, request: Request) -> None:
        self.pool.free(request.blocks)
        request.blocks = []
        request.computed_tokens = request.stored_blocks = 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.scheme.block_size)
