"""Bodies to prompts with the model's own tokenizer and chat template, in this process."""

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec

from router.pool_tokenizer import PoolTokenizer
from router.practices.prompt import TokenizedBody, starts_by_decoding
from router.prompts import CHAT_PATH, ChatPrompt, TextPrompt
from router.tokens import NotReported, Tokens, tokens_of


class LocalPrompts:
    def __init__(self, tokenizer: PoolTokenizer, folder: str) -> None:
        self._tokenizer, self._folder = tokenizer, folder

    @property
    def described(self) -> str:
        return f"by the tokenizer in {self._folder}"

    def tokenized(self, name: str, path: str, body: bytes) -> TokenizedBody:
        """Raises NotReported."""
        if path == CHAT_PATH and self._tokenizer.templates is None:
            raise NotReported("there is no chat template here: ask a replica instead (--url)")
        prompts = tokens_of(path, body, self._tokenizer)
        if len(prompts) != 1:
            raise NotReported(f"has {len(prompts)} prompts: give a body for each")
        (tokens,) = prompts
        fields = msgspec.json.decode(body, type=dict[str, Any])
        text = self._decode(tokens.token_ids) if tokens.text is None else tokens.text
        return TokenizedBody(name, path, fields, tokens.token_ids, text, self._start(tokens, text))

    def render(self, body: dict[str, Any]) -> str:
        """Raises NotRendered."""
        return self._tokenizer.render(ChatPrompt(body)).text

    def token_ids(self, text: str) -> "array[int]":
        return self._tokenizer.encoder.encode(text, False)

    def _decode(self, token_ids: "array[int]") -> str:
        return str(self._tokenizer.reference.decode(token_ids.tolist()))

    def _start(self, tokens: Tokens, text: str) -> Callable[[int], int]:
        starts = None
        if tokens.prompt is not None and self._tokenizer.reference.is_fast:
            starts = self._starts(tokens.prompt, tokens.token_ids)
        if starts is None:
            return starts_by_decoding(tokens.token_ids, text, self._decode)
        return lambda number: starts[number] if number < len(starts) else len(text)

    def _starts(self, prompt: TextPrompt, token_ids: "array[int]") -> list[int] | None:
        """None where transformers makes other tokens of the text than those that are shown.

        Special tokens that are added stand nowhere: they begin where the one before does.
        """
        encoded = self._tokenizer.reference(
            prompt.text,
            add_special_tokens=prompt.add_special_tokens,
            return_offsets_mapping=True,
            verbose=False,
        )
        starts = list(accumulate((start for start, _ in encoded["offset_mapping"]), max))
        ids = array("I", encoded["input_ids"])
        is_left = prompt.truncation is not None and prompt.truncation.side == "left"
        kept = slice(len(ids) - len(token_ids), None) if is_left else slice(len(token_ids))
        return starts[kept] if ids[kept] == token_ids else None
