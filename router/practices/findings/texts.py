"""Texts that mean the same and are written in two ways, and what varies in front of what is fixed.

Both look at the lines of templates. Whitespace is touched only where one normal form was seen in
two writings. Of a text whose fixed lines come behind filled-in ones, the fixed lines move ahead.
"""

from collections.abc import Callable, Iterator

from router.practices.bodies import (
    Body,
    appended,
    before_first_question,
    is_plain,
    leading,
    mapped_texts,
    messages_of,
    position_name,
    shared_positions,
    text_of,
)
from router.practices.redaction import redacted_begin
from router.practices.templates import Line, digest, masked
from router.practices.text_forms import difference, normalised
from router.practices.traffic import Traffic

# Fewer characters behind what varies are a line of courtesy, not instructions.
_INSTRUCTION_CHARS_MIN = 200


class Whitespace:
    kind = "whitespace"
    remedy = (
        "Build the prompt in one place and normalise it there: \\n line ends, no spaces at the ends"
        " of lines, no unusual spaces, unicode in NFC."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._reader = traffic.templates.reader
        self._written: dict[int, int] = {}
        self._first: dict[int, str] = {}
        self._varying: set[int] = set()
        self._difference = ""
        for _, body in traffic.bodies():
            shared = set(shared_positions(messages_of(body)))
            for position, message in enumerate(messages_of(body)):
                text = text_of(message)
                pieces = self._line_texts(text) if position in shared else iter([text])
                for piece in pieces:
                    self._learn(piece)
        self._first.clear()

    def _line_texts(self, text: str) -> Iterator[str]:
        for line in self._reader.lines(text):
            yield masked(line.text, line.volatile)

    def _learn(self, text: str) -> None:
        normal, written = digest(_normal(text)), digest(text)
        if self._written.setdefault(normal, written) == written:
            # Kept for the example alone, until the first is found.
            if not self._difference and len(self._first) < 10_000:
                self._first.setdefault(normal, text)
            return
        self._varying.add(normal)
        if not self._difference and normal in self._first:
            self._difference = difference(self._first[normal], text)

    def fix(self, index: int, body: Body) -> Body | None:
        if not self._varying:
            return None
        messages = messages_of(body)
        shared = set(shared_positions(messages))
        wanted = [
            position
            for position, message in enumerate(messages)
            if self._varies(text_of(message), position in shared)
        ]
        return mapped_texts(body, iter(wanted), lambda place, text: normalised(text).strip())

    def _varies(self, text: str, is_shared: bool) -> bool:
        pieces = self._line_texts(text) if is_shared else iter([text])
        return any(digest(_normal(piece)) in self._varying for piece in pieces)

    def example(self) -> str:
        return f"one text in two writings, which differ in: {self._difference or 'whitespace'}"


def _normal(text: str) -> str:
    return normalised(text).strip()


class RetrievalFirst:
    """What was filled into the system's text goes behind it, and behind the tools that follow it:
    in front of the conversation where it stays the same in it, else to the newest message."""

    kind = "retrieval_first"
    remedy = (
        "Put what is fixed first: instructions, tools, then examples, and behind them, in a user"
        " message, what was retrieved, the task, and what else changes from request to request."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._templates = traffic.templates
        self._conversation_of = traffic.conversation_of
        # The digest of what a conversation has filled in, None where that changes.
        self._filled: dict[int, int | None] = {}
        self._seen = ""
        for index, body in traffic.bodies():
            filled: list[str] = []
            self._moved(body, filled)
            if filled:
                conversation, said = traffic.conversation_of[index], digest("".join(filled))
                if self._filled.setdefault(conversation, said) != said:
                    self._filled[conversation] = None

    def fix(self, index: int, body: Body) -> Body | None:
        filled: list[str] = []
        moved = self._moved(body, filled)
        if moved is None or not filled:
            return moved
        stays = self._filled.get(self._conversation_of[index]) is not None
        place = before_first_question if stays else appended
        return place(moved, "".join(filled).strip("\n"))

    def _moved(self, body: Body, filled: list[str]) -> Body | None:
        """``filled`` gets what has left the system's messages."""
        ordered = _fixed_messages_first(body, self._is_fixed) or body
        messages = messages_of(ordered)
        has_question = leading(messages) < len(messages)

        def change(place: str, text: str) -> str:
            return self._reordered(place, text, filled if has_question else None)

        moved = mapped_texts(ordered, shared_positions(messages), change)
        return moved or (None if ordered is body else ordered)

    def _is_fixed(self, place: str, text: str) -> bool:
        """Whether a message is the template's, but for what is filled into its lines."""
        group = self._templates.group(place, text)
        lines = self._templates.reader.lines(text)
        return all(self._templates.is_of_template(place, group, line) for line in lines)

    def _reordered(self, place: str, text: str, filled: list[str] | None) -> str:
        group = self._templates.group(place, text)
        lines = self._templates.reader.lines(text)
        fixed = [self._templates.is_of_template(place, group, line) for line in lines]
        if all(fixed) or not any(fixed):
            return text
        first = fixed.index(False)
        behind = [one for one, stays in zip(lines[first:], fixed[first:], strict=True) if stays]
        if sum(line.chars for line in behind) < _INSTRUCTION_CHARS_MIN:
            return text
        varying = [line for line, stays in zip(lines, fixed, strict=True) if not stays]
        self._note(varying, behind)
        ordered = [*lines[:first], *behind]
        if place == "system" and filled is not None:
            filled += map(_ended, varying)
        else:
            ordered += varying
        return "".join(map(_ended, ordered)).rstrip("\n")

    def _note(self, varying: list[Line], behind: list[Line]) -> None:
        if not self._seen:
            chars = sum(len(line.text) for line in varying)
            longest = max(behind, key=lambda line: line.chars)
            begin = redacted_begin(longest.text)
            self._seen = f'{chars:,} characters that vary stand before "{begin}"'

    def example(self) -> str:
        return self._seen


def _ended(line: Line) -> str:
    return line.text if line.text.endswith("\n") else f"{line.text}\n"


def _fixed_messages_first(body: Body, is_fixed: Callable[[str, str], bool]) -> Body | None:
    """Of the system's messages, those that are the same for all before those that are not."""
    messages = messages_of(body)
    begin = leading(messages)
    if begin < 2 or not all(map(is_plain, messages[:begin])):
        return None
    ordered = sorted(
        messages[:begin], key=lambda one: not is_fixed(position_name(one), text_of(one))
    )
    return None if ordered == messages[:begin] else {**body, "messages": ordered + messages[begin:]}
