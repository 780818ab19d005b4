"""Hashes with the cache equal those without it, and only new blocks are computed."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.blockhash import (
    ALGORITHMS,
    EXTRA_KEY_FORMS,
    NO_KEYS,
    CanonicalScheme,
    EngineScheme,
    HashScheme,
    RequestKeys,
)
from router.hashing import CHECKPOINT_BLOCKS, PrefixHashes

SCHEMES: list[HashScheme] = [
    EngineScheme(algorithm, "0", size, lookahead, form)
    for algorithm in ALGORITHMS
    for size, lookahead, form in [
        (1, 0, "tagged"),
        (2, 1, "tagged"),
        (3, 5, "untagged"),
        (1, 2, "lora_int"),
    ]
]
SCHEMES += [EngineScheme("sha256", None, 2), CanonicalScheme(1), CanonicalScheme(3)]
KEYS = [
    NO_KEYS,
    RequestKeys(cache_salt="a"),
    RequestKeys(cache_salt="b"),
    RequestKeys(lora_name="x", lora_path="x", lora_int_id=1),
    RequestKeys(lora_name="x", lora_path="y", lora_int_id=2, cache_salt="a"),
]
LONG = 3 * CHECKPOINT_BLOCKS


def tokens(count: int, first: int = 0) -> "array[int]":
    return array("I", (100_000 + first + i for i in range(count)))


prompts = st.builds(
    lambda shared, count, own: tokens(shared) + tokens(count, first=own),
    st.integers(0, 3 * LONG),
    st.integers(0, 70),
    st.sampled_from([0, 7, 1_000_000]),
)


@settings(max_examples=120, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(SCHEMES), prompts, st.sampled_from(KEYS)), min_size=1, max_size=5
    ),
    bytes_max=st.sampled_from([0, 3000, 1 << 20]),
)
def test_hashes_equal_those_of_the_scheme(
    asked: list[tuple[HashScheme, "array[int]", RequestKeys]], bytes_max: int
) -> None:
    """Whatever was asked before, under any scheme and any keys, and however little is kept."""
    cache = PrefixHashes(bytes_max)
    for scheme, prompt, keys in asked:
        expected = scheme.block_hashes(prompt, keys)
        assert list(cache.block_hashes(scheme, prompt, keys)) == expected
        assert cache.cached_bytes <= bytes_max


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_next_turn_computes_only_what_is_behind_the_last_checkpoint(scheme: HashScheme) -> None:
    """The blocks up to there are found."""
    cache = PrefixHashes()
    size = scheme.block_size
    first = tokens((2 * CHECKPOINT_BLOCKS + 3) * size + 10)
    cache.block_hashes(scheme, first, NO_KEYS)
    assert cache.found_blocks == 0
    again = first + tokens(size, first=5)
    hashes = cache.block_hashes(scheme, again, NO_KEYS)
    assert cache.found_blocks == 2 * CHECKPOINT_BLOCKS
    assert list(hashes) == scheme.block_hashes(again)


@pytest.mark.parametrize("scheme", SCHEMES[:3] + SCHEMES[-2:], ids=str)
def test_nothing_is_shared_between_salts_adapters_and_schemes(scheme: HashScheme) -> None:
    """The same tokens under other keys find nothing."""
    cache = PrefixHashes()
    prompt = tokens(LONG * scheme.block_size + 10)
    for keys in KEYS:
        cache.block_hashes(scheme, prompt, keys)
    other = EngineScheme("sha256", "other", scheme.block_size)
    cache.block_hashes(other, prompt, NO_KEYS)
    assert cache.found_blocks == 0


def test_a_changed_lookahead_token_is_another_prompt() -> None:
    """A block's hash depends on the tokens behind it, and so does its checkpoint's name."""
    scheme = EngineScheme("sha256", "0", 1, lookahead=2)
    cache = PrefixHashes()
    one = tokens(CHECKPOINT_BLOCKS + 2)
    other = one[:-1] + array("I", [5])
    cache.block_hashes(scheme, one, NO_KEYS)
    assert list(cache.block_hashes(scheme, other, NO_KEYS)) == scheme.block_hashes(other)
    assert cache.found_blocks == 0


def test_the_front_of_a_prompt_is_forgotten_last() -> None:
    """Without its front nothing of a prompt is found, so the cache drops the back first."""
    scheme = EngineScheme("xxhash_cbor", "0", 1)
    probe = PrefixHashes()
    probe.block_hashes(scheme, tokens(CHECKPOINT_BLOCKS), NO_KEYS)
    cache = PrefixHashes(bytes_max=4 * probe.cached_bytes)
    prompt = tokens(3 * CHECKPOINT_BLOCKS)
    cache.block_hashes(scheme, prompt, NO_KEYS)
    cache.block_hashes(scheme, tokens(2 * CHECKPOINT_BLOCKS, first=9_000), NO_KEYS)
    cache.block_hashes(scheme, prompt, NO_KEYS)
    assert cache.found_blocks == 2 * CHECKPOINT_BLOCKS


def test_work_is_done_in_steps_of_one_checkpoint() -> None:
    """Whoever drives it can stop or give way between two steps, and mix prompts."""
    scheme = EngineScheme("sha256", "0", 1)
    cache = PrefixHashes()
    ways = [cache.steps(scheme, tokens(LONG, first), NO_KEYS) for first in (0, 5_000)]
    results: list[list[int]] = []
    steps = 0
    while ways:
        way = ways.pop(0)
        try:
            next(way)
        except StopIteration as stop:
            results.append(list(stop.value))
        else:
            steps += 1
            ways.append(way)
    assert steps == 2 * LONG // CHECKPOINT_BLOCKS
    assert results == [scheme.block_hashes(tokens(LONG, first)) for first in (0, 5_000)]


def test_an_adapter_without_its_path_cannot_be_hashed_where_the_path_counts() -> None:
    """ValueError, as from the scheme."""
    keys = RequestKeys(lora_name="x")
    cache = PrefixHashes()
    for form in EXTRA_KEY_FORMS:
        scheme = EngineScheme("sha256", "0", 1, 0, form)
        if form == "tagged":
            with pytest.raises(ValueError, match="path"):
                cache.block_hashes(scheme, tokens(3), keys)
        else:
            assert list(cache.block_hashes(scheme, tokens(3), keys)) == scheme.block_hashes(
                tokens(3), keys
            )
