"""The texts that requests are made from, told from what is filled in, by what recurs in the log.

A text is read line by line. What is volatile in a line is masked, so that "Now: 10:00:01" and
"Now: 10:00:09" are one line. Rules:

* Texts belong together by the line that most texts of their place share. Where a part of them has
  a line that the others have not, they are parted by it, again and again: two templates may share
  a phrase. A line is the template's where nearly all texts that are left together have it; the rest
  was filled in.
* Only different texts count: the twenty steps of one conversation say a thing once.
* A slot, the n-th volatile part of a template's line, varies when two texts differ there. What
  stands still breaks nothing, however volatile it looks.
* Memory is bounded: of more lines than ``LINES_MAX`` the later ones are not looked at.
"""

from collections import Counter
from dataclasses import dataclass, field

import xxhash

from router.practices.text_forms import normalised
from router.practices.volatile import Volatile, find_volatile

LINES_MAX = 400_000
# What is shorter is found in texts that have nothing to do with each other.
_TELLING_CHARS_MIN = 20
# So many of a group's texts have a line that is the template's.
_TEMPLATE_SHARE = 0.8
# A line of so many of them, and of two at least, is another template's, no passage filled in.
_PARTING_SHARE = 0.3
_PARTINGS_MAX = 8
_CACHE_CHARS_MAX = 32 << 20

_Slot = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """``text`` with the line ends behind it. ``key`` names its normal form, values masked."""

    text: str
    key: int
    chars: int
    volatile: tuple[Volatile, ...]


class LineReader:
    """Texts as lines; a line that was read before costs a look-up."""

    def __init__(self) -> None:
        self._cache: dict[str, Line] = {}
        self._cached_chars = 0

    def lines(self, text: str) -> list[Line]:
        return [self._line(part) for part in _parts(text)]

    def _line(self, text: str) -> Line:
        line = self._cache.get(text)
        if line is None:
            line = _read(text)
            if self._cached_chars > _CACHE_CHARS_MAX:
                self._cache.clear()
                self._cached_chars = 0
            self._cache[text] = line
            self._cached_chars += len(text)
        return line


def masked(text: str, volatile: tuple[Volatile, ...]) -> str:
    """With the kind in the place of each value."""
    parts, end = [], 0
    for one in volatile:
        parts += [text[end : one.start], f"\0{one.kind}\0"]
        end = one.end
    return "".join([*parts, text[end:]])


def digest(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _parts(text: str) -> list[str]:
    """Lines that say something, each with the empty ones behind it."""
    parts: list[str] = []
    blank: list[str] = []
    for piece in text.splitlines(keepends=True):
        if piece.strip() or not parts:
            if blank:
                parts[-1] += "".join(blank)
                blank = []
            parts.append(piece)
        else:
            blank.append(piece)
    if blank:
        parts[-1] += "".join(blank)
    return parts


def _read(text: str) -> Line:
    volatile = tuple(find_volatile(text))
    normal = normalised(masked(text, volatile)).strip()
    return Line(text, digest(normal), len(normal), volatile)


@dataclass(slots=True)
class _Group:
    texts: int = 0
    lines: Counter[int] = field(default_factory=Counter)


class Templates:
    """``learn`` every text, then ``close``; then it can be asked."""

    def __init__(self) -> None:
        self.reader = LineReader()
        self._texts: dict[tuple[str, int], str] = {}
        self._seen_in: Counter[tuple[str, int]] = Counter()
        self._groups: dict[tuple[str, int], _Group] = {}
        # The line by which the texts of a group are parted further.
        self._parted_by: dict[tuple[str, int], int] = {}
        # The digest of a slot's only value, or None once it has two.
        self._slots: dict[_Slot, int | None] = {}

    def learn(self, place: str, text: str) -> None:
        """``place``: texts of different places are never compared."""
        key = (place, digest(text))
        if key in self._texts:
            return
        self._texts[key] = text
        for line in {line.key: line for line in self.reader.lines(text)}.values():
            if (place, line.key) in self._seen_in or len(self._seen_in) < LINES_MAX:
                self._seen_in[place, line.key] += 1

    def close(self) -> None:
        texts: dict[tuple[str, int], list[list[Line]]] = {}
        for (place, _), text in self._texts.items():
            lines = self.reader.lines(text)
            texts.setdefault((place, self._first_name(place, lines)), []).append(lines)
        self._texts.clear()
        for (place, name), members in texts.items():
            self._close_group(place, name, members, _PARTINGS_MAX)

    def _close_group(
        self, place: str, name: int, members: list[list[Line]], partings_max: int
    ) -> None:
        group = _Group(len(members))
        for lines in members:
            group.lines.update({line.key for line in lines})
        parting = _parting(group, members) if partings_max else None
        if parting is None:
            self._groups[place, name] = group
            for lines in members:
                for line in lines:
                    self._learn_slots(place, name, line)
            return
        self._parted_by[place, name] = parting
        sides: dict[int, list[list[Line]]] = {}
        for lines in members:
            sides.setdefault(_side(name, parting, lines), []).append(lines)
        for side, its in sides.items():
            self._close_group(place, side, its, partings_max - 1)

    def _learn_slots(self, place: str, name: int, line: Line) -> None:
        for ordinal, one in enumerate(line.volatile):
            value = digest(line.text[one.start : one.end])
            slot = (place, name, line.key, ordinal)
            if self._slots.setdefault(slot, value) != value:
                self._slots[slot] = None

    def group(self, place: str, text: str) -> int:
        """A name for all texts of this template."""
        return self._name(place, self.reader.lines(text))

    def is_of_template(self, place: str, group: int, line: Line) -> bool:
        known = self._groups.get((place, group))
        if known is None or known.texts < 2:
            return False
        return known.lines[line.key] >= max(2, _TEMPLATE_SHARE * known.texts)

    def varies(self, place: str, group: int, line: Line, ordinal: int) -> bool:
        return self._slots.get((place, group, line.key, ordinal), 0) is None

    def _name(self, place: str, lines: list[Line]) -> int:
        name = self._first_name(place, lines)
        while (parting := self._parted_by.get((place, name))) is not None:
            name = _side(name, parting, lines)
        return name

    def _first_name(self, place: str, lines: list[Line]) -> int:
        """The line that most texts share; one without values in it, because a fix removes them."""
        if not lines:
            return 0
        telling = [line for line in lines if line.chars >= _TELLING_CHARS_MIN] or lines
        best = max(
            telling, key=lambda line: (self._seen_in[place, line.key], not line.volatile, line.key)
        )
        return best.key


def _side(name: int, parting: int, lines: list[Line]) -> int:
    return digest(f"{name} {parting in {line.key for line in lines}}")


def _parting(group: _Group, members: list[list[Line]]) -> int | None:
    """The most frequent line that some texts have and some have not, if there is one that tells."""
    most, best = max(2.0, _PARTING_SHARE * group.texts), None
    for line in (line for lines in members for line in lines):
        count = group.lines[line.key]
        if line.volatile or line.chars < _TELLING_CHARS_MIN or count < most:
            continue
        if count < _TEMPLATE_SHARE * group.texts and (best is None or (count, line.key) > best):
            most, best = float(count), (count, line.key)
    return None if best is None else best[1]
