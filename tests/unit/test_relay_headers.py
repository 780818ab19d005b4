"""What passes in each direction, and how a client learns where a body ends."""

import pytest

from router.relay_headers import Framing, request_head, response_head


def head(*headers: tuple[bytes, bytes], **request: object) -> tuple[list[bytes], Framing]:
    told = {"method": "POST", "version": (1, 1), "keep_alive": True, **request}
    status = told.pop("status", 200)
    made, framing = response_head(status, b"OK", headers, (), **told)  # type: ignore[arg-type]
    assert made.endswith(b"\r\n\r\n")
    return made.removesuffix(b"\r\n\r\n").split(b"\r\n"), framing


def asked(*headers: tuple[bytes, bytes], **request: object) -> list[bytes]:
    told = {"method": "POST", "root": "http://e:1", "target": "/v1", "body_bytes": 2, **request}
    method, root, target = told.pop("method"), told.pop("root"), told.pop("target")
    told.setdefault("rank_header", None)
    made = request_head(method, root, target, headers, **told)  # type: ignore[arg-type]
    assert made.endswith(b"\r\n\r\n")
    return made.removesuffix(b"\r\n\r\n").split(b"\r\n")


def test_a_request_loses_what_is_for_one_connection_only() -> None:
    """Hop-by-hop headers, those that Connection names and those made anew are not sent on."""
    lines = asked(
        (b"HOST", b"router"),
        (b"Connection", b"keep-alive, X-Mine"),
        (b"x-mine", b"1"),
        (b"Keep-Alive", b"5"),
        (b"TE", b"trailers"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Content-Length", b"12"),
        (b"Expect", b"100-continue"),
        (b"Authorization", b"Bearer \xff"),
        (b"X-Request-Id", b"7"),
        (b"X-Twice", b"a"),
        (b"X-Twice", b"b"),
        (b"accept-encoding", b"gzip"),
    )
    assert lines == [
        b"POST /v1 HTTP/1.1",
        b"Host: e:1",
        b"Authorization: Bearer \xff",
        b"X-Request-Id: 7",
        b"X-Twice: a",
        b"X-Twice: b",
        b"accept-encoding: gzip",
        b"Content-Length: 2",
    ]


def test_the_rank_is_told_unless_the_client_chose_one() -> None:
    """A client's own rank header is obeyed; without Accept-Encoding bytes come as they are."""
    assert asked(rank_header=0)[2:4] == [b"x-data-parallel-rank: 0", b"Accept-Encoding: identity"]
    own = asked((b"X-DATA-parallel-rank", b"3"), rank_header=0)
    assert own[2:4] == [b"X-DATA-parallel-rank: 3", b"Accept-Encoding: identity"]


def test_a_replica_may_live_below_a_path() -> None:
    """The path of a replica's URL stands before the client's; its user and password do not pass."""
    lines = asked(root="http://user:pw@[::1]:80/a/", target="/v1?q=1")
    assert lines[:2] == [b"POST /a/v1?q=1 HTTP/1.1", b"Host: [::1]:80"]


def test_a_request_without_a_body_has_no_length() -> None:
    """GET and HEAD say none; POST says zero."""
    assert asked(method="GET", body_bytes=0)[-1] == b"Accept-Encoding: identity"
    assert asked(body_bytes=0)[-1] == b"Content-Length: 0"


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
