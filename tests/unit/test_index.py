"""Matches, against a dumb version that looks at every block."""

import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.index import (
    IndexedReplica,
    Match,
    MemoryIndex,
    PoolName,
    Prompt,
    ReplicaId,
    deepest_by_bisection,
    deepest_by_scan,
    match_replica,
)
from indexer.residency import ReplicaBlocks
from proto.blockhash import BlockHash
from tests.unit.wire import removed, removed_event, stored, stored_event

POOL = PoolName("pool")
SCHEME = "scheme"


def prompt(length: int, start: int = 1) -> list[BlockHash]:
    return [BlockHash(start + position) for position in range(length)]


def replica_of(
    gpu: Sequence[int] = (),
    *,
    cpu: Sequence[int] = (),
    storage: Sequence[int] = (),
    complete: bool = True,
    pool: PoolName = POOL,
    schemes: tuple[str, ...] = (SCHEME,),
) -> IndexedReplica:
    blocks = ReplicaBlocks()
    for medium, hashes in (("GPU", gpu), ("CPU", cpu), ("STORAGE", storage)):
        if hashes:
            blocks.stored(stored_event(stored(list(hashes), medium=medium)))
    return IndexedReplica(pool, blocks, schemes, complete)


def dumb_prefix(resident: set[int], hashes: Sequence[int]) -> int:
    """Blocks from the front for as long as they are there."""
    matched = 0
    while matched < len(hashes) and hashes[matched] in resident:
        matched += 1
    return matched


def dumb_deepest(resident: set[int], hashes: Sequence[int]) -> int:
    """One-based position of the last block that is there."""
    return max((i + 1 for i, block in enumerate(hashes) if block in resident), default=0)


@given(
    chains=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=4),
    shared=st.integers(0, 40),
    length=st.integers(1, 40),
)
@settings(max_examples=300, deadline=None)
def test_bisection_finds_what_looking_at_every_block_does(
    chains: list[tuple[int, int]], shared: int, length: int
) -> None:
    """On sets closed under ancestors (a tree of chains), the deepest block is the prefix's end."""
    asked = prompt(length)
    resident = set(asked[: min(shared, length)])
    for branch, depth in chains:
        # Chains that share a beginning with the prompt and then go their own way.
        resident |= set(asked[: min(branch * 5, length)]) | set(prompt(depth, 1000 * (branch + 1)))
    found = deepest_by_bisection(resident, Prompt(asked))
    assert found == dumb_prefix(resident, asked) == dumb_deepest(resident, asked)


@given(st.integers(1, 200))
@settings(deadline=None)
def test_bisection_looks_at_few_blocks(length: int) -> None:
    """A prompt of n blocks costs about log2(n) look-ups, wherever its prefix ends."""
    asked = prompt(length)
    for resident in range(length + 1):
        held = Counted(asked[:resident])
        assert deepest_by_bisection(held, Prompt(asked)) == resident
        assert held.looks <= length.bit_length() + 2


class Counted(set[int]):
    """Counts how often it is asked."""

    looks = 0

    def __contains__(self, item: object) -> bool:
        self.looks += 1
        return super().__contains__(item)


