"""Copies per block: what an engine's log leaves resident."""

import random
import tracemalloc
from collections import Counter

import pytest

from indexer.evidence import Level, Reason
from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.residency import (
    BLOCKS_MAX_UNKNOWN_POOL,
    CPU,
    GPU,
    ROUTES_MAX,
    STORAGE,
    TIERS_MAX,
    ReplicaBlocks,
)
from indexer.stream import ReplicaStream
from indexer.stream_outputs import Apply, Clear
from proto.blockhash import EngineScheme
from tests.unit.captures import frames, meta, records, replay
from tests.unit.wire import CLEARED, payload, removed, removed_event, stored, stored_event

DUPLICATE = "v0320_true_duplicate.jsonl"
REANNOUNCED = ("v0320_reannouncement.jsonl", "v0320_reannouncement_mixed.jsonl")
FULL = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
WINDOW = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}


def state(capacity: int | None = None) -> ReplicaState:
    return ReplicaState(ReplicaId("r"), PoolName("p"), capacity=capacity)


def pool_of(name: str) -> int:
    """One block is the null block."""
    return int(meta(name)["num_gpu_blocks"]) - 1


def prompts(name: str) -> dict[str, list[int]]:
    return {r["step"]: r["body"]["prompt"] for r in records(name) if r["kind"] == "request"}


def names_of(tokens: list[int]) -> list[int]:
    return list(EngineScheme("sha256_cbor", "0", 16).block_hashes(tokens))


def live() -> ReplicaStream:
    stream = ReplicaStream(replay=False)
    stream.opened(0.0)
    return stream


@pytest.mark.parametrize("capacity", [None, 79])
def test_true_duplicates_leave_the_pools_truth(capacity: int | None) -> None:
    """Blocks with several copies are gone when all copies are: what is left is what fits."""
    replica = replay(state(capacity), DUPLICATE)
    by_step, counts = prompts(DUPLICATE), replica.blocks.primary.counts
    last, before = names_of(by_step["evict2"]), names_of(by_step["evict1"])
    # Of 79 blocks one is the last prompt's partial tail; the heads of older chains are evicted
    # last, so the rest is the beginning of the prompt before.
    expected = Counter([*last, *before[: 78 - len(last)]])
    assert counts == expected
    assert replica.counters.drifts == 0 and replica.blocks.removed_unknown == 0
    assert replica.evidence(live(), 0.0).level is Level.EXACT


def test_duplicates_survive_the_first_removal() -> None:
    """While a copy is left the block stays: at no step does a true duplicate vanish early."""
    replica, expected = state(79), Counter[int]()
    for seq, frame in frames(DUPLICATE)[:5]:
        replica.apply(Apply(seq, frame))
    three, five = prompts(DUPLICATE)["first"], prompts(DUPLICATE)["a_first"]
    expected.update(names_of(three) * 2 + names_of(three)[2:] + names_of(five) * 2)
    assert replica.blocks.primary.counts == expected


@pytest.mark.parametrize("name", REANNOUNCED)
def test_reannouncements_drift_beyond_the_pool(name: str) -> None:
    """A re-announced block looks like a copy: ghosts stay, and the copies exceed the pool."""
    replica = replay(state(), name)
    ghosts = names_of(prompts(name).get("a_first") or prompts(name)["first"])[:5]
    assert replica.blocks.gpu_copies > pool_of(name)
    assert all(ghost in replica.blocks.primary.counts for ghost in ghosts)


@pytest.mark.parametrize("name", REANNOUNCED)
def test_drifted_counts_are_cleared_where_the_pool_is_known(name: str) -> None:
    """Beyond the pool the index is cleared, says why, and holds no ghost afterwards."""
    replica = replay(state(pool_of(name)), name)
    by_step = prompts(name)
    real = {block for step in ("evict1", "evict2") for block in names_of(by_step[step])}
    assert replica.counters.drifts >= 1
    assert replica.blocks.gpu_copies <= pool_of(name)
    assert set(replica.blocks.primary.counts) <= real
    evidence = replica.evidence(live(), 0.0)
    assert evidence.level is Level.DEGRADED
    assert set(evidence.reasons) == {Reason.COUNTS_DRIFTED, Reason.INCOMPLETE_HISTORY}
    replica.apply(Apply(100, payload(CLEARED)))
    assert replica.evidence(live(), 0.0).level is Level.EXACT


