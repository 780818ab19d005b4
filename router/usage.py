"""What the engine reports about a request, read from the bytes that pass by.

Decides which bytes of an answer to keep, and finds prompt, cached and completion tokens in them.
Rules it keeps:

* Bytes are looked at, never changed or held back. A chunk of a stream costs an append; all decoding
  happens once, when somebody asks at the end.
* Memory is bounded: of a stream only the tail, where the usage is; of a JSON body nothing if it is
  too long.
* Whatever is missing, malformed or compressed is unknown (None), never an error. vLLM leaves
  ``prompt_tokens_details`` null without ``--enable-prompt-tokens-details``.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

# One event with usage is a few hundred bytes; with log probabilities of a last token a few
# thousand, and one read may join several events.
TAIL_BYTES_MAX = 32 * 2**10
# Skimming a mebibyte takes about 2 ms of the loop; longer answers are not worth a stall.
JSON_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counts them; None where it did not say."""

    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


class UsageReader(Protocol):
    def feed(self, chunk: bytes) -> None: ...

    @property
    def usage(self) -> Usage | None:
        """From what was fed so far; None where no usage is (completely) in it."""


def usage_reader(content_type: str, content_encoding: str) -> UsageReader:
    """The reader for a response with these headers, each "" where it is missing."""
    if content_encoding.strip().lower() not in ("", "identity"):
        return UnreadableUsage()
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return StreamUsage()
    return JsonUsage() if kind == "application/json" else UnreadableUsage()


class UnreadableUsage:
    """Of bodies that are compressed or of another type."""

    usage: Usage | None = None

    def feed(self, chunk: bytes) -> None:
        pass


class JsonUsage:
    """Of one JSON object, as in an answer that is not streamed."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes <= JSON_BYTES_MAX:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    @property
    def usage(self) -> Usage | None:
        return _decoded(b"".join(self._chunks)) if self._chunks else None


class StreamUsage:
    """Of server-sent events: the last complete data line that has usage.

    It is the last event but ``[DONE]``, or any with ``continuous_usage_stats``.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        # Twice the tail, so that trimming copies each byte at most about once.
        if self._bytes > 2 * TAIL_BYTES_MAX:
            tail = b"".join(self._chunks)[-TAIL_BYTES_MAX:]
            self._chunks, self._bytes = [tail], len(tail)

    @property
    def usage(self) -> Usage | None:
        tail = b"".join(self._chunks)
        end = len(tail)
        # From the last mention backwards: usually the first line looked at is the right one.
        while (found := tail.rfind(b'"usage"', 0, end)) >= 0:
            begin = max(tail.rfind(b"\n", 0, found), tail.rfind(b"\r", 0, found)) + 1
            line, newline, _ = tail[begin:].partition(b"\n")
            usage = _decoded(line[5:]) if newline and line.startswith(b"data:") else None
            if usage is not None:
                return usage
            end = begin
        return None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Counts | None = None


_DECODER = msgspec.json.Decoder(_Body)


def _decoded(body: bytes) -> Usage | None:
    try:
        counts = _DECODER.decode(body).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if counts is None:
        return None
    details = counts.prompt_tokens_details
    cached_tokens = None if details is None else details.cached_tokens
    return Usage(counts.prompt_tokens, cached_tokens, counts.completion_tokens)
