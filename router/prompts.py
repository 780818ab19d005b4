"""The prompts in a request body: text to tokenize, ids to take as they are, or neither.

Rules it keeps:

* What is hashed here is what the engine hashes, or nothing. Where the engine would refuse, or would
  coerce a type ("7" to 7, true to 1), or knows tokens that this process cannot know (images,
  embeddings), the prompt is opaque: a cache hit may be lost, a wrong prompt is never hashed.
* There is one prompt per engine request, opaque or not, because all of them count in flight.
"""

from array import array
from dataclasses import dataclass
from typing import Any, Literal

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

# Part types that vLLM treats as plain text; everything else brings tokens this process cannot know.
TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})

# A body with more prompts than this is a batch job: it is routed by load, not by prefix.
HASHED_PROMPTS_MAX = 64


@dataclass(frozen=True, slots=True)
class Truncation:
    """Tokens to keep of a prompt, and from which side the others go. ``keep_tokens`` -1: as many
    as fit the engine's context beside the output, which only the engine knows."""

    keep_tokens: int
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat body, parsed and not yet rendered: ``messages`` is a list, with text parts only."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str
    add_special_tokens: bool = True
    truncation: Truncation | None = None


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as the engine will use them, truncated if the body asked for it."""

    token_ids: "array[int]"


@dataclass(frozen=True, slots=True)
class OpaquePrompt:
    """A prompt whose token ids are not known here; ``reason`` says why in a few words."""

    reason: str


Prompt = ChatPrompt | TextPrompt | TokenPrompt | OpaquePrompt


def chat_prompts(fields: dict[str, Any]) -> tuple[Prompt, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return (OpaquePrompt("messages is no list of messages"),)
    for message in messages:
        if not isinstance(message, dict):
            return (OpaquePrompt("a message is no object"),)
        if not _is_text_only(message.get("content")):
            return (OpaquePrompt("a message has parts other than text"),)
    return (_chat_token_prompt(fields) or ChatPrompt(fields),)


def _is_text_only(content: Any) -> bool:
    if not isinstance(content, list):
        return True
    return all(
        isinstance(part, str)
        or (isinstance(part, dict) and _is_one_of(part.get("type"), TEXT_PART_TYPES))
        for part in content
    )


def _is_one_of(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, str) and value in known


def _chat_token_prompt(fields: dict[str, Any]) -> Prompt | None:
    """Token ids that replace templating and tokenizing, or None (reference, fact 9).

    The engine ignores them with ``echo``; it truncates none of them, and refuses bad ones.
    """
    transfer = fields.get("kv_transfer_params")
    given = transfer.get("prompt_token_ids") if isinstance(transfer, dict) else None
    if not given or fields.get("echo"):
        return None
    return _token_prompt(given, None)


def completion_prompts(fields: dict[str, Any]) -> tuple[Prompt, ...]:
    texts, count = _listed(fields.get("prompt"))
    embeds = fields.get("prompt_embeds")
    if embeds is not None:
        count += len(embeds) if isinstance(embeds, list) else 1
        return (OpaquePrompt("prompt_embeds"),) * max(1, count)
    reason = _why_opaque(fields, count)
    if reason is not None:
        return (OpaquePrompt(reason),) * max(1, count)
    truncation = truncation_of(fields)
    specials = fields.get("add_special_tokens", True)
    return tuple(
        TextPrompt(text, specials, truncation)
        if isinstance(text, str)
        else _token_prompt(text, truncation)
        for text in texts
    )


def _listed(prompt: Any) -> tuple[list[Any], int]:
    """The prompts of a body as a list, and how many the engine makes of it (0: it refuses)."""
    if isinstance(prompt, str):
        return [prompt], 1
    if not isinstance(prompt, list) or not prompt:
        return [], 0
    if all(isinstance(item, str) for item in prompt) or all(
        isinstance(item, list) and item for item in prompt
    ):
        return prompt, len(prompt)
    return [prompt], 1


def _why_opaque(fields: dict[str, Any], count: int) -> str | None:
    if count == 0:
        return "prompt is no text and no list of tokens or texts"
    if count > HASHED_PROMPTS_MAX:
        return "too many prompts in one request"
    if fields.get("suffix") is not None:
        return "suffix"
    if not isinstance(fields.get("add_special_tokens", True), bool):
        return "add_special_tokens is no boolean"
    try:
        truncation_of(fields)
    except ValueError as error:
        return str(error)
    return None


def truncation_of(fields: dict[str, Any]) -> Truncation | None:
    """What a body asks to cut of its prompt. ValueError where the engine would refuse.

    vLLM gives its tokenizers the left side unless the body names one.
    """
    keep, side = fields.get("truncate_prompt_tokens"), fields.get("truncation_side")
    if side not in (None, "left", "right"):
        raise ValueError("truncation_side is neither left nor right")
    if keep is None:
        return None
    if type(keep) is not int or keep < -1:
        raise ValueError("truncate_prompt_tokens is no number of tokens")
    return Truncation(keep, side or "left")


def _token_prompt(given: Any, truncation: Truncation | None) -> Prompt:
    """Token ids as they are. ``array`` checks the range; a bool is an int only to Python."""
    if not isinstance(given, list) or set(map(type, given)) != {int}:
        return OpaquePrompt("prompt is no list of token ids")
    try:
        token_ids = array("I", given)
    except OverflowError:
        return OpaquePrompt("a token id is out of range")
    if truncation is None:
        return TokenPrompt(token_ids)
    if truncation.keep_tokens < 1:
        return OpaquePrompt("truncation to a length that only the engine knows")
    return TokenPrompt(truncated(token_ids, truncation))


def truncated(token_ids: "array[int]", truncation: Truncation) -> "array[int]":
    """The tokens that are kept; at least one (``keep_tokens`` > 0)."""
    keep = truncation.keep_tokens
    return token_ids[-keep:] if truncation.side == "left" else token_ids[:keep]