def test_tiers_are_apart() -> None:
    """A removal from one tier leaves the copies in every other."""
    blocks = ReplicaBlocks()
    for fields in ({}, {"medium": "CPU"}, {"medium": "STORAGE", "ownership": "a"}):
        blocks.stored(stored_event(stored([1, 2], **fields)))
    blocks.removed(removed_event(removed([1], medium="CPU")))
    assert blocks.primary.counts == {1: 1, 2: 1}
    assert blocks.tier(GPU) == [{1: 1, 2: 1}]
    assert blocks.tier(CPU) == [{2: 1}]
    assert blocks.tier(STORAGE) == [{1: 1, 2: 1}]
    assert (blocks.gpu_copies, blocks.copies, blocks.removed_unknown) == (2, 5, 0)
    blocks.removed(removed_event(removed([1], medium="STORAGE", ownership="b")))
    assert blocks.removed_unknown == 1 and blocks.holds(1)


def test_groups_are_apart() -> None:
    """The full-attention group is the primary one, whichever is announced first."""
    blocks = ReplicaBlocks()
    blocks.stored(stored_event(stored([9], **WINDOW)))
    assert not blocks.primary.counts and blocks.hybrid
    blocks.stored(stored_event(stored([1, 2], **FULL)))
    blocks.removed(removed_event(removed([9, 1], group_idx=1)))
    assert blocks.primary.counts == {1: 1, 2: 1}
    assert blocks.removed_unknown == 1
    assert blocks.gpu_copies == 2


def test_a_tier_is_one_however_it_is_spelt() -> None:
    """ "GPU" and "gpu" are one tier, for removals too."""
    blocks = ReplicaBlocks()
    blocks.stored(stored_event(stored([1, 2], medium="GPU")))
    blocks.removed(removed_event(removed([1], medium="gpu")))
    assert blocks.primary.counts == {2: 1}
    assert not blocks.hybrid


def test_a_forgotten_index_holds_for_no_batch() -> None:
    """Until the next batch there is no sequence number that a match could be told to hold for."""
    replica = state()
    replica.apply(Apply(7, payload(stored([1], list(range(16))))))
    assert replica.applied_seq == 7
    replica.clear(Clear("restarted", restart=True))
    assert replica.applied_seq == -1


def test_cleared_clears_every_tier() -> None:
    """AllBlocksCleared names no tier: nothing is left in any, and the history is complete."""
    replica = state()
    replica.apply(Apply(5, payload(stored([1]), stored([1], medium="CPU"), stored([2], **WINDOW))))
    assert replica.blocks.copies == 3 and not replica.indexed.history_complete
    replica.apply(Apply(6, payload(CLEARED)))
    assert replica.blocks.copies == 0 and replica.indexed.history_complete
    assert not replica.blocks.hybrid


def test_a_removal_of_something_unknown_changes_nothing() -> None:
    """Unknown hashes and unknown tiers are counted and otherwise ignored."""
    blocks = ReplicaBlocks()
    blocks.removed(removed_event(removed([1, 2])))
    assert blocks.removed_unknown == 2
    blocks.stored(stored_event(stored([1])))
    blocks.removed(removed_event(removed([2, 1, 1])))
    assert (blocks.primary.counts, blocks.primary.copies) == ({}, 0)
    assert blocks.removed_unknown == 4


def test_overflow_is_beyond_the_pool() -> None:
    """A full pool is no overflow, one copy more is; lower tiers do not count toward it."""
    blocks = ReplicaBlocks(4)
    blocks.stored(stored_event(stored([1, 2, 3])))
    assert not blocks.fills_pool and not blocks.overflowed
    blocks.stored(stored_event(stored([3])))
    assert blocks.fills_pool and not blocks.overflowed
    blocks.stored(stored_event(stored(range(50), medium="CPU")))
    assert not blocks.overflowed
    blocks.stored(stored_event(stored([5])))
    assert blocks.overflowed


