"""Where each part of a request stands in the text that is made of it.

The template is not read. The request is rendered once more with marks in its texts
(``marking``); where the text without the marks is the very same, a mark's place is exact. Rules:

* Marks that change the text are no evidence. The texts are then marked in halves, down to one by
  one and in gentler ways, until each is found or known to disturb.
* What no mark tells of is the template's own text; a text that a template drops has no section.
* A section grows from its marks as far as both texts agree, and what is printed as JSON to the
  whole object around it.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from router.practices.marking import (
    TEXT_MARKS_MAX,
    BodyText,
    Mark,
    Place,
    Way,
    marked,
    opened,
    texts_of,
    unused_characters,
)
from router.render import NotRendered

# A request whose texts all disturb would be rendered twice for each: some seconds.
RENDERS_MAX = 256

# The text of a body. Raises NotRendered.
Render = Callable[[dict[str, Any]], str]

# As it is, and as JSON and Python write it where a template prints a whole object.
_MARK = re.compile(
    r"[\U000f0000-\U0010ffff]"
    r"|(?P<pair>\\u[dD][bB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\U(?P<long>00(?:0[fF]|10)[0-9a-fA-F]{4})"
)
_WAYS: tuple[Way, ...] = ("edges", "inside", "middle")


class Section(NamedTuple):
    """``text[start:end]`` comes from this part of the request."""

    start: int
    end: int
    place: Place


class _Anchor(NamedTuple):
    """Position ``offset`` of the rendered text is ``mark``'s."""

    offset: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class Layout:
    """``sections`` in the order of the text, without overlaps. ``generation_start`` None: unknown,
    or there is no such part."""

    text: str
    sections: tuple[Section, ...]
    generation_start: int | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any], render: Render) -> "Layout":
        """Renders the body several times. Raises NotRendered where it cannot be rendered."""
        text = render(dict(body))
        prepared = opened(body)
        texts = dict(enumerate(texts_of(prepared)))
        anchors = _Search(prepared, texts, text, render).anchors()
        return cls(text, _sections(text, texts, anchors), _generation_start(body, text, render))

    @classmethod
    def of_prompt(cls, text: str) -> "Layout":
        """Of a completion's prompt, which has one part."""
        return cls(text, (Section(0, len(text), Place("prompt")),))

    def place(self, offset: int) -> Place:
        """Of the character at this offset; at the end of the text, of what an answer follows."""
        number = bisect_right(self.sections, offset, key=attrgetter("start"))
        before = self.sections[number - 1] if number else None
        if before is not None and offset < before.end:
            return before.place
        after = self.sections[number] if number < len(self.sections) else None
        return self._between(before, after, offset)

    def section(self, offset: int) -> Section | None:
        """The part that holds this character, or ends just before it."""
        number = bisect_right(self.sections, offset, key=attrgetter("start"))
        before = self.sections[number - 1] if number else None
        return before if before is not None and offset <= before.end else None

    def _between(self, before: Section | None, after: Section | None, offset: int) -> Place:
        if after is None:
            is_generation = self.generation_start is not None and offset >= self.generation_start
            if before is not None and before.place.kind == "prompt":
                return before.place
            return Place("generation") if is_generation else Place("template")
        place = after.place
        if before is not None:
            if before.place == place:
                return place
            if before.place.kind == place.kind == "tools":
                return Place("tools")
        return Place("template", place.index, place.role, place.tool)


def locate(body: Mapping[str, Any], offset: int, render: Render) -> Place:
    """Where a character of the rendered text stands. For many of one body: ``Layout.of``."""
    return Layout.of(body, render).place(offset)


class _Search:
    def __init__(
        self, body: dict[str, Any], texts: Mapping[int, BodyText], text: str, render: Render
    ) -> None:
        self._body, self._texts, self._text, self._render = body, texts, text, render
        every = (text, json.dumps(body, ensure_ascii=False))
        self._unused = unused_characters(every, TEXT_MARKS_MAX * len(texts))
        self._renders = 0

    def anchors(self) -> list[_Anchor]:
        """Most templates trim no text or all of them; then one or two renderings are enough."""
        whole = list(self._texts)
        ways: Sequence[Way] = ("edges", "inside") if whole else ()
        found = next((f for way in ways if (f := self._try(whole, way)) is not None), None)
        anchors = self._by_halves(whole) if found is None else found
        return anchors + (self._try(self._half_seen(anchors), "middle") or [])

    def _half_seen(self, anchors: Iterable[_Anchor]) -> list[int]:
        """Texts of which a mark is missing: the template prints less than all, or in pieces."""
        seen = Counter(number for number, _ in {anchor.mark for anchor in anchors})
        return [number for number in self._texts if seen[number] < 2]

    def _by_halves(self, whole: list[int]) -> list[_Anchor]:
        anchors: list[_Anchor] = []
        groups = [whole]
        while groups and self._renders < RENDERS_MAX:
            group = groups.pop()
            ways: Sequence[Way] = _WAYS if len(group) == 1 else ("inside",)
            found = next((f for way in ways if (f := self._try(group, way)) is not None), None)
            if found is not None:
                anchors += found
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
        return anchors

    def _try(self, group: list[int], way: Way) -> list[_Anchor] | None:
        """None where marks in these texts change more than they add."""
        needed = len(group) * (TEXT_MARKS_MAX if way == "middle" else 2)
        if not group or needed > len(self._unused):
            return None
        self._renders += 1
        chosen = {number: self._texts[number] for number in group}
        body, marks = marked(self._body, chosen, way, self._unused)
        try:
            text, anchors = _unmarked(self._render(body), marks)
        except NotRendered:
            return None
        return anchors if text == self._text else None


