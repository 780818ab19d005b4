"""Whose work a cache hit was."""

from router.sharing import BlockOwners, Origins

HASHES = list(range(0, 400))


def test_hits_are_told_apart_by_who_computed_the_blocks() -> None:
    """A tenant's own blocks are its own; what it computes behind others' blocks is its own too."""
    owners = BlockOwners(one_in=1)
    assert owners.finished("a", HASHES[:100], 16, 0) == Origins()
    assert owners.finished("a", HASHES[:100], 16, 99 * 16) == Origins(own_tokens=99 * 16)
    assert owners.finished("b", HASHES[:150], 16, 100 * 16) == Origins(other_tokens=100 * 16)
    origins = owners.finished("b", HASHES[:150], 16, 150 * 16)
    assert origins == Origins(own_tokens=50 * 16, other_tokens=100 * 16)


def test_a_block_that_is_computed_again_belongs_to_who_computed_it() -> None:
    """After an eviction the next one who computes it is the one whose work is found."""
    owners = BlockOwners(one_in=1)
    owners.finished("a", HASHES[:10], 16, 0)
    owners.finished("b", HASHES[:10], 16, 0)
    assert owners.finished("b", HASHES[:10], 16, 160) == Origins(own_tokens=160)
    owners.finished(None, HASHES[:10], 16, 0)
    assert owners.finished("b", HASHES[:10], 16, 160) == Origins(unknown_tokens=160)


def test_what_nobody_remembers_is_unknown() -> None:
    """Blocks from before the router's start, a request of nobody, and whatever was forgotten."""
    owners = BlockOwners(blocks_max=50, one_in=1)
    assert owners.finished("a", HASHES[:10], 16, 160) == Origins(unknown_tokens=160)
    owners.finished("a", HASHES[:100], 16, 0)
    assert len(owners) == 50
    assert owners.finished("a", HASHES[:100], 16, 1600) == Origins(800, 0, 800)
    assert owners.finished(None, HASHES[:100], 16, 1600) == Origins(unknown_tokens=1600)


def test_one_block_in_four_is_enough_for_the_shares() -> None:
    """The estimate is of the right size, and its memory a quarter."""
    owners = BlockOwners()
    owners.finished("a", HASHES[:200], 16, 0)
    owners.finished("b", HASHES, 16, 200 * 16)
    assert len(owners) == 100
    origins = owners.finished("b", HASHES, 16, 400 * 16)
    assert origins == Origins(own_tokens=200 * 16, other_tokens=200 * 16)
