"""Clients that converse through a router at once, from a seed, as fast as they are let."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

REPLICA_HEADER = "x-pointsman-replica"
_TURNS_MAX = 5
_REQUEST_S_MAX = 120.0


@dataclass
class Exchange:
    """One request. ``replica`` is whose first byte came; ``error`` is None for a whole answer."""

    began: float
    ended: float = 0.0
    replica: str | None = None
    error: str | None = None


@dataclass
class Load:
    """``clients`` at once. Each request needs a permit: without one they wait."""

    url: str
    rng: Random
    clients: int = 6
    exchanges: list[Exchange] = field(default_factory=list)
    in_flight: int = 0

    def __post_init__(self) -> None:
        self._permits = asyncio.Semaphore(0)
        self._permitted = 0
        self._documents = [self._text(f"document{n}-", 120) for n in range(4)]

    def permit(self, requests: int) -> None:
        self._permitted += requests
        for _ in range(requests):
            self._permits.release()

    async def until_left(self, requests: int) -> None:
        """Until so many of those that were permitted have not ended yet."""
        async with asyncio.timeout(2 * _REQUEST_S_MAX):
            while self._permitted - len(self.exchanges) > requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_REQUEST_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._converse(session, number))

    async def _converse(self, session: aiohttp.ClientSession, number: int) -> None:
        messages: list[dict[str, str]] = []
        while True:
            await self._permits.acquire()
            if not messages or len(messages) > 2 * _TURNS_MAX:
                messages = [_message("system", self.rng.choice(self._documents))]
            question = self._text(f"client{number}-", self.rng.randrange(10, 60))
            messages.append(_message("user", question))
            answer = await self._ask(session, messages)
            messages.append(_message("assistant", answer))

    async def _ask(self, session: aiohttp.ClientSession, messages: list[dict[str, str]]) -> str:
        body = {
            "model": "sim",
            "messages": messages,
            "max_tokens": self.rng.randrange(5, 40),
            "stream": self.rng.random() < 0.6,
        }
        exchange = Exchange(time.monotonic())
        self.in_flight += 1
        try:
            return await self._exchange(session, body, exchange)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            exchange.error = f"{type(error).__name__}: {error}"
            return ""
        finally:
            self.in_flight -= 1
            exchange.ended = time.monotonic()
            self.exchanges.append(exchange)

    async def _exchange(
        self, session: aiohttp.ClientSession, body: dict[str, Any], exchange: Exchange
    ) -> str:
        """The text. Raises aiohttp.ClientError, and ValueError for an answer that is not whole."""
        async with session.post(f"{self.url}/v1/chat/completions", json=body) as response:
            exchange.replica = response.headers.get(REPLICA_HEADER)
            raw = await response.read()
        if response.status != 200:
            raise ValueError(f"{response.status}: {raw[:200]!r}")
        if not body["stream"]:
            return str(json.loads(raw)["choices"][0]["message"]["content"])
        *events, last = (line for line in raw.splitlines() if line)
        if last != b"data: [DONE]":
            raise ValueError(f"a stream that ends with {last[:200]!r}")
        choices = [json.loads(event.removeprefix(b"data: "))["choices"] for event in events]
        return "".join(c[0]["delta"].get("content") or "" for c in choices if c)

    def _text(self, seed: str, words: int) -> str:
        return " ".join(f"{seed}{self.rng.randrange(10_000)}" for _ in range(words))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
