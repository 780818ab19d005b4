"""Facts in, one decision out."""

import random
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from router.load import Load
from router.policy import POLICIES, Ask, Candidate, Policy, PolicySettings

ASK = Ask("session-1", has_session=True)


def candidate(name: str, matched: int, load: Load | None = None, blocks: int = 100) -> Candidate:
    return Candidate(name, load or Load(), matched, blocks, 16, blocks * 16)


def policy(name: str = "prefix", **settings: float) -> Policy:
    return POLICIES[name](replace(PolicySettings(), **settings))


def picked(chosen: Policy, candidates: list[Candidate], ask: Ask = ASK) -> tuple[str, str]:
    decision = chosen.pick(ask, candidates)
    assert decision is not None
    return decision.replica, decision.reason


def test_the_highest_matched_block_ratio_wins_whatever_the_load_below_the_limits() -> None:
    """A replica that is busier is still the one that holds the prefix."""
    busy = Load(inflight=10, outstanding_tokens=50_000)
    assert picked(policy(), [candidate("a", 40), candidate("b", 90, busy)]) == ("b", "prefix")


def test_ratios_are_of_each_replicas_own_blocks() -> None:
    """Nine of ten large blocks are more of a prompt than thirty of forty small ones."""
    large = Candidate("large", Load(), 9, 10, 64, 640)
    small = Candidate("small", Load(), 30, 40, 16, 640)
    assert picked(policy(), [small, large])[0] == "large"


def test_a_tie_goes_to_the_least_outstanding_tokens() -> None:
    """Within the tolerance replicas are equal, and the less busy one answers sooner."""
    loaded = Load(outstanding_tokens=500)
    assert picked(policy(), [candidate("a", 90, loaded), candidate("b", 90)]) == ("b", "tie")
    assert picked(policy(), [candidate("a", 91, loaded), candidate("b", 90)])[0] == "b"
    assert picked(policy(), [candidate("a", 92, loaded), candidate("b", 90)])[0] == "a"


def test_a_tie_of_equal_loads_goes_by_recent_work_then_by_rendezvous() -> None:
    """Paced traffic is spread; with nothing to tell them apart a session has one home."""
    worked = Load(recent_tokens=10.0)
    assert picked(policy(), [candidate("a", 90, worked), candidate("b", 90)])[0] == "b"
    tied = [candidate(name, 90) for name in "abcdefgh"]
    homes = {session: picked(policy(), tied, Ask(session))[0] for session in map(str, range(64))}
    assert len(set(homes.values())) > 4
    for session, home in homes.items():
        assert picked(policy(), tied[::-1], Ask(session))[0] == home


def test_below_the_minimum_ratio_a_prompt_is_cold_and_goes_to_the_least_loaded() -> None:
    """A few shared blocks are no reason to queue."""
    busy = Load(inflight=3)
    assert picked(policy(), [candidate("a", 9, busy), candidate("b", 0)]) == ("b", "cold")
    assert picked(policy(), [candidate("a", 10, busy), candidate("b", 0)]) == ("a", "prefix")


def test_cold_prompts_go_where_capacity_was_never_used() -> None:
    """Filling an empty pool evicts nobody."""
    full, empty = candidate("a", 0), changed(candidate("b", 0), unused_share=0.9)
    assert picked(policy(), [full, empty])[0] == "b"


def test_what_could_not_be_hashed_follows_its_session() -> None:
    """Without hashes a session's own replica is the best guess; without a session, the load is."""
    unhashed = [Candidate(name, Load()) for name in "abcdefgh"]
    homes = {picked(policy(), unhashed, Ask("s", has_session=True)) for _ in range(3)}
    assert len(homes) == 1 and homes.pop()[1] == "session"
    assert picked(policy(), unhashed, Ask("s"))[1] == "cold"


def test_a_full_replica_is_not_chosen_and_where_all_are_full_nobody_is() -> None:
    """The in-flight limit is hard: the request waits."""
    full = Load(inflight=256)
    assert picked(policy(), [candidate("a", 99, full), candidate("b", 50)]) == ("b", "spread")
    for name in POLICIES:
        assert policy(name).pick(ASK, [candidate("a", 99, full), candidate("b", 0, full)]) is None


def test_a_replica_beyond_its_share_is_passed_over_while_another_can_be_had() -> None:
    """One and a half times the mean, and never less than sixteen."""
    others = [candidate(name, 0, Load(inflight=10)) for name in "bcd"]
    assert picked(policy(), [candidate("a", 95, Load(inflight=15)), *others])[0] == "a"
    assert picked(policy(), [candidate("a", 95, Load(inflight=40)), *others])[1] == "spread"
    busier = [candidate(name, 0, Load(inflight=40)) for name in "bcd"]
    assert picked(policy(), [candidate("a", 95, Load(inflight=40)), *busier])[0] == "a"


