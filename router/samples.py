"""Which requests are kept as samples, and what of them.

Rules it keeps:

* A conversation is kept whole or not at all: what decides is its session, else its first message,
  which every step repeats. All routers of a fleet decide alike. A completion without a session
  repeats nothing that can be told from its prompt, and is kept or not by itself.
* A line holds the body as the engine got it, and never a header. What names a tenant or a user
  beside the prompt (salt, session, ``user``, metadata) is replaced by a tag that tells equal from
  different and nothing else, or left out.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from router.openai import ChatPrompt, ParsedRequest

# A first message is told from others by its beginning; more would only cost time.
_KEY_CHARS_MAX = 64 << 10
_TAGGED = ("cache_salt", "prompt_cache_key", "session_id", "user", "safety_identifier")
_LEFT_OUT = ("metadata",)

Tag = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """``facts``: what the router and the engine said of the request. The parsed request is not
    kept: it takes several times the memory of its bytes."""

    path: str
    session: str | None
    body: bytes
    facts: dict[str, Any]

    @classmethod
    def of(cls, request: ParsedRequest, facts: dict[str, Any]) -> "Sample":
        return cls(request.path, request.session, request.body, facts)


def is_sampled(request: ParsedRequest, share: float) -> bool:
    """For ``share`` of all conversations, by a hash of what is the same in each of their steps."""
    if share <= 0:
        return False
    key = request.session or _first_said(request)
    number = int.from_bytes(blake2b(key.encode("utf-8", "replace"), digest_size=8).digest())
    return number < share * 2**64


def sample_line(sample: Sample, tag: Tag) -> bytes:
    """One line of JSON. Raises ValueError where the body is no strict JSON: it is not kept."""
    try:
        body = msgspec.json.decode(sample.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("the body is no strict JSON") from error
    for name in _TAGGED:
        if isinstance(value := body.get(name), str) and value:
            body[name] = tag(value)
    for name in _LEFT_OUT:
        body.pop(name, None)
    line = {
        **sample.facts,
        "path": sample.path,
        "session": None if sample.session is None else tag(sample.session),
        "body": body,
    }
    return msgspec.json.encode(line) + b"\n"


def tag_under(secret: bytes) -> Tag:
    """Tags that nobody can compute, so that a guessed salt cannot be confirmed."""
    return lambda value: hmac.digest(secret, value.encode("utf-8", "replace"), "sha256").hex()[:16]


def _first_said(request: ParsedRequest) -> str:
    prompt = request.prompts[0] if request.prompts else None
    if not isinstance(prompt, ChatPrompt):
        return request.body[:_KEY_CHARS_MAX].decode("utf-8", "replace")
    for message in prompt.body["messages"]:
        if message.get("role") not in ("system", "developer"):
            content = message.get("content")
            return content[:_KEY_CHARS_MAX] if isinstance(content, str) else repr(content)
    return ""
