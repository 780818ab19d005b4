"""A shell: what the `index` commands read: a running indexer, its store, and simulated engines."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from indexer.block_lines import Head, NotBlockLines, read_blocks, read_head

ANSWER_S_MAX = 10.0
# As large an index as there can be takes the indexer some seconds to write.
BLOCKS_S_MAX = 120.0
_BLOCKS_BYTES_MAX = 2**28
BUSY_S = 0.2
# What an engine answers that knows no such page, or wants a key for it.
_NOT_SIMULATED = (401, 403, 404, 405)


class NotRead(Exception):
    """The text says what could not be read, and what to do."""


@dataclass(frozen=True, slots=True)
class Known:
    """What ``GET /replicas`` says."""

    replicas: tuple[Mapping[str, Any], ...]
    store: str | None


class BlocksAnswer:
    """An answer whose head is there; its blocks follow when they are asked for."""

    def __init__(self, head: Head, response: aiohttp.ClientResponse) -> None:
        self.head, self._response = head, response

    async def blocks(self) -> dict[int, int]:
        """Raises NotBlockLines, aiohttp.ClientError."""
        body = bytearray()
        async for chunk in self._response.content.iter_chunked(2**20):
            body += chunk
            if len(body) > _BLOCKS_BYTES_MAX:
                raise NotBlockLines("it answered more than any index takes")
        return read_blocks(self.head, bytes(body))


class IndexReader:
    """One running indexer. Everything raises NotRead."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.url, self._session = url.rstrip("/"), session

    async def known(self) -> Known:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                async with self._session.get(f"{self.url}/replicas") as response:
                    response.raise_for_status()
                    said = await response.json()
            return Known(tuple(said["replicas"]), said["store"])
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._not_read(error) from None

    @asynccontextmanager
    async def blocks(self, replica: str, *, as_kept: bool = False) -> AsyncIterator[BlocksAnswer]:
        """``as_kept``: as of a moment that the store has too."""
        url = f"{self.url}/replicas/{quote(replica, safe='')}/blocks"
        timeout = aiohttp.ClientTimeout(total=BLOCKS_S_MAX)
        asked = {"as_kept": "1"} if as_kept else {}
        try:
            while True:
                async with self._session.get(url, params=asked, timeout=timeout) as response:
                    if response.status != 429:
                        yield BlocksAnswer(await _head(response, replica), response)
                        return
                await asyncio.sleep(BUSY_S)
        except (aiohttp.ClientError, OSError, NotBlockLines) as error:
            raise self._not_read(error) from None

    def _not_read(self, error: Exception) -> NotRead:
        why = str(error) or type(error).__name__
        return NotRead(
            f"{self.url}: {why}; --indexer is the indexer's own http.listen, with http:// before it"
        )


async def _head(response: aiohttp.ClientResponse, replica: str) -> Head:
    """Raises NotRead, NotBlockLines, aiohttp.ClientError."""
    if response.status == 404:
        raise NotRead(f"no replica {replica!r} is followed there")
    response.raise_for_status()
    try:
        return read_head(await response.content.readuntil(b"\n"))
    except ValueError as error:
        raise NotBlockLines(str(error)) from None


async def truth_of(session: aiohttp.ClientSession, url: str, rank: int) -> Mapping[int, int] | None:
    """What a simulated engine says it holds; None where it is none. Raises NotRead."""
    asked = f"{url.rstrip('/')}/sim/blocks"
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            async with session.get(asked, params={"rank": str(rank)}) as response:
                if response.status in _NOT_SIMULATED:
                    return None
                response.raise_for_status()
                said = msgspec.json.decode(await response.read(), type=dict[str, int])
        return {int(text, 16): copies for text, copies in said.items()}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NotRead(f"{asked}: {str(error) or type(error).__name__}") from None
