"""A response of HTTP/1.x, from bytes as they arrive to head, body and end.

Decides where a response ends and whether its connection can be used again. It is strict where a
neighbour might read the same bytes differently (RFC 9112): header names are tokens, values hold no
line ends, a length is digits and said once, chunks beat a length. Interim (1xx) responses are
skipped, trailers are dropped. Nothing grows without bound: not the head, not a chunk's line.
"""

import re
from typing import NamedTuple

HEAD_BYTES_MAX = 256 * 2**10
_CHUNK_LINE_BYTES_MAX = 4096
_TRAILER_BYTES_MAX = 64 * 2**10

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\x00\r\n]*))?")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_WITHOUT_BODY = frozenset((204, 304))

Headers = list[tuple[bytes, bytes]]


class NotHttp(Exception):
    """The bytes are no response."""


class ResponseHead(NamedTuple):
    """``headers`` as received: order, repetition, case and bytes."""

    status: int
    reason: bytes
    headers: Headers


class ResponseParser:
    """Of one response to a request with this method.

    ``reusable`` has a meaning once ``complete`` is true.
    """

    def __init__(self, method: str) -> None:
        self.head: ResponseHead | None = None
        self.complete = False
        self.reusable = False
        self._method = method
        # What is not read yet: the head so far, or a part of a line between two chunks.
        self._rest = b""
        self._chunked = False
        # Of the body, or of the current chunk; None: until the connection ends.
        self._left: int | None = 0
        self._line_end_due = False
        self._trailer_bytes: int | None = None

    def feed(self, data: bytes) -> bytes:
        """The body bytes among these. Raises ``NotHttp``."""
        if self.head is None:
            data = self._feed_head(data)
            if self.head is None:
                return b""
        if self.complete:
            # Nobody asked for more.
            self.reusable = self.reusable and not data
            return b""
        if self._chunked:
            return self._feed_chunks(data)
        if self._left is None:
            return data
        body, surplus = data[: self._left], len(data) > self._left
        self._left -= len(body)
        if not self._left:
            self.complete, self.reusable = True, self.reusable and not surplus
        return body

    def feed_eof(self) -> None:
        """The other end closed in order: for a body without any length that is its end."""
        if self.head is not None and self._left is None:
            self.complete, self.reusable = True, False

    def _feed_head(self, data: bytes) -> bytes:
        """What follows the head; the head is there once ``self.head`` is."""
        data, searched = self._rest + data, max(0, len(self._rest) - 3)
        while (end := data.find(b"\r\n\r\n", searched)) >= 0:
            head, version = _parsed(data[:end])
            data, searched = data[end + 4 :], 0
            if head.status >= 200:
                self._rest = b""
                self._begin_body(head, version)
                return data
            if head.status == 101:
                raise NotHttp
        if len(data) > HEAD_BYTES_MAX or not data.startswith(b"HTTP/1."[: len(data)]):
            raise NotHttp
        self._rest = data
        return b""

    def _begin_body(self, head: ResponseHead, version: int) -> None:
        self.head = head
        length: int | None = None
        self.reusable = version == 1
        for name, value in head.headers:
            lower = name.lower()
            if lower == b"content-length":
                if not _LENGTH.fullmatch(value) or length not in (None, int(value)):
                    raise NotHttp
                length = int(value)
            elif lower == b"transfer-encoding":
                if self._chunked or value.lower() != b"chunked":
                    raise NotHttp
                self._chunked = True
            elif lower == b"connection":
                said = [option.strip() for option in value.lower().split(b",")]
                self.reusable = b"close" not in said and (version == 1 or b"keep-alive" in said)
        if self._method == "HEAD" or head.status in _WITHOUT_BODY:
            self.complete = True
        elif not self._chunked:
            self._left = length
            self.complete = length == 0

    def _feed_chunks(self, data: bytes) -> bytes:
        data, position = self._rest + data, 0
        self._rest = b""
        pieces = []
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                self._line_end_due = not self._left
                continue
            end = data.find(b"\r\n", position)
            if end < 0:
                if len(data) - position > _CHUNK_LINE_BYTES_MAX:
                    raise NotHttp
                self._rest = data[position:]
                break
            self._read_line(data[position:end])
            position = end + 2
            if self.complete:
                self.reusable = self.reusable and position == len(data)
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_line(self, line: bytes) -> None:
        """Of what stands between the data of chunks: its end, a size, or a trailer."""
        if self._line_end_due:
            if line:
                raise NotHttp
            self._line_end_due = False
        elif self._trailer_bytes is not None:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _TRAILER_BYTES_MAX:
                raise NotHttp
            self.complete = not line
        else:
            found = _CHUNK_LINE.fullmatch(line)
            if found is None:
                raise NotHttp
            self._left = int(found[1], 16)
            if not self._left:
                self._trailer_bytes = 0


def _parsed(head: bytes) -> tuple[ResponseHead, int]:
    """The head and the minor version."""
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise NotHttp
    headers = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise NotHttp
        headers.append((header[1], header[2]))
    return ResponseHead(int(status[2]), status[3] or b"", headers), int(status[1])
