"""Prefix fingerprints: one short name for one shared front of prompts."""

import json
import random
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from router.fingerprint import prefix_fingerprint
from router.openai import CHAT_PATH, COMPLETIONS_PATH, parse_request
from router.preparation import Preparation

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "x": name}}}
    for name in ("search", "book", "cancel")
]
SYSTEM = {"role": "system", "content": "You are an agent."}
USER = {"role": "user", "content": "hello"}


def of_request(body: dict[str, Any], path: str = CHAT_PATH) -> str | None:
    """As the router computes it."""
    preparation = Preparation()
    raw = json.dumps(body).encode()
    parsed = parse_request(path, raw, {}, preparation.known_tools)
    return preparation.prepare(parsed, None, CIMultiDict()).fingerprint


def fingerprint(*messages: Any, **fields: Any) -> str | None:
    body = {"messages": list(messages), **fields}
    assert of_request(body) == prefix_fingerprint(body)
    return of_request(body)


def test_the_definition() -> None:
    """sha256 over the digests of the system text and of the tools in order, 12 hex digits."""
    text = '[{"function":{"name":"a"},"type":"function"}]'
    tools = [{"type": "function", "function": {"name": "a"}}]
    expected = sha256(
        sha256(b"You are an agent.").digest() + sha256(text.encode()).digest()
    ).hexdigest()
    assert fingerprint(SYSTEM, USER, tools=tools) == expected[:12]
    expected = sha256(sha256(b"You are an agent.").digest() + sha256(b"").digest()).hexdigest()
    assert fingerprint(SYSTEM, USER) == expected[:12]


@settings(deadline=None)
@given(st.permutations(TOOLS), st.randoms(use_true_random=False))
def test_orders_do_not_matter(tools: list[dict[str, Any]], rng: random.Random) -> None:
    """Permuted tools with permuted keys, and what follows the front, leave it as it is."""
    tools = [dict(rng.sample(list(tool.items()), len(tool))) for tool in tools]
    assert fingerprint(SYSTEM, USER, tools=tools) == fingerprint(SYSTEM, tools=TOOLS, seed=1)


def test_what_makes_another_prefix_makes_another_fingerprint() -> None:
    """The system text, a tool more, no tools, no system text."""
    others = {
        fingerprint(SYSTEM, USER, tools=TOOLS),
        fingerprint(SYSTEM, USER, tools=TOOLS[:2]),
        fingerprint(SYSTEM, USER),
        fingerprint({**SYSTEM, "content": "You are an agent. 12:01"}, USER, tools=TOOLS),
        fingerprint(USER, tools=TOOLS),
    }
    assert len(others) == 5


def test_a_text_as_parts_is_the_same_text() -> None:
    """As it is to most templates; a line that one client changes each time does not count."""
    parts = [{"type": "text", "text": "You are"}, {"type": "text", "text": "an agent."}]
    billed = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, *parts]
    text = {**SYSTEM, "content": "You are\nan agent."}
    assert fingerprint({**SYSTEM, "content": parts}) == fingerprint(text)
    assert fingerprint({**SYSTEM, "content": billed}) == fingerprint(text)
    assert fingerprint({**text, "role": "developer"}) == fingerprint(text)


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [SYSTEM, 5],
        [SYSTEM, {"role": "user", "content": "\ud800"}],
    ],
)
def test_a_request_that_cannot_be_hashed_has_one_too(messages: list[Any]) -> None:
    """It needs no tokens: images, odd messages and lenient JSON do not matter."""
    assert fingerprint(*messages, tools=TOOLS) == fingerprint(SYSTEM, tools=TOOLS)


def test_a_system_text_that_utf8_does_not_have_is_named_all_the_same() -> None:
    """A lone surrogate gets through Python's parser."""
    assert fingerprint({**SYSTEM, "content": "\ud800"}) is not None


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER]},
        {"messages": "none"},
        {"messages": [SYSTEM], "tools": []},
        {"messages": [SYSTEM], "tools": [{"type": "custom"}]},
    ],
)
def test_where_nothing_is_shared_there_is_none(body: dict[str, Any]) -> None:
    """Neither system nor tools, or tools that the engine refuses."""
    assert of_request(body) is None and prefix_fingerprint(body) is None


def test_a_completion_has_none() -> None:
    """It has no system message, whatever it calls its members."""
    assert of_request({"prompt": "x", "messages": [SYSTEM]}, COMPLETIONS_PATH) is None
