"""The bodies that warm a replica up."""

import json
from pathlib import Path

import pytest

from router.preparation import PoolPractices
from router.prompts import CHAT_PATH, COMPLETIONS_PATH
from router.warm_bodies import (
    BODIES_MAX,
    NoWarmBodies,
    load_warm_bodies,
    prepared_warm_bodies,
    warm_body,
)

MESSAGES = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "search"}}]


def test_the_prompt_stays_and_the_answer_is_one_token() -> None:
    """What decides the prompt is sent as it was written; nothing that makes the answer longer."""
    fields = {
        "model": "m",
        "messages": MESSAGES,
        "tools": TOOLS,
        "cache_salt": "s",
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 500,
        "max_completion_tokens": 600,
        "min_tokens": 20,
        "n": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = warm_body("a.json", json.dumps(fields).encode()).request
    assert json.loads(request.body) == {
        "model": "m",
        "messages": MESSAGES,
        "tools": TOOLS,
        "cache_salt": "s",
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 1,
        "stream": False,
    }
    assert (request.path, request.cache_salt, request.sequences) == (CHAT_PATH, "s", 1)


def test_a_prompt_is_a_completion() -> None:
    """Which path a body is for, its members say."""
    request = warm_body("a.json", b'{"prompt": "Once upon a time"}').request
    assert request.path == COMPLETIONS_PATH


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"messages": [\n  {"role": "user",}]}', r"a\.json: no JSON: .* at line 2, column 1\d"),
        (b"\xff", r"a\.json: no JSON: "),
        (b"[" * 100_000, r"a\.json: no JSON: "),
        (b'{"input": "x"}', r"a\.json: it is no request body"),
        (b"[]", r"a\.json: it is no request body"),
    ],
)
def test_what_is_no_body_is_named(text: bytes, says: str) -> None:
    """With its file, and line and column where they are known."""
    with pytest.raises(NoWarmBodies, match=says):
        warm_body("a.json", text)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """The order in which they are sent is the operator's; other files are none of ours."""
    for name in ("20-tools.json", "10-platform.json", "README.md"):
        (tmp_path / name).write_text(json.dumps({"messages": MESSAGES}))
    assert [body.name for body in load_warm_bodies(str(tmp_path))] == [
        "10-platform.json",
        "20-tools.json",
    ]


def test_no_folder_an_empty_one_and_too_full_a_one_are_refused(tmp_path: Path) -> None:
    """A warm-up that would do nothing, or go on for minutes, is a mistake."""
    with pytest.raises(NoWarmBodies, match="No such file"):
        load_warm_bodies(str(tmp_path / "nowhere"))
    with pytest.raises(NoWarmBodies, match=r"there is no \*\.json in it"):
        load_warm_bodies(str(tmp_path))
    for number in range(BODIES_MAX + 1):
        (tmp_path / f"{number}.json").write_text('{"prompt": "a"}')
    with pytest.raises(NoWarmBodies, match=f"{BODIES_MAX + 1} bodies; at most {BODIES_MAX}"):
        load_warm_bodies(str(tmp_path))


def test_a_body_is_prepared_as_its_pools_clients_bodies_are() -> None:
    """Where tools are put in order, the prefix that is warmed up is the one that will be asked."""
    tools = [{"type": "function", "function": {"name": name}} for name in "ba"]
    text = json.dumps({"messages": [{"role": "user", "content": "x"}], "tools": tools}).encode()
    body = warm_body("a.json", text)
    for practices, names in (
        (PoolPractices(), ["b", "a"]),
        (PoolPractices(canonical_tools=True), ["a", "b"]),
    ):
        (prepared,) = prepared_warm_bodies([body], practices)
        sent = json.loads(prepared.request.body)
        assert [tool["function"]["name"] for tool in sent["tools"]] == names
        assert sent["max_tokens"] == 1
