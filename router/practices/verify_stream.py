"""One streamed answer, as it arrives: when its first and last token came, its text and its usage.

It is fed bytes with the time they came at. An answer that is no stream of a chat is unusable, and
says so; what an engine adds is ignored.
"""

import json
from typing import Any

from router.usage import StreamUsage, Usage

# An answer of a few tokens has some kilobytes; one that is larger is not of our question.
BYTES_MAX = 4 * 2**20


class NoStream(Exception):
    """The text says what came in place of a stream."""


class AnswerStream:
    """``first_at`` and ``last_at``: of the first and the last token, on the clock of ``feed``."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.text = ""
        self.is_done = False
        self._rest, self._bytes = b"", 0
        self._usage = StreamUsage()

    @property
    def usage(self) -> Usage | None:
        return self._usage.usage

    def feed(self, chunk: bytes, now: float) -> None:
        """Raises NoStream."""
        self._bytes += len(chunk)
        if self._bytes > BYTES_MAX:
            raise NoStream(f"an answer of more than {BYTES_MAX} bytes")
        self._usage.feed(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise NoStream(f"an event that is no JSON: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise NoStream(f"an event that is no object: {data[:80]!r}")
        if event.get("error"):
            raise NoStream(f"an error in the stream: {_message(event['error'])}")
        text = _delta_text(event)
        if text:
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
            self.text += text


def _message(error: Any) -> str:
    return str(error.get("message") if isinstance(error, dict) else error)[:300]


def _delta_text(event: dict[str, Any]) -> str:
    """What a model thinks aloud is text too: it is when its first token came."""
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict):
        return ""
    parts = (delta.get(name) for name in ("reasoning", "reasoning_content", "content"))
    return "".join(part for part in parts if isinstance(part, str))
