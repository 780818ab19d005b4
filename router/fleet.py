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
from functools import cached_property

from proto.blockhash import CanonicalScheme, HashScheme, RequestKeys
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView
from router.load import InflightLoad, Lease
from router.openai import ParsedRequest
from router.optimistic import Booking, OptimisticBlocks
from router.policy import Candidate
from router.replicas import Replica, ReplicaSet

# vLLM's default block size; any would do, since only the router's own bookings have these names.
APPROXIMATE_SCHEME = CanonicalScheme(16)
FALLBACK = "fallback"
# It has published nothing since it started: whatever the prompt, nothing of it is found there.
NOTHING_STORED = "fallback(nothing_stored)"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class HashedRequest:
    """One prompt under every scheme of its pool. ``schemes`` are those that it was hashed under."""

    prompt_tokens: int = 0
    schemes: tuple[HashScheme, ...] = ()
    prefixes: tuple[HashedPrefix, ...] = ()

    @cached_property
    def by_scheme(self) -> dict[str, list[HashedPrefix]]:
        """One entry per scheme; several prefixes where an adapter has several paths."""
        return {s.id: [p for p in self.prefixes if p.scheme_id == s.id] for s in self.schemes}

    @cached_property
    def block_sizes(self) -> dict[str, int]:
        """Tokens, by scheme."""
        return {scheme.id: scheme.block_size for scheme in self.schemes}

    @property
    def affinity(self) -> str:
        """The name of the first block, for requests without a session."""
        first = next((p.block_hashes[0] for p in self.prefixes if len(p.block_hashes)), None)
        return "" if first is None else f"{first:016x}"


NOT_HASHED = HashedRequest()


@dataclass(frozen=True, slots=True)
class _Known:
    """What a replica's view amounts to. ``scheme_ids`` (): it is matched by its bookings."""

    view: ReplicaView | None
    scheme_ids: tuple[str, ...]
    capacity_blocks: int
    unused_share: float

    @classmethod
    def of(cls, view: ReplicaView) -> "_Known":
        ids = () if view.evidence == FALLBACK else tuple(scheme.id for scheme in view.schemes)
        capacity = view.capacity_blocks
        unused = max(0.0, 1 - view.blocks / capacity) if capacity else 0.0
        return cls(view, ids, capacity, unused)


_NOTHING_KNOWN = _Known(None, (), 0, 0.0)


@dataclass(slots=True)
class Fleet:
    """See the module's rules."""

    load: InflightLoad = field(default_factory=InflightLoad)
    replicas: ReplicaSet = field(default_factory=ReplicaSet)
    optimistic: OptimisticBlocks = field(default_factory=OptimisticBlocks)
    _known: dict[str, _Known] = field(default_factory=dict)

    def learn(self, views: Iterable[ReplicaView]) -> None:
        """The indexer's state, whole. Bookings under other names or in another mode are void."""
        before, self._known = self._known, {view.replica: _Known.of(view) for view in views}
        for replica in before.keys() | self._known.keys():
            was, now = before.get(replica, _NOTHING_KNOWN), self._of(replica)
            if was.scheme_ids != now.scheme_ids:
                self.optimistic.forget(replica)

    def _of(self, replica: str) -> _Known:
        return self._known.get(replica, _NOTHING_KNOWN)

    def schemes(self, pool: str) -> tuple[HashScheme, ...]:
        views = [known.view for known in self._known.values() if known.view is not None]
        proven = {s.id: s for view in views if view.pool == pool for s in view.schemes}
        return tuple(proven.values()) or (APPROXIMATE_SCHEME,)

    def key_variants(self, pool: str, request: ParsedRequest) -> tuple[RequestKeys, ...]:
        """An adapter's path is in its hashes, and may differ between replicas."""
        salt, model = request.cache_salt, request.model
        paths = self.replicas.lora_paths(pool, model)
        if not paths:
            return (RequestKeys(cache_salt=salt),)
        return tuple(RequestKeys(lora_name=model, lora_path=p, cache_salt=salt) for p in paths)

    def scheme_ids(self, replica: str) -> tuple[str, ...]:
        """Those that the replica has proven; () where it is matched by its bookings."""
        return self._of(replica).scheme_ids

    def evidence(self, replica: str, match: ReplicaMatch | None = None) -> str:
        """ "exact", or with its reasons: "degraded(silent|lagging)"."""
        known = match or self._of(replica).view
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
        load, known = self.load.of(replica, now), self._of(replica)
        scheme_id = self._scheme_id(known, hashed)
        if scheme_id is None:
            return Candidate(replica, load, prompt_tokens=hashed.prompt_tokens)
        match, total = matches.get(replica), 0
        best = matched = match.any_tier_blocks if match is not None else 0
        for prefix in hashed.by_scheme[scheme_id]:
            total = max(total, len(prefix.block_hashes))
            best = max(best, self.optimistic.extend(replica, prefix.block_hashes, matched, now))
        return Candidate(
            replica,
            load,
            best,
            total,
            hashed.block_sizes[scheme_id],
            hashed.prompt_tokens,
            known.capacity_blocks * hashed.block_sizes[scheme_id],
            known.unused_share,
        )

    @staticmethod
    def _scheme_id(known: _Known, hashed: HashedRequest) -> str | None:
        """The replica's own, or the pool's first for one that has proven none."""
        for scheme_id in known.scheme_ids:
            if scheme_id in hashed.by_scheme:
                return scheme_id
        return hashed.schemes[0].id if hashed.schemes else None

    def book(
        self, chosen: Candidate, hashed: HashedRequest, requests: int, now: float
    ) -> tuple[Lease, list[Booking]]:
        """The chosen replica's load, and the blocks that it is about to hold."""
        uncached = chosen.uncached_tokens * requests
        lease = self.load.take(chosen.replica, requests, uncached, now)
        known = self._of(chosen.replica)
        scheme_id = self._scheme_id(known, hashed)
        if scheme_id is None:
            return lease, []
        prefixes = hashed.by_scheme[scheme_id]
        if not known.scheme_ids:
            capacity_blocks = known.capacity_blocks
            return lease, [
                self.optimistic.book_without_events(chosen.replica, p.block_hashes, capacity_blocks)
                for p in prefixes
            ]
        return lease, [
            self.optimistic.book(chosen.replica, p.block_hashes[chosen.matched_blocks :], now)
            for p in prefixes
        ]


def predicted_cached_tokens(matched_blocks: int, prompt_tokens: int, block_size: int) -> int:
    """What the engine will report of a prompt of which it holds so many leading blocks."""
    return min(matched_blocks, max(0, prompt_tokens - 1) // block_size) * block_size


def usable_schemes(
    schemes: tuple[HashScheme, ...], variants: tuple[RequestKeys, ...]
) -> tuple[HashScheme, ...]:
    """Before vLLM 0.11.1 an adapter is hashed by a number that depends on the order of loading."""
    if variants[0].lora_name is None:
        return schemes
    return tuple(s for s in schemes if s.describe()["extra_keys"] != "lora_int")
