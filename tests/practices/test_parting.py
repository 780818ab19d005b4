"""Shared tokens and the tree, held against comparing token by token."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.practices.parting import PROMPTS_MAX, Node, Shared, shared_length, tree_of

IDS = st.lists(st.integers(0, 2), max_size=12).map(lambda ids: array("I", ids))
PROMPTS = st.lists(IDS, min_size=1, max_size=9)


def dumb_shared(a: "array[int]", b: "array[int]") -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


@given(IDS, IDS)
def test_shared_tokens_are_those_before_the_first_that_differs(
    a: "array[int]", b: "array[int]"
) -> None:
    """Of ids and of characters, as comparing one by one finds them."""
    assert shared_length(a, b) == shared_length(b, a) == dumb_shared(a, b)
    texts = ["".join(map(str, ids)) for ids in (a, b)]
    assert shared_length(texts[0], texts[1]) == dumb_shared(a, b)


def test_only_full_blocks_count() -> None:
    """23 tokens are one full block of 16."""
    assert Shared.of(23, 16) == Shared(23, 1)
    assert Shared.of(15, 16).full_blocks == 0 and Shared.of(32, 16).full_blocks == 2


def paths(node: Node, above: tuple[Node, ...] = ()) -> "list[tuple[Node, ...]]":
    here = (*above, node)
    return [here, *(path for child in node.children for path in paths(child, here))]


@given(PROMPTS)
def test_the_tree_holds_every_prompt_and_what_each_two_share(prompts: "list[array[int]]") -> None:
    """Each prompt is a path from the root; the last node on two paths ends where they part."""
    tree = tree_of(prompts)
    path_of = {member: path for path in paths(tree) for member in path[-1].ending}
    assert sorted(path_of) == list(range(len(prompts)))
    for a, path in path_of.items():
        assert path[-1].end == len(prompts[a])
        for b, other in path_of.items():
            common = [n for n, m in zip(path, other, strict=False) if n is m]
            assert common[-1].end == dumb_shared(prompts[a], prompts[b])


@given(PROMPTS)
def test_a_node_is_there_for_a_reason(prompts: "list[array[int]]") -> None:
    """Below the root each has tokens, and ends a prompt or forks; nothing is told twice."""
    tree = tree_of(prompts)
    for path in paths(tree):
        node = path[-1]
        assert node.ending or len(node.children) > 1
        assert sorted(node.members) == sorted(
            [*node.ending, *(member for child in node.children for member in child.members)]
        )
        if len(path) > 1:
            assert node.start == path[-2].end < node.end
    assert [n for n in tree.forks()] == [p[-1] for p in paths(tree) if len(p[-1].children) > 1]


def test_children_come_in_the_order_of_the_prompts() -> None:
    """A person finds the files as they were named."""
    tree = tree_of([array("I", [1, 9]), array("I", [1, 2]), array("I", [1, 9, 5])])
    assert [child.members for child in tree.children] == [(0, 2), (1,)]


def test_as_many_prompts_as_are_allowed_make_a_tree() -> None:
    """Also where each goes on from the one before, so that the tree is as deep as there are."""
    prompts = [array("I", range(length)) for length in range(PROMPTS_MAX)]
    tree = tree_of(prompts)
    assert len(paths(tree)) == PROMPTS_MAX and not list(tree.forks())
