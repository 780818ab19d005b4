"""Which headers pass the router, and how a response's head is written.

Rules it keeps (RFC 9110 7.6.1, RFC 9112 6):

* Hop-by-hop headers, and whatever ``Connection`` names, end here, in both directions.
* To the engine: no Host, Content-Length or Expect of the client's, which are made anew; the rank
  header of the placement unless the client sent one; Accept-Encoding as sent, else ``identity``.
* To the client: names, order and bytes as the engine wrote them, nothing added but our own
  ``x-pointsman-*``, which nobody but us may set.
* The length of a body is told in one way only: the engine's Content-Length, else chunks, else (for
  HTTP/1.0) the end of the connection.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

RANK_HEADER = "X-data-parallel-rank"
OWN_PREFIX = b"x-pointsman-"

_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_NOT_SENT_ON = _HOP_BY_HOP | {"host", "content-length", "expect"}
_NOT_PASSED_BACK = frozenset(name.encode() for name in _HOP_BY_HOP)
_EMPTY_BODY_STATUSES = frozenset((204, 304))


class Framing(Enum):
    """How the client learns where the body ends."""

    EMPTY = "no body"
    LENGTH = "content-length"
    CHUNKED = "chunks"
    CLOSE = "end of the connection"


def headers_to_engine(headers: Mapping[str, str], rank_header: int | None) -> list[tuple[str, str]]:
    """``headers`` may hold a name several times (a multi-dict) and finds names in any case."""
    dropped = _NOT_SENT_ON
    if connection := headers.get("Connection"):
        dropped = dropped | {name.strip().lower() for name in connection.split(",")}
    sent = [item for item in headers.items() if item[0].lower() not in dropped]
    if rank_header is not None and RANK_HEADER not in headers:
        sent.append((RANK_HEADER, str(rank_header)))
    if "Accept-Encoding" not in headers:
        sent.append(("Accept-Encoding", "identity"))
    return sent


def response_head(
    status: int,
    reason: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    own: Iterable[tuple[str, str]],
    *,
    method: str,
    version: tuple[int, int],
    keep_alive: bool,
) -> tuple[bytes, Framing]:
    """The bytes up to and with the empty line; ``headers`` are the engine's, as received.

    ``method``, ``version`` and ``keep_alive`` are the client's request's.
    """
    lowered = [(name.lower(), name, value) for name, value in headers]
    dropped = _dropped_of(lowered)
    framing = _framing_without_length(status, method, version)
    lines = [b"HTTP/%d.%d %d %b" % (*version, status, _one_line(reason))]
    for lower, name, value in lowered:
        if lower in dropped or lower.startswith(OWN_PREFIX):
            continue
        if lower == b"content-length" and framing is not Framing.EMPTY:
            framing = Framing.LENGTH
        lines.append(b"%b: %b" % (name, _one_line(value)))
    lines += [f"{name}: {value}".encode() for name, value in own]
    if framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    if framing is Framing.CLOSE or not keep_alive:
        lines.append(b"Connection: close")
    elif version < (1, 1):
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines), framing


def _dropped_of(lowered: Iterable[tuple[bytes, bytes, bytes]]) -> frozenset[bytes]:
    dropped = _NOT_PASSED_BACK
    for lower, _, value in lowered:
        if lower == b"connection":
            dropped = dropped | {name.strip().lower() for name in value.split(b",")}
        elif lower == b"transfer-encoding":
            # A length beside chunks would be believed by somebody on the way.
            dropped = dropped | {b"content-length"}
    return dropped


def _framing_without_length(status: int, method: str, version: tuple[int, int]) -> Framing:
    if method == "HEAD" or status in _EMPTY_BODY_STATUSES:
        return Framing.EMPTY
    return Framing.CHUNKED if version >= (1, 1) else Framing.CLOSE


def _one_line(value: bytes) -> bytes:
    """Parsers that forgive may leave a folded line in a value; here it must not end the header."""
    if b"\n" in value or b"\r" in value:
        return value.replace(b"\r", b" ").replace(b"\n", b" ")
    return value
