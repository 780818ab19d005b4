"""Usage is found wherever the engine puts it, however the bytes are cut."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.usage import JSON_BYTES_MAX, TAIL_BYTES_MAX, Usage, UsageReader, usage_reader

COUNTS = {
    "prompt_tokens": 100,
    "total_tokens": 107,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 96, "created_cache_tokens": 3},
}
USAGE = Usage(prompt_tokens=100, cached_tokens=96, completion_tokens=7)


def events(*bodies: Any, newline: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(body)}{newline}{newline}" for body in bodies]
    return "".join((*lines, f"data: [DONE]{newline}{newline}")).encode()


def content(text: str, **fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}}], **fields}


def stream() -> UsageReader:
    return usage_reader("text/event-stream; charset=utf-8", "")


def whole() -> UsageReader:
    return usage_reader("application/json", "identity")


def read(reader: UsageReader, *chunks: bytes) -> Usage | None:
    for chunk in chunks:
        reader.feed(chunk)
    return reader.usage


STREAM = events(content("a"), content('the word "usage": 5', usage=None), content("", usage=COUNTS))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    """The usage of the last event is found, whatever the boundaries of the chunks."""
    bounds = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert read(stream(), *pieces) == USAGE


@given(st.lists(st.integers(0, 400), max_size=8))
def test_a_body_may_be_cut_anywhere(cuts: list[int]) -> None:
    """The usage of a JSON body is found, whatever the boundaries of the chunks."""
    body = json.dumps({"id": "x", "choices": [], "usage": COUNTS, "prompt_logprobs": None}).encode()
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert read(whole(), *pieces) == USAGE


def test_the_last_of_continuous_usage_counts_even_if_the_stream_breaks() -> None:
    """With usage in every event the last complete line decides, and half a line does not."""
    first = content("a", usage={**COUNTS, "completion_tokens": 1})
    second = content("b", usage={**COUNTS, "completion_tokens": 2})
    cut = events(first, second)[:-30]
    assert read(stream(), cut) == Usage(100, 96, 1)


def test_line_ends_and_the_space_after_the_colon_are_free() -> None:
    """CRLF and ``data:`` without a space are server-sent events too."""
    assert read(stream(), events(content("", usage=COUNTS), newline="\r\n")) == USAGE
    assert read(stream(), b"data:" + json.dumps({"usage": COUNTS}).encode() + b"\n\n") == USAGE


def test_null_details_leave_cached_tokens_unknown() -> None:
    """An engine without prompt-token details says nothing about its cache, which is not zero."""
    counts = {**COUNTS, "prompt_tokens_details": None}
    assert read(whole(), json.dumps({"usage": counts}).encode()) == Usage(100, None, 7)
    assert read(stream(), events({"usage": counts})) == Usage(100, None, 7)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"usage": 5}',
        b'{"usage": null}',
        b'{"usage": {"prompt_tokens": "many"}}',
        b'{"usage": {"prompt_tokens": 1e400}}',
        b'{"usage": {"prompt_tokens": NaN}}',
        b'{"error": {"message": "\xff"}}',
        b'{"a": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_usage_is_unknown(body: bytes) -> None:
    """Malformed, foreign or hostile bodies give no usage and no exception."""
    assert read(whole(), body) is None
    assert read(stream(), b"data: " + body + b"\n\n") is None


def test_memory_is_bounded() -> None:
    """A long stream keeps a tail, in which the usage still is; a long body keeps nothing."""
    reader = stream()
    text = b"data: " + json.dumps(content("word " * 50)).encode() + b"\n\n"
    for _ in range(2000):
        reader.feed(text)
        assert sum(map(len, reader._chunks)) <= 2 * TAIL_BYTES_MAX + len(text)  # type: ignore[attr-defined]
    assert read(reader, STREAM) == USAGE
    body = json.dumps({"pad": "x" * JSON_BYTES_MAX, "usage": COUNTS}).encode()
    reader = whole()
    assert read(reader, body[: len(body) // 2], body[len(body) // 2 :]) is None
    assert not reader._chunks  # type: ignore[attr-defined]


def test_compressed_and_foreign_bodies_are_not_looked_into() -> None:
    """Their usage is unknown."""
    body = json.dumps({"usage": COUNTS}).encode()
    assert read(usage_reader("application/json", "gzip"), body) is None
    assert read(usage_reader("text/plain", ""), body) is None
    assert read(usage_reader("", ""), body) is None
