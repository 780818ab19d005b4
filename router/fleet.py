"""What the router knows of all replicas together, and how it becomes candidates for one request.

Rules:

* A pool's prompts are hashed under every scheme that some replica of it has proven. A replica that
  has proven none is matched by what was booked on it, under the pool's first scheme, or under
  pointsman's own where nobody has proven any: the approximate mode.
* What the policy sees of a replica is what its events show, and on from there what is booked. What
  is predicted is what its events show.
* The engine never reads its cache for the last token, so at most ``(n - 1) // block_size`` blocks
  of a prompt of n tokens count (reference 4.7).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from proto.blockhash import CanonicalScheme, HashScheme
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView
from router.load import InflightLoad, Lease
from router.optimistic import Booking, OptimisticBlocks
from router.policy import Candidate
from router.replicas import Replica, ReplicaSet

# vLLM's default block size; any would do, since only the router's own bookings have these names.
APPROXIMATE_SCHEME = CanonicalScheme(16)
FALLBACK = "fallback"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HashedRequest:
    """One prompt under every scheme of its pool. ``schemes`` are those that it was hashed under."""

    prompt_tokens: int = 0
    schemes: tuple[HashScheme, ...] = ()
    prefixes: tuple[HashedPrefix, ...] = ()

    def under(self, scheme_id: str) -> list[HashedPrefix]:
        return [prefix for prefix in self.prefixes if prefix.scheme_id == scheme_id]

    @property
    def affinity(self) -> str:
        """The name of the first block, for requests without a session."""
        first = next((p.block_hashes[0] for p in self.prefixes if len(p.block_hashes)), None)
        return "" if first is None else f"{first:016x}"


NOT_HASHED = HashedRequest()


@dataclass(slots=True)
class Fleet:
    """See the module's rules."""

    load: InflightLoad = field(default_factory=InflightLoad)
    replicas: ReplicaSet = field(default_factory=ReplicaSet)
    optimistic: OptimisticBlocks = field(default_factory=OptimisticBlocks)
    views: dict[str, ReplicaView] = field(default_factory=dict)

    def learn(self, views: Iterable[ReplicaView]) -> None:
        """The indexer's state, whole. Bookings under other names or another mode are void."""
        before, self.views = self.views, {view.replica: view for view in views}
        for replica in before.keys() | self.views.keys():
            if self._mode(before.get(replica)) != self._mode(self.views.get(replica)):
                self.optimistic.forget(replica)

    @staticmethod
    def _mode(view: ReplicaView | None) -> tuple[str, ...]:
        if view is None or view.evidence == FALLBACK:
            return ()
        return tuple(scheme.id for scheme in view.schemes)

    def schemes(self, pool: str) -> tuple[HashScheme, ...]:
        proven = {s.id: s for v in self.views.values() if v.pool == pool for s in v.schemes}
        return tuple(proven.values()) or (APPROXIMATE_SCHEME,)

    def evidence(self, replica: str, match: ReplicaMatch | None = None) -> str:
        """ "exact", or with its reasons: "degraded(silent|lagging)"."""
        known = match or self.views.get(replica)
        if known is None:
            return f"{FALLBACK}({UNKNOWN})"
        reasons = "|".join(known.reasons)
        return f"{known.evidence}({reasons})" if reasons else known.evidence

    def candidates(
        self,
        replicas: Iterable[Replica],
        hashed: HashedRequest,
        matches: Mapping[str, ReplicaMatch],
        now: float,
    ) -> list[Candidate]:
        return [self._candidate(replica.id, hashed, matches, now) for replica in replicas]

    def _candidate(
        self,
        replica: str,
        hashed: HashedRequest,
        matches: Mapping[str, ReplicaMatch],
        now: float,
    ) -> Candidate:
        load = self.load.of(replica, now)
        scheme = self._scheme(replica, hashed)
        if scheme is None:
            return Candidate(replica, load, prompt_tokens=hashed.prompt_tokens)
        match, matched, total = matches.get(replica), 0, 0
        if match is not None:
            matched = match.any_tier_blocks
        best = matched
        for prefix in hashed.under(scheme.id):
            total = max(total, len(prefix.block_hashes))
            extended = self.optimistic.extend(replica, prefix.block_hashes, matched, now)
            best = max(best, extended)
        return Candidate(
            replica,
            load,
            best,
            total,
            scheme.block_size,
            hashed.prompt_tokens,
            self._unused_share(replica),
        )

    def _scheme(self, replica: str, hashed: HashedRequest) -> HashScheme | None:
        view = self.views.get(replica)
        own = {scheme.id for scheme in view.schemes} if view is not None else set()
        for scheme in hashed.schemes:
            if scheme.id in own:
                return scheme
        return hashed.schemes[0] if hashed.schemes else None

    def _unused_share(self, replica: str) -> float:
        view = self.views.get(replica)
        if view is None or not view.capacity_blocks:
            return 0.0
        return max(0.0, 1 - view.blocks / view.capacity_blocks)

    def book(
        self, chosen: Candidate, hashed: HashedRequest, requests: int, now: float
    ) -> tuple[Lease, list[Booking]]:
        """The chosen replica's load, and the blocks that it is about to hold."""
        uncached = chosen.uncached_tokens * requests
        lease = self.load.take(chosen.replica, requests, uncached, now)
        scheme = self._scheme(chosen.replica, hashed)
        if scheme is None:
            return lease, []
        prefixes = hashed.under(scheme.id)
        view = self.views.get(chosen.replica)
        if not self._mode(view):
            capacity = view.capacity_blocks if view is not None else 0
            return lease, [
                self.optimistic.book_without_events(chosen.replica, p.block_hashes, capacity)
                for p in prefixes
            ]
        return lease, [
            self.optimistic.book(chosen.replica, p.block_hashes[chosen.matched_blocks :], now)
            for p in prefixes
        ]


def predicted_cached_tokens(matched_blocks: int, prompt_tokens: int, block_size: int) -> int:
    """What the engine will report of a prompt of which it holds so many leading blocks."""
    return min(matched_blocks, max(0, prompt_tokens - 1) // block_size) * block_size
