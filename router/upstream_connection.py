"""One connection to an engine, and the response that is read from it.

Rules it keeps:

* What has arrived is handed out before an error is raised.
* A reader that is slow holds the engine back: beyond a limit nothing more is read.
* Silence is the engine's only while we listen. A peer that vanished without a word is found by TCP
  keep-alive, long before silence would tell.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import ClassVar, cast

from router.http_response import NotHttp, ResponseParser

_UNREAD_BYTES_MAX = 256 * 2**10
_ONE_WRITE_BYTES_MAX = 64 * 2**10
# A dead peer is noticed after 30 + 3 * 10 s.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class UpstreamError(Exception):
    """The text says what happened, to be read after the replica's name."""

    kind: ClassVar[str]


class UpstreamRefused(UpstreamError):
    """Nothing reached the engine: refused, no such name, no TLS, no connection in time."""

    kind = "refused"


class UpstreamBroken(UpstreamError):
    """The connection broke before the response was complete, or what came was not HTTP."""

    kind = "broken"


class UpstreamSilent(UpstreamError):
    """Connected, and then nothing for too long."""

    kind = "silent"


class UpstreamConnection(asyncio.Protocol):
    """Asked again and again: ``ask``, ``head``, ``read`` to the end, ``rest``. Else ``abort``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lost: Callable[["UpstreamConnection"], None]
    ) -> None:
        self.parser = ResponseParser("")
        # Whether any byte has come since it was asked.
        self.heard = False
        self.idle_since = 0.0
        self._loop = loop
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._heard_at = 0.0
        self._silence_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def at_end(self) -> bool:
        return self.parser.complete and not self._unread

    def ask(self, method: str, request: tuple[bytes, bytes], silence_s: float) -> None:
        """Sends head and body, and begins to listen."""
        self.parser = ResponseParser(method)
        self.heard, self._error = False, None
        head, body = request
        if self._transport is None or self._transport.is_closing():
            self._error = UpstreamBroken("closed the connection")
            return
        if len(body) <= _ONE_WRITE_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        self._silence_s, self._heard_at = silence_s, self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._look_at_silence)

    async def head(self) -> None:
        """Until ``parser.head`` is there. Raises ``UpstreamError``."""
        while self.parser.head is None:
            await self._more()

    async def read(self) -> bytes:
        """What has arrived, as soon as there is any; b"" at the end. Raises ``UpstreamError``."""
        while not self._unread:
            if self.parser.complete:
                return b""
            await self._more()
        unread = self._unread
        data = unread[0] if len(unread) == 1 else b"".join(unread)
        unread.clear()
        self._unread_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
        return data

    def rest(self) -> bool:
        """After a response: whether another request may be sent."""
        self._stop_timer()
        self.idle_since = self._loop.time()
        return (
            self._transport is not None
            and self.at_end
            and self.parser.reusable
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def abort(self) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        assert self._waiter is None
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        if self._error is None and not self.parser.complete:
            self._error = error
        self.abort()
        self._wake()

    def _look_at_silence(self) -> None:
        """One timer per request, which looks when silence could be too long at the earliest."""
        heard_at = self._loop.time() if self._paused else self._heard_at
        left_s = heard_at + self._silence_s - self._loop.time()
        if left_s <= 0:
            self._timer = None
            self._fail(UpstreamSilent("was silent for too long"))
        else:
            self._timer = self._loop.call_later(left_s, self._look_at_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        connection = transport.get_extra_info("socket")
        if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._heard_at = self._loop.time()
        try:
            body = self.parser.feed(data)
        except NotHttp:
            self._fail(UpstreamBroken("did not answer in HTTP"))
            return
        if body:
            self._unread.append(body)
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES_MAX and not self._paused:
                assert self._transport is not None
                self._paused = True
                self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is None:
            self.parser.feed_eof()
        self._fail(UpstreamBroken("closed the connection"))
        self._lost(self)
