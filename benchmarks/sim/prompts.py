"""From a request to the engine's token ids and back, with the `transformers` library alone.

It renders chats with the template that a tokenizer's folder brings, after the body is brought into
the form in which vLLM hands it to the template. It is written from vLLM's behaviour and shares no
code with the router, so that the two can be held against each other.

What a simulated engine generates is words that are one token each, with the space before them:
tokenized as part of a longer text they come out as the very same ids.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.sim.openai_bodies import ChatBody, Refused, TokenizeBody

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
_WORDS_MAX = 4096
_WORD = re.compile(r"[Ġ▁][a-z]{2,}")
# How much of a context decides what comes next: enough to tell two conversations apart.
_REMEMBERED_TOKENS = 32


class PromptMaker:
    """One thread at a time may use it; `words`, the text of each id that is generated, is constant.

    Raises OSError or ValueError where the folder holds no tokenizer.
    """

    def __init__(self, directory: Path) -> None:
        # The types of the library are wider than what one tokenizer takes and returns.
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        self._vocabulary = len(self._tokenizer)
        self.words = self._find_words()
        self._words = list(self.words)

    def text_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        encoded = self._tokenizer(text, add_special_tokens=add_special_tokens)
        return list(encoded["input_ids"])

    def chat_ids(self, body: ChatBody) -> list[int]:
        """Raises Refused for what has no text, or what the template refuses."""
        ids = body.prompt_token_ids()
        if ids is not None:
            return self.checked(ids)
        messages, arguments = self._messages(body), self._template_arguments(body)
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        except Exception as error:
            # Templates raise whatever they like; the engine answers all of it with 400.
            raise Refused(f"chat template: {error}") from None
        ids = self.text_ids(text, body.add_special_tokens)
        return self.truncated(ids, body.truncate_prompt_tokens)

    def completion_ids(
        self, prompt: str | list[int], add_special_tokens: bool, truncate: int | None
    ) -> list[int]:
        if isinstance(prompt, str):
            ids = self.text_ids(prompt, add_special_tokens)
        else:
            ids = self.checked(prompt)
        return self.truncated(ids, truncate)

    def tokenize_ids(self, body: TokenizeBody) -> list[int]:
        return self.text_ids(body.prompt, body.add_special_tokens)

    def checked(self, ids: list[int]) -> list[int]:
        """Raises Refused where an id is in no vocabulary."""
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise Refused(f"Token id {max(ids)} is out of vocabulary", "prompt")
        return ids

    def truncated(self, ids: list[int], tokens: int | None) -> list[int]:
        """The side that the tokenizer truncates goes; -1 stands for no limit here."""
        if tokens is None or tokens < 0 or tokens >= len(ids):
            return ids
        if self._tokenizer.truncation_side == "left":
            return ids[len(ids) - tokens :]
        return ids[:tokens]

    def texts(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        return list(self._tokenizer.convert_ids_to_tokens(list(ids)))

    def next_token(self) -> Callable[[str, Sequence[int]], int]:
        """What an engine generates with this tokenizer: equal contexts go on equally."""
        words = self._words

        def next_word(request_id: str, token_ids: Sequence[int]) -> int:
            mixed = len(token_ids)
            for token_id in token_ids[-_REMEMBERED_TOKENS:]:
                mixed = (mixed * 1_000_003 + token_id) & 0xFFFF_FFFF
            return words[(mixed >> 7) % len(words)]

        return next_word

    def _find_words(self) -> dict[int, str]:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        found = sorted(index for token, index in vocabulary.items() if _WORD.fullmatch(token))
        texts = {index: self.texts([index]) for index in found[:_WORDS_MAX]}
        words = {index: text for index, text in texts.items() if self._is_itself(index, text)}
        if not words:
            raise ValueError("the tokenizer knows no word that is one token")
        return words

    def _is_itself(self, index: int, text: str) -> bool:
        return self.text_ids(text, False) == [index]

    def _messages(self, body: ChatBody) -> list[dict[str, Any]]:
        messages = [_message(message) for message in body.messages]
        template = str(self._tokenizer.chat_template)
        if "developer" not in template and any(m["role"] == "developer" for m in messages):
            messages = _merged_system(messages)
        return messages

    def _template_arguments(self, body: ChatBody) -> dict[str, Any]:
        arguments = {
            name: value
            for name, value in (body.chat_template_kwargs or {}).items()
            if value is not None and value != "auto"
        }
        if body.reasoning_effort is not None:
            arguments.setdefault("enable_thinking", body.reasoning_effort != "none")
            arguments["reasoning_effort"] = body.reasoning_effort
        if body.documents is not None:
            arguments["documents"] = body.documents
        arguments["add_generation_prompt"] = body.add_generation_prompt
        arguments["continue_final_message"] = body.continue_final_message
        arguments["tools"] = [_tool(tool) for tool in body.tools] if body.tools else None
        return arguments


def _message(message: dict[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise Refused("messages: each needs a role.", "messages")
    made: dict[str, Any] = {"role": role, "content": _content(message.get("content"))}
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            made[name] = message[name]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning is not None:
        made |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if role == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return made


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused("messages: content is a text or a list of parts.", "messages")
    return "\n".join(map(_part, content))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
        raise Refused("this model is not multimodal: parts of content are texts.", "messages")
    text = part.get(part["type"], part.get("text"))
    if not isinstance(text, str):
        raise Refused("messages: a part without text.", "messages")
    return text


def _tool_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise Refused("messages: a tool call without a function.", "messages")
    function = dict(call["function"])
    arguments = function.get("arguments")
    if not isinstance(arguments, dict):
        try:
            arguments = json.loads(arguments or "{}")
        except (TypeError, ValueError):
            arguments = {}
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return call | {"function": function}


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("tools: each needs a function with a name.", "tools")
    made = {name: function.get(name) for name in ("name", "description", "parameters")}
    if "strict" in function:
        made["strict"] = function["strict"]
    return {"type": tool.get("type", "function"), "function": made}


def _merged_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer messages as system ones, and all of these as the first message."""
    roles = ("system", "developer")
    texts = [message["content"] for message in messages if message["role"] in roles]
    rest = [message for message in messages if message["role"] not in roles]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]
