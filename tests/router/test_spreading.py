"""How the prefix policy spreads what it must not put on one replica, on simulated engines."""

import random
from collections import Counter

import pytest

from router.policy import POLICIES, PolicySettings
from tests.router.virtual_fleet import VirtualFleet

REPLICAS = 8
SHARED_TOKENS, PROMPT_TOKENS = 6_192, 6_500
# One engine of the cost model, given nothing but requests of this shape that find the shared part
# cached, answers about so many per second with 16 tokens of output before a queue grows.
ENGINE_REQUESTS_PER_S = 32.0
REQUESTS = 500


def hot_prefix(settings: PolicySettings, seed: int) -> VirtualFleet:
    """95 % of every prompt shared, and a load of four replicas' worth on eight."""
    rng = random.Random(seed)
    fleet = VirtualFleet(POLICIES["prefix"](settings), REPLICAS, blocks=20_000)
    shared = [rng.randrange(1_000, 30_000) for _ in range(SHARED_TOKENS)]
    when_ms = 0.0
    for _ in range(REQUESTS):
        when_ms += rng.expovariate(4 * ENGINE_REQUESTS_PER_S) * 1e3
        own = [rng.randrange(1_000, 30_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)]
        fleet.ask_at(when_ms, shared + own, output_tokens=16)
    fleet.run()
    return fleet


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hot_prefix_does_not_drown_one_replica(seed: int) -> None:
    """No replica gets more than 30 % of the requests, and each computes the shared part once."""
    fleet = hot_prefix(PolicySettings(), seed)
    shares = Counter(answer.replica for answer in fleet.answers)
    assert max(shares.values()) <= 0.3 * REQUESTS
    computed_anew = [a for a in fleet.answers if a.cached_tokens < SHARED_TOKENS // 16 * 16]
    assert len(computed_anew) <= 2 * REPLICAS
    assert fleet.hit_rate > 0.9
    assert fleet.fleet.load.inflight == 0


def test_without_the_share_bound_it_would() -> None:
    """The hard in-flight limit alone comes too late: the test above can fail."""
    fleet = hot_prefix(PolicySettings(spread_factor=1_000.0), seed=1)
    shares = Counter(answer.replica for answer in fleet.answers)
    assert max(shares.values()) > 0.3 * REQUESTS


@pytest.mark.parametrize("shared_tokens", [0, 160])
def test_paced_traffic_fills_the_replicas_evenly(shared_tokens: int) -> None:
    """One request at a time, different prompts: nothing is ever in flight when one is placed."""
    rng = random.Random(5)
    fleet = VirtualFleet(POLICIES["prefix"](PolicySettings()), REPLICAS, blocks=4_000)
    shared = [rng.randrange(30_000) for _ in range(shared_tokens)]
    for number in range(160):
        own = [rng.randrange(30_000) for _ in range(2_000)]
        fleet.ask_at(number * 20_000.0, shared + own, output_tokens=4)
    fleet.run()
    held = [len(engine.resident) for engine in fleet.engines.values()]
    assert max(held) <= 1.2 * min(held)


def agents(policy: str, settings: PolicySettings, shared_tokens: int) -> VirtualFleet:
    """Twelve agents of ten turns on three replicas, whose caches hold all of them together only."""
    rng = random.Random(8)
    fleet = VirtualFleet(POLICIES[policy](settings), 3, blocks=2_800)
    shared = [rng.randrange(30_000) for _ in range(shared_tokens)]

    def converse(history: list[int], turns: int) -> None:
        history += [rng.randrange(30_000) for _ in range(600)]
        if turns:
            later = fleet.now_ms + rng.random() * 2_000
            fleet.at(
                later,
                lambda: fleet.ask(list(history), 100, lambda: converse(history, turns - 1)),
            )

    for _ in range(12):
        converse(shared + [rng.randrange(30_000) for _ in range(5_000 - shared_tokens)], 10)
    fleet.run()
    return fleet


@pytest.mark.parametrize("shared_tokens", [0, 600, 1_500, 3_000])
def test_agents_that_share_a_system_prompt_use_all_caches(shared_tokens: int) -> None:
    """Not all begin where the first one did: together the caches hold every conversation."""
    fleet = agents("prefix", PolicySettings(), shared_tokens)
    assert fleet.hit_rate > 0.82
    assert fleet.hit_rate > agents("round_robin", PolicySettings(), shared_tokens).hit_rate + 0.2


def test_without_a_bound_on_recent_work_they_would_not() -> None:
    """The highest ratio alone does worse than round robin here: the test above can fail."""
    fleet = agents("prefix", PolicySettings(work_factor=1_000.0), 3_000)
    assert fleet.hit_rate < agents("round_robin", PolicySettings(), 3_000).hit_rate


def test_a_conversation_stays_where_it_began() -> None:
    """Every turn finds all earlier ones, while other conversations come and go."""
    rng = random.Random(6)
    fleet = VirtualFleet(POLICIES["prefix"](PolicySettings()), 4, blocks=20_000)
    histories = [[rng.randrange(30_000) for _ in range(1_000)] for _ in range(20)]
    for turn in range(8):
        for number, history in enumerate(histories):
            fleet.ask_at(turn * 10_000.0 + number * 100.0, list(history), output_tokens=8)
            history += [rng.randrange(30_000) for _ in range(300)]
    fleet.run()
    for number in range(len(histories)):
        assert len({answer.replica for answer in fleet.answers[number::20]}) == 1
    later = fleet.answers[20:]
    assert all(a.cached_tokens >= a.prompt_tokens - 300 - 32 for a in later)
    assert all(a.predicted_tokens == a.cached_tokens for a in later)
