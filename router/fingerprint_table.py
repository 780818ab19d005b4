"""How many versions of the shared prefix are live: what was asked and found under each fingerprint.

A bounded table. Rules it keeps:

* The least recently used goes first, and what it had counted goes to "other": the sums over all
  rows never shrink, so that they can be exported as counters.
* A fingerprint that is new to the table is counted as such. A clock in a system prompt makes one
  with every request, however small the table is.
* Live is what was seen within the last hour: a version that was replaced is live no longer.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

FINGERPRINTS_MAX = 64
LIVE_S = 3600.0
OTHER = "other"
NO_FINGERPRINT = "none"


@dataclass(slots=True)
class FingerprintRow:
    """Tokens count only where the engine reported both prompt and cached ones; times are Unix's."""

    first_seen_s: float
    last_seen_s: float
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def is_live(self, now_s: float) -> bool:
        return self.last_seen_s > now_s - LIVE_S

    def add(self, row: "FingerprintRow") -> None:
        self.first_seen_s = min(self.first_seen_s, row.first_seen_s)
        self.last_seen_s = max(self.last_seen_s, row.last_seen_s)
        self.requests += row.requests
        self.prompt_tokens += row.prompt_tokens
        self.cached_tokens += row.cached_tokens


class FingerprintTable:
    """``new``: how often a fingerprint came that was not in the table."""

    def __init__(self, rows_max: int = FINGERPRINTS_MAX) -> None:
        self._rows: OrderedDict[str, FingerprintRow] = OrderedDict()
        self._rows_max = rows_max
        self.other: FingerprintRow | None = None
        self.new = 0

    def __repr__(self) -> str:
        return f"FingerprintTable({len(self)} known, {self.new} new ever)"

    def __len__(self) -> int:
        """How many have a row; requests without a fingerprint have none of these."""
        return len(self._rows) - (NO_FINGERPRINT in self._rows)

    def live(self, now_s: float) -> int:
        """At most as many as there are rows."""
        return sum(row.is_live(now_s) for name, row in self._rows.items() if name != NO_FINGERPRINT)

    def count(
        self,
        fingerprint: str | None,
        now_s: float,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> None:
        """One finished request, with what the engine reported of it."""
        row = self._row(fingerprint or NO_FINGERPRINT, now_s)
        row.requests += 1
        row.last_seen_s = max(row.last_seen_s, now_s)
        if prompt_tokens is not None and cached_tokens is not None:
            row.prompt_tokens += prompt_tokens
            row.cached_tokens += cached_tokens

    def _row(self, name: str, now_s: float) -> FingerprintRow:
        row = self._rows.get(name)
        if row is not None:
            self._rows.move_to_end(name)
            return row
        row = self._rows[name] = FingerprintRow(now_s, now_s)
        if name != NO_FINGERPRINT:
            self.new += 1
        if len(self) > self._rows_max:
            self._forget_oldest()
        return row

    def _forget_oldest(self) -> None:
        name = next(name for name in self._rows if name != NO_FINGERPRINT)
        forgotten = self._rows.pop(name)
        if self.other is None:
            self.other = forgotten
        else:
            self.other.add(forgotten)

    def rows(self) -> dict[str, FingerprintRow]:
        """By name, with "other" and "none" where there is something under them."""
        rows = dict(self._rows)
        return rows if self.other is None else rows | {OTHER: self.other}

    def report(self, now_s: float) -> dict[str, Any]:
        """As ``pointsman fingerprints`` reads it; most requests first."""
        rows = sorted(self.rows().items(), key=lambda item: -item[1].requests)
        total = sum(row.requests for _, row in rows)
        return {
            "live": self.live(now_s),
            "new": self.new,
            "requests": total,
            "fingerprints": [_reported(name, row, total, now_s) for name, row in rows],
        }


def _reported(name: str, row: FingerprintRow, total: int, now_s: float) -> dict[str, Any]:
    hit_rate = row.hit_rate
    return {
        "fingerprint": name,
        "live": row.is_live(now_s),
        "requests": row.requests,
        "share": round(row.requests / total, 6) if total else 0.0,
        "first_seen_s": row.first_seen_s,
        "last_seen_s": row.last_seen_s,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "hit_rate": None if hit_rate is None else round(hit_rate, 6),
    }
