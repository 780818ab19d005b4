"""What an OpenAI-shaped request body asks for, and the bytes that go on to the engine.

Decides which prompts a body holds, how many sequences it will run, whose conversation it is, and
whether its bytes may stay as they are. Rules it keeps:

* The body is forwarded byte for byte unless a named transformation applies. The only one that
  nobody has to ask for: ``vllm_xargs.kv_cache_report_mode`` is removed, because with it the engine
  announces blocks again without a new copy of them, and the counts of every index of its events
  drift.
* What the engine would refuse is not refused here: it becomes an ``OpaquePrompt``, is routed by
  load, and the engine says no in its own words. Only what no parser accepts is a ``BadRequest``,
  because there is nothing in it to route by.
* Of duplicate keys the last one counts, as in every parser the engine uses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from router.known_tools import KnownTools, ToolForms
from router.openai_errors import BadRequest, error_body
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
from router.transformations import Spans, changed, report_mode_change, spans_of

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

# The member whose bytes are looked up before they are parsed, and how a body usually writes it.
_TOOLS = "tools"
_TOOLS_BYTES = b'"tools"'


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """``prompts`` has one entry per engine request; in flight it counts ``sequences``.

    ``reads_cache`` False: the engine computes the whole prompt anew (reference 4.7).
    ``transformed`` names what was changed in ``body``; empty: these are the very bytes received.
    ``fields`` is the parsed body, ``spans`` the bytes of its members where they are at hand;
    ``strict`` False: only Python's own parser takes it. ``tools``: of a chat, where it has any.
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
    fields: dict[str, Any] = field(default_factory=dict, repr=False)
    spans: Spans | None = field(default=None, repr=False)
    strict: bool = True
    tools: ToolForms | None = field(default=None, repr=False)

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.n


class _Decoded(NamedTuple):
    """``strict``: not only for Python's own parser, which the engine uses. That also takes NaN,
    lone surrogates, a byte order mark and UTF-16; whether such a body is served, it has to say."""

    fields: dict[str, Any]
    strict: bool
    spans: Spans | None = None
    tools: ToolForms | None = None


def parse_request(
    path: str, body: bytes, headers: Mapping[str, str], known_tools: KnownTools | None = None
) -> ParsedRequest:
    """Reads a body for one of the two completion paths. Raises BadRequest and nothing else.

    ``known_tools``: where to look up what was made of the same tools before.
    """
    fields, strict, spans, tools = _decode(body, known_tools)
    change = report_mode_change(fields, body, strict)
    if change is not None:
        body = changed(body, fields, [change], strict=strict, spans=spans)
        fields, spans = fields | {change.key: json.loads(change.value or b"null")}, None
    prompts = chat_prompts(fields) if path == CHAT_PATH else completion_prompts(fields)
    if not strict:
        prompts = (OpaquePrompt("the body is no strict JSON"),) * len(prompts)
    if path != CHAT_PATH:
        tools = None
    elif tools is None and fields.get(_TOOLS) is not None:
        tools = ToolForms.of(fields[_TOOLS])
    return ParsedRequest(
        path=path,
        model=_text(fields.get("model")),
        prompts=prompts,
        n=_sequences_per_prompt(fields.get("n")),
        stream=fields.get("stream") is True,
        cache_salt=_text(fields.get("cache_salt")),
        session=_session(fields, headers),
        reads_cache=_reads_cache(path, fields),
        body=body,
        transformed=() if change is None else (change.name,),
        fields=fields,
        spans=spans,
        strict=strict,
        tools=tools,
    )


def _decode(body: bytes, known_tools: KnownTools | None) -> _Decoded:
    decoded = None
    try:
        decoded = _decode_strictly(body, known_tools)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except msgspec.DecodeError:
        decoded = _Decoded(_decode_leniently(body), strict=False)
    if not isinstance(decoded.fields, dict):
        raise BadRequest("The request body must be a JSON object.")
    return decoded


def _decode_strictly(body: bytes, known_tools: KnownTools | None) -> _Decoded:
    """The tools are parsed once for all bodies that have the same bytes of them."""
    # From the end, where most clients have their tools; `in` takes several times as long.
    if known_tools is None or body.rfind(_TOOLS_BYTES) < 0:
        return _Decoded(msgspec.json.decode(body), strict=True)
    spans = spans_of(body)
    tools = known_tools.made(bytes(spans[_TOOLS])) if _TOOLS in spans else None
    fields = {
        key: tools.given if tools is not None and key == _TOOLS else msgspec.json.decode(span)
        for key, span in spans.items()
    }
    return _Decoded(fields, True, spans, tools)


def _decode_leniently(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}"[:300]) from None


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
