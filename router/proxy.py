"""Relays one request: to a replica that somebody else places it on, and the answer back.

Decides when another replica is tried and what the client gets when none answers. Rules it keeps:

* Bytes pass as they are, both ways, each piece as soon as it is there.
* Nothing is sent to the client before the first byte of a body is there: vLLM's head of a stream
  comes before the prefill, so an engine that dies while it prefills is still replaced unseen.
* Before that byte, an engine that cannot be reached, breaks, is silent, or answers 502, 503 or 504
  is replaced once. If that does not help, the client gets the engine's own answer, else a 502 that
  says what happened. No other status is tried again: a 4xx is the client's, and a 500 may be too.
* 429 and 503 are reported as overload, which is back-pressure and no defect.
* After that byte, a broken answer ends as a broken answer: never a clean end.
* A placement is released exactly once, and the upstream response closed, on every path; a client
  that goes away is a cancellation, which does both at once.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter

from aiohttp import web

from router.http_server import ClientGone, RelayedResponse
from router.openai import error_body
from router.relay_contract import NoReplica, Placed, Placer, RelayResult
from router.relay_headers import Framing, request_head, response_head
from router.upstream import Upstream, UpstreamError, UpstreamResponse
from router.usage import UsageReader, usage_reader

__all__ = ["NoReplica", "Placed", "Placer", "RelayResult", "relay"]

ATTEMPTS_MAX = 2
_TRIED_ELSEWHERE = frozenset((502, 503, 504))
_FAILURE_OF_STATUS = {429: "overloaded", 502: "broken", 503: "overloaded", 504: "silent"}
# An error that is kept for the case that no other replica answers; longer ones are passed on.
_HELD_BYTES_MAX = 64 * 2**10


async def relay(
    request: web.BaseRequest,
    body: bytes,
    placer: Placer,
    upstream: Upstream,
    finished: Callable[[RelayResult], None],
) -> web.StreamResponse:
    """The response, already sent. ``finished`` is called exactly once, also when cancelled."""
    relaying = _Relaying(request, body, placer, upstream)
    result = relaying.result
    try:
        return await relaying.run()
    except asyncio.CancelledError:
        result.outcome = "client_gone"
        raise
    finally:
        relaying.note_usage()
        finished(result)


@dataclass(slots=True)
class _Held:
    """An engine's whole answer that may be bettered by another replica's."""

    status: int
    head: bytes
    body: bytes
    framing: Framing
    usage: UsageReader


class _Relaying:
    """The state of one request."""

    def __init__(
        self, request: web.BaseRequest, body: bytes, placer: Placer, upstream: Upstream
    ) -> None:
        self.result = RelayResult()
        self._request = request
        self._body = body
        self._placer = placer
        self._upstream = upstream
        self._begun = self._phase_begun = perf_counter()
        self._usage: UsageReader | None = None
        self._held: _Held | None = None

    async def run(self) -> web.StreamResponse:
        excluding: frozenset[str] = frozenset()
        while self.result.attempts < ATTEMPTS_MAX:
            try:
                placed = await self._placer.place(excluding)
            except NoReplica as error:
                return await self._without_replica(error)
            finally:
                self._phase_ends("place")
            try:
                self.result.attempts += 1
                answer = await self._attempt(placed)
            finally:
                placed.release()
            if answer is not None:
                return answer
            excluding |= {placed.replica}
        return await self._without_answer()

    async def _attempt(self, placed: Placed) -> web.StreamResponse | None:
        """None where another replica may be tried."""
        try:
            response = await self._upstream.send(
                self._request.method, placed.url, (self._request_head(placed), self._body)
            )
        except UpstreamError as error:
            self._note_failure(placed, error)
            return None
        try:
            return await self._pass_back(placed, response)
        finally:
            response.close()

    async def _pass_back(
        self, placed: Placed, response: UpstreamResponse
    ) -> web.StreamResponse | None:
        bettering = response.status in _TRIED_ELSEWHERE and self.result.attempts < ATTEMPTS_MAX
        try:
            chunk = await (_read_held(response) if bettering else response.read())
        except UpstreamError as error:
            self._note_failure(placed, error)
            return None
        self._phase_ends("wait")
        if kind := _FAILURE_OF_STATUS.get(response.status):
            placed.failed(kind)
        head, framing = self._head(placed, response)
        usage = _usage_reader_of(response)
        if bettering and response.at_end:
            self.result.failures.append(f"{placed.replica} answered {response.status}")
            self._held = _Held(response.status, head, chunk, framing, usage)
            return None
        placed.first_byte()
        self._usage = usage
        return await self._stream(placed, response, head, chunk, framing)

    async def _stream(
        self,
        placed: Placed,
        response: UpstreamResponse,
        head: bytes,
        chunk: bytes,
        framing: Framing,
    ) -> web.StreamResponse:
        answer = self._answer(response.status, framing)
        usage = self._usage
        assert usage is not None
        self.result.ttft_s = perf_counter() - self._begun
        try:
            while True:
                last = response.at_end
                usage.feed(chunk)
                await answer.send(head, chunk, last=last)
                if last:
                    self.result.outcome = "ok"
                    break
                head, chunk = b"", await response.read()
        except ClientGone:
            self.result.outcome = "client_gone"
        except UpstreamError as error:
            self._note_failure(placed, error)
            self.result.outcome = "broken_midstream"
            answer.break_off()
        finally:
            self.result.response_bytes = answer.sent_bytes
            self._phase_ends("body")
        return answer

    # Heads, and answers that are not the engine's.

    def _request_head(self, placed: Placed) -> bytes:
        request = self._request
        return request_head(
            request.method,
            placed.url,
            request.rel_url.raw_path_qs,
            request.raw_headers,
            body_bytes=len(self._body),
            rank_header=placed.rank_header,
        )

    def _head(self, placed: Placed, response: UpstreamResponse) -> tuple[bytes, Framing]:
        return response_head(
            response.status,
            response.reason,
            response.headers,
            placed.headers,
            method=self._request.method,
            version=self._request.version,
            keep_alive=self._request.keep_alive,
        )

    def _answer(self, status: int, framing: Framing) -> RelayedResponse:
        self.result.status = status
        return RelayedResponse(self._request, status, framing)

    def _note_failure(self, placed: Placed, error: UpstreamError) -> None:
        self._phase_ends("wait")
        placed.failed(error.kind)
        self.result.failures.append(f"{placed.replica} {error}")

    async def _without_replica(self, error: NoReplica) -> web.StreamResponse:
        if self.result.attempts:
            return await self._without_answer()
        headers = []
        if error.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % math.ceil(error.retry_after_s)))
        return await self._own_error(error.status, error.message, "no_replica", headers)

    async def _without_answer(self) -> web.StreamResponse:
        """After failed attempts: the engine's own error where there was one."""
        if (held := self._held) is None:
            message = f"No replica answered: {'; '.join(self.result.failures)}"
            return await self._own_error(502, message, "upstream_error", [])
        self._usage = held.usage
        held.usage.feed(held.body)
        return await self._whole(held.status, held.head, held.body, held.framing, "ok")

    async def _own_error(
        self, status: int, message: str, outcome: str, headers: list[tuple[bytes, bytes]]
    ) -> web.StreamResponse:
        body = error_body(message, "server_error")
        headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
        head, framing = response_head(
            status,
            HTTPStatus(status).phrase.encode(),
            headers,
            (),
            method=self._request.method,
            version=self._request.version,
            keep_alive=self._request.keep_alive,
        )
        return await self._whole(status, head, body, framing, outcome)

    async def _whole(
        self, status: int, head: bytes, body: bytes, framing: Framing, outcome: str
    ) -> web.StreamResponse:
        answer = self._answer(status, framing)
        try:
            await answer.send(head, body, last=True)
            self.result.outcome = outcome
        except ClientGone:
            self.result.outcome = "client_gone"
        self.result.response_bytes = answer.sent_bytes
        return answer

    def note_usage(self) -> None:
        if self._usage is not None:
            self.result.usage = self._usage.usage

    def _phase_ends(self, name: str) -> None:
        now = perf_counter()
        phases = self.result.phases_ms
        phases[name] = phases.get(name, 0.0) + (now - self._phase_begun) * 1e3
        self._phase_begun = now


async def _read_held(response: UpstreamResponse) -> bytes:
    """The whole body, or so much of it that it is too long to be held."""
    held = b""
    while len(held) <= _HELD_BYTES_MAX and (chunk := await response.read()):
        held += chunk
    return held


def _usage_reader_of(response: UpstreamResponse) -> UsageReader:
    content_type = content_encoding = b""
    for name, value in response.headers:
        lower = name.lower()
        if lower == b"content-type":
            content_type = value
        elif lower == b"content-encoding":
            content_encoding = value
    return usage_reader(content_type.decode("latin-1"), content_encoding.decode("latin-1"))
