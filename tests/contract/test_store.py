"""What every store of replicas does with a flush, held against the specification and Valkey."""

import random
from collections import Counter

import pytest

from indexer.durability import LEASE_S, NOWHERE, Elsewhere, Flush, Leased, Written
from indexer.residency import GPU, TierKey
from indexer.saved_state import Saved, SavedState
from proto.blockhash import EngineScheme
from tests.contract.conftest import AnyStore

TIER = TierKey(GPU, "gpu", 0, None, 3)
STATE = SavedState(
    2**60,
    bytes(range(32)),
    history_complete=True,
    hybrid_groups=True,
    ever_proven=True,
    base=EngineScheme("sha256_cbor", None, 16, 2),
    forms=frozenset(("tagged", "untagged")),
    tier=TIER,
)


def flush(
    start: str,
    end: str,
    copies: dict[int, int] | None = None,
    *,
    removed: tuple[int, ...] = (),
    held: int | None = None,
    cleared: bool = False,
    writer: str = "w",
    state: SavedState | None = STATE,
    lease_s: float = LEASE_S,
) -> Flush:
    copies = copies or {}
    blocks = len(copies) if held is None else held
    return Flush(writer, start, end, cleared, list(removed), copies, blocks, state, lease_s)


FIRST = flush(NOWHERE, "w:1", {1: 1, 2**64 - 1: 2, 2**63: 300}, cleared=True)


async def test_what_was_flushed_is_loaded(store: AnyStore) -> None:
    """Every field, every hash of 64 bits and every count comes back as it went."""
    assert await store.load() is None
    assert await store.flush(FIRST) == Written()
    assert await store.load() == Saved("w:1", STATE, Counter(FIRST.copies))


async def test_a_flush_counts_once_however_often_it_comes(store: AnyStore) -> None:
    """Asked again it says the same; asked again late, after another, it changes nothing."""
    second = flush("w:1", "w:2", {5: 2}, removed=(1,), held=3)
    assert [await store.flush(FIRST), await store.flush(FIRST)] == [Written()] * 2
    assert [await store.flush(second), await store.flush(second)] == [Written()] * 2
    assert await store.flush(FIRST) == Elsewhere("w:2")
    assert await store.load() == Saved("w:2", STATE, Counter({5: 2, 2**64 - 1: 2, 2**63: 300}))


async def test_copies_are_absolute(store: AnyStore) -> None:
    """A block that had several copies and has one is as one that never had more."""
    await store.flush(FIRST)
    await store.flush(flush("w:1", "w:2", {2**63: 1, 1: 4}, held=3))
    loaded = await store.load()
    assert loaded is not None and loaded.counts == {1: 4, 2**64 - 1: 2, 2**63: 1}


async def test_a_store_that_stands_elsewhere_says_where(store: AnyStore) -> None:
    """It writes nothing, whether it holds nothing, older data, or another's."""
    assert await store.flush(flush("w:7", "w:8", {9: 1})) == Elsewhere(NOWHERE)
    assert await store.load() is None
    await store.flush(FIRST)
    assert await store.flush(flush("w:7", "w:8", {9: 1})) == Elsewhere("w:1")
    assert await store.flush(flush(NOWHERE, "w:8", {9: 1}, cleared=True)) == Elsewhere("w:1")
    assert await store.load() == Saved("w:1", STATE, Counter(FIRST.copies))
    assert await store.flush(flush("w:1", "w:8", {9: 1}, cleared=True)) == Written()
    assert await store.load() == Saved("w:8", STATE, Counter({9: 1}))


async def test_a_living_lease_keeps_other_writers_out(store: AnyStore) -> None:
    """Even one that knows the position; once it was given back, that one goes on from there."""
    await store.flush(FIRST)
    taken = flush("w:1", "x:1", {4: 1}, held=4, writer="x")
    assert await store.flush(taken) == Leased()
    assert await store.load() == Saved("w:1", STATE, Counter(FIRST.copies))
    await store.flush(flush("w:1", "w:2", held=3, lease_s=0))
    assert await store.flush(taken) == Elsewhere("w:2")
    assert await store.flush(flush("w:2", "x:1", {4: 1}, held=4, writer="x")) == Written()
    assert await store.flush(flush("x:1", "w:3", held=4)) == Leased()


async def test_a_cardinality_that_differs_is_cleared(store: AnyStore) -> None:
    """What does not hold as many blocks as it should is not believed any more."""
    await store.flush(FIRST)
    assert await store.flush(flush("w:1", "w:2", held=4)) == Elsewhere(NOWHERE)
    assert await store.load() is None


async def test_nothing_worth_keeping_is_nothing_loaded(store: AnyStore) -> None:
    """A flush without a state holds the lease and the position, and no blocks."""
    await store.flush(FIRST)
    assert await store.flush(flush("w:1", "w:2", cleared=True, state=None)) == Written()
    assert await store.load() is None
    assert await store.flush(flush("w:2", "x:1", {4: 1}, writer="x")) == Leased()


@pytest.mark.parametrize("blocks", [3999, 4000, 4001, 20_000])
async def test_a_flush_of_any_size(store: AnyStore, blocks: int) -> None:
    """More than a script can put on its stack at a time is written, and removed again."""
    rng = random.Random(blocks)
    hashes = [rng.getrandbits(64) for _ in range(blocks)]
    copies = {block_hash: rng.choice((1, 2, 2**31)) for block_hash in hashes}
    await store.flush(flush(NOWHERE, "w:1", copies, cleared=True))
    loaded = await store.load()
    assert loaded is not None and loaded.counts == copies
    assert await store.flush(flush("w:1", "w:2", removed=tuple(hashes), held=0)) == Written()
    assert await store.load() == Saved("w:2", STATE, Counter({}))


@pytest.mark.parametrize("seed", range(10))
async def test_any_sequence_of_flushes_is_followed(store: AnyStore, seed: int) -> None:
    """Adds, removals, counts and clears in any order leave what a dict would hold."""
    rng = random.Random(seed)
    mirror: dict[int, int] = {}
    position = NOWHERE
    for number in range(60):
        cleared = position == NOWHERE or rng.random() < 0.1
        if cleared:
            mirror.clear()
        removed = tuple(rng.sample(range(30), 4))
        copies = {n: rng.choice((1, 1, 2, 3)) for n in rng.sample(range(30), 6) if n not in removed}
        for block_hash in removed:
            mirror.pop(block_hash, None)
        mirror.update(copies)
        after = f"w:{number}"
        step = flush(position, after, copies, removed=removed, held=len(mirror), cleared=cleared)
        assert await store.flush(step) == Written()
        position = after
        assert await store.load() == Saved(position, STATE, Counter(mirror))
