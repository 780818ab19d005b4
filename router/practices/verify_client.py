"""A shell: one server, asked as a client asks it: streamed chats, one after the other.

It reads the clock for the times of tokens, and the server's own counters of cached tokens where it
has some. Whatever a server answers is looked at with suspicion, and named in one line.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp

from router.practices.verify_stream import AnswerStream, NoStream
from router.practices.verify_verdicts import Answer

_SMALL_BYTES_MAX = 16 * 2**20
# A server's counters are a little behind its answers.
_COUNTED_S_MAX = 1.0
_COUNTING_INTERVAL_S = 0.02
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
_SHOWN_CHARS_MAX = 300


class Refused(Exception):
    """A request has no answer; the text says why, in one line. ``status``: HTTP's, if any."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class OutOfTime(Refused):
    """The run as a whole has come to its end."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    tokens_max: int | None


class VerifyClient:
    """``request_s_max``: of one request; the run as a whole ends at ``ends_at``."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        request_s_max: float,
        ends_at: float,
    ) -> None:
        self._session, self._url, self._headers = session, url, dict(headers)
        self._request_s_max, self._ends_at = request_s_max, ends_at
        self._usage_tells = False
        self._counts = False

    async def models(self) -> list[Model]:
        """Raises Refused."""
        try:
            cards = json.loads(await self._get("/v1/models"))["data"]
            found = [Model(str(card["id"]), card.get("max_model_len")) for card in cards]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Refused(
                f"{self._url}/v1/models: not the list of an OpenAI-compatible server"
            ) from None
        return found

    async def look_for_counters(self) -> None:
        """An engine has them; a router or a gateway does not."""
        self._counts = await self._counters() is not None

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """Raises Refused."""
        before = await self._counters() if self._counts and not self._usage_tells else None
        begun = monotonic()
        stream, headers = await self._stream(body)
        usage = stream.usage
        if usage is None or usage.prompt_tokens is None:
            raise Refused("the answer has no usage, though stream_options.include_usage was sent")
        self._usage_tells = self._usage_tells or usage.cached_tokens is not None
        counted = None
        if before is not None and not self._usage_tells:
            counted = await self._counted(before, usage.prompt_tokens)
        first, last = stream.first_at, stream.last_at
        decode_ms = None
        if first is not None and last is not None and (usage.completion_tokens or 0) > 1:
            decode_ms = (last - first) * 1e3 / ((usage.completion_tokens or 0) - 1)
        return Answer(
            prompt_tokens=usage.prompt_tokens,
            reported=usage.cached_tokens,
            counted=counted,
            completion_tokens=usage.completion_tokens,
            ttft_ms=None if first is None else (first - begun) * 1e3,
            decode_ms=decode_ms,
            text=stream.text,
            replica=headers.get("x-pointsman-replica"),
            reason=headers.get("x-pointsman-reason"),
            transformed=headers.get("x-pointsman-transformed"),
        )

    async def _stream(self, body: Mapping[str, Any]) -> tuple[AnswerStream, Mapping[str, str]]:
        stream = AnswerStream()
        try:
            async with (
                asyncio.timeout(self._seconds_left()),
                self._session.post(
                    self._url + "/v1/chat/completions",
                    data=json.dumps(body).encode(),
                    headers={**self._headers, "Content-Type": "application/json"},
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    text = await response.content.read(_SHOWN_CHARS_MAX * 10)
                    raise Refused(_refusal(response.status, text), response.status)
                async for chunk in response.content.iter_any():
                    stream.feed(chunk, monotonic())
                if not stream.is_done:
                    raise Refused("the stream ended without [DONE]: is it a stream of chats?")
                return stream, dict(response.headers)
        except TimeoutError:
            raise self._too_late("/v1/chat/completions") from None
        except NoStream as error:
            raise Refused(str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Refused(_connection_text(self._url, error)) from None

    async def _counted(self, before: tuple[float, float], prompt_tokens: int) -> int | None:
        """Hits since then, where nobody else's tokens were looked up meanwhile."""
        until = monotonic() + _COUNTED_S_MAX
        while True:
            after = await self._counters()
            if after is not None and after[0] - before[0] == prompt_tokens:
                return round(after[1] - before[1])
            if after is None or after[0] - before[0] > prompt_tokens or monotonic() > until:
                return None
            await asyncio.sleep(_COUNTING_INTERVAL_S)

    async def _counters(self) -> tuple[float, float] | None:
        try:
            text = (await self._get("/metrics")).decode(errors="replace")
        except Refused:
            return None
        queries, hits = _counter(text, _QUERIES), _counter(text, _HITS)
        return None if queries is None or hits is None else (queries, hits)

    async def _get(self, path: str) -> bytes:
        try:
            async with (
                asyncio.timeout(self._seconds_left()),
                self._session.get(
                    self._url + path, headers=self._headers, allow_redirects=False
                ) as response,
            ):
                text = b""
                async for chunk in response.content.iter_any():
                    text += chunk
                    if len(text) > _SMALL_BYTES_MAX:
                        raise Refused(f"{path}: an answer of more than {_SMALL_BYTES_MAX} bytes")
                if response.status != 200:
                    refusal = _refusal(response.status, text)
                    raise Refused(f"{self._url}{path}: {refusal}", response.status)
                return text
        except TimeoutError:
            raise self._too_late(path) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Refused(_connection_text(self._url, error)) from None

    def _too_late(self, path: str) -> Refused:
        if monotonic() >= self._ends_at:
            return OutOfTime(f"{self._url}{path}: no answer when --seconds-max were over")
        return Refused(f"{self._url}{path}: no answer within {self._request_s_max:g} s")

    def _seconds_left(self) -> float:
        return max(0.0, min(self._request_s_max, self._ends_at - monotonic()))


def _counter(text: str, name: str) -> float | None:
    """The sum over all engines of a server; None where there is no such metric."""
    values = []
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name:
            try:
                values.append(float(value))
            except ValueError:
                return None
    return sum(values) if values else None


def _refusal(status: int, body: bytes) -> str:
    """With the server's own words, and what helps against the usual ones."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    hint = ""
    if status in (401, 403):
        hint = " (a key is read from VLLM_API_KEY or OPENAI_API_KEY)"
    return f"{status} {' '.join(str(text).split())}"[:_SHOWN_CHARS_MAX] + hint


def _connection_text(url: str, error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"{url}: there is no such host"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"{url}: no connection: {os.strerror(number) if number else error.os_error}"
    return f"{url}: {error or type(error).__name__}"
