"""A shell: the walk of a request: tokens, hashes, matched, candidates, decision, lease.

Rules (design, decisions 11 and 12):

* Tokenizing and the indexer have deadlines. What is late or away costs cache hits, never a request;
  the walk says what it went without.
* After the last await nothing awaits until the lease is booked, so what was read is what is booked.
* A request that had to wait for room walks again from ``matched``.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proto.blockhash import HashScheme, RequestKeys
from proto.contract import Indexer, IndexerUnavailable, ReplicaMatch
from router.fleet import (
    NOT_HASHED,
    NOTHING_STORED,
    Fleet,
    HashedRequest,
    predicted_cached_tokens,
    usable_schemes,
)
from router.openai import OpaquePrompt, ParsedRequest
from router.placement import Placement
from router.policy import Ask, Candidate, Decision, Policy
from router.prompts import Prompt
from router.proxy import NoReplica
from router.replicas import Replica
from router.tokenizer import HashedPrompt, NotTokenized
from router.waiting import Waiter, WaitingFull, WaitingRoom

# A waiter also looks again by itself: room for one model's adapter is none for another's.
LOOK_AGAIN_S = 1.0
RETRY_AFTER_S = 1


class Hasher(Protocol):
    """What turns prompts into hashes: ``tokenizer.PromptHasher``."""

    async def hash(
        self,
        prompt: Prompt,
        schemes: Sequence[HashScheme],
        variants: Sequence[RequestKeys],
        session: str | None,
    ) -> HashedPrompt: ...


@dataclass(slots=True)
class PoolRouting:
    """``hasher`` None: the pool has no tokenizer, its prompts are routed by load."""

    hasher: Hasher | None
    waiting: WaitingRoom


@dataclass(slots=True)
class Routing:
    """What all walks share."""

    fleet: Fleet
    pools: Mapping[str, PoolRouting]
    indexer: Indexer
    policy: Policy
    wait_s_max: float = 30.0
    expose_matches: bool = False
    # How often a walk went without something, by what it was.
    went_without: Counter[str] = field(default_factory=Counter)

    def walk(self, request: ParsedRequest, rank: int | None = None) -> "Walk":
        """``rank``: the data-parallel rank that the client asks for, as its front end counts."""
        return Walk(self, request, rank)

    def wake_one(self) -> None:
        """A lease was released, or a replica came back."""
        for pool in self.pools.values():
            pool.waiting.wake_next()

    @property
    def waiting(self) -> int:
        return sum(len(pool.waiting) for pool in self.pools.values())


class Walk:
    """One request's way to a replica; ``place`` may be called again after an attempt failed."""

    def __init__(self, routing: Routing, request: ParsedRequest, rank: int | None = None) -> None:
        self.routing, self.request, self.rank = routing, request, rank
        self.phases_ms: dict[str, float] = {}
        self.without: str | None = None
        self.hashed: HashedRequest | None = None
        self.pool = routing.fleet.replicas.pool_of(request.model)
        self.placement: Placement | None = None

    async def place(self, excluding: frozenset[str]) -> Placement:
        """Raises NoReplica. ``excluding``: replicas that this request has failed on."""
        pool = self.routing.pools.get(self.pool) if self.pool is not None else None
        if self.pool is None or pool is None:
            raise NoReplica(404, f"The model `{self.request.model}` does not exist.", None)
        if self.hashed is None:
            self.hashed = await self._hash(self.pool, pool)
        turn = _Turn(pool.waiting, time.monotonic() + self.routing.wait_s_max)
        try:
            # Whoever has waited longer goes first.
            if pool.waiting:
                await turn.wait()
            while (placement := await self._try(self.pool, excluding, self.hashed)) is None:
                await turn.wait()
        finally:
            turn.over()
            if turn.waited_s:
                self.phases_ms["wait_ms"] = turn.waited_s * 1e3
        self.placement = placement
        return placement

    # Tokens and hashes.

    async def _hash(self, name: str, pool: PoolRouting) -> HashedRequest:
        prompt = self.request.prompts[0]
        if pool.hasher is None or isinstance(prompt, OpaquePrompt):
            self._goes_without("no_tokenizer" if pool.hasher is None else "opaque")
            return NOT_HASHED
        variants = self.routing.fleet.key_variants(name, self.request)
        schemes = usable_schemes(self.routing.fleet.schemes(name), variants)
        try:
            hashed = await pool.hasher.hash(prompt, schemes, variants, self.request.session)
        except NotTokenized as error:
            self._goes_without(str(error))
            return NOT_HASHED
        self.phases_ms.update(hashed.phases)
        return HashedRequest(hashed.prompt_tokens, tuple(schemes), hashed.prefixes)

    def _goes_without(self, what: str) -> None:
        self.without = what
        self.routing.went_without[what] += 1

    # Matched, candidates, decision, lease.

    async def _try(
        self, pool: str, excluding: frozenset[str], hashed: HashedRequest
    ) -> Placement | None:
        """None: everybody is full. Nothing awaits behind the match."""
        started = time.perf_counter()
        matches = await self._match(pool, hashed)
        matched_at = time.perf_counter()
        fleet = self.routing.fleet
        replicas = fleet.replicas.candidates(pool, self.request.model)
        if excluding:
            # An engine fails as a whole.
            failed = {r.engine for r in fleet.replicas.replicas if r.id in excluding}
            replicas = [r for r in replicas if r.engine not in failed]
        if not replicas:
            raise NoReplica(503, f"No replica of pool {pool!r} is in service.", 1)
        replicas = self._pinned(replicas)
        now = time.monotonic()
        candidates = fleet.candidates(replicas, hashed, matches, now)
        decision = self.routing.policy.pick(self._ask(hashed), candidates)
        placement = None
        if decision is not None:
            chosen = next(c for c in candidates if c.replica == decision.replica)
            replica = next(r for r in replicas if r.id == decision.replica)
            placement = self._book(replica, chosen, decision, hashed, matches, now)
        self.phases_ms["match_ms"] = (matched_at - started) * 1e3
        self.phases_ms["pick_ms"] = (time.perf_counter() - matched_at) * 1e3
        return placement

    def _pinned(self, replicas: list[Replica]) -> list[Replica]:
        """A client's own choice of a rank is obeyed, where some replica has that rank."""
        if self.rank is None:
            return replicas
        return [r for r in replicas if (r.header_rank or 0) == self.rank] or replicas

    async def _match(self, pool: str, hashed: HashedRequest) -> Mapping[str, ReplicaMatch]:
        if not any(len(prefix.block_hashes) for prefix in hashed.prefixes):
            return {}
        try:
            return await self.routing.indexer.match(pool, hashed.prefixes)
        except IndexerUnavailable:
            self._goes_without("indexer")
            return {}

    def _ask(self, hashed: HashedRequest) -> Ask:
        request = self.request
        return Ask(
            request.session or hashed.affinity,
            request.sequences,
            request.session is not None,
        )

    def _book(
        self,
        replica: Replica,
        chosen: Candidate,
        decision: Decision,
        hashed: HashedRequest,
        matches: Mapping[str, ReplicaMatch],
        now: float,
    ) -> Placement:
        fleet, match = self.routing.fleet, matches.get(replica.id)
        requests = self.request.sequences
        lease, bookings = fleet.book(chosen, hashed, requests, now)
        matched = match.any_tier_blocks if match is not None else 0
        evidence = fleet.evidence(replica.id, match)
        return Placement(
            replica,
            self._headers(replica, decision, evidence, matched, chosen.prompt_blocks),
            decision,
            matched,
            chosen.prompt_blocks,
            self._prediction(evidence, matched, hashed, chosen),
            evidence,
            fleet,
            lease,
            bookings,
        )

    def _prediction(
        self, evidence: str, matched: int, hashed: HashedRequest, chosen: Candidate
    ) -> int | None:
        """None where nothing can be said: no hashes, no answer, no evidence, several sequences."""
        if self.without is not None or self.request.sequences > 1:
            return None
        if evidence == NOTHING_STORED:
            return 0
        if evidence.startswith("fallback"):
            return None
        if not self.request.reads_cache:
            return 0
        return predicted_cached_tokens(matched, hashed.prompt_tokens, chosen.block_size)

    def _headers(
        self, replica: Replica, decision: Decision, evidence: str, matched: int, total: int
    ) -> tuple[tuple[str, str], ...]:
        headers = [
            ("x-pointsman-replica", replica.id),
            ("x-pointsman-reason", decision.reason),
            ("x-pointsman-evidence", evidence),
            ("x-pointsman-transformed", ",".join(self.request.transformed) or "none"),
        ]
        if self.routing.expose_matches:
            headers.append(("x-pointsman-matched-blocks", str(matched)))
            headers.append(("x-pointsman-prompt-blocks", str(total)))
        return tuple(headers)


