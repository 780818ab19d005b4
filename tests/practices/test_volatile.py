"""What looks volatile in a text, and what must not."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.practices.volatile import KINDS, find_volatile

FOUND = [
    ("The current time is 2024-05-15 15:00:07 EST.", "time", "2024-05-15 15:00:07 EST"),
    ("now: 2026-01-02T03:04:05.678901Z\n", "time", "2026-01-02T03:04:05.678901Z"),
    ("at 2026-01-02T03:04:05+02:00", "time", "2026-01-02T03:04:05+02:00"),
    ("20260102T030405Z", "time", "20260102T030405Z"),
    ("It is 15:04:05 now", "time", "15:04:05"),
    ("It is 3:04 PM.", "time", "3:04 PM"),
    ("Today is Wednesday, May 15, 2024 at 3:04 pm UTC.", "time", None),
    ("Wed, 15 May 2024 15:00:07 GMT", "time", "Wed, 15 May 2024 15:00:07 GMT"),
    ("timestamp: 1715785207", "time", "1715785207"),
    ("<now>1715785207.123</now>", "time", "1715785207.123"),
    ("Sent 1715785207123 ms", "time", "1715785207123"),
    ("Today is 2024-05-15.", "date", "2024-05-15"),
    ("on 15.05.2024 and", "date", "15.05.2024"),
    ("on 5/15/2024", "date", "5/15/2024"),
    ("Today is May 15, 2024.", "date", "May 15, 2024"),
    ("15 May 2024", "date", "15 May 2024"),
    ("id 9b2f6f0e-3f35-4f5a-9d55-0a1b2c3d4e5f", "id", "9b2f6f0e-3f35-4f5a-9d55-0a1b2c3d4e5f"),
    ("commit `f16becb9d2a14c`", "id", "f16becb9d2a14c"),
    ("ulid 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ("nano V1StGXR8_Z5jdHi6B-myT", "id", "V1StGXR8_Z5jdHi6B-myT"),
    ("call_a8Kd93mQx7", "id", "call_a8Kd93mQx7"),
    ("Customer ID: C-10443", "id", "C-10443"),
    (
        "traceparent 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "trace",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    ("[request_id=abc-123-x]", "trace", "abc-123-x"),
    ("X-Amzn-Trace-Id: Root=1-67891233-abcdef", "trace", "Root=1-67891233-abcdef"),
    ('{"session": "s-77120"}', "trace", "s-77120"),
    ("<trace_id>77ab21</trace_id>", "trace", "77ab21"),
    ("Turn: 17", "counter", "17"),
    ("This is step 3 of 20.", "counter", "3"),
    ("You have 12 steps left.", "counter", "12"),
    ("write to jane.doe+x@example.co.uk now", "email", "jane.doe+x@example.co.uk"),
    ("User: Jane Doe\n", "name", "Jane Doe"),
    ("name: Zoë Müller", "name", "Zoë Müller"),
    ("You are talking to Jane Doe about", "name", "Jane Doe"),
    ("username: jdoe", "name", "jdoe"),
    ("Plan: Enterprise", "tier", "Enterprise"),
    ('"tier": "gold"', "tier", "gold"),
]

CALM = [
    "Use version 3.11.4, or 2024.5.1, or v1.2.3-rc.1.",
    "The ratio is 16:9, the score 3:2, see John 3:16.",
    "Step 1: read the file. Step 2: write it.",
    "If the user is a gold member, they may cancel. Plan: first look, then act.",
    "The user may ask for a name. User: Please help me. name: get_weather",
    "Responses have 4096 tokens, ports are 8080 and 65535, prices $1,234,567.89.",
    "Qwen3-32B-Instruct-2507 and meta-llama/Llama-3.1-8B-Instruct, sha256_cbor, utf-8",
    "Colours are #a1b2c3d4 and #ffffff; deadbeef defaced a facade.",
    "camelCaseIdentifiers, snake_case_identifiers_too, kebab-case-identifiers-as-well",
    "Call get_reservation_details before session: morning, thread: main.",
    "May I come in March? 5 May be late.",
    "127.0.0.1:8080, 10.0.0.7, ::1, file.py:12:30: error",
    "an @mention and user@localhost",
]


@pytest.mark.parametrize(("text", "kind", "value"), FOUND, ids=lambda v: str(v)[:30])
def test_what_changes_is_found(text: str, kind: str, value: str | None) -> None:
    """Each kind has its exact value, without the label or the sentence around it."""
    (found,) = find_volatile(text)
    assert found.kind == kind
    if value is not None:
        assert text[found.start : found.end] == value


@pytest.mark.parametrize("text", CALM, ids=lambda text: text[:30])
def test_prose_and_code_are_no_finding(text: str) -> None:
    """Versions, ratios, identifiers, numbered steps and policies stand still."""
    assert [text[v.start : v.end] for v in find_volatile(text)] == []


def test_a_date_and_its_clock_are_one_time() -> None:
    """Else the day would be taken for a change of its own."""
    text = "It is Wednesday, May 15, 2024 at 3:04 pm UTC, and was 2024-05-14."
    times = [(v.kind, text[v.start : v.end]) for v in find_volatile(text)]
    assert times == [
        ("time", "Wednesday, May 15, 2024 at 3:04 pm UTC"),
        ("date", "2024-05-14"),
    ]


@given(st.text(alphabet=string.printable + "éß\u2028", max_size=400))
def test_spans_are_in_order_and_inside(text: str) -> None:
    """Whatever the text: known kinds, no overlap, nothing empty."""
    end = 0
    for volatile in find_volatile(text):
        assert volatile.kind in KINDS and end <= volatile.start < volatile.end <= len(text)
        end = volatile.end


HOSTILE = [
    *string.printable,
    *["ab", "a1", "1-", "a.", "A ", "0:", "a@", "1.", " :", "a-", "aA", "00:00", "name: A", "12/"],
    *["Jan 1 ", "x-", "Mon ", "user: A B ", "trace=", "id: ", "2024-", "1 step ", "turn ", "T1"],
]


@pytest.mark.parametrize("unit", HOSTILE, ids=repr)
def test_hostile_texts_end(unit: str) -> None:
    """A long repetition is done at once; a pattern that goes back over it would take minutes."""
    text = unit * (60_000 // len(unit))
    assert all(v.end <= len(text) for v in find_volatile(text))


def test_nothing_in_the_patterns_is_unbounded_twice() -> None:
    """Two open repetitions in one pattern are where quadratic time comes from."""
    from router.practices.volatile import _PATTERNS

    for kind, pattern, _ in _PATTERNS:
        open_ended = re.findall(r"(?<!\\)[*+](?![^\[]*\])|\{\d+,\}", pattern.pattern)
        assert len(open_ended) <= 1, (kind, pattern.pattern)
