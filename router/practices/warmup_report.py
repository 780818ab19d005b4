"""What `pointsman warmup` has to tell: whether each body is resident now, and what shows it.

Rules:

* What shows it is a repeat: the engine reports the cached tokens of a body that was just sent.
* An engine computes at least the last token anew, and with speculative decoding it drops one block
  more: so a body is resident where the repeat finds all of its blocks but one.
* A prompt that is no longer than a block has nothing that could stay.
* Without ``--enable-prompt-tokens-details`` an engine reports nothing; with it vLLM leaves out what
  is 0. So nothing is 0 where the same engine has reported something, else it is unknown, which is
  no failure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Verdict = Literal["resident", "not resident", "unknown", "not taken", "too short"]

_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{[^}\n]*\bblock_size="(\d+)"', re.MULTILINE)
_COLUMNS = ("replica", "body", "prompt tokens", "cached before", "cached after", "")


@dataclass(frozen=True, slots=True)
class BodyResult:
    """Tokens as the engine counts them; None where it did not say, or was not asked.

    ``repeated`` False: nobody looked whether it is resident. ``error``: what it said instead.
    """

    replica: str
    body: str
    error: str | None = None
    prompt_tokens: int | None = None
    cached_before: int | None = None
    cached_after: int | None = None
    repeated: bool = False
    seconds: float = 0.0

    def verdict(self, block_size: int | None) -> Verdict:
        """``block_size`` None: then any cached token will do."""
        if self.error is not None:
            return "not taken"
        if not self.repeated or self.cached_after is None or self.prompt_tokens is None:
            return "unknown"
        blocks = (self.prompt_tokens - 1) // (block_size or self.prompt_tokens)
        if block_size is not None and not blocks:
            return "too short"
        needed = max(1, (blocks - 1) * (block_size or 0))
        return "resident" if self.cached_after >= needed else "not resident"


def with_zeros(results: Sequence[BodyResult]) -> list[BodyResult]:
    """What was left out because it is 0, where that is certain."""
    if all(r.cached_before is None and r.cached_after is None for r in results):
        return list(results)
    return [
        replace(
            r,
            cached_before=r.cached_before or 0,
            cached_after=(r.cached_after or 0) if r.repeated else None,
        )
        if r.error is None
        else r
        for r in results
    ]


def block_size_in(metrics: str) -> int | None:
    """Tokens, from a replica's ``/metrics``; None where they do not tell."""
    found = _BLOCK_SIZE.search(metrics)
    return int(found[1]) if found is not None and int(found[1]) > 0 else None


def failed(results: Sequence[BodyResult], block_size: int | None) -> bool:
    """Whether some body is known not to be there."""
    return any(r.verdict(block_size) in ("not taken", "not resident") for r in results)


def as_text(results: Sequence[BodyResult], block_size: int | None) -> list[str]:
    """A table, and what there is to do about what it shows."""
    rows = [_COLUMNS, *(_row(result, block_size) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [_line(row, widths) for row in rows]
    lines += [f"{r.replica}, {r.body}: {r.error}" for r in results if r.error is not None]
    verdicts = {result.verdict(block_size) for result in results}
    if "too short" in verdicts:
        lines.append(f"Too short: only full blocks are kept, of {block_size} tokens here.")
    if "not resident" in verdicts:
        lines.append(
            "Not resident: a later body, or other traffic, took its blocks. Send less, or give the"
            " engine more KV cache (pointsman capacity tells how much there is)."
        )
    if any(r.repeated and r.verdict(block_size) == "unknown" for r in results):
        lines.append(
            "Unknown: the engine has reported no cached tokens; either nothing is cached, or it"
            " runs without --enable-prompt-tokens-details."
        )
    return lines


def _row(result: BodyResult, block_size: int | None) -> tuple[str, ...]:
    counts = (result.prompt_tokens, result.cached_before, result.cached_after)
    shown = ("-" if count is None else f"{count:,}" for count in counts)
    return result.replica, result.body, *shown, result.verdict(block_size)


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    """Words to the left, figures to the right."""
    cells = [
        text.rjust(width) if 2 <= column <= 4 else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def as_json(results: Sequence[BodyResult], block_size: int | None) -> dict[str, Any]:
    return {
        "block_size": block_size,
        "ok": not failed(results, block_size),
        "bodies": [
            {
                "replica": r.replica,
                "body": r.body,
                "verdict": r.verdict(block_size),
                "error": r.error,
                "prompt_tokens": r.prompt_tokens,
                "cached_before": r.cached_before,
                "cached_after": r.cached_after,
                "seconds": round(r.seconds, 3),
            }
            for r in results
        ],
    }