def test_a_full_pool_completes_the_history() -> None:
    """When every block of the pool is accounted for, nothing can be resident unseen."""
    replica = state(3)
    replica.apply(Apply(7, payload(stored([1, 2]))))
    assert not replica.indexed.history_complete
    replica.apply(Apply(8, payload(stored([3]))))
    assert replica.indexed.history_complete


def test_a_pool_of_unknown_size_is_bounded_too() -> None:
    """Without a capacity, blocks in all tiers and the number of tiers have limits."""
    blocks = ReplicaBlocks()
    blocks.primary.copies = BLOCKS_MAX_UNKNOWN_POOL
    blocks.stored(stored_event(stored([])))
    assert not blocks.overflowed
    blocks.stored(stored_event(stored([1])))
    assert blocks.overflowed
    many = ReplicaBlocks()
    for group in range(TIERS_MAX + 1):
        assert not many.overflowed
        many.stored(stored_event(stored([1], group_idx=group)))
    assert many.overflowed


def test_spellings_of_a_tier_take_no_memory() -> None:
    """A stream that spells its medium anew each time stays within a few kilobytes."""
    rng, blocks, letters = random.Random(3), ReplicaBlocks(), "a-medium-of-many-spellings"

    def spell() -> None:
        for _ in range(2000):
            medium = "".join(rng.choice((c, c.upper())) for c in letters)
            blocks.stored(stored_event(stored([1], medium=medium)))
            blocks.removed(removed_event(removed([1], medium=medium)))

    spell()
    tracemalloc.start()
    spell()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1000 * ROUTES_MAX
    assert blocks.copies == 0 and blocks.removed_unknown == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_delta_is_the_difference_of_snapshots(seed: int) -> None:
    """Deltas applied one after another, each even twice, follow the primary counts."""
    rng, blocks = random.Random(seed), ReplicaBlocks(track_changes=True)
    mirror: dict[int, int] = {}
    for _ in range(300):
        hashes = [rng.randrange(40) for _ in range(rng.choice((0, 1, 3, 9)))]
        fields = rng.choice(({}, {}, {}, {"medium": "CPU"}, WINDOW))
        if rng.random() < 0.02:
            blocks.clear()
        elif rng.random() < 0.5:
            blocks.stored(stored_event(stored(hashes, **fields)))
        else:
            fields = {key: value for key, value in fields.items() if key != "kv_cache_spec_kind"}
            blocks.removed(removed_event(removed(hashes, **fields)))
        if rng.random() < 0.2:
            delta = blocks.take_delta()
            assert not set(delta.copies) & set(delta.removed)
            for _ in range(rng.choice((1, 2))):
                if delta.cleared:
                    mirror.clear()
                mirror.update(delta.copies)
                for block_hash in delta.removed:
                    mirror.pop(block_hash, None)
            assert mirror == blocks.primary.counts, f"seed {seed}"
    assert set(blocks.take_delta().copies) <= set(blocks.primary.counts)


@pytest.mark.parametrize("seed", range(20))
def test_counts_equal_a_dumb_count(seed: int) -> None:
    """Per tier and group, counts are what a list of copies would give."""
    rng, blocks = random.Random(seed), ReplicaBlocks()
    tiers = [
        {"medium": medium, "group_idx": group} for medium in ("GPU", "CPU") for group in (0, 1)
    ]
    copies: list[list[int]] = [[] for _ in tiers]
    for _ in range(400):
        chosen = rng.randrange(len(tiers))
        hashes = [rng.randrange(30) for _ in range(rng.choice((1, 2, 12)))]
        if rng.random() < 0.5:
            blocks.stored(stored_event(stored(hashes, **tiers[chosen])))
            copies[chosen] += hashes
        else:
            blocks.removed(removed_event(removed(hashes, **tiers[chosen])))
            for block_hash in hashes:
                if block_hash in copies[chosen]:
                    copies[chosen].remove(block_hash)
    dumb = [Counter(held) for held in copies]
    assert sorted(map(sorted, blocks.tier(GPU))) == sorted(map(sorted, dumb[:2]))
    assert sorted(map(sorted, blocks.tier(CPU))) == sorted(map(sorted, dumb[2:]))
    assert blocks.copies == sum(map(len, copies))
    assert blocks.gpu_copies == len(copies[0]) + len(copies[1])
