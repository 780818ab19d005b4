"""The endless cache that the practices are measured against."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.practices.ideal_cache import IdealCache, prompt_blocks

Prompts = st.lists(st.lists(st.integers(0, 1), max_size=24), max_size=12)


def hits(block_size: int, *prompts: list[int], namespaces: str = "") -> list[int]:
    cache = IdealCache(block_size)
    names = namespaces or "x" * len(prompts)
    return [
        cache.hit_tokens(name, prompt_blocks(prompt, block_size))
        for name, prompt in zip(names, prompts, strict=True)
    ]


def test_full_blocks_from_the_front_are_found() -> None:
    """What follows a difference is not found, and neither is a block that is not full."""
    assert hits(2, [1, 2, 3, 4, 5], [1, 2, 3, 4, 9], [1, 2, 9, 4, 5], [9, 2, 3, 4]) == [0, 4, 2, 0]


def test_the_last_token_is_always_computed() -> None:
    """As in the engine, a prompt that is all there is found but for its last block."""
    assert hits(2, [1, 2, 3, 4], [1, 2, 3, 4], [1, 2], [1], []) == [0, 2, 0, 0, 0]


def test_models_and_salts_share_nothing() -> None:
    """Each namespace is a cache of its own."""
    prompt = [1, 2, 3]
    assert hits(2, prompt, prompt, prompt, prompt, namespaces="abab") == [0, 0, 2, 2]


@given(Prompts, st.integers(1, 4))
def test_it_equals_a_comparison_with_all_earlier_prompts(
    prompts: list[list[int]], block_size: int
) -> None:
    """The dumb version: the longest common beginning with any earlier prompt, in full blocks."""
    expected = []
    for place, prompt in enumerate(prompts):
        common = 0
        for earlier in prompts[:place]:
            count = 0
            for one, other in zip(prompt, earlier, strict=False):
                if one != other:
                    break
                count += 1
            common = max(common, count)
        blocks = min(common // block_size, max(0, len(prompt) - 1) // block_size)
        expected.append(blocks * block_size)
    assert hits(block_size, *prompts) == expected


def test_a_block_is_named_with_all_before_it() -> None:
    """Equal tokens behind different ones are another block, whatever they are given as."""
    first, second = prompt_blocks([1, 2, 5, 6], 2), prompt_blocks([3, 4, 5, 6], 2)
    assert first.chain[1] != second.chain[1]
    assert first == prompt_blocks(array("I", [1, 2, 5, 6]), 2)
