"""What the router makes of one request body: token ids and block hashes, for a person to see.

It is the router's own code: ``parse_request``, the pool's tokenizer, ``PrefixHashes``. Rules:

* A body that the router would route without hashes is refused here, with the reason.
* There is one report per engine request, so a completion with a list of prompts has several.
* ``text`` is what the tokenizer was given: a rendered chat, or a completion's prompt as it stands.
  Special tokens that are added and truncation come after it. Where the body has token ids there is
  no text.
* The body's ``model`` names the adapter or the base model, as it does for the engine.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proto.blockhash import HashScheme, RequestKeys, show
from router.hashing import PrefixHashes
from router.openai import CHAT_PATH, COMPLETIONS_PATH, BadRequest, ParsedRequest, parse_request
from router.pool_tokenizer import PoolTokenizer
from router.prompts import ChatPrompt, OpaquePrompt, Prompt, TextPrompt
from router.render import NotRendered


class NotReported(Exception):
    """There are no token ids or hashes of this body; the text says why."""


@dataclass(frozen=True, slots=True)
class Lora:
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """``prompt``: what was given to the tokenizer; None where the body has token ids."""

    prompt: TextPrompt | None
    token_ids: "array[int]"

    @property
    def text(self) -> str | None:
        return None if self.prompt is None else self.prompt.text


def tokens_of(path: str, body: bytes, tokenizer: PoolTokenizer) -> list[Tokens]:
    """Every prompt of a body for one of the two completion paths. Raises NotReported."""
    return _tokenized(_parsed(path, body), tokenizer)


def token_reports(
    path: str,
    body: bytes,
    tokenizer: PoolTokenizer,
    scheme: HashScheme,
    lora: Lora | None = None,
    *,
    with_text: bool = False,
) -> list[dict[str, Any]]:
    """One JSON object per prompt. Raises NotReported."""
    request = _parsed(path, body)
    keys, hashes = _keys(request, scheme, lora), PrefixHashes()
    reports = []
    for index, tokens in enumerate(_tokenized(request, tokenizer)):
        report: dict[str, Any] = {"prompt": index} if len(request.prompts) > 1 else {}
        report["token_ids"] = tokens.token_ids.tolist()
        report["count"] = len(tokens.token_ids)
        block_hashes = hashes.block_hashes(scheme, tokens.token_ids, keys)
        report["block_hashes"] = [show(block_hash) for block_hash in block_hashes]
        if with_text:
            report["text"] = tokens.text
        reports.append(report)
    return reports


def _parsed(path: str, body: bytes) -> ParsedRequest:
    try:
        return parse_request(path, body, {})
    except BadRequest as error:
        raise NotReported(error.message) from None


def _tokenized(request: ParsedRequest, tokenizer: PoolTokenizer) -> list[Tokens]:
    where = [
        f"prompt {i}: " if len(request.prompts) > 1 else "" for i in range(len(request.prompts))
    ]
    tokens = []
    for index, prompt in enumerate(request.prompts):
        try:
            tokens.append(_tokens(prompt, tokenizer))
        except NotRendered as error:
            raise NotReported(f"{where[index]}not tokenized: {error}{_hint(request)}") from None
        # A tokenizer is foreign code and raises what it likes.
        except Exception as error:
            raise NotReported(f"{where[index]}the tokenizer failed: {error!r}"[:300]) from error
    return tokens


def _tokens(prompt: Prompt, tokenizer: PoolTokenizer) -> Tokens:
    if isinstance(prompt, OpaquePrompt):
        raise NotRendered(prompt.reason)
    if isinstance(prompt, ChatPrompt):
        prompt = tokenizer.render(prompt)
    if not isinstance(prompt, TextPrompt):
        return Tokens(None, prompt.token_ids)
    steps = tokenizer.encode_steps(prompt)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return Tokens(prompt, stop.value)


def _hint(request: ParsedRequest) -> str:
    """Half of these failures are a body of the other path."""
    first: Sequence[Prompt] = request.prompts[:1]
    reason = next((prompt.reason for prompt in first if isinstance(prompt, OpaquePrompt)), "")
    if request.path == CHAT_PATH and reason.startswith("messages is no"):
        return f" (a completion needs --path {COMPLETIONS_PATH})"
    if request.path == COMPLETIONS_PATH and reason.startswith("prompt is no"):
        return f" (a chat needs --path {CHAT_PATH})"
    return ""


def _keys(request: ParsedRequest, scheme: HashScheme, lora: Lora | None) -> RequestKeys:
    if lora is None:
        return RequestKeys(cache_salt=request.cache_salt)
    if request.model != lora.name:
        raise NotReported(
            f"the body's model is {request.model!r}, not the adapter {lora.name!r}: the engine uses"
            " an adapter where model names it"
        )
    if scheme.describe()["extra_keys"] == "lora_int":
        raise NotReported(
            "before vLLM 0.11.1 (extra_keys=lora_int) an adapter's hashes depend on the order in"
            " which adapters were loaded: they cannot be computed"
        )
    return RequestKeys(lora_name=lora.name, lora_path=lora.path, cache_salt=request.cache_salt)