def _unmarked(text: str, marks: Mapping[str, Mark]) -> tuple[str, list[_Anchor]]:
    pieces, anchors, length, since = [], [], 0, 0
    for match in _MARK.finditer(text):
        mark = marks.get(_character(match))
        if mark is not None:
            pieces.append(text[since : match.start()])
            length, since = length + match.start() - since, match.end()
            anchors.append(_Anchor(length, mark))
    return "".join([*pieces, text[since:]]), anchors


def _character(match: re.Match[str]) -> str:
    if match["pair"] is not None:
        return str(json.loads(f'"{match["pair"]}"'))
    return chr(int(match["long"], 16)) if match["long"] is not None else match[0]


def _sections(
    text: str, texts: Mapping[int, BodyText], anchors: Iterable[_Anchor]
) -> tuple[Section, ...]:
    by_text = sorted(anchors, key=lambda anchor: (anchor.mark.number, anchor.offset))
    found: list[tuple[Section, bool]] = []
    for number, group in groupby(by_text, key=lambda anchor: anchor.mark.number):
        source = texts[number]
        for run in _runs(list(group)):
            start, end = _grown(text, source.text, run)
            if start < end:
                found.append((Section(start, end, source.place), source.in_json))
    found.sort(key=lambda entry: entry[0].start)
    return _disjoint(_whole_objects(text, found))


def _runs(anchors: Sequence[_Anchor]) -> Iterable[list[_Anchor]]:
    """A text that is printed twice has two: its positions begin anew."""
    run: list[_Anchor] = []
    for anchor in anchors:
        if run and anchor.mark.offset <= run[-1].mark.offset:
            yield run
            run = []
        run.append(anchor)
    yield run


def _grown(text: str, source: str, run: Sequence[_Anchor]) -> tuple[int, int]:
    start, first = run[0].offset, run[0].mark.offset
    while start and first and text[start - 1] == source[first - 1]:
        start, first = start - 1, first - 1
    end, last = run[-1].offset, run[-1].mark.offset
    while end < len(text) and last < len(source) and text[end] == source[last]:
        end, last = end + 1, last + 1
    return start, end


def _whole_objects(text: str, found: Sequence[tuple[Section, bool]]) -> list[Section]:
    """Sections that stand in JSON, grown to the outermost object that holds nothing of others."""
    grown: list[Section] = []
    for number, (section, in_json) in enumerate(found):
        if in_json and not (grown and section.end <= grown[-1].end):
            floor = grown[-1].end if grown else 0
            others = (other.start for other, _ in found[number:] if other.place != section.place)
            span = _object_around(text, section, floor, next(others, len(text)))
            section = section if span is None else Section(*span, section.place)
        grown.append(section)
    return grown


def _object_around(text: str, section: Section, floor: int, ceiling: int) -> tuple[int, int] | None:
    """The outermost JSON object around a section, within ``text[floor:ceiling]``."""
    scan, start = json.JSONDecoder().raw_decode, text.find("{", floor, section.start)
    while start >= 0:
        try:
            end = scan(text, start)[1]
        except (ValueError, RecursionError):
            end = 0
        if section.end <= end <= ceiling:
            return start, end
        start = text.find("{", start + 1, section.start)
    return None


def _disjoint(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Cut where they overlap, and joined where one part goes on."""
    kept: list[Section] = []
    for start, end, place in sections:
        previous = kept[-1] if kept else None
        if previous is not None and previous.end >= start and previous.place == place:
            kept[-1] = Section(previous.start, max(previous.end, end), place)
            continue
        start = max(start, previous.end) if previous is not None else start
        if start < end:
            kept.append(Section(start, end, place))
    return tuple(kept)


def _generation_start(body: Mapping[str, Any], text: str, render: Render) -> int | None:
    if not body.get("add_generation_prompt", True):
        return None
    try:
        without = render({**body, "add_generation_prompt": False})
    except NotRendered:
        return None
    return len(without) if text.startswith(without) and len(without) < len(text) else None