class _Turn:
    """One request's turn in a waiting room. It keeps its place until it is over."""

    def __init__(self, room: WaitingRoom, deadline: float) -> None:
        self._room, self._deadline = room, deadline
        self._waiter: Waiter | None = None
        self._woken = asyncio.Event()
        self.waited_s = 0.0

    async def wait(self) -> None:
        """Until there may be room. Raises NoReplica where too many wait, or it took too long."""
        started = time.monotonic()
        if started >= self._deadline:
            raise NoReplica(503, "All replicas have been full for too long.", RETRY_AFTER_S)
        if self._waiter is None:
            try:
                self._waiter = self._room.join(self._woken.set)
            except WaitingFull:
                raise NoReplica(
                    503, "All replicas are full, and so is the queue.", RETRY_AFTER_S
                ) from None
        elif self._waiter.woken:
            self._woken.clear()
            self._waiter = self._room.join_again(self._woken.set)
        try:
            async with asyncio.timeout(min(self._deadline - started, LOOK_AGAIN_S)):
                await self._woken.wait()
        except TimeoutError:
            pass
        finally:
            self.waited_s += time.monotonic() - started

    def over(self) -> None:
        """Room that it was offered may be more than it took: the next one looks."""
        if self._waiter is not None:
            self._room.leave(self._waiter)
