"""Parts of a text that differ from one request to the next: clocks, ids, names, counters.

Decides what looks like one, and where it begins and ends. Rules it keeps:

* It takes time in proportion to the text, whatever the text is: a prompt may be hostile. Every
  repetition is bounded or cannot begin again inside of what it has read.
* Prose is no finding. A word counts only behind a label that says what it is ("user: Jane Doe"),
  a number only where its shape or its label says so. Versions and ratios are no clocks.
* What looks volatile may stand still: whether it breaks a prefix is for the traffic to show.
* Of overlapping parts the more telling kind wins, in the order of ``_PATTERNS``.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

KINDS = ("time", "date", "id", "trace", "counter", "email", "name", "tier")


@dataclass(frozen=True, slots=True)
class Volatile:
    """``text[start:end]`` is the value alone, without the label that tells what it is.

    ``time`` is finer than a day, and holds the date that stands before or behind it.
    """

    kind: str
    start: int
    end: int


def find_volatile(text: str) -> list[Volatile]:
    """In order, without overlaps."""
    taken = bytearray(len(text))
    found = []
    for kind, pattern, fits in _PATTERNS:
        for match in pattern.finditer(text):
            start, end = match.span("value")
            if start < end and 1 not in taken[start:end] and fits(match["value"]):
                taken[start:end] = b"\1" * (end - start)
                found.append(Volatile(kind, start, end))
    found.sort(key=lambda volatile: volatile.start)
    return list(_joined(text, found))


def _joined(text: str, found: list[Volatile]) -> Iterator[Volatile]:
    """A date and the clock beside it are one time."""
    last: Volatile | None = None
    for volatile in found:
        if last is not None and _are_one_time(text, last, volatile):
            last = Volatile("time", last.start, volatile.end)
            continue
        if last is not None:
            yield last
        last = volatile
    if last is not None:
        yield last


def _are_one_time(text: str, first: Volatile, second: Volatile) -> bool:
    if {first.kind, second.kind} != {"date", "time"} or second.start - first.end > _BETWEEN_MAX:
        return False
    return _BETWEEN.fullmatch(text, first.end, second.start) is not None


def _always(value: str) -> bool:
    return True


def _has_digit(value: str) -> bool:
    return any(character.isdigit() for character in value)


def _is_mixed_hex(value: str) -> bool:
    digits = sum(map(str.isdigit, value))
    return 2 <= digits < len(value)


def _looks_random(value: str) -> bool:
    """Letters and digits in turns, as no word, model or version has them."""
    parts = re.split(r"[_-]", value)
    if len(value) > _ID_CHARS_MAX:
        return False
    if any(_is_scrambled(part, 8, 3) for part in parts):
        return True
    # A nano id may have separators of its own anywhere.
    return len(value) == 21 and _is_scrambled(value, 21, 5) and value.lower() != value


def _is_scrambled(part: str, chars_min: int, turns_min: int) -> bool:
    if len(part) < chars_min:
        return False
    kinds = [character.isdigit() for character in part]
    turns = sum(a != b for a, b in pairwise(kinds))
    return turns >= turns_min and 2 <= sum(kinds) <= len(part) - 2


# A longer run of letters and digits is data, no name of anything.
_ID_CHARS_MAX = 128
# Between a date and its clock: a comma, a T, "at" or a bracket.
_BETWEEN_MAX = 5
_BETWEEN = re.compile(r"[ ,T|/@(\[\t]{0,3}(?:(?:at|um|on)[ ]?)?")

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_WEEKDAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?[ ])?"
_YEAR = r"(?:19|20)[0-9]{2}"
_DAY = r"(?:0?[1-9]|[12][0-9]|3[01])"
_MONTH_NUMBER = r"(?:0[1-9]|1[0-2])"
_HOUR = r"(?:[01][0-9]|2[0-3])"
_SIXTY = r"[0-5][0-9]"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT|[A-Z]{1,3}[SD]T|CET|CEST|(?:UTC|GMT)?[+-][01][0-9]:?[0-9]{2}))?"
_ALONE = r"(?<![\w.:/+-])"
_ENDS = r"(?![\w:]|[.-][0-9])"
_TO = r"[\"']?[ \t]{0,3}[:=#>][ \t]{0,3}[\"']?"
_HEX = "[0-9a-fA-F]"
_TAGS = (
    r"(?:x[_-])?(?:amzn[_-])?(?:trace|request|req|session|sess|correlation|span|conversation|thread|"
    r"run|job|invocation|message|msg|build|nonce)(?:[ _-]?(?:id|tag|key|no|number))?"
)
_OWNERS = r"(?:user|customer|account|tenant|member|client|order|ticket|case|chat|employee|device)"
_COUNTED = r"(?:step|turn|iteration|attempt|message|request|round|retry|call|page)"
_LEFT = r"(?:left|remaining|used|so far)"
_TIERS = (
    "free|basic|standard|pro|plus|premium|enterprise|gold|silver|platinum|bronze|diamond|team|"
    "business|trial|starter|ultimate|regular|vip|student|personal|individual|growth|scale"
)
_WORD = r"[A-ZÀ-ÖØ-Þ][\w'\u2019.-]{0,40}"

_Fits = Callable[[str], bool]


def _ascii(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | flags)


_PATTERNS: tuple[tuple[str, re.Pattern[str], _Fits], ...] = (
    (
        "trace",
        _ascii(
            rf"(?<![\w-])(?P<value>[0-9a-f]{{2}}-{_HEX}{{32}}-{_HEX}{{16}}-[0-9a-f]{{2}})(?!\w)"
        ),
        _always,
    ),
    (
        "time",
        _ascii(
            rf"(?<![\w.-])(?P<value>{_YEAR}-?{_MONTH_NUMBER}-?(?:0[1-9]|[12][0-9]|3[01])[T ]"
            rf"{_HOUR}:?{_SIXTY}(?::?{_SIXTY}(?:[.,][0-9]{{1,9}})?)?{_ZONE}){_ENDS}",
            0,
        ),
        _always,
    ),
    (
        "time",
        _ascii(
            rf"{_ALONE}(?P<value>(?:{_HOUR}:{_SIXTY}(?::{_SIXTY}(?:[.,][0-9]{{1,9}})?)?|"
            rf"[0-9]:{_SIXTY}:{_SIXTY})(?:[ ]?[AaPp]\.?[Mm]\b)?{_ZONE}){_ENDS}",
            0,
        ),
        _always,
    ),
    (
        "time",
        _ascii(rf"{_ALONE}(?P<value>(?:1[0-2]|0?[1-9])(?::{_SIXTY})?[ ]?[AP]\.?M\b{_ZONE}){_ENDS}"),
        _always,
    ),
    (
        "time",
        _ascii(
            r"(?<![\w.-])(?:time(?:stamp)?|epoch|unix|now|ts)[a-z_ ]{0,12}"
            + _TO
            + r"(?P<value>1[0-9]{9}(?:[0-9]{3}){0,3}(?:\.[0-9]{1,9})?)(?![\w.])"
        ),
        _always,
    ),
    (
        "time",
        _ascii(r"(?<![\w.-])(?P<value>1[4-9][0-9]{8}(?:\.[0-9]{1,9}|[0-9]{3}))(?![\w.-])"),
        _always,
    ),
    (
        "date",
        _ascii(
            rf"(?<![\w.-])(?P<value>{_YEAR}(?:-{_MONTH_NUMBER}-|/{_MONTH_NUMBER}/|{_MONTH_NUMBER})"
            r"(?:0[1-9]|[12][0-9]|3[01]))(?![\w-]|\.[0-9])",
            0,
        ),
        _always,
    ),
    (
        "date",
        _ascii(
            rf"(?<![\w./-])(?P<value>{_DAY}(?:/(?:0?[1-9]|[12][0-9]|3[01])/|\.(?:0?[1-9]|1[0-2])\.)"
            rf"{_YEAR})(?![\w/-]|\.[0-9])",
            0,
        ),
        _always,
    ),
    (
        "date",
        _ascii(
            rf"(?<![\w.-])(?P<value>{_WEEKDAY}{_MONTH}[ ]{{1,2}}{_DAY}(?:st|nd|rd|th)?"
            rf"(?:,?[ ]{_YEAR})?)(?![\w-])",
            0,
        ),
        _always,
    ),
    (
        "date",
        _ascii(
            rf"(?<![\w.-])(?P<value>{_WEEKDAY}{_DAY}(?:st|nd|rd|th)?[. ]?[ -]{_MONTH}[ -]{_YEAR})"
            r"(?![\w-])",
            0,
        ),
        _always,
    ),
    (
        "email",
        _ascii(
            r"(?<![\w.%+-])(?P<value>[\w.%+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,5})"
            r"(?![\w-])"
        ),
        _always,
    ),
    (
        "id",
        _ascii(rf"(?<![\w-])(?P<value>{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})(?![\w-])"),
        _always,
    ),
    (
        "trace",
        _ascii(rf"(?<![\w]){_TAGS}{_TO}(?P<value>[\w.=-]{{4,128}})(?![\w=-])"),
        _has_digit,
    ),
    (
        "id",
        _ascii(
            rf"(?<![\w]){_OWNERS}[ _-]?(?:id|no|number|key){_TO}(?P<value>[\w.-]{{2,128}})(?![\w-])"
        ),
        _has_digit,
    ),
    ("id", _ascii(r"(?<![\w#.-])(?P<value>[0-9a-f]{8,})(?![\w-])"), _is_mixed_hex),
    ("id", _ascii(r"(?<![\w.#/-])(?P<value>[A-Za-z0-9_-]{8,})(?![\w-])", 0), _looks_random),
    ("id", _ascii(r"(?<![\w.,+-])(?P<value>[0-9]{9,})(?![\w,-]|\.[0-9])"), _always),
    (
        "counter",
        _ascii(
            rf"(?<!\w){_COUNTED}s?(?:[ _-](?:count(?:er)?|number|no\.?|id))?{_TO}"
            rf"(?P<value>[0-9]{{1,9}})(?![\w.])"
        ),
        _always,
    ),
    (
        "counter",
        _ascii(
            rf"(?<!\w){_COUNTED}[ ](?P<value>[0-9]{{1,9}})(?=[ ]{{0,2}}(?:of|/)[ ]{{0,2}}[0-9])"
        ),
        _always,
    ),
    (
        "counter",
        _ascii(rf"(?<![\w.])(?P<value>[0-9]{{1,9}})[ ](?:{_COUNTED}s?|tokens)[ ]{_LEFT}\b"),
        _always,
    ),
    (
        "tier",
        _ascii(
            rf"(?<!\w)(?:plan|tier|subscription|membership|account|customer|loyalty|segment)"
            rf"(?:[ _-](?:type|level|tier|status|plan|segment|name))?{_TO}(?P<value>{_TIERS})\b"
        ),
        _always,
    ),
    (
        "name",
        re.compile(
            rf"(?<!\w)(?i:(?:user|customer|client|member|employee|first|last|full|display|patient|"
            rf"student|agent|caller)[ _-]?)?(?i:name){_TO}(?P<value>{_WORD}(?:[ ]{_WORD}){{0,3}})"
        ),
        _always,
    ),
    (
        "name",
        re.compile(
            rf"(?<!\w)(?:(?i:user|customer|client|member|employee|patient|student|caller){_TO}|"
            rf"(?i:talking|speaking|chatting|helping)[ ](?:(?:to|with)[ ])?)"
            rf"(?P<value>{_WORD}(?:[ ]{_WORD}){{1,3}})"
        ),
        _always,
    ),
    (
        "name",
        _ascii(rf"(?<!\w)(?:user[ _-]?name|login){_TO}(?P<value>[a-z][\w.-]{{1,63}})"),
        _always,
    ),
)
