import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from benchmarks.sim.cost import Pace
from tests.sim_engine.simulated import TextReplica, prompt_maker, text_replica

QUESTION = [{"role": "user", "content": "Which words are in the file? " * 20}]
LORAS = {"sql": "/adapters/sql"}


@pytest.fixture
async def replica() -> AsyncIterator[TextReplica]:
    async with text_replica(loras=LORAS) as made:
        yield made


@pytest.fixture
async def client(replica: TextReplica) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="-", max_retries=0) as made:
        yield made


def usable(matched_blocks: int, prompt_tokens: int, block_size: int = 16) -> int:
    return min(matched_blocks, (prompt_tokens - 1) // block_size) * block_size


async def test_chat_of_the_async_client(client: openai.AsyncOpenAI):
    """A repeated chat says the same and reports every full block of its prompt as cached."""
    first = await client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=7)
    again = await client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=7)
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.choices[0].finish_reason == "length" and first.usage.completion_tokens == 7
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    tokens = again.usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens == usable(tokens // 16, tokens) > 0


async def test_streamed_chat_equals_the_whole(client: openai.AsyncOpenAI):
    """A stream opens with the role, brings one token per event, and usage last if asked for."""
    request = {"model": "sim", "messages": QUESTION, "max_completion_tokens": 5}
    whole = await client.chat.completions.create(**request)
    stream = await client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-1]]
    assert len(texts) == 5 and "".join(texts) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 5 + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5
    silent = await client.chat.completions.create(**request, stream=True)
    assert [chunk async for chunk in silent][-1].usage is None


async def test_sync_client(replica: TextReplica):
    """The synchronous client gets chats, completions and streams of both."""

    def talk() -> list[str]:
        with openai.OpenAI(base_url=replica.url + "/v1", api_key="-", max_retries=0) as client:
            chat = client.chat.completions.create(model="sim", messages=QUESTION)
            text = client.completions.create(model="sim", prompt="Once upon a time", max_tokens=4)
            stream = client.completions.create(
                model="sim", prompt="Once upon a time", max_tokens=4, stream=True
            )
            pieces = [chunk.choices[0].text for chunk in stream]
            assert len(pieces) == 4 and client.models.list().data[0].id == "sim"
            return [chat.choices[0].message.content, text.choices[0].text, "".join(pieces)]

    chat, whole, streamed = await asyncio.to_thread(talk)
    assert whole == streamed and len(chat.split()) == 16


async def test_list_prompts_and_n_are_choices(client: openai.AsyncOpenAI):
    """Each prompt has n choices, in order; a prompt counts once, its answers all count."""
    ids = prompt_maker().text_ids("Once upon a time", True)
    both = await client.completions.create(
        model="sim", prompt=["Something else", "Once upon a time"], n=2, max_tokens=3
    )
    alone = await client.completions.create(model="sim", prompt=ids, max_tokens=3)
    texts = [choice.text for choice in both.choices]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert texts[2] == texts[3] == alone.choices[0].text != texts[0] == texts[1]
    assert both.usage.completion_tokens == 12
    stream = await client.completions.create(
        model="sim", prompt=["Something else", ids], n=2, max_tokens=3, stream=True
    )
    streamed = [""] * 4
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert both.usage.prompt_tokens == len(ids) + len(
        prompt_maker().text_ids("Something else", True)
    )


async def test_next_turn_finds_the_conversation(client: openai.AsyncOpenAI):
    """The next turn of a conversation finds its history cached, the generated answer included."""
    asked = await client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=40)
    turns = [*QUESTION, {"role": "assistant", "content": asked.choices[0].message.content}]
    turns.append({"role": "user", "content": "And now?"})
    again = await client.chat.completions.create(model="sim", messages=turns)
    # The last generated token is sampled, never computed.
    computed = asked.usage.total_tokens - 1
    assert again.usage.prompt_tokens_details.cached_tokens == computed // 16 * 16


async def test_token_ids_are_returned(client: openai.AsyncOpenAI, replica: TextReplica):
    """return_token_ids gives the prompt's and the answer's ids; /tokenize gives the same ones and
    /detokenize their text."""
    extra = {"return_token_ids": True}
    chat = await client.chat.completions.create(
        model="sim", messages=QUESTION, max_tokens=3, extra_body=extra
    )
    asked = await replica.post("/tokenize", {"model": "sim", "messages": QUESTION})
    assert asked["tokens"] == chat.model_extra["prompt_token_ids"]
    assert asked["count"] == chat.usage.prompt_tokens and asked["max_model_len"] == 1023 * 16
    answer = chat.choices[0].model_extra["token_ids"]
    assert prompt_maker().texts(answer) == chat.choices[0].message.content
    text = await client.completions.create(model="sim", prompt="Some words", extra_body=extra)
    asked = await replica.post("/tokenize", {"prompt": "Some words", "return_token_strs": True})
    assert asked["tokens"] == text.choices[0].model_extra["prompt_token_ids"]
    assert len(asked["token_strs"]) == asked["count"]
    back = await replica.post("/detokenize", {"tokens": asked["tokens"]})
    assert back["prompt"].endswith("Some words")
    stream = await client.chat.completions.create(
        model="sim", messages=QUESTION, max_tokens=3, stream=True, extra_body=extra
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].model_extra["prompt_token_ids"] == chat.model_extra["prompt_token_ids"]
    assert [chunk.choices[0].model_extra["token_ids"][0] for chunk in chunks[1:]] == answer


