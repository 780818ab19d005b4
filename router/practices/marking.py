"""The texts that a request brings, and marks put into them.

A mark is a character for private use that nothing in the request has. A chat template copies it
like any other, so that it shows in the rendered text where each part of the request went, whatever
the template's order is. Rules:

* Each mark occurs once in a marked body, and stands for one position of one text.
* A template may look at what it copies: it trims, or asks how a text begins. So there are three
  ways to set marks, from the most telling to the least disturbing.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

# Planes 15 and 16, which are all for private use; the two last of each are no characters.
_PRIVATE = tuple(range(0xF0000, 0xFFFFE)) + tuple(range(0x100000, 0x10FFFE))
# Of one text: those of a text that is marked inside; the other ways set two.
TEXT_MARKS_MAX = 8
_LETTER_BEFORE_LETTER = re.compile(r"\w(?=\w)")
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_PART_KEYS = ("text", "refusal", "thinking")
_NESTED_MAX = 32

Kind = Literal["system", "tools", "message", "prompt", "generation", "template"]
Way = Literal["edges", "inside", "middle"]
Key = str | int


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a request. ``index`` counts messages or tools from 0.

    ``generation``: what asks for the answer, behind the last message. ``template``: text of the
    template's own; ``index``, ``role`` and ``tool`` then tell of the part that follows.
    ``system``: a system or developer message with nothing but such before it.
    """

    kind: Kind
    index: int | None = None
    role: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class BodyText:
    """One text of a body. ``in_json``: a template usually prints it within a JSON object."""

    keys: tuple[Key, ...]
    place: Place
    text: str
    in_json: bool = False


class Mark(NamedTuple):
    """Position ``offset`` of the text with this number."""

    number: int
    offset: int


def opened(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the arguments of tool calls as objects, which ``marked`` closes again."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return dict(body)
    return {**body, "messages": [_opened_message(message) for message in messages]}


def texts_of(body: Mapping[str, Any]) -> list[BodyText]:
    """Of an opened body, in the order of the body. What is no text is passed over."""
    return [*_tool_texts(body.get("tools")), *_message_texts(body.get("messages"))]


def marked(
    body: Mapping[str, Any], texts: Mapping[int, BodyText], way: Way, unused: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Mark]]:
    """An opened body with marks in these of its texts, closed; and what each mark stands for.

    ``unused``: characters that the body does not have; those that are needed are taken.
    """
    marks: dict[str, Mark] = {}
    written: dict[tuple[Key, ...], str] = {}
    characters = iter(unused)
    for number, text in texts.items():
        pieces, since = [], 0
        for offset in _offsets(text.text, way):
            character = next(characters)
            marks[character] = Mark(number, offset)
            pieces += [text.text[since:offset], character]
            since = offset
        written[text.keys] = "".join([*pieces, text.text[since:]])
    changed = _with_texts(body, (), written)
    return _closed(changed), marks


def unused_characters(texts: Sequence[str], count_max: int) -> list[str]:
    """For marks: characters for private use that none of these texts has."""
    used = set().union(*texts)
    return list(islice((c for c in map(chr, _PRIVATE) if c not in used), count_max))


def _opened_message(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_opened_call(call) for call in calls]}


def _opened_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _closed(body: dict[str, Any]) -> dict[str, Any]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return {**body, "messages": [_closed_message(message) for message in messages]}


def _closed_message(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_closed_call(call) for call in calls]}


def _closed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _message_texts(messages: Any) -> Iterator[BodyText]:
    leading = True
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        leading = leading and role in ("system", "developer")
        place = Place("system" if leading else "message", index, str(role))
        keys: tuple[Key, ...] = ("messages", index)
        for key in ("reasoning", "reasoning_content"):
            yield from _text(message.get(key), (*keys, key), place)
        yield from _content_texts(message.get("content"), (*keys, "content"), place)
        yield from _call_texts(message.get("tool_calls"), (*keys, "tool_calls"), place)


def _content_texts(content: Any, keys: tuple[Key, ...], place: Place) -> Iterator[BodyText]:
    yield from _text(content, keys, place)
    for number, part in enumerate(content if isinstance(content, list) else ()):
        yield from _text(part, (*keys, number), place)
        if isinstance(part, dict):
            for key in _PART_KEYS:
                yield from _text(part.get(key), (*keys, number, key), place)


def _call_texts(calls: Any, keys: tuple[Key, ...], place: Place) -> Iterator[BodyText]:
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            inner = (*keys, number, "function")
            yield from _text(function.get("name"), (*inner, "name"), place, in_json=True)
            if isinstance(function.get("arguments"), dict):
                yield from _leaves(function["arguments"], (*inner, "arguments"), place)


def _tool_texts(tools: Any) -> Iterator[BodyText]:
    """Names and descriptions; templates compare the other texts of a schema."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            name = function.get("name")
            place = Place("tools", index, tool=name if isinstance(name, str) else None)
            keys: tuple[Key, ...] = ("tools", index, "function")
            yield from _text(name, (*keys, "name"), place, in_json=True)
            yield from _leaves(function, keys, place, only="description")


def _leaves(
    value: Any, keys: tuple[Key, ...], place: Place, only: str | None = None
) -> Iterator[BodyText]:
    """The texts within; ``only``: those under this key."""
    if len(keys) > _NESTED_MAX:
        return
    if isinstance(value, str) and only in (None, keys[-1]):
        yield from _text(value, keys, place, in_json=True)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*keys, key), place, only)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*keys, number), place, only)


def _text(
    value: Any, keys: tuple[Key, ...], place: Place, *, in_json: bool = False
) -> Iterator[BodyText]:
    if isinstance(value, str) and value:
        yield BodyText(keys, place, value, in_json)


def _offsets(text: str, way: Way) -> list[int]:
    """Where marks go, ascending; none where this way has no room for one."""
    if way == "edges":
        return [0, len(text)]
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if start >= end:
        return []
    if way == "inside":
        return [start, end]
    # Templates look for tags, not for words. The first place tells of thoughts before an answer.
    between = [match.end() for match in _LETTER_BEFORE_LETTER.finditer(_TAG.sub(_blank, text))]
    step = max(1, len(between) // (TEXT_MARKS_MAX - 1))
    return sorted({*between[:1], *between[step // 2 :: step][: TEXT_MARKS_MAX - 1]})


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _with_texts(value: Any, keys: tuple[Key, ...], written: Mapping[tuple[Key, ...], str]) -> Any:
    """A copy with other texts at some keys."""
    if isinstance(value, str):
        return written.get(keys, value)
    if len(keys) > _NESTED_MAX:
        return value
    if isinstance(value, dict):
        return {key: _with_texts(inner, (*keys, key), written) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_texts(inner, (*keys, n), written) for n, inner in enumerate(value)]
    return value
