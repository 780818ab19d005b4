"""The engine's side of the relay: one request to one replica, and its answer as it arrives.

Decides nothing about retries on other replicas. Everything that can go wrong is translated here,
once, into three errors. Rules it keeps:

* Bytes pass as they are: no decompression, no cookies, no redirects.
* A connection kept alive may have been closed by the engine while it was idle. If it breaks before
  any byte of the response, that is no failure of the replica: the request is sent again, once, on
  a fresh connection.
* A response that was not read to its end closes its connection: only so does the engine learn that
  nobody waits any more.
* Connections are not limited here; requests in flight are limited where they are placed.
"""

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

from router.upstream_connection import (
    UpstreamBroken,
    UpstreamConnection,
    UpstreamError,
    UpstreamRefused,
    UpstreamSilent,
)

__all__ = [
    "Timeouts",
    "Upstream",
    "UpstreamBroken",
    "UpstreamError",
    "UpstreamRefused",
    "UpstreamResponse",
    "UpstreamSilent",
]

# vLLM's server closes a connection after 5 s without a request; closing first avoids the race.
_IDLE_S_MAX = 4.0
_ROOTS_KEPT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Timeouts:
    """``connect_s``: name look-up, TCP and TLS together. ``silence_s``: between two reads.

    An answer that is not streamed is silent while it is generated, so silence is long.
    """

    connect_s: float = 2.0
    silence_s: float = 3600.0


class _Address(NamedTuple):
    host: str
    port: int
    tls: bool


class UpstreamResponse:
    """``close`` must be called on every path; after the end of the body it keeps the connection."""

    __slots__ = ("_address", "_connection", "_upstream", "headers", "reason", "status")

    def __init__(
        self, upstream: "Upstream", address: _Address, connection: UpstreamConnection
    ) -> None:
        head = connection.parser.head
        assert head is not None
        self.status, self.reason, self.headers = head
        self._upstream, self._address = upstream, address
        self._connection: UpstreamConnection | None = connection

    async def read(self) -> bytes:
        """What has arrived, as soon as there is any; b"" at the end. Raises ``UpstreamError``."""
        assert self._connection is not None
        return await self._connection.read()

    @property
    def at_end(self) -> bool:
        """Whether it is already known that ``read`` would give b""."""
        return self._connection is None or self._connection.at_end

    def close(self) -> None:
        """Gives up what was not read, and its connection with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream._give_back(self._address, connection)


class Upstream:
    """Connections to all replicas; ``close`` at the end."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        # The most recently used last; it is used first, so that the others can be let go.
        self._idle: dict[_Address, deque[UpstreamConnection]] = {}
        self._in_use: set[UpstreamConnection] = set()

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        return f"<Upstream {len(self._in_use)} connections in use, {idle} idle>"

    @property
    def in_use(self) -> int:
        """Connections with a request on them."""
        return len(self._in_use)

    async def send(self, method: str, root: str, request: tuple[bytes, bytes]) -> UpstreamResponse:
        """The response once its head has arrived. Raises ``UpstreamError``.

        ``root`` is the replica's URL, of which the path does not matter here; ``request`` is the
        whole head, and the body.
        """
        address = _address(root)
        connection = self._reused(address)
        if connection is not None:
            try:
                return await self._exchange(address, connection, method, request)
            except UpstreamBroken:
                if connection.heard:
                    raise
        return await self._exchange(address, await self._connected(address), method, request)

    async def _exchange(
        self,
        address: _Address,
        connection: UpstreamConnection,
        method: str,
        request: tuple[bytes, bytes],
    ) -> UpstreamResponse:
        self._in_use.add(connection)
        try:
            connection.ask(method, request, self._timeouts.silence_s)
            await connection.head()
        except BaseException:
            self._in_use.discard(connection)
            connection.abort()
            raise
        return UpstreamResponse(self, address, connection)

    def _reused(self, address: _Address) -> UpstreamConnection | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - _IDLE_S_MAX
        while idle:
            connection = idle.pop()
            # What an engine says unasked would be taken for the next answer.
            if connection.open and connection.parser.reusable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _give_back(self, address: _Address, connection: UpstreamConnection) -> None:
        self._in_use.discard(connection)
        if not connection.rest():
            connection.abort()
            return
        idle = self._idle.setdefault(address, deque())
        idle.append(connection)
        while idle[0].idle_since < connection.idle_since - _IDLE_S_MAX:
            idle.popleft().abort()

    def _lost(self, address: _Address, connection: UpstreamConnection) -> None:
        """Replicas come and go; nothing is kept of those that went."""
        idle = self._idle.get(address)
        if idle is not None:
            with suppress(ValueError):
                idle.remove(connection)
            if not idle:
                del self._idle[address]

    async def _connected(self, address: _Address) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(loop, partial(self._lost, address)),
                    address.host,
                    address.port,
                    ssl=_tls_context() if address.tls else None,
                )
        except TimeoutError as error:
            raise UpstreamRefused("could not be connected to in time") from error
        except (OSError, UnicodeError) as error:
            raise UpstreamRefused(f"refused the connection ({_reason(error)})") from error
        return connection

    async def close(self) -> None:
        """Also what is in use: those who read from it see it break."""
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        for connection in self._in_use:
            connection.abort()
        # Sockets are closed in the loop's next turn.
        await asyncio.sleep(0)


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=_ROOTS_KEPT_MAX)
def _address(root: str) -> _Address:
    try:
        parts = urlsplit(root)
        port = parts.port
    except ValueError as error:
        raise UpstreamRefused("has a URL that is none; use http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UpstreamRefused("has a URL that is none; use http://HOST:PORT")
    tls = parts.scheme == "https"
    return _Address(parts.hostname, port or (443 if tls else 80), tls)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
