"""The real openai client, sync and async, streaming and not, through the router."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.services import SYSTEM, Services, services

MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Which seats are left in the first row?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_seat",
            "description": "Seats that are left",
            "parameters": {"type": "object", "properties": {"row": {"type": "integer"}}},
        },
    }
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services(tmp_path_factory.mktemp("sdk"), together=True) as made:
        yield made


@pytest.fixture
def client(fleet: Services) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none") as made:
        yield made


def test_models_are_listed(client: openai.OpenAI) -> None:
    """The first thing an SDK asks."""
    assert [model.id for model in client.models.list()] == ["sim"]


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    """Content, usage and cached tokens arrive as the engine sent them."""
    for _ in range(2):
        answer = client.chat.completions.create(
            model="sim", messages=MESSAGES, tools=TOOLS, max_tokens=5
        )
        assert answer.choices[0].message.content
        assert answer.usage is not None and answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


def test_a_chat_is_streamed(client: openai.OpenAI) -> None:
    """Piece by piece, with the usage at the end, and the same text as without streaming."""
    options = {"model": "sim", "messages": MESSAGES, "max_tokens": 6}
    whole = client.chat.completions.create(**options).choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole and len(pieces) > 5
    assert chunks[-1].usage.completion_tokens == 6


def test_completions_and_several_choices(client: openai.OpenAI) -> None:
    """The older endpoint, and n > 1."""
    answer = client.completions.create(model="sim", prompt="Once upon a time", n=2, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_errors_are_the_sdks_own(client: openai.OpenAI, fleet: Services) -> None:
    """What the engine refuses and what the router refuses: exceptions that an SDK's user knows."""
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="sim", input="x")


async def test_the_async_client_is_answered_too(fleet: Services) -> None:
    """Both ways, and a stream that is left early."""
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as client:
        options = {"model": "sim", "messages": MESSAGES, "max_tokens": 200}
        answer = await client.chat.completions.create(**{**options, "max_tokens": 3})
        assert answer.choices[0].message.content
        stream = await client.chat.completions.create(**options, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
    fleet.at_rest()
