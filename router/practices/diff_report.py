"""What `pointsman diff` has found, gathered once for a person and for a program."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.practices.causes import Cause, Side
from router.practices.comparing import Comparing, Comparison
from router.practices.marking import Place
from router.practices.parting import Node, tree_of
from router.practices.prompt import Prompts, TokenizedBody

_BEFORE_CHARS = 54
_AFTER_CHARS = 30
# Of the token that differs; some are long runs of blanks.
_TOKEN_CHARS_MAX = 30


@dataclass(frozen=True, slots=True)
class Pair:
    """``a`` and ``b`` are numbers of requests."""

    a: int
    b: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Fork:
    """A node at whose end requests part: the first behind it with one of each other branch."""

    node: Node
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """``trees``: one for each salt, since requests of different salts share nothing.

    ``pair``: where there are two requests. ``apart``: one request of each salt beside the first.
    """

    requests: Sequence[TokenizedBody]
    block_size: int
    tokenized_by: str
    trees: tuple[Node, ...]
    forks: tuple[Fork, ...]
    apart: tuple[Pair, ...]
    pair: Pair | None

    @property
    def parts(self) -> bool:
        return len(self.trees) > 1 or bool(self.forks)

    def full_blocks(self, tokens: int) -> int:
        return tokens // self.block_size


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The text around a difference; ``at`` is what differs, empty at the end of the text."""

    before: str
    at: str
    after: str


def report_of(requests: Sequence[TokenizedBody], prompts: Prompts, block_size: int) -> Report:
    """At least two requests."""
    comparing = Comparing(prompts, requests)

    def pair(a: int, b: int) -> Pair:
        return Pair(a, b, comparing.compare(a, b))

    groups: dict[str | None, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.cache_salt, []).append(number)
    trees = tuple(_tree(requests, group) for group in groups.values())
    forks = []
    for node in (node for tree in trees for node in tree.forks()):
        first, *others = (child.members[0] for child in node.children)
        forks.append(Fork(node, tuple(pair(first, other) for other in others)))
    first, *others = (tree.members[0] for tree in trees)
    apart = tuple(pair(first, other) for other in others)
    both = pair(0, 1) if len(requests) == 2 else None
    return Report(requests, block_size, prompts.described, trees, tuple(forks), apart, both)


def _tree(requests: Sequence[TokenizedBody], group: Sequence[int]) -> Node:
    """With the numbers of all requests, not of the group."""
    return _renumbered(tree_of([requests[number].token_ids for number in group]), group)


def _renumbered(node: Node, numbers: Sequence[int]) -> Node:
    return Node(
        node.start,
        node.end,
        tuple(numbers[member] for member in node.members),
        tuple(numbers[member] for member in node.ending),
        tuple(_renumbered(child, numbers) for child in node.children),
    )


def excerpt_of(side: Side, shared_tokens: int) -> Excerpt | None:
    """Around the first token that differs. None where there is no text."""
    text = side.tokenized.text
    if text is None:
        return None
    end = max(side.tokenized.start(shared_tokens + 1), side.offset + 1)
    end = min(end, side.offset + _TOKEN_CHARS_MAX)
    return Excerpt(
        text[max(0, side.offset - _BEFORE_CHARS) : side.offset],
        text[side.offset : end],
        text[end : end + _AFTER_CHARS],
    )


def place_text(place: Place | None, body: Mapping[str, Any]) -> str:
    """In words; messages and tools are counted from 1."""
    if place is None:
        return "a place that is not known"
    number = None if place.index is None else place.index + 1
    message = f"message {number} of {_count(body, 'messages')} ({place.role})"
    tool = f"tool {number} of {_count(body, 'tools')} ({place.tool})"
    match place.kind:
        case "system":
            return f"system ({message.partition(' (')[0]})"
        case "tools":
            return f"tools, {tool}" if number is not None else "tools, between two of them"
        case "message":
            return message
        case "prompt":
            return "the prompt"
        case "generation":
            return "the generation prompt, behind the last message"
        case "template":
            if number is None:
                return "the template's own text"
            return f"the template's own text before {message if place.role else 'the tools'}"


def _count(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    return len(value) if isinstance(value, list) else 0


def as_json(report: Report) -> dict[str, Any]:
    pairs = [report.pair] if report.pair else _pairs(report)
    return {
        "part": report.parts,
        "block_size": report.block_size,
        "tokenized_by": report.tokenized_by,
        "requests": [
            {"name": request.name, **_counts(report, len(request.token_ids))}
            for request in report.requests
        ],
        "comparisons": [_pair_as_json(report, pair) for pair in pairs],
        "trees": [_node_as_json(report, tree) for tree in report.trees],
    }


def _pairs(report: Report) -> Iterator[Pair]:
    yield from report.apart
    for fork in report.forks:
        yield from fork.pairs


def _counts(report: Report, tokens: int) -> dict[str, int]:
    return {"tokens": tokens, "full_blocks": report.full_blocks(tokens)}


def _node_as_json(report: Report, node: Node) -> dict[str, Any]:
    return {
        **_counts(report, node.end),
        "requests": list(node.members),
        "ending": list(node.ending),
        "children": [_node_as_json(report, child) for child in node.children],
    }


def _pair_as_json(report: Report, pair: Pair) -> dict[str, Any]:
    found = pair.comparison
    shared = 0 if found.salted_apart else found.shared_tokens
    difference = None
    if found.relation == "part":
        difference = {
            "token": found.shared_tokens,
            "a": _side_as_json(found.a, found.shared_tokens),
            "b": _side_as_json(found.b, found.shared_tokens),
        }
    return {
        "a": pair.a,
        "b": pair.b,
        "relation": found.relation,
        "equal_tokens": found.shared_tokens,
        "shared": _counts(report, shared),
        "first_difference": difference,
        "causes": [_cause_as_json(report, cause) for cause in found.causes],
    }


def _side_as_json(side: Side, token: int) -> dict[str, Any]:
    excerpt, place = excerpt_of(side, token), side.place
    return {
        "token_id": side.tokenized.token_ids[token],
        "before": None if excerpt is None else excerpt.before,
        "text": None if excerpt is None else excerpt.at,
        "after": None if excerpt is None else excerpt.after,
        "place": None
        if place is None
        else {key: getattr(place, key) for key in ("kind", "index", "role", "tool")},
    }


def _cause_as_json(report: Report, cause: Cause) -> dict[str, Any]:
    without = None if cause.shared_tokens is None else _counts(report, cause.shared_tokens)
    return {
        "kind": cause.kind,
        "what": cause.what,
        "remedy": cause.remedy or None,
        "shared_without_it": without,
    }
