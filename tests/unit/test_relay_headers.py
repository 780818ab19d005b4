"""What passes in each direction, and how a client learns where a body ends."""

import pytest
from multidict import CIMultiDict

from router.relay_headers import Framing, headers_to_engine, response_head


def head(*headers: tuple[bytes, bytes], **request: object) -> tuple[list[bytes], Framing]:
    told = {"method": "POST", "version": (1, 1), "keep_alive": True, **request}
    status = told.pop("status", 200)
    made, framing = response_head(status, b"OK", headers, (), **told)  # type: ignore[arg-type]
    assert made.endswith(b"\r\n\r\n")
    return made.removesuffix(b"\r\n\r\n").split(b"\r\n"), framing


def test_a_request_loses_what_is_for_one_connection_only() -> None:
    """Hop-by-hop headers, those that Connection names and those made anew are not sent on."""
    headers = CIMultiDict(
        [
            ("HOST", "router"),
            ("Connection", "keep-alive, X-Mine"),
            ("x-mine", "1"),
            ("Keep-Alive", "5"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Length", "12"),
            ("Expect", "100-continue"),
            ("Authorization", "Bearer k"),
            ("X-Request-Id", "7"),
            ("X-Twice", "a"),
            ("X-Twice", "b"),
            ("accept-encoding", "gzip"),
        ]
    )
    assert headers_to_engine(headers, None) == [
        ("Authorization", "Bearer k"),
        ("X-Request-Id", "7"),
        ("X-Twice", "a"),
        ("X-Twice", "b"),
        ("accept-encoding", "gzip"),
    ]


def test_the_rank_is_told_unless_the_client_chose_one() -> None:
    """A client's own rank header is obeyed; without Accept-Encoding bytes come as they are."""
    identity = ("Accept-Encoding", "identity")
    assert headers_to_engine(CIMultiDict(), 0) == [("X-data-parallel-rank", "0"), identity]
    own = CIMultiDict({"x-DATA-parallel-rank": "3"})
    assert headers_to_engine(own, 0) == [("x-DATA-parallel-rank", "3"), identity]


def test_a_response_keeps_the_bytes_of_its_headers() -> None:
    """Names, order, repetition and bytes stay; nothing is added but the framing."""
    lines, framing = head((b"sErVer", b"uvicorn"), (b"X", b"\xff\xfe"), (b"X", b"2"))
    assert lines == [
        b"HTTP/1.1 200 OK",
        b"sErVer: uvicorn",
        b"X: \xff\xfe",
        b"X: 2",
        b"Transfer-Encoding: chunked",
    ]
    assert framing is Framing.CHUNKED


def test_only_we_speak_as_the_router() -> None:
    """An engine's x-pointsman headers are dropped and ours are added."""
    made, _ = response_head(
        200,
        b"OK",
        [(b"X-Pointsman-Replica", b"forged")],
        [("x-pointsman-replica", "a")],
        method="POST",
        version=(1, 1),
        keep_alive=True,
    )
    assert b"forged" not in made
    assert b"\r\nx-pointsman-replica: a\r\n" in made


def test_a_body_has_one_length() -> None:
    """A Content-Length beside chunks is dropped; alone it is kept and nothing is chunked."""
    both, framing = head((b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"3"))
    assert both == [b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"]
    assert framing is Framing.CHUNKED
    alone, framing = head((b"Content-Length", b"3"))
    assert alone == [b"HTTP/1.1 200 OK", b"Content-Length: 3"]
    assert framing is Framing.LENGTH


@pytest.mark.parametrize("told", [{"method": "HEAD"}, {"status": 204}, {"status": 304}])
def test_answers_without_a_body_get_no_framing(told: dict[str, object]) -> None:
    """HEAD, 204 and 304 end with their head."""
    lines, framing = head(**told)
    assert framing is Framing.EMPTY
    assert len(lines) == 1


def test_old_clients_get_the_end_of_the_connection() -> None:
    """HTTP/1.0 knows no chunks, and keeps a connection only where it is told so."""
    lines, framing = head(version=(1, 0), keep_alive=True)
    assert lines == [b"HTTP/1.0 200 OK", b"Connection: close"]
    assert framing is Framing.CLOSE
    lines, _ = head((b"Content-Length", b"3"), version=(1, 0), keep_alive=True)
    assert lines[-1] == b"Connection: keep-alive"


def test_a_value_cannot_end_its_line() -> None:
    """A folded or forged value stays inside its header."""
    lines, _ = head((b"X", b"a\r\nSet-Cookie: b"))
    assert lines[1] == b"X: a  Set-Cookie: b"