async def test_ids_can_stand_in_for_messages(replica: TextReplica):
    """kv_transfer_params.prompt_token_ids replaces the template; ids out of range are refused."""
    body = {"messages": QUESTION, "return_token_ids": True}
    given = {"kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}
    answer = await replica.post("/v1/chat/completions", body | given)
    assert answer["prompt_token_ids"] == [5, 6, 7] and answer["usage"]["prompt_tokens"] == 3
    for bad in ([], [-1], [6000], ["5"], "5"):
        given = {"kv_transfer_params": {"prompt_token_ids": bad}}
        await replica.post("/v1/chat/completions", body | given, status=400)


async def test_salt_and_adapter_keep_prompts_apart(replica: TextReplica):
    """Salts and adapters share no block, are found again, and an adapter is a model's name."""
    for more in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "sql"}):
        for first in (True, False):
            answer = await replica.post("/v1/chat/completions", {"messages": QUESTION} | more)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached == 0) == first and answer["model"] == more.get("model", "sim")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"prompt_logprobs": 0}),
        ("/v1/chat/completions", {"echo": True}),
        ("/v1/completions", {"prompt_logprobs": 1}),
        ("/v1/completions", {"echo": True, "logprobs": 1}),
    ],
)
async def test_log_probabilities_of_a_prompt_read_no_cache(
    replica: TextReplica, path: str, more: dict
):
    """What asks for its prompt's log-probabilities computes all of it; others go on reusing."""
    body = {"messages": QUESTION} if "chat" in path else {"prompt": QUESTION[0]["content"]}
    for asked, reads in ((body, False), (body | more, False), (body, True)):
        usage = (await replica.post(path, asked))["usage"]
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == reads


async def test_echo_repeats_the_prompt(replica: TextReplica):
    """echo puts a completion's prompt before its text and alone still reads the cache."""
    body = {"prompt": "Once upon a time " * 20, "echo": True}
    first, again = [await replica.post("/v1/completions", body) for _ in range(2)]
    assert again["choices"][0]["text"].startswith(body["prompt"])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert first["choices"] == again["choices"]


async def test_report_mode_announces_the_prefix_again(replica: TextReplica):
    """kv_cache_report_mode full tells of reused blocks and makes no copy of them."""
    body = {"messages": QUESTION, "max_tokens": 1}
    await replica.post("/v1/chat/completions", body)
    seq, truth = await replica.published(), replica.engine.truth()
    await replica.post("/v1/chat/completions", body)
    assert await replica.published() == seq
    reported = body | {"vllm_xargs": {"kv_cache_report_mode": "full"}}
    await replica.post("/v1/chat/completions", reported)
    assert await replica.published() == seq + 1
    assert replica.engine.truth() == truth


async def test_rank_header_picks_the_rank():
    """The header picks a rank, no number is ignored, out of range is 400; else they take turns."""
    async with text_replica(data_parallel_size=2) as replica:

        async def ask(rank: str | None, status: int = 200) -> list[int]:
            headers = {"X-data-parallel-rank": rank} if rank is not None else {}
            body = {"prompt": "Once upon a time " * 20, "max_tokens": 1}
            await replica.post("/v1/completions", body, status, headers)
            return [len(engine.truth()) for engine in replica.simulator.replica.engines]

        first, second = await ask("1")
        assert first == 0 and second > 0
        assert await ask("2", 400) == await ask("-1", 400) == [0, second]
        await ask("one")
        assert await ask(None) == [second, second]


async def test_events_name_the_blocks_of_the_answer(client: openai.AsyncOpenAI, replica):
    """When an answer is there, the pool holds its blocks under the engine's hashes."""
    chat = await client.chat.completions.create(
        model="sim", messages=QUESTION, extra_body={"return_token_ids": True}
    )
    ids = chat.model_extra["prompt_token_ids"] + chat.choices[0].model_extra["token_ids"][:-1]
    expected = replica.simulator.settings.scheme().block_hashes(ids)
    assert replica.engine.truth() == dict.fromkeys(expected, 1)
    assert await replica.published() > 0


async def test_client_that_goes_away_aborts_its_request():
    """A request is aborted when its client leaves, streaming or not, before and after a token."""
    async with text_replica(Pace(step_seconds=0.01)) as replica:
        base = {"base_url": replica.url + "/v1", "api_key": "-", "max_retries": 0}
        async with openai.AsyncOpenAI(**base) as client:
            endless = {"model": "sim", "messages": QUESTION, "max_tokens": 9000}
            stream = await client.chat.completions.create(**endless, stream=True)
            await anext(aiter(stream))
            await stream.close()
            await replica.until(lambda: not replica.engine.has_requests)
            task = asyncio.create_task(client.chat.completions.create(**endless, n=3))
            await replica.until(lambda: replica.engine.running == 3)
            task.cancel()
            await replica.until(lambda: not replica.engine.has_requests)


async def test_sleep_ends_streams_with_an_error():
    """An answer that the engine drops is an error: a status before it, an event in a stream."""
    async with text_replica(Pace(step_seconds=0.01)) as replica:
        body = {"prompt": "Once", "max_tokens": 9000}
        whole = asyncio.create_task(replica.post("/v1/completions", body, status=500))
        url = replica.url + "/v1/completions"
        async with replica.session.post(url, json=body | {"stream": True}) as response:
            await response.content.readuntil(b"\n\n")
            await replica.until(lambda: replica.engine.running == 2)
            async with replica.session.post(replica.url + "/sleep"):
                rest = await response.text()
        assert '{"error":' in rest and rest.endswith("data: [DONE]\n\n")
        assert (await whole)["error"]["code"] == 500
