"""Prompts side by side: what two of them share, where they part, and why."""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from router.practices.causes import Cause, Parted, Side, besides, cause
from router.practices.layout import Layout
from router.practices.likely import likely_cause
from router.practices.message_causes import say_the_same
from router.practices.parting import shared_length
from router.practices.prompt import Prompts, TokenizedBody, layout_of
from router.tokens import NotReported

Relation = Literal["equal", "prefix", "part"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``relation`` of the token ids: one may be a prefix of the other, whichever it is. Where they
    part, ``a`` and ``b`` tell where. ``causes``: the likely one, then those beside the tokens."""

    relation: Relation
    shared_tokens: int
    causes: tuple[Cause, ...]
    a: Side
    b: Side
    salted_apart: bool


class Comparing:
    """Prompts that are compared in pairs, each laid out once. ``prompts`` made them."""

    def __init__(self, prompts: Prompts, bodies: Sequence[TokenizedBody]) -> None:
        self._prompts, self._bodies = prompts, bodies
        self._layouts: dict[int, Layout | None] = {}

    def compare(self, a: int, b: int) -> Comparison:
        one, other = self._bodies[a], self._bodies[b]
        shared = shared_length(one.token_ids, other.token_ids)
        relation = _relation(one.token_ids, other.token_ids, shared)
        sides = self._sides(a, b, shared)
        if relation == "part":
            measure = _Measured(self._prompts, one)
            likely = likely_cause(Parted(*sides, shared, measure))
        else:
            likely = _cause_of_none(*sides, relation)
        causes = (likely, *besides(one, other))
        return Comparison(relation, shared, causes, *sides, one.cache_salt != other.cache_salt)

    def _sides(self, a: int, b: int, shared: int) -> tuple[Side, Side]:
        """Their texts may go on the same within the first token that differs."""
        one, other = self._bodies[a], self._bodies[b]
        starts = one.start(shared), other.start(shared)
        texts = one.text, other.text
        if texts[0] is None or texts[1] is None:
            return Side(one, 0), Side(other, 0)
        common = shared_length(texts[0][starts[0] :], texts[1][starts[1] :])
        return self._side(a, starts[0] + common), self._side(b, starts[1] + common)

    def _side(self, number: int, offset: int) -> Side:
        layout = self._layout(number)
        if layout is None:
            return Side(self._bodies[number], offset)
        return Side(self._bodies[number], offset, layout.place(offset), layout.section(offset))

    def _layout(self, number: int) -> Layout | None:
        if number not in self._layouts:
            self._layouts[number] = layout_of(self._bodies[number], self._prompts)
        return self._layouts[number]


class _Measured:
    """What mended requests share, by the same tokenizer."""

    def __init__(self, prompts: Prompts, like: TokenizedBody) -> None:
        self._prompts, self._like = prompts, like

    def bodies(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None:
        try:
            ids = [self._token_ids(body) for body in (a, b)]
        except NotReported:
            return None
        return shared_length(ids[0], ids[1])

    def texts(self, a: str, b: str) -> int | None:
        """The tokenizer's own tokens at the front come to a text's; None where any are cut."""
        own = self._like.token_ids
        plain = self._prompts.token_ids(self._like.text or "")
        added = len(own) - len(plain)
        if added < 0 or own[added:] != plain:
            return None
        return added + shared_length(self._prompts.token_ids(a), self._prompts.token_ids(b))

    def _token_ids(self, body: Mapping[str, Any]) -> "array[int]":
        raw = json.dumps(body).encode()
        return self._prompts.tokenized("", self._like.path, raw).token_ids


def _relation(a: "array[int]", b: "array[int]", shared: int) -> Relation:
    if shared < min(len(a), len(b)):
        return "part"
    return "equal" if len(a) == len(b) else "prefix"


def _cause_of_none(a: Side, b: Side, relation: Relation) -> Cause:
    """What to say of prompts that do not part."""
    counts = [len(side.tokenized.token_ids) for side in (a, b)]
    if relation == "prefix":
        longer, shorter = ("B", "A") if counts[1] > counts[0] else ("A", "B")
        return cause("continues", f"{longer} goes on where {shorter} ends: as it should be")
    keys = [key for key in {**a.body, **b.body} if a.body.get(key) != b.body.get(key)]
    if not keys:
        return cause("equal", "the same request")
    packed = "messages" in keys and say_the_same(a, b)
    what = ", ".join(_packed(a, b) if packed and key == "messages" else key for key in keys)
    return cause("equal", f"they differ in {what}, which makes no difference to the prompt")


def _packed(a: Side, b: Side) -> str:
    in_parts = [
        any(isinstance(message.get("content"), list) for message in side.messages)
        for side in (a, b)
    ]
    who = "one" if in_parts[0] != in_parts[1] else "each"
    return f"how messages are written ({who} has content as parts)" if any(in_parts) else "messages"