@given(st.lists(st.integers(0, 70), max_size=6), st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_a_whole_match_is_the_search_of_each_replica(depths: list[int], length: int) -> None:
    """What the index spells out for plain replicas finds what looking at every block does."""
    asked = prompt(length)
    index = MemoryIndex({ReplicaId(str(n)): replica_of(prompt(d)) for n, d in enumerate(depths)})
    expected = {
        str(n): Match(min(d, length), min(d, length), min(d, length))
        for n, d in enumerate(depths)
        if d
    }
    assert index.match(POOL, {SCHEME: asked}) == expected


@given(
    length=st.integers(1, 20_000),
    cut=st.floats(0, 1),
    end=st.floats(0, 1),
)
@settings(max_examples=300, deadline=None)
def test_a_scan_is_sparse_and_finds_long_runs(length: int, cut: float, end: float) -> None:
    """Hundreds of looks find any run that is a 64th of its distance from the end, or the prefix."""
    asked = prompt(length)
    depth = round(end * length)
    first = round(cut * depth)
    held = Counted(asked[first:depth])
    found = deepest_by_scan(held, Prompt(asked))
    assert held.looks <= 64 * (2 + math.log(max(1, length / 64))) + 20
    assert found in (0, depth)
    if depth > first and (first == 0 or depth - first > (length - first) / 64):
        assert found == depth


@given(length=st.integers(1, 30), cut=st.integers(0, 60), data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_scan_finds_the_deepest_block_of_any_suffix_of_a_log(
    length: int, cut: int, data: st.DataObject
) -> None:
    """After a cut any subset may be known; the deepest known block is the match."""
    asked = prompt(length)
    order = data.draw(st.permutations(asked))
    resident = Counter(order[cut:]) if cut < len(order) else Counter()
    resident.update(prompt(5, 500))
    assert deepest_by_scan(resident, Prompt(asked)) == dumb_deepest(set(resident), asked)


@given(
    log=st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=20),
    cut=st.integers(0, 20),
)
@settings(max_examples=200, deadline=None)
def test_a_suffix_of_a_log_never_promises_more(log: list[tuple[int, bool]], cut: int) -> None:
    """Chains stored head first and evicted tail first: a cut log matches at most what is there."""
    asked, depth = prompt(25), 0
    whole, part = ReplicaBlocks(), ReplicaBlocks()
    for number, (wanted, grow) in enumerate(log):
        target = max(depth, wanted) if grow else min(depth, wanted)
        for blocks in (whole, part) if number >= cut else (whole,):
            if grow and target > depth:
                blocks.stored(stored_event(stored(asked[depth:target])))
            elif target < depth:
                blocks.removed(removed_event(removed(asked[target:depth][::-1])))
        depth = target
    complete = match_replica(IndexedReplica(POOL, whole, (SCHEME,), True), asked)
    incomplete = match_replica(IndexedReplica(POOL, part, (SCHEME,), False), asked)
    assert complete.gpu == depth
    assert incomplete.gpu in (0, depth)


BLOCKS = st.sets(st.integers(1, 20))


@given(depth=st.integers(0, 20), cpu=BLOCKS, storage=BLOCKS)
@settings(max_examples=300, deadline=None)
def test_tiers_are_cumulated_in_order(depth: int, cpu: set[int], storage: set[int]) -> None:
    """Each level's match goes on from the level above, over blocks that any tier so far holds."""
    asked = prompt(20)
    gpu = set(asked[:depth])
    found = match_replica(replica_of(sorted(gpu), cpu=sorted(cpu), storage=sorted(storage)), asked)
    assert found == Match(
        depth, dumb_prefix(gpu | cpu, asked), dumb_prefix(gpu | cpu | storage, asked)
    )


def test_pools_are_apart() -> None:
    """A match never shows a replica of another pool, though it holds the very same blocks."""
    index = MemoryIndex()
    for name, pool in (("a", "one"), ("b", "two"), ("c", "one")):
        index.add(ReplicaId(name), replica_of(prompt(3), pool=PoolName(pool)))
    asked = {SCHEME: prompt(3)}
    assert set(index.match(PoolName("one"), asked)) == {"a", "c"}
    assert set(index.match(PoolName("two"), asked)) == {"b"}
    assert index.match(PoolName("three"), asked) == {}
    index.remove(ReplicaId("a"), PoolName("one"))
    assert set(index.match(PoolName("one"), asked)) == {"c"}


def test_of_two_possible_schemes_the_larger_match_counts() -> None:
    """While two forms stay possible both are asked, in either order."""
    asked = {"x": prompt(5, 100), "y": prompt(5)}
    for schemes in (("x", "y"), ("y", "x")):
        index = MemoryIndex({ReplicaId("r"): replica_of(prompt(3), schemes=schemes)})
        assert index.match(POOL, asked) == {"r": Match(3, 3, 3)}


def test_who_holds_nothing_is_left_out() -> None:
    """No first block, no scheme, or no hashes in the replica's scheme: not in the answer."""
    index = MemoryIndex(
        {
            ReplicaId("other blocks"): replica_of(prompt(3, 50)),
            ReplicaId("nothing proven"): replica_of(prompt(3), schemes=()),
            ReplicaId("another scheme"): replica_of(prompt(3), schemes=("z",)),
            ReplicaId("empty"): replica_of(),
        }
    )
    assert index.match(POOL, {SCHEME: prompt(3)}) == {}
    assert index.match(POOL, {SCHEME: []}) == {}


def test_storage_alone_is_a_match() -> None:
    """A replica whose GPU holds nothing of the prompt is found by its lower tiers."""
    index = MemoryIndex({ReplicaId("r"): replica_of(cpu=[1], storage=[2])})
    assert index.match(POOL, {SCHEME: prompt(4)}) == {"r": Match(0, 1, 2)}
