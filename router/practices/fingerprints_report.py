"""How many versions of the shared prefix are live: from a router's table, or from its log lines."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from router.fingerprint_table import FingerprintTable

# A log may hold weeks; beyond so many the rarely seen are counted together.
FINGERPRINTS_MAX = 10_000
_LINES_SHOWN_MAX = 40


class NoLog(ValueError):
    """The text says which line is wrong, or that there is nothing to count."""


def report_of_log(lines: Iterable[bytes]) -> dict[str, Any]:
    """Of a router's log, one JSON object a line; lines of other events are passed over.

    What is live is live at the log's end. Raises NoLog.
    """
    table = FingerprintTable(FINGERPRINTS_MAX)
    requests = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            requests += _count(table, _parsed(number, line), number)
    if not requests:
        raise NoLog(
            'it has no request of a router: lines with "event": "request" and'
            ' "prefix_fingerprint"; pointsman router and serve print them on stdout'
        )
    return table.report(max(row.last_seen_s for row in table.rows().values()))


def _parsed(number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise NoLog(f"line {number}, column {error.colno}: no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise NoLog(f"line {number}: no JSON: {error}"[:200]) from None


def _count(table: FingerprintTable, line: Any, number: int) -> bool:
    """Whether it was a request that reached a replica: those the router's own table counts."""
    if not isinstance(line, dict) or line.get("event") != "request":
        return False
    if "prefix_fingerprint" not in line or line.get("replica") is None:
        return False
    try:
        when = datetime.fromisoformat(line["timestamp"]).timestamp()
        tokens = [line.get(name) for name in ("prompt_tokens", "cached_tokens")]
        if not all(isinstance(each, int | None) for each in tokens):
            raise TypeError("tokens are numbers")
        table.count(_name(line["prefix_fingerprint"]), when, *tokens)
    except (KeyError, TypeError, ValueError) as error:
        raise NoLog(f"line {number}: no line of a router's log: {error!r}"[:200]) from None
    return True


def _name(fingerprint: Any) -> str | None:
    if fingerprint is None or isinstance(fingerprint, str):
        return fingerprint
    raise TypeError("a fingerprint is a text")


def is_report(report: Any) -> bool:
    """Whether it is what ``FingerprintTable.report`` gives."""
    return isinstance(report, dict) and isinstance(report.get("fingerprints"), list)


def as_text(report: Mapping[str, Any]) -> list[str]:
    """Lines for a person."""
    live, requests = report["live"], report["requests"]
    lines = [
        f"{live:,} {'fingerprint is' if live == 1 else 'fingerprints are'} live, "
        f"{report['new']:,} were new; {requests:,} requests",
        "",
        f"{'fingerprint':<12}  {'requests':>9}  {'share':>6}  {'hit rate':>8}  "
        f"{'first seen':<20}  last seen",
    ]
    rows = report["fingerprints"]
    lines += [_row(row) for row in rows[:_LINES_SHOWN_MAX]]
    if len(rows) > _LINES_SHOWN_MAX:
        lines.append(f"and {len(rows) - _LINES_SHOWN_MAX:,} more; --json has them all")
    return lines


def _row(row: Mapping[str, Any]) -> str:
    hit_rate = "unknown" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"
    return (
        f"{row['fingerprint']:<12}  {row['requests']:>9,}  {row['share']:>6.1%}  {hit_rate:>8}  "
        f"{_shown(row['first_seen_s'])}  {_shown(row['last_seen_s'])}"
    )


def _shown(when_s: float) -> str:
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
