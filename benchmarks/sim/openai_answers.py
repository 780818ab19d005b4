"""How answers are worded: the JSON of chats and completions, whole and in pieces, as vLLM's.

An answer is asked for `n` times for each of its prompts; choice ``i`` belongs to prompt ``i // n``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.sim.openai_bodies import ChatBody, CompletionBody


@dataclass
class Choice:
    """What one request of the engine has generated so far."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    cached_tokens: int = 0

    def add(self, token_id: int, text: str, cached_tokens: int) -> None:
        self.token_ids.append(token_id)
        self.text += text
        self.cached_tokens = cached_tokens


class Answer:
    def __init__(
        self,
        body: ChatBody | CompletionBody,
        prompts: Sequence[list[int]],
        *,
        id: str,
        model: str,
        created: int,
        block_size: int,
        echoed: Sequence[str] = (),
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._echoed = echoed
        self._block_size = block_size
        self._is_chat = isinstance(body, ChatBody)
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": id, "object": kind, "created": created, "model": model}
        # Pieces of a completion are of the same kind as the whole.
        piece = "chat.completion.chunk" if self._is_chat else kind
        self._piece_head = self._head | {"object": piece}
        self.choices = [Choice(prompt) for prompt in prompts for _ in range(body.answers)]

    def whole(self) -> dict[str, Any]:
        made = self._head | {
            "choices": [self._whole_choice(index) for index in range(len(self.choices))],
            "usage": self.usage(),
        }
        if self._is_chat and self._body.return_token_ids:
            made["prompt_token_ids"] = self._prompts[0]
        return made

    def opening(self) -> list[dict[str, Any]]:
        """Pieces before the first token: in a chat each choice says whose turn it is."""
        if not self._is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        pieces = [self._piece(index, {"delta": delta}, None) for index in range(len(self.choices))]
        if self._body.return_token_ids:
            pieces[0]["prompt_token_ids"] = self._prompts[0]
        return pieces

    def piece(self, index: int, token_id: int, text: str, finished: bool) -> dict[str, Any]:
        """One token of one choice; the last of them says why it is the last."""
        is_first = len(self.choices[index].token_ids) == 1
        if self._is_chat:
            choice: dict[str, Any] = {"delta": {"content": text}}
        else:
            choice = {"text": (self._echo(index) if is_first else "") + text}
        if self._body.return_token_ids:
            choice["token_ids"] = [token_id]
            if is_first and not self._is_chat:
                choice["prompt_token_ids"] = self.choices[index].prompt_ids
        return self._piece(index, choice, "length" if finished else None)

    def closing(self) -> list[dict[str, Any]]:
        """Pieces after the last token."""
        if not self._body.include_usage:
            return []
        return [self._piece_head | {"choices": [], "usage": self.usage()}]

    def usage(self) -> dict[str, Any]:
        """Tokens of each prompt count once, however many answers it has."""
        prompt_tokens = sum(map(len, self._prompts))
        completion_tokens = sum(len(choice.token_ids) for choice in self.choices)
        last = self.choices[-1]
        full = len(last.prompt_ids) // self._block_size * self._block_size
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": last.cached_tokens,
                "created_cache_tokens": full - last.cached_tokens,
                "multimodal_tokens": None,
            },
            "completion_tokens_details": None,
        }

    def _whole_choice(self, index: int) -> dict[str, Any]:
        choice = self.choices[index]
        made: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": "length"}
        if self._is_chat:
            made["message"] = {"role": "assistant", "content": choice.text, "tool_calls": []}
        else:
            made["text"] = self._echo(index) + choice.text
        if self._body.return_token_ids:
            made["token_ids"] = choice.token_ids
            if not self._is_chat:
                made["prompt_token_ids"] = choice.prompt_ids
        return made

    def _piece(self, index: int, choice: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "logprobs": None, "finish_reason": finish} | choice
        return self._piece_head | {"choices": [choice]}

    def _echo(self, index: int) -> str:
        return self._echoed[index // self._body.answers] if self._echoed else ""
