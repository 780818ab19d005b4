"""Findings for a person, and for a program."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from indexer.doctor.finding import Finding, Level

_COLOURS: dict[Level, str] = {"ok": "32", "warning": "33", "problem": "31", "unknown": "36"}
_WIDTH = 100
_MARK_CHARS = max(map(len, _COLOURS))
_CHECK_CHARS = 18
_INDENT = " " * (2 + _MARK_CHARS + 2)

Reports = Sequence[tuple[str, Sequence[Finding]]]


def status_of(reports: Reports) -> int:
    """The exit status: 1 where there is a problem; warnings and what is unknown are allowed."""
    return int(any(f.level == "problem" for _, findings in reports for f in findings))


def as_json(reports: Reports, store: Reports = ()) -> dict[str, Any]:
    """``store``: of the one that was asked about, if any."""
    everything = (*reports, *store)
    return {
        "ok": status_of(everything) == 0,
        **_counts(everything),
        "replicas": _as_dicts(reports),
        "store": next(iter(_as_dicts(store)), None),
    }


def _as_dicts(reports: Reports) -> list[dict[str, Any]]:
    return [
        {"url": url, "findings": [asdict(finding) for finding in findings]}
        for url, findings in reports
    ]


def as_text(reports: Reports, *, colour: bool = False) -> Iterator[str]:
    """Lines; each URL with its findings, and a summary."""
    for url, findings in reports:
        yield url
        for finding in findings:
            yield from _lines(finding, colour)
        yield ""
    counts = _counts(reports)
    yield ", ".join(
        f"{count} {name.removesuffix('s') if count == 1 else name}"
        for name, count in counts.items()
    )


def _counts(reports: Reports) -> dict[str, int]:
    levels = Counter(f.level for _, findings in reports for f in findings)
    return {
        "problems": levels["problem"],
        "warnings": levels["warning"],
        "unknown": levels["unknown"],
    }


def _lines(finding: Finding, colour: bool) -> Iterator[str]:
    mark = finding.level.ljust(_MARK_CHARS)
    rank = "" if finding.rank is None else f"rank {finding.rank}: "
    head = f"  {mark}  {finding.check.ljust(_CHECK_CHARS)} "
    first, *rest = _wrapped(rank + finding.what, head)
    if colour:
        first = first.replace(mark, f"\x1b[{_COLOURS[finding.level]}m{mark}\x1b[0m", 1)
    yield first
    yield from rest
    for name in ("why", "fix"):
        text = getattr(finding, name)
        if text:
            lead = f"{_INDENT}{name}: "
            yield from _wrapped(text, lead)


def _wrapped(text: str, lead: str) -> list[str]:
    """What is to be copied, such as a flag or an endpoint, stays in one piece.

    Some texts are the engine's: what would command a terminal is left out.
    """
    return textwrap.wrap(
        "".join(char if char.isprintable() else " " for char in text),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
        break_long_words=False,
    )
