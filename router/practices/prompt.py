"""A request body as its engine has it: token ids, their text, and where each part stands."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from router.practices.layout import Layout
from router.practices.marking import Place
from router.practices.parting import shared_length
from router.prompts import CHAT_PATH
from router.render import NotRendered


@dataclass(frozen=True, slots=True)
class TokenizedBody:
    """``text`` None: not known. ``start(n)``: where token n begins in it; its end for the last."""

    name: str
    path: str
    body: Mapping[str, Any]
    token_ids: "array[int]"
    text: str | None
    start: Callable[[int], int]

    @property
    def cache_salt(self) -> str | None:
        """As the engine takes it: an empty one is none."""
        salt = self.body.get("cache_salt")
        return salt if isinstance(salt, str) and salt else None


class Prompts(Protocol):
    """Who makes prompts of bodies. ``described`` says it in a few words."""

    @property
    def described(self) -> str: ...

    def tokenized(self, name: str, path: str, body: bytes) -> TokenizedBody:
        """Raises NotReported."""

    def render(self, body: dict[str, Any]) -> str:
        """The text of a chat. Raises NotRendered."""

    def token_ids(self, text: str) -> "array[int]":
        """Of a text as it stands, without special tokens of the tokenizer's own."""


def layout_of(tokenized: TokenizedBody, prompts: Prompts) -> Layout | None:
    """None where there is no text, or another one than the tokens were made of."""
    if tokenized.text is None:
        return None
    if tokenized.path != CHAT_PATH or not isinstance(tokenized.body.get("messages"), list):
        return Layout.of_prompt(tokenized.text)
    try:
        layout = Layout.of(tokenized.body, prompts.render)
    except NotRendered:
        return None
    return layout if layout.text == tokenized.text else None


def place_of(layout: Layout | None, offset: int) -> Place | None:
    return None if layout is None else layout.place(offset)


def starts_by_decoding(
    token_ids: "array[int]", text: str, decode: Callable[["array[int]"], str]
) -> Callable[[int], int]:
    """For tokenizers that do not tell: as far as the text of the tokens before agrees with it.

    A character of several tokens begins with its first.
    """

    def start(number: int) -> int:
        if number >= len(token_ids):
            return len(text)
        return shared_length(decode(token_ids[:number]), text) if number else 0

    return start
