"""What an OpenAI-shaped request body asks for, and the bytes that go on to the engine.

Decides which prompts a body holds, how many sequences it will run, whose conversation it is, and
whether its bytes may stay as they are. Rules it keeps:

* The body is forwarded byte for byte unless a named transformation applies. The only one:
  ``vllm_xargs.kv_cache_report_mode`` is removed, because with it the engine announces blocks again
  without a new copy of them, and the counts of every index of its events drift.
* What the engine would refuse is not refused here: it becomes an ``OpaquePrompt``, is routed by
  load, and the engine says no in its own words. Only what no parser accepts is a ``BadRequest``,
  because there is nothing in it to route by.
* Of duplicate keys the last one counts, as in every parser the engine uses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    ChatPrompt,
    OpaquePrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Truncation,
    chat_prompts,
    completion_prompts,
)

__all__ = [
    "CHAT_PATH",
    "COMPLETIONS_PATH",
    "BadRequest",
    "ChatPrompt",
    "OpaquePrompt",
    "ParsedRequest",
    "Prompt",
    "TextPrompt",
    "TokenPrompt",
    "Truncation",
    "error_body",
    "parse_request",
]

# The engine's own default limit on n (VLLM_MAX_N_SEQUENCES); beyond it the request is refused.
N_MAX = 16_384
# A session is a key in maps here; a longer one is cut, which at worst joins two sessions.
SESSION_CHARS_MAX = 256

_REPORT_MODE = "kv_cache_report_mode"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """``prompts`` has one entry per engine request; in flight it counts ``sequences``.

    ``reads_cache`` False: the engine computes the whole prompt anew (reference 4.7).
    ``transformed`` names what was changed in ``body``; empty: these are the very bytes received.
    """

    path: str
    model: str | None
    prompts: tuple[Prompt, ...]
    n: int
    stream: bool
    cache_salt: str | None
    session: str | None
    reads_cache: bool
    body: bytes
    transformed: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.n


class BadRequest(Exception):
    """A body that cannot be routed; ``status`` and ``body`` are what the client is told."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        return _error(self.message, "invalid_request_error", self.param, self.code)


def error_body(message: str, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON that OpenAI's clients understand as an error."""
    return msgspec.json.encode(_error(message, type, param, code))


def _error(message: str, type: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def parse_request(path: str, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """Reads a body for one of the two completion paths. Raises BadRequest and nothing else."""
    fields, strict = _decode(body)
    forwarded, transformed = _without_report_mode(body, fields, strict)
    prompts = chat_prompts(fields) if path == CHAT_PATH else completion_prompts(fields)
    if not strict:
        prompts = (OpaquePrompt("the body is no strict JSON"),) * len(prompts)
    return ParsedRequest(
        path=path,
        model=_text(fields.get("model")),
        prompts=prompts,
        n=_sequences_per_prompt(fields.get("n")),
        stream=fields.get("stream") is True,
        cache_salt=_text(fields.get("cache_salt")),
        session=_session(fields, headers),
        reads_cache=_reads_cache(path, fields),
        body=forwarded,
        transformed=transformed,
    )


def _decode(body: bytes) -> tuple[dict[str, Any], bool]:
    """The parsed object, and whether it is strict JSON.

    Python's own parser also takes NaN, lone surrogates, a byte order mark and UTF-16. The engine
    uses it, so such a body may be served: it is for the engine to say.
    """
    strict = True
    try:
        fields = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except msgspec.DecodeError:
        fields, strict = _decode_leniently(body), False
    if not isinstance(fields, dict):
        raise BadRequest("The request body must be a JSON object.")
    return fields, strict


def _decode_leniently(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}"[:300]) from None


def _without_report_mode(
    body: bytes, fields: dict[str, Any], strict: bool
) -> tuple[bytes, tuple[str, ...]]:
    """The body without ``vllm_xargs.kv_cache_report_mode``, every other value in its own bytes.

    Whether it is there is decided on the parsed object, since a key can be written with escapes.
    A body that is no strict JSON has no raw spans to keep: it is written anew.
    """
    extra = fields.get("vllm_xargs")
    if not isinstance(extra, dict) or _REPORT_MODE not in extra:
        return body, ()
    del extra[_REPORT_MODE]
    if not strict:
        return _encode_leniently(fields), (_REPORT_MODE,)
    spans = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    extra_spans = msgspec.json.decode(spans["vllm_xargs"], type=dict[str, msgspec.Raw])
    del extra_spans[_REPORT_MODE]
    spans["vllm_xargs"] = msgspec.Raw(msgspec.json.encode(extra_spans))
    return msgspec.json.encode(spans), (_REPORT_MODE,)


def _encode_leniently(fields: dict[str, Any]) -> bytes:
    try:
        return json.dumps(fields).encode()
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The request body cannot be written again: {error}"[:300]) from None


def _sequences_per_prompt(n: Any) -> int:
    """1 for anything the engine refuses: then nothing runs."""
    return n if type(n) is int and 1 <= n <= N_MAX else 1


def _session(fields: dict[str, Any], headers: Mapping[str, str]) -> str | None:
    """The first that is there: prompt_cache_key, X-Session-ID, session_id, user."""
    header = headers.get("X-Session-ID") or headers.get("x-session-id")
    sources = (fields.get("prompt_cache_key"), header, fields.get("session_id"), fields.get("user"))
    sessions = (_text(source) for source in sources)
    return next((session[:SESSION_CHARS_MAX] for session in sessions if session), None)


def _text(value: Any) -> str | None:
    """A non-empty text that can be encoded, else None: what comes of this ends up in hashes."""
    if not isinstance(value, str) or not value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def _reads_cache(path: str, fields: dict[str, Any]) -> bool:
    """False where the engine must compute every prompt position (reference 4.7).

    ``echo`` sets ``prompt_logprobs``: in chat always, in completions to ``logprobs``.
    """
    if fields.get("prompt_logprobs") is not None:
        return False
    if not fields.get("echo"):
        return True
    return path != CHAT_PATH and fields.get("logprobs") is None
