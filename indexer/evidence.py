"""How far the index of one replica can be trusted, as a state with its reasons.

EXACT: the scheme is proven and the history complete. DEGRADED: matches are served, with reasons why
they may be too small (or, rarely, too large). FALLBACK: there is nothing to match with; where that
is because the engine has stored nothing since it started, it is known that nothing will be found.
(Design, decision 9.) ``judge`` is the one place where facts become a level.
"""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    EXACT = "exact"
    DEGRADED = "degraded"
    FALLBACK = "fallback"


class Reason(StrEnum):
    """Each names what has to change for the evidence to become better."""

    NO_EVENTS = "no_events"
    DUPLICATE_PUBLISHER = "duplicate_publisher"
    NOT_PROVEN = "not_proven"
    NOTHING_STORED = "nothing_stored"
    INCOMPLETE_HISTORY = "incomplete_history"
    RECOVERING = "recovering"
    TRANSLATING = "translating"
    COUNTS_DRIFTED = "counts_drifted"
    UNKNOWN_EVENT = "unknown_event"
    HYBRID_GROUPS = "hybrid_groups"
    SILENT = "silent"
    LAGGING = "lagging"


@dataclass(frozen=True, slots=True)
class Evidence:
    level: Level
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return f"{self.level}({'|'.join(self.reasons)})" if self.reasons else str(self.level)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one replica's stream and index at one moment."""

    streaming: bool = False
    nothing_published: bool = False
    duplicate_publisher: bool = False
    scheme_proven: bool = False
    translating: bool = False
    history_complete: bool = False
    recovering: bool = False
    counts_drifted: bool = False
    unknown_event: bool = False
    hybrid_groups: bool = False
    silent: bool = False
    lagging: bool = False
    holds_blocks: bool = False


def judge(facts: Facts) -> Evidence:
    """The evidence that these facts amount to."""
    if facts.duplicate_publisher:
        return Evidence(Level.FALLBACK, (Reason.DUPLICATE_PUBLISHER,))
    if not facts.streaming and not facts.holds_blocks:
        return Evidence(Level.FALLBACK, (Reason.NO_EVENTS,))
    if not facts.scheme_proven and not facts.translating:
        empty = facts.nothing_published and not facts.silent
        return Evidence(Level.FALLBACK, (Reason.NOTHING_STORED if empty else Reason.NOT_PROVEN,))
    degraded = (
        (Reason.TRANSLATING, facts.translating),
        (Reason.RECOVERING, facts.recovering or not facts.streaming),
        (Reason.INCOMPLETE_HISTORY, not facts.history_complete),
        (Reason.COUNTS_DRIFTED, facts.counts_drifted),
        (Reason.UNKNOWN_EVENT, facts.unknown_event),
        (Reason.HYBRID_GROUPS, facts.hybrid_groups),
        (Reason.SILENT, facts.silent),
        (Reason.LAGGING, facts.lagging),
    )
    reasons = tuple(reason for reason, holds in degraded if holds)
    return Evidence(Level.DEGRADED if reasons else Level.EXACT, reasons)
