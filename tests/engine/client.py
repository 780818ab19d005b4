"""One request as a client sends it, and what came back of it."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from router.openai import CHAT_PATH
from tests.engine.engine import MODEL

_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Ask:
    """``leave_after``: the client goes after so many events of the stream."""

    path: str
    body: dict[str, Any]
    leave_after: int | None = None
    name: str = ""


@dataclass
class Answer:
    """``prompt_ids`` and ``token_ids`` are those of the first prompt and its first choice.

    ``cached_tokens`` None: the engine did not say, because it refused or the client left.
    """

    ask: Ask
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    left: bool = False
    error: str = ""
    sent_at: float = 0.0
    done_at: float = 0.0

    @property
    def message(self) -> dict[str, str]:
        """As it stands in the history of the next turn."""
        return {"role": "assistant", "content": self.text}

    def take(self, event: dict[str, Any]) -> None:
        """One event of a stream, or the whole of an answer."""
        for choice in event.get("choices", ())[:1]:
            if choice.get("index", 0):
                continue
            piece = choice.get("message") or choice.get("delta") or {}
            self.text += choice.get("text") or piece.get("content") or ""
            self.token_ids += choice.get("token_ids") or ()
            self.prompt_ids = self.prompt_ids or choice.get("prompt_token_ids")
        self.prompt_ids = self.prompt_ids or event.get("prompt_token_ids")
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def chat(messages: list[Any], leave_after: int | None = None, **fields: Any) -> Ask:
    return _ask(CHAT_PATH, {"messages": messages} | fields, leave_after)


def completion(prompt: Any, leave_after: int | None = None, **fields: Any) -> Ask:
    return _ask("/v1/completions", {"prompt": prompt} | fields, leave_after)


def _ask(path: str, fields: dict[str, Any], leave_after: int | None) -> Ask:
    body = {"model": MODEL, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True} | fields
    if body.get("stream"):
        body.setdefault("stream_options", {"include_usage": True})
    return Ask(path, body, leave_after)


def send(url: str, ask: Ask) -> Answer:
    answer = Answer(ask, sent_at=time.time())
    body = json.dumps(ask.body).encode()
    headers = {"Content-Type": "application/json"}
    with httpx.stream(
        "POST", url + ask.path, content=body, headers=headers, timeout=_TIMEOUT_S
    ) as response:
        answer.status, answer.headers = response.status_code, response.headers
        if response.status_code == 200 and ask.body.get("stream"):
            _read_stream(response, answer)
        else:
            content = response.read()
            if response.status_code == 200:
                answer.take(json.loads(content))
            else:
                answer.error = content.decode(errors="replace")[:500]
    answer.done_at = time.time()
    return answer


def _read_stream(response: httpx.Response, answer: Answer) -> None:
    events = 0
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        answer.take(json.loads(line[6:]))
        events += 1
        if events == answer.ask.leave_after:
            answer.left = True
            return