def test_a_prompt_that_nobody_holds_most_of_passes_over_who_has_worked_more() -> None:
    """One and a quarter times the mean of recent work; a prompt that is held for the most stays."""
    worked = Load(recent_tokens=50_000.0)
    others = [candidate("b", 0), candidate("c", 20), candidate("d", 0)]
    assert picked(policy(), [candidate("a", 70, worked), *others]) == ("c", "balance")
    assert picked(policy(), [candidate("a", 80, worked), *others]) == ("a", "prefix")
    all_worked = [candidate(name, 0, worked) for name in "bcd"]
    assert picked(policy(), [candidate("a", 70, worked), *all_worked]) == ("a", "prefix")


def test_work_that_no_cache_minds_moves_nobody() -> None:
    """On a quiet fleet the highest ratio is all that counts."""
    worked = Load(recent_tokens=4_000.0)
    assert picked(policy(), [candidate("a", 70, worked), candidate("b", 0)])[0] == "a"
    large = changed(candidate("a", 70, Load(recent_tokens=20_000.0)), capacity_tokens=300_000)
    assert picked(policy(), [large, candidate("b", 0)])[0] == "a"


def test_spread_goes_to_the_next_best_holder() -> None:
    """A hot prefix is computed anew only where no other holder has room."""
    hot, second = candidate("a", 95, Load(inflight=40)), candidate("b", 80, Load(inflight=2))
    assert picked(policy(), [hot, second, candidate("c", 0)]) == ("b", "spread")


def test_sticky_moves_only_the_sessions_of_a_replica_that_left() -> None:
    """Rendezvous hashing: nobody else's home changes."""
    names = "abcdefgh"
    before = {
        s: picked(policy("sticky"), [candidate(n, 0) for n in names], Ask(str(s)))[0]
        for s in range(200)
    }
    without = [candidate(name, 0) for name in names if name != "c"]
    for session, home in before.items():
        now = picked(policy("sticky"), without, Ask(str(session)))[0]
        assert (now == home) if home != "c" else (now != "c")


def test_sticky_spills_over_to_the_same_second_choice() -> None:
    """A session whose home is full has one other home, not a random one."""
    names = "abcdefgh"
    home = picked(policy("sticky"), [candidate(name, 0) for name in names])[0]
    full = [candidate(n, 0, Load(inflight=256 if n == home else 0)) for n in names]
    seconds = {picked(policy("sticky"), full) for _ in range(3)}
    assert len(seconds) == 1 and seconds.pop()[1] == "spill"


def test_sticky_without_anything_to_be_loyal_to_goes_by_load() -> None:
    """Requests without session and hashes would otherwise all have the same home."""
    homes = {
        picked(
            policy("sticky"), [candidate(n, 0, Load(inflight=n != free)) for n in "abc"], Ask("")
        )
        for free in "abc"
    }
    assert homes == {("a", "cold"), ("b", "cold"), ("c", "cold")}


def test_round_robin_takes_turns_and_least_loaded_the_least() -> None:
    """The two that look at no prefix."""
    turns = policy("round_robin")
    assert [picked(turns, [candidate(n, 99) for n in "abc"])[0] for _ in range(6)] == [*"abcabc"]
    loaded = candidate("a", 99, Load(outstanding_tokens=1))
    assert picked(policy("least_loaded"), [loaded, candidate("b", 0)])[0] == "b"


@pytest.mark.parametrize("name", POLICIES)
def test_a_decision_is_always_one_with_room(name: str) -> None:
    """Whatever the facts are, a policy chooses somebody with room if there is anybody."""
    rng = random.Random(7)
    chosen_by = policy(name)
    for _ in range(2_000):
        candidates = [
            Candidate(
                f"r{number}",
                Load(
                    rng.choice((0, 3, 200, 255, 256)), 256, rng.randrange(9_999), rng.random() * 1e5
                ),
                rng.randrange(101),
                rng.choice((0, 100)),
                16,
                1_600,
                rng.choice((0, 100_000)),
                rng.random(),
            )
            for number in range(rng.randrange(1, 9))
        ]
        requests = rng.choice((1, 2, 57))
        open_ones = {c.replica for c in candidates if c.load.has_room(requests)}
        decision = chosen_by.pick(Ask("x", requests), candidates)
        assert (decision.replica in open_ones) if decision is not None else not open_ones
        if decision is not None:
            assert set(decision.costs) == {c.replica for c in candidates}
