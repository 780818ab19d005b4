import pytest

from benchmarks.sim.events import AllBlocksCleared, BlockRemoved
from benchmarks.sim.pool import BlockPool
from proto.blockhash import normalise


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def filled(pool: BlockPool, *numbers: int) -> list:
    """Blocks of one request, each full and stored under its number."""
    blocks = pool.acquire((), len(numbers))
    for block, number in zip(blocks, numbers, strict=True):
        pool.store(block, digest(number))
    return blocks


def test_null_block_is_never_handed_out():
    """A pool of N blocks holds N - 1, and block 0 is none of them."""
    pool = BlockPool(4)
    assert pool.acquire((), 4) is None
    assert sorted(pool.acquire((), 3)) == [1, 2, 3]
    with pytest.raises(ValueError):
        BlockPool(1)


def test_tail_is_evicted_before_head():
    """A request's blocks are handed out again from its tail, one removal event each."""
    pool = BlockPool(4)
    pool.free(filled(pool, 1, 2, 3))
    pool.acquire((), 2)
    assert pool.take_events() == (BlockRemoved(digest(3)), BlockRemoved(digest(2)))
    assert pool.truth() == {normalise(digest(1)): 1}


def test_blocks_without_hash_are_reused_first():
    """Freed blocks that hold nothing go before older cached ones, so nothing is evicted."""
    pool = BlockPool(4)
    pool.free(filled(pool, 1))
    pool.free(pool.acquire((), 2))
    pool.acquire((), 2)
    assert pool.take_events() == ()


def test_hit_leaves_the_free_queue():
    """A cached free block that is hit cannot be evicted until it is freed again."""
    pool = BlockPool(3)
    pool.free(filled(pool, 1))
    reused = pool.match([digest(1)], 1)
    assert pool.acquire(reused, 1) is not None
    assert pool.acquire((), 1) is None
    pool.free(reused)
    pool.acquire((), 1)
    assert pool.take_events() == (BlockRemoved(digest(1)),)


def test_shared_block_is_freed_with_its_last_user():
    """A block that two requests use stays in use until both have freed it."""
    pool = BlockPool(2)
    blocks = filled(pool, 1)
    pool.acquire(blocks, 0)
    pool.free(blocks)
    assert pool.used == 1
    pool.free(blocks)
    assert pool.used == 0


def test_refused_acquire_changes_nothing():
    """Where blocks do not suffice, not even the reused ones are taken."""
    pool = BlockPool(3)
    pool.free(filled(pool, 1, 2))
    assert pool.acquire(pool.match([digest(1)], 1), 2) is None
    assert pool.used == 0 and pool.take_events() == ()
    assert list(pool.eviction_order()) == [2, 1]


def test_copies_are_counted_and_removed_one_by_one():
    """Two blocks with one hash are two copies, and each has a removal of its own."""
    pool = BlockPool(3)
    pool.free(filled(pool, 7))
    pool.free(filled(pool, 7))
    assert pool.truth() == {7: 2}
    pool.acquire((), 1)
    assert pool.truth() == {7: 1} and pool.match([digest(7)], 1)
    pool.acquire((), 1)
    assert pool.take_events() == (BlockRemoved(digest(7)),) * 2 and pool.truth() == {}


def test_reset_only_while_nothing_is_in_use():
    """A reset is refused while a block is in use, and otherwise is one event for all hashes."""
    pool = BlockPool(4)
    blocks = filled(pool, 1, 2)
    assert not pool.reset() and pool.take_events() == ()
    pool.free(blocks)
    assert pool.reset() and pool.truth() == {}
    pool.acquire((), 3)
    assert pool.take_events() == (AllBlocksCleared(),)
