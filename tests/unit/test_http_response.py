"""Where a response ends, and what is no response."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http_response import HEAD_BYTES_MAX, NotHttp, ResponseParser

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nA: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\none\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
)
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\none0123456789"


def parse(*pieces: bytes, method: str = "POST") -> tuple[ResponseParser, bytes]:
    parser = ResponseParser(method)
    return parser, b"".join([parser.feed(piece) for piece in pieces])


@given(st.sampled_from([CHUNKED, LENGTH]), st.lists(st.integers(0, 200), max_size=8))
def test_a_response_may_be_cut_anywhere(response: bytes, cuts: list[int]) -> None:
    """Head, body and end are the same whatever the boundaries of the reads."""
    bounds = [0, *sorted(min(cut, len(response)) for cut in cuts), len(response)]
    pieces = [response[begin:end] for begin, end in itertools.pairwise(bounds)]
    parser, body = parse(*pieces)
    assert body == b"one0123456789"
    assert parser.complete and parser.reusable
    assert parser.head is not None and parser.head.status in (200, 404)


@given(st.sampled_from([CHUNKED, LENGTH]), st.integers(0, 200))
def test_a_response_cut_short_is_not_complete(response: bytes, end: int) -> None:
    """The end of the connection is no end of a body that has a length or chunks."""
    parser, _ = parse(response[: min(end, len(response) - 1)])
    parser.feed_eof()
    assert not parser.complete


@given(st.binary(max_size=200))
def test_any_bytes_are_a_response_or_not_http(data: bytes) -> None:
    """Noise raises NotHttp at most."""
    for prefix in (
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        try:
            parse(prefix + data)
        except NotHttp:
            pass


def test_headers_are_kept_as_they_are() -> None:
    """Order, repetition, case and bytes of the headers stay; the reason may be empty."""
    parser, _ = parse(b"HTTP/1.1 200\r\nB:  x \r\na: \xff\r\nB: \r\ncontent-length:0\r\n\r\n")
    assert parser.head == (
        200,
        b"",
        [(b"B", b"x"), (b"a", b"\xff"), (b"B", b""), (b"content-length", b"0")],
    )
    assert parser.complete and parser.reusable


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nSpace : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\rB: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: 1\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * HEAD_BYTES_MAX,
    ],
)
def test_what_neighbours_might_read_differently_is_no_response(head: bytes) -> None:
    """Ambiguous, malformed and endless heads and chunks are refused."""
    with pytest.raises(NotHttp):
        parse(head)


def test_chunks_beat_a_length() -> None:
    """With both, the chunks are read."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: Chunked\r\n\r\n"
    parser, body = parse(head + b"2\r\nab\r\n0\r\n\r\n")
    assert (body, parser.complete) == (b"ab", True)


@pytest.mark.parametrize(
    ("response", "method"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "POST"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "GET"),
    ],
)
def test_some_responses_have_no_body(response: bytes, method: str) -> None:
    """HEAD, 204 and 304 end with their head, whatever length it tells."""
    parser, _ = parse(response, method=method)
    assert parser.complete and parser.reusable


def test_without_a_length_the_connection_is_the_end() -> None:
    """Such a body ends with its connection, which of course cannot be used again."""
    parser, body = parse(b"HTTP/1.1 200 OK\r\n\r\n", b"one", b"two")
    assert (body, parser.complete) == (b"onetwo", False)
    parser.feed_eof()
    assert parser.complete and not parser.reusable


@pytest.mark.parametrize(
    ("response", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: Close\r\n\r\n1", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\n1", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1surplus", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nsurplus", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nsurplus", False),
    ],
)
def test_a_connection_is_used_again_only_if_nothing_speaks_against_it(
    response: bytes, reusable: bool
) -> None:
    """Versions, Connection and bytes that nobody asked for decide."""
    parser, _ = parse(response)
    assert (parser.complete, parser.reusable) == (True, reusable)
