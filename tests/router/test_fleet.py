"""What is known of all replicas becomes candidates, bookings and predictions."""

import pytest

from proto.blockhash import EngineScheme, HashScheme
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView
from router.fleet import APPROXIMATE_SCHEME, Fleet, HashedRequest, predicted_cached_tokens
from router.policy import Candidate
from router.replicas import Replica

SCHEME = EngineScheme("sha256_cbor", "0", 16)
OTHER = EngineScheme("sha256", "0", 32)
TOKENS = list(range(330))
REPLICAS = [Replica(name, name, "p", f"http://{name}") for name in ("a", "b")]


def view(name: str, *schemes: HashScheme, evidence: str = "exact", blocks: int = 0) -> ReplicaView:
    return ReplicaView(name, "p", "", 0, evidence, (), schemes, 7, 0, blocks, 100)


def hashed(*schemes: HashScheme) -> HashedRequest:
    prefixes = tuple(HashedPrefix(s.id, s.block_hashes(TOKENS)) for s in schemes)
    return HashedRequest(len(TOKENS), schemes, prefixes)


def match(name: str, blocks: int) -> ReplicaMatch:
    return ReplicaMatch(name, blocks, blocks, blocks, 16, "exact", (), 7)


def candidates(
    fleet: Fleet, request: HashedRequest, *matches: ReplicaMatch, now: float = 0.0
) -> list[Candidate]:
    return fleet.candidates(REPLICAS, request, {m.replica: m for m in matches}, now)


def test_a_pool_is_hashed_under_every_scheme_that_is_proven_in_it() -> None:
    """Replicas of one pool may run versions that hash differently; another pool's do not matter."""
    fleet = Fleet()
    assert fleet.schemes("p") == (APPROXIMATE_SCHEME,)
    fleet.learn([view("a", SCHEME), view("b", SCHEME, OTHER), view("c", OTHER)])
    assert fleet.schemes("p") == (SCHEME, OTHER)
    assert fleet.schemes("q") == (APPROXIMATE_SCHEME,)


def test_each_candidate_has_its_own_blocks_and_match() -> None:
    """The same prompt is 20 blocks on one replica and 10 on the other."""
    fleet = Fleet()
    fleet.learn([view("a", SCHEME, blocks=25), view("b", OTHER)])
    a, b = candidates(fleet, hashed(SCHEME, OTHER), match("a", 12))
    assert (a.matched_blocks, a.prompt_blocks, a.block_size) == (12, 20, 16)
    assert (b.matched_blocks, b.prompt_blocks, b.block_size) == (0, 10, 32)
    assert (a.uncached_tokens, b.uncached_tokens) == (330 - 192, 330)
    assert (a.unused_share, b.unused_share) == (0.75, 1.0)


def test_a_booked_prompt_is_seen_by_the_next_request_until_it_expires() -> None:
    """Siblings follow, although no event has come yet."""
    fleet, request = Fleet(), hashed(SCHEME)
    fleet.learn([view("a", SCHEME), view("b", SCHEME)])
    chosen = candidates(fleet, request, match("a", 4))[0]
    fleet.book(chosen, request, 1, now=0.0)
    assert candidates(fleet, request, match("a", 4))[0].matched_blocks == 20
    assert candidates(fleet, request)[0].matched_blocks == 0
    assert candidates(fleet, request, match("a", 4), now=2.5)[0].matched_blocks == 4


def test_a_replica_without_events_is_matched_by_what_was_sent_there() -> None:
    """The approximate mode: its bookings last until it has events of its own."""
    fleet, request = Fleet(), hashed(APPROXIMATE_SCHEME)
    chosen = candidates(fleet, request)[1]
    fleet.book(chosen, request, 1, now=0.0)
    assert [c.matched_blocks for c in candidates(fleet, request, now=1e6)] == [0, 20]
    fleet.learn([view("b", SCHEME)])
    assert [c.matched_blocks for c in candidates(fleet, request, now=1e6)] == [0, 0]


def test_bookings_of_a_replica_that_lost_its_events_are_void() -> None:
    """Names of another scheme, or of another mode, mean nothing any more."""
    fleet, request = Fleet(), hashed(SCHEME)
    fleet.learn([view("a", SCHEME)])
    fleet.book(candidates(fleet, request)[0], request, 1, now=0.0)
    fleet.learn([view("a", SCHEME, evidence="fallback")])
    assert len(fleet.optimistic) == 0
    fleet.book(candidates(fleet, request)[0], request, 1, now=0.0)
    fleet.learn([view("a", SCHEME, evidence="fallback")])
    assert len(fleet.optimistic) == 20


def test_several_sequences_count_as_many_in_flight_and_to_compute() -> None:
    """n completions of a prompt are n sequences."""
    fleet, request = Fleet(), hashed(SCHEME)
    fleet.learn([view("a", SCHEME)])
    lease, _ = fleet.book(candidates(fleet, request, match("a", 10))[0], request, 3, now=0.0)
    load = fleet.load.of("a", 0.0)
    assert (load.inflight, load.outstanding_tokens) == (3, 3 * (330 - 160))
    lease.release()


def test_evidence_is_told_with_its_reasons() -> None:
    """What an operator reads in a header."""
    fleet = Fleet()
    degraded = ReplicaView("a", "p", "", 0, "degraded", ("silent", "lagging"), (), 1, 0, 0, 0)
    fleet.learn([degraded])
    assert fleet.evidence("a") == "degraded(silent|lagging)"
    assert fleet.evidence("a", match("a", 1)) == "exact"
    assert fleet.evidence("b") == "fallback(unknown)"


@pytest.mark.parametrize(
    ("matched", "tokens", "cached"),
    [(2, 32, 16), (2, 33, 32), (1, 16, 0), (5, 33, 32), (0, 100, 0), (3, 100, 48), (1, 0, 0)],
)
def test_the_last_token_is_never_read_from_the_cache(
    matched: int, tokens: int, cached: int
) -> None:
    """min(matched, (n - 1) // block_size) * block_size (reference 4.7)."""
    assert predicted_cached_tokens(matched, tokens, 16) == cached
