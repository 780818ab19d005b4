"""A shell: the endpoints of a simulated replica that take and return text.

Rules it keeps:

* Tokenizing has a thread of its own: a long prompt does not hold up the engine's steps.
* Everything that can be refused is refused before the first byte of an answer.
* ``cached_tokens`` is always reported, as with vLLM's --enable-prompt-tokens-details.
* An answer that is cut off in the middle of a stream ends with an error event, as vLLM's does.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from benchmarks.sim.bodies import GenerateBody
from benchmarks.sim.faults import StreamFault
from benchmarks.sim.openai_answers import Answer
from benchmarks.sim.openai_bodies import (
    ChatBody,
    CompletionBody,
    Refused,
    TextBody,
    TokenizeBody,
    decode,
)
from benchmarks.sim.prompts import PromptMaker
from benchmarks.sim.server import SIMULATOR, create_app, reset_connection
from benchmarks.sim.simulator import RequestAborted, Simulator
from benchmarks.sim.steps import Progress

_RANK_HEADER = "X-data-parallel-rank"
_Result = TypeVar("_Result")
_Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


class TextSide:
    """What turns text into requests of one simulator."""

    def __init__(self, simulator: Simulator, prompts: PromptMaker) -> None:
        self.simulator = simulator
        self.prompts = prompts
        self.tokens_max = simulator.settings.context_tokens_max
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def tokenizing(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def closing(self, app: web.Application) -> AsyncIterator[None]:
        yield
        self._thread.shutdown(wait=False)

    def rank(self, request: web.Request) -> int:
        """The rank that the header asks for; what is no number is ignored."""
        ranks = self.simulator.settings.data_parallel_size
        try:
            rank = int(request.headers.get(_RANK_HEADER, ""))
        except ValueError:
            return self.simulator.least_loaded_rank()
        if not 0 <= rank < ranks:
            raise Refused(f"data_parallel_rank {rank} is out of range [0, {ranks}).")
        return rank

    def check_model(self, model: str | None) -> None:
        settings = self.simulator.settings
        if model is not None and model != settings.model and model not in settings.loras:
            raise Refused(f"The model `{model}` does not exist.", "model", 404)

    def request_for(
        self, body: TextBody, token_ids: list[int], tokens: int, rank: int
    ) -> GenerateBody:
        lora = body.model if body.model in self.simulator.settings.loras else None
        return GenerateBody(
            token_ids=token_ids,
            max_tokens=tokens,
            cache_salt=body.cache_salt,
            lora_name=lora,
            skip_cache=body.skip_cache,
            report_full=body.report_full,
            rank=rank,
        )


TEXT_SIDE = web.AppKey("text_side", TextSide)


def create_openai_app(simulator: Simulator, prompts: PromptMaker) -> web.Application:
    """`create_app` and the endpoints for text."""
    app = create_app(simulator)
    side = app[TEXT_SIDE] = TextSide(simulator, prompts)
    app.cleanup_ctx.append(side.closing)
    app.add_routes(
        [
            web.post("/v1/chat/completions", _refusals(_chat)),
            web.post("/v1/completions", _refusals(_completions)),
            web.post("/tokenize", _refusals(_tokenize)),
            web.post("/detokenize", _refusals(_detokenize)),
        ]
    )
    return app


def _refusals(handler: _Handler) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            return web.json_response(refused.body(), status=refused.status)
        except ValueError as error:
            return web.json_response(Refused(str(error)).body(), status=400)
        except RequestAborted as error:
            return web.json_response(Refused(f"{error} was aborted", status=500).body(), status=500)

    return handle


async def _chat(request: web.Request) -> web.StreamResponse:
    side, body = request.app[TEXT_SIDE], decode(await request.read(), ChatBody)
    side.check_model(body.model)
    body.check()
    prompt = await side.tokenizing(side.prompts.chat_ids, body)
    return await _answer(request, body, [prompt], "chatcmpl")


async def _completions(request: web.Request) -> web.StreamResponse:
    side, body = request.app[TEXT_SIDE], decode(await request.read(), CompletionBody)
    side.check_model(body.model)
    body.check()
    prompts = [
        await side.tokenizing(
            side.prompts.completion_ids,
            prompt,
            body.add_special_tokens,
            body.truncate_prompt_tokens,
        )
        for prompt in body.prompts()
    ]
    echoed = []
    if body.echo:
        echoed = [await side.tokenizing(side.prompts.texts, prompt) for prompt in prompts]
    return await _answer(request, body, prompts, "cmpl", echoed)


async def _tokenize(request: web.Request) -> web.StreamResponse:
    side, raw = request.app[TEXT_SIDE], await request.read()
    fields = decode(raw, _Form)
    if fields.messages is None:
        text = decode(raw, TokenizeBody)
        side.check_model(text.model)
        ids = await side.tokenizing(side.prompts.tokenize_ids, text)
    else:
        chat = decode(raw, ChatBody)
        side.check_model(chat.model)
        # What vLLM's chat form does not know.
        chat.reasoning_effort = chat.documents = chat.truncate_prompt_tokens = None
        ids = await side.tokenizing(side.prompts.chat_ids, chat)
    strings = None
    if fields.return_token_strs:
        strings = await side.tokenizing(side.prompts.token_strings, ids)
    return web.json_response(
        {"count": len(ids), "max_model_len": side.tokens_max, "tokens": ids, "token_strs": strings}
    )


async def _detokenize(request: web.Request) -> web.StreamResponse:
    side, body = request.app[TEXT_SIDE], decode(await request.read(), _TokensForm)
    side.check_model(body.model)
    tokens = side.prompts.checked(body.tokens) if body.tokens else []
    return web.json_response({"prompt": await side.tokenizing(side.prompts.texts, tokens)})


class _TokensForm(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class _Form(msgspec.Struct):
    messages: Any = None
    return_token_strs: bool | None = False


async def _answer(
    request: web.Request,
    body: ChatBody | CompletionBody,
    prompts: list[list[int]],
    prefix: str,
    echoed: list[str] | None = None,
) -> web.StreamResponse:
    """Generate for every prompt at once; whole or as a stream, as the body says."""
    side, simulator = request.app[TEXT_SIDE], request.app[SIMULATOR]
    bodies = []
    for prompt in prompts:
        if not prompt:
            raise Refused("The prompt is empty.", "prompt")
        tokens = body.tokens_to_generate(len(prompt), side.tokens_max)
        rank = side.rank(request)
        bodies += [side.request_for(body, prompt, tokens, rank)] * body.answers
    answer = Answer(
        body,
        prompts,
        id=f"{prefix}-{request.headers.get('X-Request-Id') or uuid.uuid4().hex}",
        model=body.model or simulator.settings.model,
        created=int(time.time()),
        block_size=simulator.settings.block_size,
        echoed=echoed or (),
    )
    fault = simulator.faults.take_stream()
    if fault is not None and fault.tokens == 0:
        await _suffer(request, fault)
        fault = None
    with simulator.running(bodies) as tokens_made:
        made = _with_fault(request, tokens_made, fault)
        if body.stream:
            return await _stream(request, answer, made)
        async for index, progress in made:
            text = side.prompts.words[progress.token_id]
            answer.choices[index].add(progress.token_id, text, progress.cached_tokens)
        return web.json_response(answer.whole())


async def _stream(
    request: web.Request, answer: Answer, made: AsyncIterator[tuple[int, Progress]]
) -> web.StreamResponse:
    """Headers at once, then an event for each token."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    words, opened = request.app[TEXT_SIDE].prompts.words, False
    await response.prepare(request)
    try:
        async for index, progress in made:
            token_id, text = progress.token_id, words[progress.token_id]
            answer.choices[index].add(token_id, text, progress.cached_tokens)
            pieces = [] if opened else answer.opening()
            opened = True
            pieces.append(answer.piece(index, token_id, text, progress.finished))
            await response.write(_events(pieces))
        await response.write(_events(answer.closing()))
    except RequestAborted as error:
        await response.write(_events([Refused(f"{error} was aborted", status=500).body()]))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _with_fault(
    request: web.Request, made: AsyncIterator[tuple[int, Progress]], fault: StreamFault | None
) -> AsyncIterator[tuple[int, Progress]]:
    count = 0
    async for index, progress in made:
        if fault is not None and count == fault.tokens:
            await _suffer(request, fault)
        yield index, progress
        count += 1


async def _suffer(request: web.Request, fault: StreamFault) -> None:
    if fault.seconds is not None:
        await asyncio.sleep(fault.seconds)
        return
    reset_connection(request)
    # The lost connection cancels this handler.
    await asyncio.get_running_loop().create_future()


def _events(pieces: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(piece) + b"\n\n" for piece in pieces)
