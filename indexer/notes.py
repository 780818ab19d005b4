"""What a replica's state machine noticed, for the shells to log and to count."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What the shell puts into the line itself.
LOGGED_BESIDE = frozenset({"replica", "times"})


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator would want to read, for the shell to log."""

    event: str
    fields: Mapping[str, Any]
    warning: bool = True


@dataclass(slots=True)
class Counters:
    """Plain numbers for metrics; they only grow."""

    batches: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    clears: int = 0
    malformed_batches: int = 0
    unknown_events: int = 0
    drifts: int = 0
    restarts: int = 0


@dataclass(slots=True)
class Notes:
    """Notes waiting for the shell. Bounded: of a burst the first ones tell the story."""

    waiting: list[Note] = field(default_factory=list)
    max: int = 100

    def add(self, event: str, *, warning: bool = True, **fields: Any) -> None:
        assert LOGGED_BESIDE.isdisjoint(fields), fields
        if len(self.waiting) < self.max:
            self.waiting.append(Note(event, fields, warning))

    def take(self) -> list[Note]:
        taken, self.waiting = self.waiting, []
        return taken
