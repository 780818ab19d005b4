"""Requests from a log as the practices look at them: whose conversation each is, what came before.

Decides which requests are steps of one conversation, and where a step no longer begins with what
the step before it said. Rules:

* Steps belong together by their session, or their first message, under one template of the system
  message; a step is also one of the conversation that it repeats messages of.
* A request goes on from an earlier one that it repeats as a whole. Where there is none, its history
  is rewritten if it repeats an answer of an earlier request, or its last question and goes on from
  there, and something before that is gone or changed.
* Memory is bounded: of more messages than ``MESSAGES_MAX`` the later ones are not remembered.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from router.practices.bodies import (
    Body,
    Message,
    leading,
    messages_of,
    position_name,
    shared_positions,
    text_of,
)
from router.practices.templates import Templates, digest

MESSAGES_MAX = 500_000
# A shorter message ("yes") is said in many conversations and connects none.
_TELLING_CHARS_MIN = 16


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """``where`` is file and line; ``session`` None where the log has none."""

    where: str
    path: str
    raw: bytes
    session: str | None

    @property
    def body(self) -> Body:
        """Decoded anew each time: texts take several times the memory of their bytes."""
        body: Body = msgspec.json.decode(self.raw)
        return body


@dataclass(frozen=True, slots=True)
class Segment:
    """Messages ``[begin, end)`` of a request, counted behind the system's."""

    request: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Rewriting:
    """``request`` has lost what ``previous`` said behind its first ``kept`` messages."""

    request: int
    previous: int
    kept: int
    messages: int


class Traffic:
    """All requests of a log with what was learned from them."""

    def __init__(self, requests: Sequence[LoggedRequest]) -> None:
        self.requests = requests
        self.templates = Templates()
        for _, body in self.bodies():
            for place, text in shared_texts(body):
                self.templates.learn(place, text)
        self.templates.close()
        self.histories = _Histories()
        self.template_of: list[int] = []
        self.conversation_of: list[int] = []
        joined = _Joined()
        for index, body in self.bodies():
            template = self.template(body)
            messages = messages_of(body)
            said = messages[leading(messages) :]
            previous = self.histories.add(digest(f"{body.get('model')}\0{template}"), said)
            self.template_of.append(template)
            first = _digest(said[0]) if said else index
            session = requests[index].session
            names: list[tuple[Any, ...]] = [("first", template, first)]
            if session is not None:
                names.append(("session", template, session))
            if previous is not None and self.template_of[previous] == template:
                names.append(("request", previous))
            joined.join(("request", index), names)
        self.conversation_of = [
            joined.number(("request", index)) for index in range(len(self.requests))
        ]

    def bodies(self) -> Iterator[tuple[int, Body]]:
        for index, request in enumerate(self.requests):
            yield index, request.body

    def template(self, body: Body) -> int:
        """A name for the template of a body's system messages; 0 where it has none."""
        messages = messages_of(body)
        names = [
            self.templates.group(position_name(message), text_of(message))
            for message in messages[: leading(messages)]
        ]
        return digest(",".join(map(str, names))) if names else 0


def shared_texts(body: Body) -> Iterator[tuple[str, str]]:
    messages = messages_of(body)
    for position in shared_positions(messages):
        yield position_name(messages[position]), text_of(messages[position])


class _Joined:
    """Names that were said to be of one thing (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}

    def join(self, name: tuple[Any, ...], others: list[tuple[Any, ...]]) -> None:
        root = self._root(name)
        for other in others:
            self._parent[self._root(other)] = root

    def number(self, name: tuple[Any, ...]) -> int:
        return self._numbers.setdefault(self._root(name), len(self._numbers))

    def _root(self, name: tuple[Any, ...]) -> tuple[Any, ...]:
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name


class _Histories:
    """Which request says again what an earlier one said, and how it would be said in full."""

    def __init__(self) -> None:
        self._digests: list[array[int]] = []
        self._last: dict[tuple[int, int], int] = {}
        self.rewritings: dict[int, Rewriting] = {}
        # Of a request behind a rewriting: the messages that it would have, had nothing been lost.
        self.whole: dict[int, tuple[Segment, ...]] = {}

    def add(self, namespace: int, said: list[Message]) -> int | None:
        """The request that this one goes on from."""
        index, now = len(self._digests), array("Q", map(_digest, said))
        self._digests.append(now)
        previous = self._continued(namespace, now)
        if previous is not None:
            self._continue(index, previous, now)
        else:
            previous = self._rewritten(index, namespace, now, said)
        for one, message in zip(now, said, strict=True):
            known = (namespace, one) in self._last
            if _is_telling(message) and (known or len(self._last) < MESSAGES_MAX):
                self._last[namespace, one] = index
        return previous

    def _continued(self, namespace: int, now: "array[int]") -> int | None:
        """The request all of whose messages are repeated, in their place."""
        looked_at = set[int]()
        for one in reversed(now):
            previous = self._last.get((namespace, one))
            if previous is None or previous in looked_at:
                continue
            if _common(self._digests[previous], now) == len(self._digests[previous]):
                return previous
            looked_at.add(previous)
        return None

    def _continue(self, index: int, previous: int, now: "array[int]") -> None:
        whole = self.whole.get(previous)
        if whole is not None:
            kept = len(self._digests[previous])
            self.whole[index] = (*whole, Segment(index, kept, len(now)))

    def _rewritten(
        self, index: int, namespace: int, now: "array[int]", said: list[Message]
    ) -> int | None:
        for repeated in range(len(now) - 1, -1, -1):
            previous = self._last.get((namespace, now[repeated]))
            if previous is None:
                continue
            before = self._digests[previous]
            kept, there = _common(before, now), _last_index(before, now[repeated])
            if repeated < kept or there < kept:
                return None
            # A question may be asked in two conversations; an answer, or what was asked last and is
            # being gone on from, belongs to one.
            goes_on = there == len(before) - 1 and repeated < len(now) - 1
            if goes_on or _is_answer(said[repeated]):
                self._note(index, previous, now, kept, there, repeated)
                return previous
        return None

    def _note(
        self, index: int, previous: int, now: "array[int]", kept: int, there: int, repeated: int
    ) -> None:
        """``there`` and ``repeated``: where both say the same behind what was changed."""
        before = self._digests[previous]
        while there + 1 < len(before) and repeated + 1 < len(now):
            if before[there + 1] != now[repeated + 1]:
                break
            there, repeated = there + 1, repeated + 1
        self.rewritings[index] = Rewriting(index, previous, kept, len(before))
        start = self.whole.get(previous) or (Segment(previous, 0, len(before)),)
        self.whole[index] = (*start, Segment(index, repeated + 1, len(now)))


def _common(first: "array[int]", second: "array[int]") -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _last_index(digests: "array[int]", wanted: int) -> int:
    return next(i for i in range(len(digests) - 1, -1, -1) if digests[i] == wanted)


def _is_telling(message: Message) -> bool:
    return _is_answer(message) or len(text_of(message)) >= _TELLING_CHARS_MIN


def _is_answer(message: Message) -> bool:
    return message.get("role") in ("assistant", "tool")


def _digest(message: Message) -> int:
    """Ids of calls are made anew by some clients; who said what is what counts."""
    calls = message.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else None
    )
    said = [message.get("role"), text_of(message).strip(), functions]
    return digest(msgspec.json.encode(said).decode())
