"""One form for texts that a reader takes for the same: whitespace, line ends, unicode.

Decides what the normal form is, and names how two writings of one text differ.
"""

import re
import unicodedata
from collections.abc import Callable

_ODD_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Joiners stay: in some scripts and in emoji they are part of what is written.
_INVISIBLE = re.compile("[\u200b\u2060\ufeff\u00ad]")
_LINE_END = re.compile(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]")
_TRAILING = re.compile(r"(?<![ \t])[ \t]{1,10000}(?=\n|\Z)")
_INNER = re.compile(r"(?<=[^\s])[ \t]{2,10000}(?=\S)")
_BLANK_LINES = re.compile(r"\n{3,}")

_STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line ends", lambda text: _LINE_END.sub("\n", text)),
    ("unusual spaces", lambda text: _ODD_SPACES.sub(" ", text)),
    ("invisible characters", lambda text: _INVISIBLE.sub("", text)),
    ("unicode forms", lambda text: unicodedata.normalize("NFC", text)),
    ("spaces at the ends of lines", lambda text: _TRAILING.sub("", text)),
    ("runs of spaces", lambda text: _INNER.sub(" ", text)),
    ("blank lines", lambda text: _BLANK_LINES.sub("\n\n", text)),
)


def normalised(text: str) -> str:
    """The normal form; indentation stays, because it can carry meaning."""
    if text.isascii() and not _has_odd_ascii(text):
        return text
    for _, step in _STEPS:
        text = step(text)
    return text


def difference(first: str, second: str) -> str:
    """What makes two texts of one normal form differ, in a few words."""
    names = []
    for name, step in _STEPS:
        # What a step changes in one of them but not in the other is what sets them apart.
        one, other = step(first), step(second)
        if (one == first) != (other == second):
            names.append(name)
        first, second = one, other
    return ", ".join(names) or "whitespace"


_ODD_ASCII = re.compile(r"[\r\x0b\x0c]|[ \t]\n|[ \t]\Z|\n\n\n|\S[ \t][ \t]")


def _has_odd_ascii(text: str) -> bool:
    return _ODD_ASCII.search(text) is not None
