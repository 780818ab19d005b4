"""The requests that `--probe` sends, and what their answers tell.

Rules: each is as small as it can be and generates one token. The prompt of a probe was never sent
before, so that the engine announces its first block; sent a second time, it is found again. Answers
are untrusted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from indexer.doctor.facts import ParityFacts

# Hex digits take at most a token each; vLLM's usual tokenizers put two or three into one.
_CHARS_PER_TOKEN = 4
_BLOCK_SIZE_ASSUMED = 64
# Two blocks, so that one is found again whole.
_BLOCKS = 2.5
_TOKENS_MAX = 4096
_SHOWN_CHARS_MAX = 300

ChatIds = Callable[[bytes], Sequence[int]]
Answer = Mapping[str, Any] | str


def probe_body(model: str, nonce: str, block_size: int | None) -> bytes:
    """A completion whose prompt no other nonce gives."""
    tokens = min(_TOKENS_MAX, _BLOCKS * (block_size or _BLOCK_SIZE_ASSUMED))
    chars, text, part = int(tokens * _CHARS_PER_TOKEN), "", nonce
    while len(text) < chars:
        part = sha256(part.encode()).hexdigest()
        text += part
    prompt = text[:chars]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return json.dumps(body).encode()


def cached_tokens_of(answer: Mapping[str, Any]) -> int | None:
    """What ``usage.prompt_tokens_details`` says; None where it says nothing."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) and not isinstance(cached, bool) else None


def parity_bodies(model: str) -> list[tuple[str, bytes]]:
    """Three chats in which tokenizers and templates differ, each with its name."""
    return [(name, _chat(model, fields)) for name, fields in _CHATS.items()]


def compared(name: str, body: bytes, answer: Answer, chat_ids: ChatIds) -> ParityFacts:
    """``answer``: the engine's, or in words why there is none."""
    theirs = None if isinstance(answer, str) else _prompt_ids(answer)
    try:
        ours: Sequence[int] | None = list(chat_ids(body))
    except ValueError as error:
        return ParityFacts(name, None, theirs, f"here: {error}")
    if isinstance(answer, str):
        return ParityFacts(name, ours, None, f"the engine: {answer}")
    why_not = "" if theirs is not None else "the engine does not return token ids"
    return ParityFacts(name, ours, theirs, why_not)


def shown(status: int, body: bytes) -> str:
    """A refusal in one line: the engine's own message where it has one."""
    text = body.decode(errors="replace")
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = text
    return f"{status} {' '.join(str(message).split())}"[:_SHOWN_CHARS_MAX]


def _prompt_ids(answer: Mapping[str, Any]) -> list[int] | None:
    ids = answer.get("prompt_token_ids")
    if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
        return None
    return ids


def _chat(model: str, fields: Mapping[str, Any]) -> bytes:
    settings = {"model": model, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    return json.dumps({**settings, **fields}).encode()


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
        },
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "unit": "c"}'},
}
_CHATS: Mapping[str, Mapping[str, Any]] = {
    "text": {
        "messages": [
            {"role": "user", "content": "  Größe: 3.14159\r\n\tdef f(x):  # 日本語 👍🏽\n"}
        ]
    },
    "system and parts": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
            },
            {"role": "assistant", "content": "Three."},
            {"role": "user", "content": "And?"},
        ]
    },
    # With "none" they are in the prompt all the same, and engines that parse no calls take it.
    "tools": {
        "tools": [_WEATHER],
        "tool_choice": "none",
        "messages": [
            {"role": "user", "content": "Weather in Zürich?"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21}'},
        ],
    },
}
