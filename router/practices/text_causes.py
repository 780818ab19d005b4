"""Causes in a text: a value that changes, a variant of the same words, fixed text behind it."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from router.practices.causes import Cause, Parted, Side, cause, shown
from router.practices.parting import shared_length
from router.practices.volatile import Volatile, find_volatile

# Some three blocks of 16 tokens: what is shorter is not worth moving.
FIXED_CHARS_MIN = 200
# A value that changes begins and ends within so many characters of where the texts part.
_AROUND_CHARS = 600
_SAME_CHARS_MIN = 24
_SHOWN_CHARS = 8
# What editors make of quotes, dashes and nothing at all.
_PLAIN = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", "")
)
_BLANKS = re.compile(r"\s+")

_NAMED = {
    "time": "a time finer than a day",
    "date": "a date",
    "id": "an id",
    "trace": "a trace tag",
    "counter": "a counter",
    "email": "an e-mail address",
    "name": "a user's name",
    "tier": "a user's tier",
}


def cause_in_value(parted: Parted) -> Cause | None:
    """Where both texts have a value of the same kind at the difference."""
    a, b = parted.a, parted.b
    for one in _values_at(a):
        for other in _values_at(b):
            if one.kind == other.kind and a.offset - one.start == b.offset - other.start:
                return _value(parted, one, other)
    return None


def cause_in_variant(parted: Parted) -> Cause | None:
    """Where the words go on the same, but for blanks or for how letters are composed."""
    a, b = (_tail(side) for side in (parted.a, parted.b))
    for kind, canonical in (("unicode", _composed), ("whitespace", _without_blanks)):
        one, other = canonical(a), canonical(b)
        count = min(len(one), len(other), _SAME_CHARS_MIN)
        ends_alike = count == _SAME_CHARS_MIN or len(one) == len(other)
        if ends_alike and one[:count] == other[:count]:
            return _variant(parted, kind)
    return None


def cause_in_order(parted: Parted) -> Cause | None:
    """Where a long text that both have stands behind what differs, in one part of the request."""
    sides = (parted.a, parted.b)
    if any(side.section is None for side in sides):
        return None
    a, b = (side.own_text[side.own_offset :] for side in sides)
    fixed = _common_end(a, b)
    if len(fixed) < FIXED_CHARS_MIN:
        return _fixed_lines(a, b)
    what = f"{len(fixed):,} characters that both have stand behind what differs: {shown(fixed)}"
    gained = parted.gain_of_texts(*(_moved(side, fixed) for side in sides))
    return cause("fixed_after_variable", what, gained)


def _fixed_lines(a: str, b: str) -> Cause | None:
    """Where more than one value differs, the same lines still follow it."""
    common = Counter(a.splitlines()[1:]) & Counter(b.splitlines()[1:])
    count = sum(len(line) * times for line, times in common.items())
    if count < max(FIXED_CHARS_MIN, min(len(a), len(b)) / 2):
        return None
    what = f"{count:,} characters in whole lines that both have stand behind what differs"
    return cause("fixed_after_variable", what)


def _common_end(a: str, b: str) -> str:
    """From the beginning of a word on."""
    count = shared_length(a[::-1], b[::-1])
    end = a[len(a) - count :]
    word = _BLANKS.search(end)
    return end if count == min(len(a), len(b)) or word is None else end[word.end() :]


def _moved(side: Side, fixed: str) -> str:
    """The text with what is fixed before what differs."""
    text, section = side.tokenized.text or "", side.section
    end = len(text) if section is None else section.end
    return text[: side.offset] + fixed + text[side.offset : end - len(fixed)] + text[end:]


def _value(parted: Parted, a: Volatile, b: Volatile) -> Cause:
    text_a, text_b = (side.tokenized.text or "" for side in (parted.a, parted.b))
    values = f"{shown(text_a[a.start : a.end])} and {shown(text_b[b.start : b.end])}"
    mended = text_b[: b.start] + text_a[a.start : a.end] + text_b[b.end :]
    gained = parted.gain_of_texts(text_a, mended)
    return cause(a.kind, f"{_NAMED.get(a.kind, a.kind)}: {values}", gained)


def _values_at(side: Side) -> Iterator[Volatile]:
    """Values that hold the difference, or end at it, as a longer one's beginning does."""
    text, offset = side.tokenized.text or "", side.offset
    start = max(0, offset - _AROUND_CHARS)
    # From the beginning of a line, because labels tell what a value is.
    start = text.rfind("\n", 0, start) + 1 if start else 0
    for found in find_volatile(text[start : offset + _AROUND_CHARS]):
        if start + found.start <= offset <= start + found.end:
            yield Volatile(found.kind, start + found.start, start + found.end)


def _tail(side: Side) -> str:
    """From before the difference: the letter whose accent, or the blanks, it may be in."""
    text, offset = side.tokenized.text or "", side.offset
    while offset and (text[offset - 1].isspace() or unicodedata.combining(text[offset - 1])):
        offset -= 1
    return text[max(0, offset - 1) : side.offset + _AROUND_CHARS]


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text.translate(_PLAIN))


def _without_blanks(text: str) -> str:
    return _BLANKS.sub("", _composed(text))


def _even(text: str) -> str:
    """With plain spaces and line ends, and none before a line's end."""
    return re.sub(r"[ \t]+(?=\n)", "", re.sub(r"[^\S\r\n\t]", " ", text).replace("\r\n", "\n"))


def _variant(parted: Parted, kind: str) -> Cause:
    sides = (parted.a, parted.b)
    canonical = _composed if kind == "unicode" else _even
    gained = parted.gain_of_texts(*(canonical(side.tokenized.text or "") for side in sides))
    name = "the same letters, written in another way" if kind == "unicode" else "blanks differ"
    at = [ascii((side.tokenized.text or "")[side.offset :][:_SHOWN_CHARS]) for side in sides]
    return cause(kind, f"{name}: {at[0]} and {at[1]}", gained)
