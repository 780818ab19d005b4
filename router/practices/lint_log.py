"""Lines of a log as requests: a body, or an object that has one under ``body``.

Decides what a line is. The router's own sampled log and the files of OpenAI's batches have the body
inside; the first also has a tag for the session. Rules it keeps:

* A line that holds no request is reported with line and column, and the next one is read.
* A message about a line never quotes it: a log of prompts holds what nobody may see.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from router.openai import CHAT_PATH, COMPLETIONS_PATH, BadRequest, parse_request
from router.practices.traffic import LoggedRequest


class NotARequest(Exception):
    """This text holds no request; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a text begins: a file, and its line there."""

    file: str
    line: int

    def at(self, line: int = 1, column: int = 1) -> str:
        return f"{self.file}:{self.line + line - 1}:{column}"


def logged_request(text: bytes, origin: Origin) -> LoggedRequest:
    """Raises NotARequest."""
    return _request(_decoded(text, origin), origin)


def logged_requests(text: bytes, origin: Origin) -> list[LoggedRequest]:
    """Of a whole file of JSON: one request, or a list of them. Raises NotARequest."""
    value = _decoded(text, origin)
    return [_request(one, origin) for one in (value if isinstance(value, list) else [value])]


def _decoded(text: bytes, origin: Origin) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotARequest(_complaint(text, origin)) from None


def _complaint(text: bytes, origin: Origin) -> str:
    """Python's own parser says where; what it accepts and the engine may serve is said too."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{origin.at(error.lineno, error.colno)}: no JSON: {error.msg}"
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        return f"{origin.at(line, column)}: no UTF-8"
    except (ValueError, RecursionError):
        return f"{origin.at()}: nested too deeply, or a number too long"
    return f"{origin.at()}: no strict JSON (NaN, a lone surrogate or a byte order mark)"


def _request(value: Any, origin: Origin) -> LoggedRequest:
    if not isinstance(value, dict):
        raise NotARequest(f"{origin.at()}: no JSON object")
    inner = value.get("body")
    body = inner if isinstance(inner, dict) else value
    if "messages" not in body and "prompt" not in body:
        raise NotARequest(f"{origin.at()}: no request: neither messages nor prompt, nor a body")
    raw = msgspec.json.encode(body)
    path = CHAT_PATH if "messages" in body else COMPLETIONS_PATH
    tag = value.get("session") if body is inner else None
    try:
        session = tag if isinstance(tag, str) and tag else parse_request(path, raw, {}).session
    except BadRequest as error:
        raise NotARequest(f"{origin.at()}: {error.message}") from None
    return LoggedRequest(f"{origin.file}:{origin.line}", path, raw, session)
