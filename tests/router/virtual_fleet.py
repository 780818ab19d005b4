"""A fleet of simulated engines in virtual time, placed by the router's own core.

Each engine steps for as long as the cost model says; what it publishes reaches the index with the
end of the step, as on a real engine. Nothing here is a clock, a socket or a random number.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from benchmarks.sim.cost import COST_MODELS
from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.events import BlockRemoved, BlockStored
from benchmarks.sim.steps import Step
from proto.blockhash import EngineScheme, normalise
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView
from router.fleet import Fleet, HashedRequest, predicted_cached_tokens
from router.load import Lease
from router.policy import Ask, Policy
from router.replicas import Replica

SCHEME = EngineScheme("sha256_cbor", "0", 16)
COST = COST_MODELS["qwen3-32b-h100-fp8"]


@dataclass(slots=True)
class Answer:
    """What became of one request. Times in ms of virtual time."""

    replica: str
    reason: str
    prompt_tokens: int
    predicted_tokens: int
    lease: Lease
    asked_ms: float
    done: Callable[[], None] = lambda: None
    cached_tokens: int = 0
    first_token_ms: float | None = None


@dataclass(slots=True, eq=False)
class _Engine:
    engine: SimulatedEngine
    resident: Counter[int] = field(default_factory=Counter)
    busy: bool = False
    prefilled_tokens: int = 0


class VirtualFleet:
    """``names`` engines of ``blocks`` blocks each, and one router."""

    def __init__(self, policy: Policy, engines: int, blocks: int) -> None:
        self.policy, self.fleet = policy, Fleet()
        names = [f"r{number}" for number in range(engines)]
        self.replicas = [Replica(name, name, "p", "") for name in names]
        self.engines = {
            name: _Engine(SimulatedEngine(SCHEME, blocks, step_tokens_max=8192, sequences_max=256))
            for name in names
        }
        self.blocks, self.now_ms = blocks, 0.0
        self.answers: list[Answer] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._running: dict[str, Answer] = {}

    def at(self, when_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._numbers), what))

    def ask_at(self, when_ms: float, token_ids: Sequence[int], output_tokens: int) -> None:
        self.at(when_ms, lambda: self.ask(token_ids, output_tokens))

    @property
    def hit_rate(self) -> float:
        """Cached tokens of all prompt tokens, as the engines report them."""
        cached = sum(answer.cached_tokens for answer in self.answers)
        return cached / sum(answer.prompt_tokens for answer in self.answers)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now_ms, _, what = heapq.heappop(self._events)
            what()

    def ask(
        self,
        token_ids: Sequence[int],
        output_tokens: int,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """One request, placed now."""
        now = self.now_ms / 1e3
        self.fleet.learn(self._view(replica.id) for replica in self.replicas)
        hashes = SCHEME.block_hashes(token_ids)
        hashed = HashedRequest(len(token_ids), (SCHEME,), (HashedPrefix(SCHEME.id, hashes),))
        matches = {name: self._match(name, hashes) for name in self.engines}
        candidates = self.fleet.candidates(self.replicas, hashed, matches, now)
        decision = self.policy.pick(Ask(hashed.affinity), candidates)
        assert decision is not None
        chosen = next(c for c in candidates if c.replica == decision.replica)
        lease, _ = self.fleet.book(chosen, hashed, 1, now)
        matched = matches[chosen.replica].gpu_blocks
        predicted = predicted_cached_tokens(matched, len(token_ids), 16)
        answer = Answer(
            chosen.replica, decision.reason, len(token_ids), predicted, lease, self.now_ms, done
        )
        self.answers.append(answer)
        name = f"q{len(self.answers)}"
        self._running[name] = answer
        self.engines[chosen.replica].engine.add_request(name, token_ids, output_tokens)
        self._wake(chosen.replica)

    def _view(self, name: str) -> ReplicaView:
        held = len(self.engines[name].resident)
        return ReplicaView(name, "p", "", 0, "exact", (), (SCHEME,), 0, 0, held, self.blocks - 1)

    def _match(self, name: str, hashes: Sequence[int]) -> ReplicaMatch:
        resident, matched = self.engines[name].resident, 0
        while matched < len(hashes) and hashes[matched] in resident:
            matched += 1
        return ReplicaMatch(name, matched, matched, matched, 16, "exact", (), 0)

    def _wake(self, name: str) -> None:
        one = self.engines[name]
        if one.busy:
            return
        one.busy = True
        self.at(self.now_ms, lambda: self._step(name))

    def _step(self, name: str) -> None:
        step = self.engines[name].engine.step()
        if step.scheduled_tokens:
            self.at(self.now_ms + COST.step_ms(step), lambda: self._stepped(name, step))
        else:
            self.engines[name].busy = False

    def _stepped(self, name: str, step: Step) -> None:
        one = self.engines[name]
        one.prefilled_tokens += step.prefill_tokens
        for event in step.events or ():
            if isinstance(event, BlockStored):
                one.resident.update(map(normalise, event.block_hashes))
            elif isinstance(event, BlockRemoved):
                one.resident -= Counter([normalise(event.block_hash)])
        for progress in step.progress:
            answer = self._running[progress.request_id]
            if answer.first_token_ms is None:
                answer.first_token_ms, answer.cached_tokens = self.now_ms, progress.cached_tokens
                answer.lease.first_byte()
            if progress.finished:
                self._running.pop(progress.request_id).lease.release()
                answer.done()
        self._step(name)
