"""Processor time per relayed request: a small chat, and a chat streamed in 64 events.

Honest because every proxy has the same engines, gets the same bytes from the same client, over kept
connections, eight at a time, and is warmed up first; and because only its own processes are
measured, by the kernel's clock of user and system time. Engines, client and each proxy are
processes of their own. All prompts begin alike, as those of one application do, and each ends with
a question that was not asked before, so nobody answers from a cache of whole requests.
What each does for its money is in ``proxies``; ours is checked to have routed by what it knows.
"""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.micro.measurement import scaled
from benchmarks.micro.publishing import process
from benchmarks.peers.engine import CHUNKS, MODEL, Engine, Prompts, engines
from benchmarks.peers.figures import Line, NotMeasured
from benchmarks.peers.keepalive import Answer, post, send_all
from benchmarks.peers.proxies import OURS_PREFIX, PROXIES, Proxy
from benchmarks.peers.running import Program
from benchmarks.peers.taking_turns import Entrant, Round, take_turns
from benchmarks.sim.openai_bodies import ChatBody
from benchmarks.sim.prompts import PromptMaker

SMALL = "cpu_per_small_request"
STREAM = f"cpu_per_{CHUNKS}_chunk_stream"
_REQUESTS = 1_600
_STREAMS = 96
_CLIENTS = 8
_EXACT_S_MAX = 30.0
_SYSTEM = (
    "You are the assistant of a shop for garden tools. Answer in one or two sentences, name the"
    " article's number when you recommend one, and say so when you do not know. Never quote prices;"
    " they are on the page that the customer sees. Returns are free within thirty days."
)


def measure(
    rounds: int, scale: float = 1.0, proxies: Mapping[str, Proxy] = PROXIES
) -> Iterator[Line]:
    requests, streams = (scaled(each, scale, _CLIENTS) for each in (_REQUESTS, _STREAMS))
    with process(engines, _held()) as (_, found):

        def entrant(peer: str, proxy: Proxy) -> Entrant:
            return lambda: _entered(peer, proxy, found, requests, streams)

        entrants = {peer: entrant(peer, proxy) for peer, proxy in proxies.items()}
        yield from take_turns("relaying", {SMALL: "us", STREAM: "us"}, entrants, rounds)


@contextmanager
def _entered(
    peer: str, proxy: Proxy, found: Sequence[Engine], requests: int, streams: int
) -> Iterator[Round]:
    numbers = itertools.count()
    with proxy(found) as program:
        _warm_up(program, numbers, exact=peer == OURS_PREFIX)

        def measured() -> dict[str, float]:
            small = _cpu_us(program, [_chat(next(numbers)) for _ in range(requests)])
            stream = _cpu_us(program, [_chat(next(numbers), True) for _ in range(streams)])
            return {SMALL: small, STREAM: stream}

        yield measured


def _warm_up(program: Program, numbers: Iterator[int], exact: bool) -> None:
    """With ``exact``, until a request was routed by an index that equals the engine's."""
    deadline = time.monotonic() + _EXACT_S_MAX
    while True:
        answers = _send(program, [_chat(next(numbers)) for _ in range(10 * _CLIENTS)])
        answers += _send(program, [_chat(next(numbers), True) for _ in range(_CLIENTS)])
        said = {answer.headers.get("x-pointsman-evidence") for answer in answers}
        if not exact or said == {"exact"}:
            return
        if time.monotonic() > deadline:
            raise NotMeasured(f"routed with the evidence {said}")


def _cpu_us(program: Program, requests: Sequence[bytes]) -> float:
    before = program.cpu_s()
    _send(program, requests)
    return (program.cpu_s() - before) / len(requests) * 1e6


def _send(program: Program, requests: Sequence[bytes]) -> list[Answer]:
    return uvloop.run(send_all(program.port, requests, _CLIENTS))


def _chat(number: int, stream: bool = False) -> bytes:
    body = _body(f"Which spade is for clay, number {number:07}?")
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return post("/v1/chat/completions", json.dumps(body).encode())


def _body(question: str, system: str = _SYSTEM) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": 64}


def _held() -> Prompts:
    """What the first engine holds is what all prompts begin with; the other holds another chat."""
    maker = PromptMaker(TOKENIZER_DIRECTORY)
    bodies = [_body("Which spade is for clay?"), _body("Which?", _SYSTEM[::-1])]
    return Prompts([maker.chat_ids(ChatBody(**body)) for body in bodies])
