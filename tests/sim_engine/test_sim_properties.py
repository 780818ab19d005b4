"""Seeded traffic through tiny engines; a failure names its seed."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from benchmarks.sim.steps import Step
from proto.blockhash import NO_KEYS, EngineScheme, RequestKeys, normalise

SEEDS = range(60)
STEPS = 60


@dataclass
class Ledger:
    """The dumb reader of an event log: copies per hash, and each hash's parent."""

    copies: Counter = field(default_factory=Counter)
    parents: dict = field(default_factory=dict)

    def apply(self, event: object) -> None:
        match event:
            case BlockStored():
                parent = event.parent_block_hash
                for digest in event.block_hashes:
                    self.parents[digest] = parent
                    self.copies[digest] += 1
                    parent = digest
            case BlockRemoved(block_hash=digest):
                assert self.copies[digest] > 0, "removed, but not stored"
                self.copies[digest] -= 1
                if not self.copies[digest]:
                    del self.copies[digest]
            case AllBlocksCleared():
                self.copies.clear()

    def truth(self) -> dict:
        return {normalise(digest): count for digest, count in self.copies.items()}

    def orphans(self) -> list[bytes]:
        return [d for d in self.copies if self.parents[d] and self.parents[d] not in self.copies]


@dataclass
class World:
    """One engine under random traffic of few tokens, so that prompts share prefixes often."""

    seed: int
    skip_cache: bool = False
    lookahead: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        scheme = EngineScheme(
            "sha256_cbor", "0", self.rng.choice((2, 3, 4)), lookahead=self.lookahead
        )
        self.engine = SimulatedEngine(
            scheme,
            self.rng.randint(8, 24),
            step_tokens_max=self.rng.choice((3, 8, 64)),
            sequences_max=self.rng.choice((1, 2, 4, 8)),
            next_token=lambda name, tokens: (sum(tokens[-3:]) + len(tokens)) % 3,
        )
        self.ledger = Ledger()
        self.alive: dict[str, int] = {}
        self.finished: dict[str, int] = {}
        self.serial = 0

    def act(self) -> Step:
        """Maybe a new request, an abort or a reset; then a step, its events not yet applied."""
        if self.rng.random() < 0.6 and len(self.alive) < 12:
            self.add()
        if self.rng.random() < 0.05 and self.alive:
            name = self.rng.choice(list(self.alive))
            assert self.engine.abort(name)
            del self.alive[name]
        if self.rng.random() < 0.02:
            self.engine.reset_prefix_cache(self.rng.random() < 0.5)
        step = self.engine.step()
        for progress in step.progress:
            self.finished[progress.request_id] = self.finished.get(progress.request_id, 0) + 1
            if progress.finished:
                assert self.finished[progress.request_id] == self.alive.pop(progress.request_id)
        return step

    def add(self) -> None:
        block_size, pool = self.engine.scheme.block_size, self.engine.pool
        room = pool.capacity * block_size
        length = self.rng.randint(1, room // 2)
        tokens = [self.rng.randint(0, 1) for _ in range(length)]
        max_tokens = self.rng.randint(1, room // 3)
        keys = RequestKeys(cache_salt="s") if self.rng.random() < 0.2 else NO_KEYS
        self.serial += 1
        skip = self.skip_cache and self.rng.random() < 0.3
        self.engine.add_request(f"r{self.serial}", tokens, max_tokens, keys, skip_cache=skip)
        self.alive[f"r{self.serial}"] = max_tokens

    def drain(self) -> None:
        """Step, without new traffic, until every request has ended."""
        for _ in range(10_000):
            if not self.engine.has_requests:
                return
            step = self.engine.step()
            for event in step.events or ():
                self.ledger.apply(event)
            for progress in step.progress:
                if progress.finished:
                    del self.alive[progress.request_id]
        raise AssertionError("requests never end")


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("skip_cache", [False, True])
def test_counting_events_gives_the_truth(skip_cache: bool, lookahead: int):
    """Copies counted from the events equal the pool's after every step, and never exceed it."""
    preemptions = evictions = duplicates = 0
    for seed in SEEDS:
        world = World(seed, skip_cache, lookahead)
        for _ in range(STEPS):
            for event in world.act().events or ():
                world.ledger.apply(event)
                evictions += type(event) is BlockRemoved
                assert world.ledger.copies.total() <= world.engine.pool.capacity, f"seed {seed}"
            # A reset of an engine that has been idle since is not published yet.
            if not world.engine.pool.unpublished_events:
                assert world.ledger.truth() == world.engine.truth(), f"seed {seed}"
            assert world.engine.pool.used <= world.engine.pool.capacity
            duplicates += any(count > 1 for count in world.ledger.copies.values())
        preemptions += world.engine.counters.preemptions
    assert preemptions > 50 and evictions > 1000 and duplicates > 50, "the traffic is too tame"


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("skip_cache", [False, True])
def test_ancestors_of_a_resident_block_are_resident(skip_cache: bool, lookahead: int):
    """After every single event a block that is cached has its whole chain cached."""
    for seed in SEEDS:
        world = World(seed, skip_cache, lookahead)
        for number in range(STEPS):
            for event in world.act().events or ():
                world.ledger.apply(event)
                assert not world.ledger.orphans(), f"seed {seed}, step {number}"


def test_every_request_ends_and_gives_all_blocks_back():
    """Whatever was preempted on the way, each request gets its tokens and no block is leaked."""
    for seed in SEEDS:
        world = World(seed)
        for _ in range(STEPS):
            for event in world.act().events or ():
                world.ledger.apply(event)
        world.drain()
        assert not world.alive and world.engine.pool.used == 0, f"seed {seed}"
        assert world.engine.reset_prefix_cache() and world.engine.truth() == {}


def test_equal_seeds_publish_equal_events():
    """Nothing but the requests decides what an engine publishes."""
    for seed in range(5):
        first, second = World(seed), World(seed)
        for _ in range(STEPS):
            assert first.act() == second.act()


def test_a_hit_is_what_the_events_promise():
    """cached_tokens is the prefix a reader of the events finds, bounded by the last token."""
    for seed in SEEDS:
        world = World(seed)
        scheme, engine = world.engine.scheme, world.engine
        for _ in range(STEPS):
            for event in world.act().events or ():
                world.ledger.apply(event)
        world.drain()
        tokens = [world.rng.randint(0, 1) for _ in range(5 * scheme.block_size)]
        matched = 0
        for block_hash in scheme.block_hashes(tokens):
            if block_hash not in world.ledger.truth():
                break
            matched += 1
        pending_reset = engine.pool.unpublished_events
        engine.add_request("probe", tokens, 1)
        steps = []
        while engine.has_requests:
            steps.append(engine.step())
        cached = steps[-1].progress[0].cached_tokens
        usable = min(matched, (len(tokens) - 1) // scheme.block_size) * scheme.block_size
        assert cached == (0 if pending_reset else usable), f"seed {seed}"
