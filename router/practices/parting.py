"""Where prompts part: shared tokens and full blocks of two, and a tree of many.

Rules:

* Only full blocks are shared, and a token is found again only where every token before it is.
* Prompts with different salts share nothing, whatever their tokens: the salt is in the first
  block's hash.
* The tree is the radix tree of the token ids: a node ends where its prompts part or one of them
  ends, and its children are in the order in which the prompts were given.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Text = TypeVar("_Text", str, "array[int]")

# A tree is for a person to read, and deeper ones would need another way to build them.
PROMPTS_MAX = 200


@dataclass(frozen=True, slots=True)
class Shared:
    """What two prompts have in common, and what that is worth."""

    tokens: int
    full_blocks: int

    @classmethod
    def of(cls, tokens: int, block_size: int) -> "Shared":
        return cls(tokens, tokens // block_size)


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens ``start:end`` of all prompts in ``members``; ``ending`` are those that end here.

    Members are numbers of prompts. The root may be empty.
    """

    start: int
    end: int
    members: tuple[int, ...]
    ending: tuple[int, ...]
    children: tuple["Node", ...] = ()

    def forks(self) -> Iterator["Node"]:
        """The nodes at whose end prompts part, from the root on."""
        if len(self.children) > 1:
            yield self
        for child in self.children:
            yield from child.forks()


def shared_length(a: _Text, b: _Text) -> int:
    """How many items at the front are equal: token ids, or characters."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        # What is below ``low`` is known to be equal.
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def tree_of(prompts: Sequence["array[int]"]) -> Node:
    """At least one prompt, at most PROMPTS_MAX."""
    assert 1 <= len(prompts) <= PROMPTS_MAX
    return _node(prompts, tuple(range(len(prompts))), 0)


def _node(prompts: Sequence["array[int]"], members: tuple[int, ...], start: int) -> Node:
    first = prompts[members[0]]
    end = min(shared_length(first, prompts[member]) for member in members)
    branches: dict[int, list[int]] = {}
    for member in members:
        if len(prompts[member]) > end:
            branches.setdefault(prompts[member][end], []).append(member)
    children = tuple(_node(prompts, tuple(branch), end) for branch in branches.values())
    ending = tuple(member for member in members if len(prompts[member]) == end)
    return Node(start, end, members, ending, children)
