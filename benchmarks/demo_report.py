"""What the demo tells: one record for each request, the figures of a policy, and the table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from benchmarks.conversations import cached_at_best

_Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Record:
    """One request that was answered. ``ttft_seconds`` is until its first text."""

    agent: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    ttft_seconds: float


@dataclass(frozen=True)
class Restart:
    """A service that was killed and started again. ``requests``: answered before.

    ``loaded_blocks`` from its store, by replica; ``exact_seconds`` from when it listened until the
    index was exact again, None where it was not in time; ``down_seconds`` until it listened.
    """

    requests: int
    loaded_blocks: Mapping[str, int]
    down_seconds: float
    exact_seconds: float | None


@dataclass
class PolicyRun:
    """Everything that happened to one policy's requests."""

    policy: str
    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    predictions: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    restart: Restart | None = None

    @property
    def hit_rate(self) -> float:
        return hit_rate(self.records)

    def ttft_ms(self, share: float) -> float:
        """The time that so many of the requests had their first text within; 0 without any."""
        times = sorted(record.ttft_seconds for record in self.records)
        return times[min(len(times) - 1, int(share * len(times)))] * 1e3 if times else 0.0

    def sizes(self) -> list[tuple[str, int, int]]:
        """Which requests these were: equal for two policies that were asked the same."""
        return sorted((r.agent, r.prompt_tokens, r.answer_tokens) for r in self.records)


def table(runs: Sequence[PolicyRun], best_hit_rate: float) -> str:
    """A row for each policy, and one for a cache that never forgets anything."""
    rows = [("policy", "requests", "token hit rate", "TTFT p50", "TTFT p90", "exact predictions")]
    for run in runs:
        rows.append(
            (
                run.policy,
                f"{len(run.records)}" + (f" (+{len(run.failures)} failed)" if run.failures else ""),
                f"{run.hit_rate:.1%}",
                f"{run.ttft_ms(0.5):.0f} ms",
                f"{run.ttft_ms(0.9):.0f} ms",
                _exact(run.predictions),
            )
        )
    rows.append(("endless cache", "", f"{best_hit_rate:.1%}", "", "", ""))
    return "\n".join(_aligned(rows))


def restart_lines(run: PolicyRun, shared_tokens: int, block_size: int) -> list[str]:
    """What the restart cost, if there was one: a table of before and after, and what came back."""
    restart = run.restart
    if restart is None:
        return []
    before, after = run.records[: restart.requests], run.records[restart.requests :]
    best_before = best_cached_tokens(before, shared_tokens, block_size)
    best_after = best_cached_tokens(run.records, shared_tokens, block_size) - best_before
    rows = [
        (f"{run.policy}, killed half way", "before kill -9", "after the restart"),
        ("token hit rate", f"{hit_rate(before):.1%}", f"{hit_rate(after):.1%}"),
        (
            "endless cache",
            f"{best_before / max(1, _prompt_tokens(before)):.1%}",
            f"{best_after / max(1, _prompt_tokens(after)):.1%}",
        ),
    ]
    blocks, replicas = sum(restart.loaded_blocks.values()), len(restart.loaded_blocks)
    exact = (
        "not exact in time"
        if restart.exact_seconds is None
        else f"exact again {restart.exact_seconds:.1f} s after it listened"
    )
    back = f"the index came back: {blocks:,} blocks of {replicas} replicas loaded, {exact}"
    return [*_aligned(rows), f"{back} (it was down for {restart.down_seconds:.1f} s)"]


def hit_rate(records: Sequence[Record]) -> float:
    return sum(record.cached_tokens for record in records) / max(1, _prompt_tokens(records))


def _prompt_tokens(records: Sequence[Record]) -> int:
    return sum(record.prompt_tokens for record in records)


def best_hit_rate(records: Sequence[Record], shared_tokens: int, block_size: int) -> float:
    """What a cache without end would have reached."""
    cached = best_cached_tokens(records, shared_tokens, block_size)
    return cached / max(1, _prompt_tokens(records))


def best_cached_tokens(records: Sequence[Record], shared_tokens: int, block_size: int) -> int:
    """Of a cache without end. ``shared_tokens`` begin every prompt; they are computed once, by
    whoever comes first."""
    turns: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        turns.setdefault(record.agent, []).append((record.prompt_tokens, record.answer_tokens))
    cached = sum(cached_at_best(each, shared_tokens, block_size) for each in turns.values())
    cached -= shared_tokens // block_size * block_size
    return max(0, cached)


def prediction_counts(metrics: str) -> Counter[str]:
    """Predictions by outcome, summed over the replicas, from the router's Prometheus text."""
    counts = Counter[str]()
    for line in metrics.splitlines():
        name, brace, rest = line.partition("{")
        if name != "pointsman_predictions_total" or not brace:
            continue
        labels, _, value = rest.rpartition("} ")
        outcome = labels.rpartition('outcome="')[2].partition('"')[0]
        counts[outcome] += int(float(value))
    return counts


class Progress:
    """Where the work is: one line that changes on a terminal, now and then a line elsewhere."""

    _STEP = 0.25

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._next_share = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(f"\r\x1b[K{text}\n" if self._is_terminal else f"{text}\n")

    def update(self, text: str, share: float = 0.0) -> None:
        """``share`` is how much is done, 0 to 1; 0 begins something new."""
        if self._is_terminal:
            self._write(f"\r\x1b[K{text}")
            return
        if share == 0:
            self._next_share = 0.0
        if share >= self._next_share:
            self._next_share = share - share % self._STEP + self._STEP
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _exact(predictions: Mapping[str, int]) -> str:
    total = sum(predictions.values())
    if not total:
        return "none made"
    exact = predictions.get("exact", 0)
    return f"{exact} of {total} ({exact / total:.1%})"


def _aligned(rows: _Rows) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], rule, *lines[1:]]
