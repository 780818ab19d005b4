"""What a run says: figures and what was skipped, as JSON lines or as Markdown tables."""

from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.micro.measurement import Measurement

OURS = "pointsman"


class NotMeasured(Exception):
    """A peer cannot be measured here; the text says why, for whoever reads the run's output."""


class Figure(msgspec.Struct, frozen=True):
    """``value`` is the median of ``n`` rounds; ``name`` is what was measured, of whom ``peer``."""

    name: str
    peer: str
    value: float
    unit: str
    n: int
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, name: str, peer: str, unit: str, runs: Sequence[float]) -> "Figure":
        measured = Measurement.of(name, unit, runs)
        return cls(
            name,
            peer,
            measured.value,
            unit,
            measured.n,
            measured.median,
            measured.min,
            measured.max,
        )

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


class Skipped(msgspec.Struct, frozen=True):
    name: str
    peer: str
    skipped: str

    @classmethod
    def because(cls, name: str, peer: str, error: Exception) -> "Skipped":
        """What a foreign program says can have many lines; a reason is the last that says much."""
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        return cls(name, peer, " | ".join(said[-3:]) or type(error).__name__)

    def line(self) -> str:
        return msgspec.json.encode(self).decode()


Line = Figure | Skipped


def markdown(lines: Iterable[Line]) -> str:
    """A table per group of figures that were measured of the same peers, then what was skipped.

    The longer side goes down. In brackets: how many times the first of ours it is, of the medians.
    """
    figures: dict[str, dict[str, Figure]] = {}
    skipped = []
    for line in lines:
        if isinstance(line, Skipped):
            skipped.append(f"- {line.peer}, {line.name}: skipped, {line.skipped}")
        else:
            figures.setdefault(line.name, {})[line.peer] = line
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, by_peer in figures.items():
        groups.setdefault(tuple(by_peer), []).append(name)
    tables = [_table(figures, names, list(peers)) for peers, names in groups.items()]
    return "\n\n".join([*tables, *(["\n".join(skipped)] if skipped else [])])


def _table(figures: dict[str, dict[str, Figure]], names: list[str], peers: list[str]) -> str:
    def cell(name: str, peer: str) -> str:
        figure, own = figures[name][peer], figures[name][ours] if ours else None
        value = _readable(figure.median)
        if own is None or own is figure or not own.median:
            return value
        return f"{value} ({figure.median / own.median:.2f} x)"

    ours = next((peer for peer in peers if peer.startswith(OURS)), None)
    units = {name: figures[name][peers[0]].unit for name in names}
    if len(names) >= len(peers):
        head = ["figure", *peers]
        rows = [[f"{n} ({units[n]})", *(cell(n, p) for p in peers)] for n in names]
    else:
        head = ["who", *(f"{name} ({units[name]})" for name in names)]
        rows = [[p, *(cell(n, p) for n in names)] for p in peers]
    written = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in written)


def _readable(value: float) -> str:
    """Three digits, which is more than the machine's noise leaves."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
