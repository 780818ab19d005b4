"""Facts -> how far an index can be trusted."""

from dataclasses import fields, replace

import pytest

from indexer.evidence import Evidence, Facts, Level, Reason, judge

BEST = Facts(streaming=True, scheme_proven=True, history_complete=True, holds_blocks=True)


def test_exact_needs_a_proof_and_a_complete_history() -> None:
    """Nothing is wrong and everything is known: exact, without a reason, full or empty."""
    assert judge(BEST) == judge(replace(BEST, holds_blocks=False)) == Evidence(Level.EXACT)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recovering": True}, Reason.RECOVERING),
        ({"streaming": False}, Reason.RECOVERING),
        ({"history_complete": False}, Reason.INCOMPLETE_HISTORY),
        ({"translating": True}, Reason.TRANSLATING),
        ({"counts_drifted": True}, Reason.COUNTS_DRIFTED),
        ({"unknown_event": True}, Reason.UNKNOWN_EVENT),
        ({"hybrid_groups": True}, Reason.HYBRID_GROUPS),
        ({"silent": True}, Reason.SILENT),
        ({"lagging": True}, Reason.LAGGING),
    ],
)
def test_each_doubt_degrades_by_its_own_name(change: dict[str, bool], reason: Reason) -> None:
    """One doubt is one reason, and never exact."""
    assert judge(replace(BEST, **change)) == Evidence(Level.DEGRADED, (reason,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"duplicate_publisher": True}, Reason.DUPLICATE_PUBLISHER),
        ({"streaming": False, "holds_blocks": False}, Reason.NO_EVENTS),
        ({"scheme_proven": False}, Reason.NOT_PROVEN),
        ({"scheme_proven": False, "nothing_published": True}, Reason.NOT_PROVEN),
    ],
)
def test_nothing_to_match_with_is_a_fallback(change: dict[str, bool], reason: Reason) -> None:
    """What makes matching impossible is the only reason given, whatever else holds."""
    doubts = {"lagging": True, "silent": True, "counts_drifted": True}
    assert judge(replace(BEST, **change, **doubts)) == Evidence(Level.FALLBACK, (reason,))


def test_a_replica_that_has_stored_nothing_is_told_from_one_that_is_not_understood() -> None:
    """Nothing can be found on it, which is more than not to know."""
    empty = replace(BEST, scheme_proven=False, history_complete=False, holds_blocks=False)
    assert judge(empty) == Evidence(Level.FALLBACK, (Reason.NOT_PROVEN,))
    nothing = Evidence(Level.FALLBACK, (Reason.NOTHING_STORED,))
    assert judge(replace(empty, nothing_published=True)) == nothing


def test_reasons_add_up() -> None:
    """Every doubt that holds is named, and shown in one line."""
    doubts = judge(replace(BEST, silent=True, lagging=True, history_complete=False))
    assert str(doubts) == "degraded(incomplete_history|silent|lagging)"
    assert str(judge(BEST)) == "exact"


def test_nothing_known_is_a_fallback() -> None:
    """The facts of a replica that was never heard of make no claim."""
    assert judge(Facts()) == Evidence(Level.FALLBACK, (Reason.NO_EVENTS,))
    assert all(getattr(Facts(), field.name) is False for field in fields(Facts))
