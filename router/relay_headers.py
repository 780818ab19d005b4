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

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from urllib.parse import urlsplit

_RANK_HEADER = b"x-data-parallel-rank"
_OWN_PREFIX = b"x-pointsman-"

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_MADE_ANEW = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_EMPTY_BODY_STATUSES = frozenset((204, 304))
_ROOTS_KEPT_MAX = 4096

# As received: order, repetition, case and bytes. No value holds a line end; both parsers see to it.
RawHeaders = Iterable[tuple[bytes, bytes]]


class Framing(Enum):
    """How the client learns where the body ends."""

    EMPTY = "no body"
    LENGTH = "content-length"
    CHUNKED = "chunks"
    CLOSE = "end of the connection"


def request_head(
    method: str,
    root: str,
    target: str,
    headers: RawHeaders,
    *,
    body_bytes: int,
    rank_header: int | None,
) -> bytes:
    """The bytes up to and with the empty line, for ``target`` below the replica's ``root`` URL."""
    host, path = _host_and_path(root)
    told = path + target.encode("utf-8", "surrogateescape")
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (method.encode(), told, host)]
    lowered = [(name.lower(), name, value) for name, value in headers]
    dropped = _dropped_of(lowered, _MADE_ANEW)
    rank_told = False
    encoding_told = False
    for lower, name, value in lowered:
        if lower in dropped:
            continue
        rank_told = rank_told or lower == _RANK_HEADER
        encoding_told = encoding_told or lower == b"accept-encoding"
        lines.append(b"%b: %b" % (name, value))
    if rank_header is not None and not rank_told:
        lines.append(b"%b: %d" % (_RANK_HEADER, rank_header))
    if not encoding_told:
        lines.append(b"Accept-Encoding: identity")
    if body_bytes or method not in ("GET", "HEAD"):
        lines.append(b"Content-Length: %d" % body_bytes)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def response_head(
    status: int,
    reason: bytes,
    headers: RawHeaders,
    own: Iterable[tuple[str, str]],
    *,
    method: str,
    version: tuple[int, int],
    keep_alive: bool,
) -> tuple[bytes, Framing]:
    """The bytes up to and with the empty line; ``headers`` are the engine's.

    ``method``, ``version`` and ``keep_alive`` are the client's request's.
    """
    lowered = [(name.lower(), name, value) for name, value in headers]
    dropped = _dropped_of(lowered, _HOP_BY_HOP)
    framing = _framing_without_length(status, method, version)
    lines = [b"HTTP/%d.%d %d %b" % (*version, status, reason)]
    for lower, name, value in lowered:
        if lower in dropped or lower.startswith(_OWN_PREFIX):
            continue
        if lower == b"content-length" and framing is not Framing.EMPTY:
            framing = Framing.LENGTH
        lines.append(b"%b: %b" % (name, value))
    lines += [f"{name}: {value}".encode() for name, value in own]
    if framing is Framing.CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    if framing is Framing.CLOSE or not keep_alive:
        lines.append(b"Connection: close")
    elif version < (1, 1):
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines), framing


def _dropped_of(
    lowered: Iterable[tuple[bytes, bytes, bytes]], dropped: frozenset[bytes]
) -> frozenset[bytes]:
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


@lru_cache(maxsize=_ROOTS_KEPT_MAX)
def _host_and_path(root: str) -> tuple[bytes, bytes]:
    """Empty where it is no URL, which whoever connects finds out."""
    try:
        parts = urlsplit(root)
    except ValueError:
        return b"", b""
    host = parts.netloc.rpartition("@")[2]
    return host.encode(), parts.path.rstrip("/").encode()
