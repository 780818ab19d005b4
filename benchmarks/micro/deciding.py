"""From a request's bytes to the decision, in milliseconds: parse, render, tokenize, hash, match,
pick.

Cold is a conversation that nobody has sent before. A next turn is one whose earlier turns have been
hashed: an answer and a question of some 300 tokens more. Honest because the way is the router's
own, the thread's queue and the way back to the event loop included (``total``), eight replicas are
asked in the same process (``network`` measures what a network adds), every run has texts of its
own, and the text is what agents carry about: pieces of source code, no word repeated to order. The
lag is that of a task which wants to run every millisecond while four cold prompts of 32k tokens are
in work; its p99 is over the ticks of one run.

The tokenizer is the small one of ``benchmarks/data``; POINTSMAN_BENCH_TOKENIZER names another
folder.
"""

import argparse
import asyncio
import inspect
import json
import os
import random
import threading
import time
import typing
from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.placing import MODEL, InProcessIndex, routing_of
from benchmarks.micro.workload import SEED, scheme
from proto.blockhash import NO_KEYS
from router.openai import CHAT_PATH, parse_request
from router.tokenizer import (
    HashedPrompt,
    HashingThread,
    NotTokenized,
    PoolTokenizer,
    PromptHasher,
)

_SIZES = {"1k": 1_000, "8k": 8_000, "32k": 32_000, "100k": 100_000}
_RUNS = {"1k": 41, "8k": 21, "32k": 11, "100k": 7}
_LAG_RUNS = 7
_PHASES = ("parse_ms", "queue_ms", "render_ms", "tokenize_ms", "hash_ms", "match_ms", "pick_ms")
_TOTAL = "total_ms"
# The prompts of a cold run come late by design where the machine is slow; they are measured, too.
_PATIENCE_S = 30.0

Phases = dict[str, float]


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    folder = os.environ.get("POINTSMAN_BENCH_TOKENIZER", str(TOKENIZER_DIRECTORY))
    tokenizer = PoolTokenizer.load(folder)
    thread = HashingThread()
    try:
        yield from _measure(_Conversations(tokenizer, Random(SEED)), thread, scale)
    finally:
        thread.close()


def _measure(
    conversations: "_Conversations", thread: HashingThread, scale: float
) -> Iterator[Measurement]:
    hasher = PromptHasher(conversations.tokenizer, thread, patience_s=_PATIENCE_S)
    routing = _Deciding(hasher)
    asyncio.run(routing.decide(conversations.of(200)))
    for name, tokens in _SIZES.items():
        runs = [
            asyncio.run(_cold_and_next(routing, conversations, scaled(tokens, scale, 100)))
            for _ in range(scaled(_RUNS[name], scale, 2))
        ]
        for which, label in enumerate(("cold", "next")):
            for phase in (*_PHASES, _TOTAL):
                values = [run[which][phase] for run in runs]
                subject = f"decide_{name}_{label}_{phase.removesuffix('_ms')}"
                yield Measurement.of(subject, "ms", values)
    size = scaled(32_000, scale, 100)
    lags = [
        asyncio.run(_lag_p99_ms(hasher, [conversations.of(size) for _ in range(4)]))
        for _ in range(scaled(_LAG_RUNS, scale, 2))
    ]
    yield Measurement.of("loop_lag_p99_four_32k", "ms", lags)


async def _cold_and_next(
    routing: "_Deciding", conversations: "_Conversations", tokens: int
) -> tuple[Phases, Phases]:
    body = conversations.of(tokens)
    cold = await routing.decide(body)
    return cold, await routing.decide(conversations.next_turn(body))


class _Deciding:
    """A router's routing without its sockets."""

    def __init__(self, hasher: PromptHasher) -> None:
        self._index = InProcessIndex()
        self._routing = routing_of(hasher, self._index)

    async def decide(self, body: dict[str, Any]) -> Phases:
        data = json.dumps(body).encode()
        begun = time.perf_counter()
        request = parse_request(CHAT_PATH, data, {})
        parsed = time.perf_counter()
        walk = self._routing.walk(request)
        placement = await walk.place(frozenset())
        ended = time.perf_counter()
        assert walk.without is None and walk.hashed is not None
        placement.release()
        self._index.computed(placement.replica, walk.hashed)
        spans = {"parse_ms": (parsed - begun) * 1e3, _TOTAL: (ended - begun) * 1e3}
        return spans | {phase: walk.phases_ms[phase] for phase in _PHASES[1:]}


async def _hash(hasher: PromptHasher, prompt: Any) -> HashedPrompt:
    try:
        return await hasher.hash(prompt, [scheme()], [NO_KEYS])
    except NotTokenized as error:
        raise AssertionError(f"{error}: {error.detail}") from error


async def _lag_p99_ms(hasher: PromptHasher, bodies: list[dict[str, Any]]) -> float:
    requests = [parse_request(CHAT_PATH, json.dumps(body).encode(), {}) for body in bodies]
    lags: list[float] = []

    async def tick() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append((time.perf_counter() - begun - 0.001) * 1e3)

    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(_hash(hasher, request.prompts[0]) for request in requests))
    await asyncio.sleep(0.002)
    ticking.cancel()
    lags.sort()
    return lags[int(len(lags) * 0.99) - 1] if len(lags) > 1 else lags[0]


class _Conversations:
    """Chats of about so many tokens: a long system prompt, then turns of some 300 tokens."""

    def __init__(self, tokenizer: PoolTokenizer, rng: Random) -> None:
        self.tokenizer, self._rng = tokenizer, rng
        modules = (argparse, asyncio.base_events, inspect, random, threading, typing)
        self._lines = "\n".join(map(inspect.getsource, modules)).splitlines()
        sample = self._text(20_000)
        self._chars_per_token = len(sample) / len(tokenizer.encoder.encode(sample, False))

    def of(self, tokens: int) -> dict[str, Any]:
        chars = int(tokens * self._chars_per_token)
        messages = [_message("system", self._text(min(chars // 3, 8_000)))]
        written = len(messages[0]["content"])
        while written < chars:
            role = "user" if len(messages) % 2 else "assistant"
            messages.append(_message(role, self._text(min(chars - written, 1_200))))
            written += len(messages[-1]["content"]) + 12
        return {"model": MODEL, "messages": messages, "stream": True}

    def next_turn(self, body: dict[str, Any]) -> dict[str, Any]:
        turn = [_message("assistant", self._text(600)), _message("user", self._text(600))]
        return {**body, "messages": [*body["messages"], *turn]}

    def _text(self, chars: int) -> str:
        lines, written = [f"# {self._rng.randrange(10**9)}"], 0
        while written < chars:
            first = self._rng.randrange(len(self._lines))
            lines += self._lines[first : first + 8]
            written += sum(map(len, lines[-8:])) + 8
        return "\n".join(lines)[:chars]


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
