"""The engine's side of the relay: one request to one replica, and its answer as it arrives.

Decides nothing about retries on other replicas. Everything that this HTTP client can raise is
translated here, once, into three errors; nothing else of it shows. Rules it keeps:

* Bytes pass as they are: no decompression, no cookies, no redirects, no headers of its own but Host
  and Content-Length.
* A connection kept alive may have been closed by the engine while it was idle. If it breaks before
  any byte of the response, that is no failure of the replica: the request is sent again, once, on
  a fresh connection.
* A response that was not read to its end closes its connection: only so does the engine learn that
  nobody waits any more.
* Connections are not limited here; requests in flight are limited where they are placed.
"""

import io
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

# vLLM's server closes a connection after 5 s without a request; closing first avoids the race.
_KEEP_ALIVE_S = 4.0
_HEADER_BYTES_MAX = 64 * 2**10
_HEADERS_MAX = 1000
# Above this, aiohttp wants to read a body piecewise.
_BYTES_IN_ONE_WRITE_MAX = 2**20
_URLS_KEPT_MAX = 4096


@dataclass(frozen=True, slots=True)
class Timeouts:
    """``connect_s``: name look-up, TCP and TLS together. ``silence_s``: between two reads.

    An answer that is not streamed is silent while it is generated, so silence is long.
    """

    connect_s: float = 2.0
    silence_s: float = 3600.0


class UpstreamError(Exception):
    """The text says what happened, without the replica's name."""

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


class UpstreamResponse:
    """``close`` must be called on every path; after the end of the body it keeps the connection."""

    __slots__ = ("_response", "headers", "reason", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.reason = (response.reason or "").encode("utf-8", "surrogateescape")
        self.headers = response.raw_headers

    async def read(self) -> bytes:
        """What has arrived, as soon as there is any; b"" at the end. Raises ``UpstreamError``."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error) from error

    @property
    def at_end(self) -> bool:
        """Whether it is already known that ``read`` would give b""."""
        return self._response.content.at_eof()

    def close(self) -> None:
        """Gives up what was not read, and its connection with it."""
        self._response.close()


class Upstream:
    """Connections to all replicas. Made inside the running loop; ``close`` at the end."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        timeouts = timeouts or Timeouts()
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            connect=timeouts.connect_s,
            sock_connect=timeouts.connect_s,
            sock_read=timeouts.silence_s,
        )
        self._kept_alive = self._session(_Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_S))
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
            max_headers=_HEADERS_MAX,
        )

    async def send(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes
    ) -> UpstreamResponse:
        """The response once its head has arrived. Raises ``UpstreamError``.

        ``url`` is absolute and already encoded.
        """
        _reused.set(False)
        try:
            return await self._ask(self._kept_alive, method, url, headers, body)
        except UpstreamBroken:
            if not _reused.get():
                raise
        return await self._ask(self._fresh, method, url, headers, body)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> UpstreamResponse:
        try:
            response = await session.request(
                method,
                _parsed(url),
                headers=CIMultiDict(headers),
                data=_payload(body),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translated(error) from error
        return UpstreamResponse(response)

    async def close(self) -> None:
        await self._kept_alive.close()
        await self._fresh.close()


# Set by the connector for the task that asked it.
_reused: ContextVar[bool] = ContextVar("reused", default=False)


class _Connector(aiohttp.TCPConnector):
    """Tells whether a connection had served before."""

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._served: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: "ClientRequest",
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (the signature is aiohttp's)
    ) -> "Connection":
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        assert protocol is not None
        if protocol in self._served:
            _reused.set(True)
        else:
            self._served.add(protocol)
        return connection


@lru_cache(maxsize=_URLS_KEPT_MAX)
def _parsed(url: str) -> URL:
    return URL(url, encoded=True)


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    if len(body) > _BYTES_IN_ONE_WRITE_MAX:
        return io.BytesIO(body)
    return body or None


def _translated(error: Exception) -> UpstreamError:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return UpstreamRefused("could not be connected to in time")
        case TimeoutError():
            return UpstreamSilent("was silent for too long")
        case aiohttp.ClientConnectorDNSError():
            return UpstreamRefused("has a host name that cannot be found")
        case aiohttp.ClientConnectorError():
            return UpstreamRefused(f"refused the connection ({_reason(error)})")
        case aiohttp.InvalidURL():
            return UpstreamRefused("has a URL that is none; use http://HOST:PORT")
        case aiohttp.ClientResponseError():
            return UpstreamBroken("did not answer in HTTP")
    return UpstreamBroken("closed the connection")


def _reason(error: aiohttp.ClientConnectorError) -> str:
    return error.strerror or type(error.os_error).__name__
