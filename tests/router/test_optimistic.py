"""Blocks booked until their event."""

from router.optimistic import BOOKED_S_MAX, OptimisticBlocks

PROMPT = list(range(100, 110))


def test_a_sibling_finds_what_was_booked_until_it_expires() -> None:
    """The next request of the same prefix follows before any event has come."""
    booked = OptimisticBlocks()
    booked.book("a", PROMPT, now=0.0)
    assert booked.extend("a", PROMPT, 0, now=1.0) == 10
    assert booked.extend("b", PROMPT, 0, now=1.0) == 0
    assert booked.extend("a", PROMPT, 0, now=BOOKED_S_MAX) == 0


def test_bookings_go_on_from_what_the_events_show() -> None:
    """Only the blocks behind the match were booked; the match itself is the index's to tell."""
    booked = OptimisticBlocks()
    booked.book("a", PROMPT[4:], now=0.0)
    assert booked.extend("a", PROMPT, 4, now=0.0) == 10
    assert booked.extend("a", PROMPT, 0, now=0.0) == 0


def test_a_refusal_takes_back_what_it_booked_and_no_later_booking() -> None:
    """A retry elsewhere must not leave siblings following to where the prompt is not."""
    booked = OptimisticBlocks()
    first = booked.book("a", PROMPT, now=0.0)
    booked.book("a", PROMPT[:3], now=0.5)
    booked.refuse(first)
    assert booked.extend("a", PROMPT, 0, now=0.5) == 3


def test_expired_entries_are_dropped_by_the_next_booking() -> None:
    """What is held is bounded by what two seconds bring."""
    booked = OptimisticBlocks()
    for second in range(100):
        booked.book("a", range(second * 10, second * 10 + 10), now=float(second))
    assert len(booked) <= 30


def test_without_events_bookings_last_and_the_capacity_bounds_them() -> None:
    """The approximate mode: heads of recent prompts stay, the oldest tails go."""
    booked = OptimisticBlocks()
    booked.book_without_events("a", PROMPT, capacity_blocks=15)
    booked.book_without_events("a", range(10), capacity_blocks=15)
    assert len(booked) == 15
    assert booked.extend("a", list(range(10)), 0, now=1e6) == 10
    assert booked.extend("a", PROMPT, 0, now=1e6) == 5


def test_a_forgotten_replica_has_nothing_booked() -> None:
    """It restarted, or tells its blocks itself now."""
    booked = OptimisticBlocks()
    booked.book("a", PROMPT, now=0.0)
    booked.forget("a")
    assert len(booked) == 0
