"""The clients' side: how the server is set up, how a body is read, how bytes go out unbuffered.

Rules it keeps:

* A client that goes away cancels its handler.
* No body longer than allowed is held in memory; bodies are never decompressed.
* What is relayed is written to the client's socket at once (aiohttp sets TCP_NODELAY), in one piece
  where head and body are there together. A client that does not read for long is given up.
* A body that cannot be completed never looks complete: the connection ends without the last chunk.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from aiohttp import web

from router.relay_headers import Framing

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_HEADER_BYTES_MAX = 64 * 2**10
# Longer than the 60 s after which common load balancers close an idle connection of their own.
_KEEP_ALIVE_S = 75.0
# What may wait for a slow client, besides the kernel's buffers, before the engine's bytes wait too.
_UNSENT_BYTES_MAX = 64 * 2**10
_STALL_S_MAX = 300.0
# For a whole body to arrive.
_BODY_S_MAX = 300.0


def make_runner(handler: Handler) -> web.ServerRunner:
    """Serve with ``await runner.setup()`` and ``web.TCPSite(runner, host, port, backlog=1024)``.

    The handler gets every request of every path, and reads its body with ``read_body``.
    """
    server = web.Server(
        handler,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=_KEEP_ALIVE_S,
        max_line_size=_HEADER_BYTES_MAX,
        max_field_size=_HEADER_BYTES_MAX,
    )
    return web.ServerRunner(server)


class BodyTooLarge(Exception):
    """Answer with 413."""


class BodyBroken(Exception):
    """The body stopped half way, or its framing is wrong: answer with 400."""


async def read_body(
    request: web.BaseRequest, bytes_max: int, wait_s_max: float = _BODY_S_MAX
) -> bytes:
    """The whole body. Raises ``BodyTooLarge`` before more than that is held, and ``BodyBroken``."""
    if (request.content_length or 0) > bytes_max:
        raise BodyTooLarge
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if request.content.is_eof():
            return await _read_up_to(request, bytes_max)
        async with asyncio.timeout(wait_s_max):
            return await _read_up_to(request, bytes_max)
    except TimeoutError as error:
        # Wrong framing ends here too: the parser tells the server, but not who reads the body.
        raise BodyBroken("it did not come to an end") from error
    except (web.RequestPayloadError, web.PayloadAccessError) as error:
        raise BodyBroken(str(error)) from error


async def _read_up_to(request: web.BaseRequest, bytes_max: int) -> bytes:
    chunks, read_bytes = [], 0
    while chunk := await request.content.readany():
        chunks.append(chunk)
        read_bytes += len(chunk)
        if read_bytes > bytes_max:
            raise BodyTooLarge
        if request.content.at_eof():
            break
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class ClientGone(ConnectionError):
    """The client closed its connection, or has stopped reading."""


class RelayedResponse(web.StreamResponse):
    """An answer whose head was made elsewhere; for aiohttp's server it is complete as returned.

    It stands below ``web.StreamResponse``, which would add headers and frame the body anew.
    """

    def __init__(self, request: web.BaseRequest, status: int, framing: Framing) -> None:
        super().__init__(status=status)
        self._request = request
        self._framing = framing
        self._kept_alive = request.keep_alive and framing is not Framing.CLOSE
        self.sent_bytes = 0

    @property
    def keep_alive(self) -> bool:
        return self._kept_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        pass

    async def write_eof(self, data: bytes = b"") -> None:
        pass

    async def send(self, head: bytes, chunk: bytes, *, last: bool) -> None:
        """Writes to the socket at once. Raises ``ClientGone``.

        ``head`` is b"" but for the first time, and ``chunk`` may be b"".
        """
        transport = self._request.transport
        if transport is None or transport.is_closing():
            self._kept_alive = False
            raise ClientGone
        self.sent_bytes += len(chunk)
        if data := head + self._framed(chunk, last):
            transport.write(data)
        if transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            await self._drain()

    def _framed(self, chunk: bytes, last: bool) -> bytes:
        if self._framing is Framing.EMPTY:
            return b""
        if self._framing is not Framing.CHUNKED:
            return chunk
        end = b"0\r\n\r\n" if last else b""
        return b"%x\r\n%b\r\n%b" % (len(chunk), chunk, end) if chunk else end

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_STALL_S_MAX):
                await self._request.writer.drain()
        except (TimeoutError, ConnectionError) as error:
            self._kept_alive = False
            if (transport := self._request.transport) is not None:
                # Closing would wait for the client to read what is left.
                transport.abort()
            raise ClientGone from error

    def break_off(self) -> None:
        """Ends the connection so that the client sees that the body is incomplete."""
        self._kept_alive = False
        transport = self._request.transport
        if transport is None:
            return
        if self._framing is not Framing.CLOSE:
            # What was relayed still arrives; the missing end tells the rest.
            transport.close()
            return
        # Without any framing only a reset differs from a regular end.
        if (connection := transport.get_extra_info("socket")) is not None:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
