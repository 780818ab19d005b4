"""One figure: the runs behind it, and the JSON line that it becomes."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """``value`` is the median of ``n`` runs."""

    name: str
    value: float
    unit: str
    n: int
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, name: str, unit: str, runs: Sequence[float]) -> "Measurement":
        median = _three_digits(statistics.median(runs))
        low, high = _three_digits(min(runs)), _three_digits(max(runs))
        return cls(name, median, unit, len(runs), median, low, high)

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


def seconds_of(work: Callable[[], object]) -> float:
    """Wall-clock time of one call, with the garbage of whatever ran before it collected."""
    gc.collect()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def scaled(size: int, scale: float, least: int) -> int:
    return max(least, int(size * scale))


def _three_digits(value: float) -> float:
    """More digits than that are noise on any machine; whole numbers stay whole."""
    return float(f"{value:.3g}") if value < 1000 else float(round(value))
