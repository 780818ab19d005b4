"""Verdicts for a person, and for a program."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from router.practices.verify_verdicts import Level, Request, Verdict, status_of

_COLOURS: dict[Level, str] = {"pass": "32", "fail": "31", "unknown": "33", "skipped": "36"}
_WORDS: dict[Level, str] = {
    "pass": "passed",
    "fail": "failed",
    "unknown": "unknown",
    "skipped": "skipped",
}
_LEVEL_CHARS = max(map(len, _COLOURS))
_STEP_CHARS = 15
_WIDTH = 100
_INDENT = " " * (2 + _LEVEL_CHARS + 2)


def as_json(url: str, model: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "url": url,
        "model": model,
        "ok": status_of(verdicts) == 0,
        "steps": [asdict(verdict) for verdict in verdicts],
    }


def as_text(
    url: str, model: str, verdicts: Sequence[Verdict], *, colour: bool = False
) -> Iterator[str]:
    """Lines; each step with its requests where it has not passed, and a summary."""
    yield f"{url}, model {model}"
    for verdict in verdicts:
        mark = verdict.level.ljust(_LEVEL_CHARS)
        lead = f"  {mark}  {verdict.step.ljust(_STEP_CHARS)} "
        first, *rest = _wrapped(verdict.what, lead)
        if colour:
            first = first.replace(mark, f"\x1b[{_COLOURS[verdict.level]}m{mark}\x1b[0m", 1)
        yield first
        yield from rest
        if verdict.why:
            yield from _wrapped(verdict.why, f"{_INDENT}why: ")
        for note in verdict.notes:
            yield from _wrapped(note, f"{_INDENT}note: ")
        if verdict.level == "fail":
            yield from (_INDENT + _request_line(request) for request in verdict.requests)
    yield ""
    levels = Counter(verdict.level for verdict in verdicts)
    yield ", ".join(f"{levels[level]} {word}" for level, word in _WORDS.items() if levels[level])
    if any(verdict.source == "metrics" for verdict in verdicts):
        yield "cached tokens are those of the engine's counters: its answers do not report them"


def _request_line(request: Request) -> str:
    if request.failed is not None:
        return f"{request.name}: {request.failed}"
    parts = [f"{request.name}: {request.cached_tokens:,} of {request.prompt_tokens:,} cached"]
    if request.ttft_ms is not None:
        parts.append(f"first token after {request.ttft_ms:.0f} ms")
    if request.replica is not None:
        parts.append(f"replica {request.replica} ({request.reason})")
    return ", ".join(parts)


def _wrapped(text: str, lead: str) -> list[str]:
    """Some texts are a server's: what would command a terminal is left out."""
    return textwrap.wrap(
        "".join(char if char.isprintable() else " " for char in text),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
        break_long_words=False,
    )
