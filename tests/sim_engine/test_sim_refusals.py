import asyncio

import openai
import pytest

from tests.sim_engine.simulated import TextReplica, text_replica

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def parts(*content: object) -> dict:
    return {"messages": [{"role": "user", "content": list(content)}]}


REFUSED = [
    (CHAT, {"messages": []}),
    (CHAT, {"messages": "Hello"}),
    (CHAT, {"messages": [{"content": "Hello"}]}),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}),
    (CHAT, {}),
    (CHAT, parts({"type": "image_url", "image_url": {"url": "data:,"}})),
    (CHAT, HELLO | {"tools": []}),
    (CHAT, HELLO | {"tools": [{"type": "function"}]}),
    (CHAT, HELLO | {"max_tokens": 0}),
    (CHAT, HELLO | {"max_tokens": 100_000}),
    (CHAT, HELLO | {"max_tokens": "many"}),
    (CHAT, HELLO | {"n": 0}),
    (CHAT, HELLO | {"model": 5}),
    (CHAT, HELLO | {"cache_salt": ""}),
    (CHAT, HELLO | {"cache_salt": "a/b"}),
    (CHAT, HELLO | {"cache_salt": "a" * 129}),
    (CHAT, HELLO | {"stream_options": {"include_usage": True}}),
    (CHAT, HELLO | {"stream": True, "prompt_logprobs": 1}),
    (CHAT, HELLO | {"continue_final_message": True}),
    (TEXT, {"prompt": []}),
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": [[]]}),
    (TEXT, {"prompt": ["a", 1]}),
    (TEXT, {"prompt": [6000]}),
    (TEXT, {"prompt": [-1]}),
    (TEXT, {"prompt": None}),
    (TEXT, {"prompt": [1] * 20_000}),
    ("/tokenize", {}),
    (TEXT, b'{"prompt": "a"'),
    (TEXT, b'{"prompt": NaN}'),
    (TEXT, b'{"prompt": "\\ud800"}'),
    (TEXT, b"\xff"),
    (TEXT, b"[]"),
    (TEXT, b"[" * 100_000),
]


@pytest.fixture
async def replica():
    async with text_replica() as made:
        yield made


async def test_what_cannot_be_answered_is_400(replica: TextReplica):
    """Malformed, empty, unknown and too long requests are 400, OpenAI-shaped; nothing runs."""
    for path, body in REFUSED:
        error = (await replica.post(path, body, status=400))["error"]
        assert set(error) == {"message", "type", "param", "code"}, body
        assert (error["type"], error["code"]) == ("BadRequestError", 400) and error["message"]
        assert not replica.engine.has_requests


async def test_unknown_model_is_404(replica: TextReplica):
    """A model that is not served is NotFoundError; no model at all is the one served."""
    for path in (CHAT, TEXT, "/tokenize"):
        body = (HELLO if path == CHAT else {"prompt": "a"}) | {"model": "other"}
        error = (await replica.post(path, body, status=404))["error"]
        assert error == {
            "message": "The model `other` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    assert (await replica.post(CHAT, HELLO))["model"] == "sim"


async def test_client_raises_the_errors_of_openai(replica: TextReplica):
    """The client maps both kinds to its own exceptions."""
    async with openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="-") as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="sim", prompt=[6000])


async def test_context_length_is_an_option():
    """Prompt and answer must fit; without max_tokens the answer takes what room is left."""
    async with text_replica(model_tokens_max=20) as replica:
        for prompt_tokens, more, made in ((18, {}, 2), (19, {"max_tokens": 1}, 1), (1, {}, 16)):
            answer = await replica.post(TEXT, {"prompt": [9] * prompt_tokens} | more)
            assert answer["usage"]["completion_tokens"] == made
        await replica.post(TEXT, {"prompt": [9] * 20}, status=400)
        await replica.post(TEXT, {"prompt": [9] * 19, "max_tokens": 2}, status=400)
        async with replica.session.get(replica.url + "/v1/models") as response:
            assert (await response.json())["data"][0]["max_model_len"] == 20


async def test_truncation_shortens_the_prompt(replica: TextReplica):
    """truncate_prompt_tokens leaves so many tokens, of the end that the tokenizer keeps."""
    more = {"truncate_prompt_tokens": 3, "return_token_ids": True}
    answer = await replica.post(TEXT, {"prompt": [11, 12, 13, 14]} | more)
    assert answer["choices"][0]["prompt_token_ids"] == [11, 12, 13]
    answer = await replica.post(CHAT, HELLO | more)
    assert answer["usage"]["prompt_tokens"] == 3


async def test_requests_at_once_are_told_apart(replica: TextReplica):
    """Fifty different requests at once each get their own answer."""
    bodies = [{"prompt": f"Number {number}", "max_tokens": 6} for number in range(50)]
    alone = [await replica.post(TEXT, body) for body in bodies]
    together = await asyncio.gather(*(replica.post(TEXT, body) for body in bodies))
    assert [made["choices"] for made in together] == [made["choices"] for made in alone]
