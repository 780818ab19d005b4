"""Clocks, ids and names in the part of a prompt that many requests share.

Only slots of a template that vary in this traffic are touched (``router/practices/templates.py``).
A clock loses what is finer than its day, and the time follows at the end of the newest message. An
id leaves the prompt: the model has no use for it. A name or a tier moves behind everything that is
shared, to the front of the conversation, where it stands still.
"""

import re
from collections.abc import Callable

from router.practices.bodies import (
    Body,
    appended,
    before_first_question,
    mapped_texts,
    messages_of,
    shared_positions,
)
from router.practices.redaction import redacted_around
from router.practices.traffic import Traffic, shared_texts
from router.practices.volatile import find_volatile

# Where the values that were taken out go.
_Moved = Callable[[Body, list[str]], Body]


class VolatileValues:
    """One of the three. ``kinds`` are those of ``find_volatile``."""

    def __init__(
        self,
        traffic: Traffic,
        kind: str,
        kinds: frozenset[str],
        remedy: str,
        kept: Callable[[str], str],
        moved: _Moved,
    ) -> None:
        self.kind, self.remedy = kind, remedy
        self._templates, self._kinds = traffic.templates, kinds
        self._kept, self._moved = kept, moved
        self._traffic = traffic

    def fix(self, index: int, body: Body) -> Body | None:
        taken: dict[str, None] = {}

        def change(place: str, text: str) -> str:
            return self._changed(place, text, taken)

        changed = mapped_texts(body, shared_positions(messages_of(body)), change)
        return None if changed is None else self._moved(changed, list(taken))

    def _changed(self, place: str, text: str, taken: dict[str, None]) -> str:
        """``text`` without what varies; ``taken`` gets the values."""
        parts, end = [], 0
        for start, finish in self._varying(place, text):
            value = text[start:finish]
            parts += [text[end:start], self._kept(value)]
            end = finish
            taken[value] = None
        return "".join([*parts, text[end:]])

    def _varying(self, place: str, text: str) -> list[tuple[int, int]]:
        templates, spans, offset = self._templates, [], 0
        group = templates.group(place, text)
        for line in templates.reader.lines(text):
            if line.volatile and templates.is_of_template(place, group, line):
                spans += [
                    (offset + one.start, offset + one.end)
                    for ordinal, one in enumerate(line.volatile)
                    if one.kind in self._kinds and templates.varies(place, group, line, ordinal)
                ]
            offset += len(line.text)
        return spans

    def example(self) -> str:
        """The first that varies, with a few words around it."""
        for _, body in self._traffic.bodies():
            for place, text in shared_texts(body):
                for start, end in self._varying(place, text):
                    return redacted_around(text, start, end)
        return ""


def clock(traffic: Traffic) -> VolatileValues:
    return VolatileValues(
        traffic,
        "clock",
        frozenset({"time"}),
        "Give the date alone (no time of day) in the system prompt, and put the time, where the"
        " model needs it, at the end of the newest message or behind a tool.",
        _day_of,
        lambda body, times: appended(body, f"Current time: {', '.join(times)}"),
    )


def ids(traffic: Traffic) -> VolatileValues:
    return VolatileValues(
        traffic,
        "ids",
        frozenset({"id", "trace", "counter"}),
        "Take ids, trace tags and counters out of the prompt: send them as HTTP headers or as"
        " metadata of the request. Where the model needs one, put it into the newest message.",
        lambda value: "",
        lambda body, values: body,
    )


def names(traffic: Traffic) -> VolatileValues:
    return VolatileValues(
        traffic,
        "names",
        frozenset({"name", "tier", "email"}),
        "Keep the system prompt equal for all users: move names, addresses and plans to the front"
        " of the first user message, behind the instructions and tools that everybody shares.",
        lambda value: "",
        lambda body, values: before_first_question(body, ", ".join(values)),
    )


_COMPACT = re.compile(r"[0-9]{8}(?=T)")
_CLOCK = re.compile(r"[T ]?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:[.,][0-9]{1,9})?")


def _day_of(value: str) -> str:
    """The date in a time, or nothing where it has none."""
    if match := _COMPACT.match(value):
        return match[0]
    bare = _CLOCK.sub(" ", value)
    days = [one for one in find_volatile(bare) if one.kind == "date"]
    return bare[days[0].start : days[0].end] if days else ""
