"""What a replica has been given: counted when chosen, given back once."""

import pytest

from router.load import RECENT_HALF_LIFE_S, REQUEST_TOKENS, InflightLoad, Load


def test_a_request_counts_from_when_it_is_taken_until_it_is_released() -> None:
    """Sequences and uncached tokens are there at once and gone after the release."""
    load = InflightLoad()
    lease = load.take("a", 3, 700, now=0.0)
    assert (load.of("a", 0.0).inflight, load.of("a", 0.0).outstanding_tokens) == (3, 700)
    assert load.inflight == 3
    lease.release()
    assert (load.of("a", 0.0).inflight, load.of("a", 0.0).outstanding_tokens) == (0, 0)
    assert load.inflight == 0


def test_the_first_byte_takes_the_tokens_away_and_the_release_only_the_request() -> None:
    """A prompt that has been computed is no work ahead any more, however often that is said."""
    load = InflightLoad()
    lease = load.take("a", 1, 700, now=0.0)
    lease.first_byte()
    lease.first_byte()
    assert (load.of("a", 0.0).inflight, load.of("a", 0.0).outstanding_tokens) == (1, 0)
    lease.release()
    assert load.of("a", 0.0).outstanding_tokens == 0


def test_a_second_release_is_a_bug_that_shows() -> None:
    """A lease that is released twice would let one request too many in, for ever."""
    lease = InflightLoad().take("a", 1, 0, now=0.0)
    lease.release()
    with pytest.raises(AssertionError):
        lease.release()


def test_each_release_is_told_to_whoever_waits() -> None:
    """Room that nobody hears of is no room."""
    told: list[int] = []
    load = InflightLoad(on_release=lambda: told.append(load.inflight))
    first, second = load.take("a", 1, 0, 0.0), load.take("b", 1, 0, 0.0)
    first.release()
    second.release()
    assert told == [1, 0]


def test_recent_work_fades_with_its_half_life_and_outlives_the_request() -> None:
    """What was done half an hour ago counts less than what was done now, but it counts."""
    load = InflightLoad()
    load.take("a", 1, 900, now=0.0).release()
    assert load.of("a", 0.0).recent_tokens == 900 + REQUEST_TOKENS
    assert load.of("a", RECENT_HALF_LIFE_S).recent_tokens == pytest.approx(500)
    load.take("a", 1, 400, now=RECENT_HALF_LIFE_S)
    assert load.of("a", RECENT_HALF_LIFE_S).recent_tokens == pytest.approx(1000)


def test_room_is_what_the_limit_leaves_and_a_giant_is_let_into_an_empty_replica() -> None:
    """A request of more sequences than the limit could otherwise never be placed."""
    assert Load(inflight=255, inflight_max=256).has_room(1)
    assert not Load(inflight=256, inflight_max=256).has_room(1)
    assert not Load(inflight=1, inflight_max=256).has_room(300)
    assert Load(inflight=0, inflight_max=256).has_room(300)
