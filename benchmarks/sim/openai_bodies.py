"""What a request for text asks of the engine: the bodies that vLLM's front end accepts.

It reads chat, completion and tokenize bodies and says what is refused. Rules it keeps:

* Fields it does not know are ignored, as in vLLM.
* What asks for the log-probabilities of its prompt reads no cache: ``prompt_logprobs``, and
  ``echo`` where log-probabilities are asked for, which in a chat they are by default.
"""

from typing import Any, TypeVar

import msgspec

_SALT_CHARACTERS_MAX = 128
_TOKENS_DEFAULT = 16

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Refused(Exception):
    """What the engine answers with an error of its own. `status` is HTTP's."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status

    def body(self) -> dict[str, Any]:
        kinds = {400: "BadRequestError", 404: "NotFoundError"}
        return {
            "error": {
                "message": str(self),
                "type": kinds.get(self.status, "InternalServerError"),
                "param": self.param,
                "code": self.status,
            }
        }


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class TextBody(msgspec.Struct, kw_only=True):
    """What the bodies of chat and completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    truncate_prompt_tokens: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def answers(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def report_full(self) -> bool:
        return (self.vllm_xargs or {}).get("kv_cache_report_mode") == "full"

    @property
    def skip_cache(self) -> bool:
        return self.prompt_logprobs is not None or bool(self.echo and self._echoes_logprobs)

    @property
    def _echoes_logprobs(self) -> bool:
        raise NotImplementedError

    def tokens_wanted(self) -> int | None:
        return self.max_tokens

    def check(self) -> None:
        """Raises Refused for what is wrong whatever the prompt."""
        if self.answers < 1:
            raise Refused(f"n must be at least 1, got {self.n}.", "n")
        wanted = self.tokens_wanted()
        if wanted is not None and wanted < 1:
            raise Refused(f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
        if self.stream_options is not None and not self.stream:
            raise Refused(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        if self.stream and (self.prompt_logprobs or 0) != 0:
            raise Refused("`prompt_logprobs` are not available when `stream=True`.")
        salt = self.cache_salt
        if salt is not None and (
            not 0 < len(salt) <= _SALT_CHARACTERS_MAX or set(salt) & set("@/\\\0")
        ):
            raise Refused("Parameter 'cache_salt' is no salt.", "cache_salt")

    def tokens_to_generate(self, prompt_tokens: int, context_tokens_max: int) -> int:
        """Raises Refused where prompt and answer are more than the model's context."""
        wanted, room = self.tokens_wanted(), context_tokens_max - prompt_tokens
        if room < 1:
            raise Refused(
                f"This model's maximum context length is {context_tokens_max} tokens, and the "
                f"prompt has {prompt_tokens}: nothing is left to generate.",
                "input_tokens",
            )
        if wanted is not None and wanted > room:
            raise Refused(
                f"max_tokens is {wanted}, but this model's maximum context length is "
                f"{context_tokens_max} tokens and the prompt has {prompt_tokens}.",
                "max_tokens",
            )
        return min(_TOKENS_DEFAULT if wanted is None else wanted, room)


class CompletionBody(TextBody, kw_only=True):
    prompt: str | list[int | str | list[int]]
    add_special_tokens: bool = True
    logprobs: int | None = None

    @property
    def _echoes_logprobs(self) -> bool:
        return self.logprobs is not None

    def prompts(self) -> list[str | list[int]]:
        """One for each request of the engine. Raises Refused for none and for empty ones."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        parts = [part for part in self.prompt if not isinstance(part, int)]
        if bool(ids) == bool(parts) or [] in parts:
            raise Refused("prompt: a text, token ids, or a list of either.", "prompt")
        return [ids] if ids else parts


class ChatBody(TextBody, kw_only=True):
    """Also the chat form of a tokenize body."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    top_logprobs: int | None = 0

    @property
    def _echoes_logprobs(self) -> bool:
        return self.top_logprobs is not None

    def tokens_wanted(self) -> int | None:
        wanted = self.max_completion_tokens
        return self.max_tokens if wanted is None else wanted

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise Refused("messages: at least one is needed.", "messages")
        if self.tools == []:
            raise Refused("`tools` must not be an empty array.", "tools")
        if self.continue_final_message and self.add_generation_prompt:
            raise Refused(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )

    def prompt_token_ids(self) -> list[int] | None:
        """The ids that stand in for the messages, where the client has them already."""
        ids = (self.kv_transfer_params or {}).get("prompt_token_ids")
        if ids is None or self.echo:
            return None
        if not isinstance(ids, list) or not all(type(token) is int for token in ids) or not ids:
            raise Refused("prompt_token_ids must be a list of token ids.", "kv_transfer_params")
        return ids


class TokenizeBody(msgspec.Struct):
    """The completion form of a tokenize body."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


def decode(body: bytes, kind: type[_Body]) -> _Body:
    """Raises Refused for what is no JSON or no such body."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"1 validation error: {error}") from None
