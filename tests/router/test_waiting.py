"""Who goes next when there is room."""

import pytest

from router.waiting import WaitingFull, WaitingRoom


def test_waiters_are_woken_in_order_one_per_release() -> None:
    """First come, first served; nobody is woken for room that is somebody else's."""
    room, woken = WaitingRoom(10), list[str]()
    for name in "abc":
        room.join(lambda name=name: woken.append(name))
    room.wake_next()
    assert woken == ["a"]
    room.wake_next()
    assert woken == ["a", "b"]


def test_the_room_is_bounded_but_not_for_one_that_keeps_its_place() -> None:
    """A waiter that was woken in vain has not to queue anew."""
    room = WaitingRoom(1)
    first = room.join(lambda: None)
    with pytest.raises(WaitingFull):
        room.join(lambda: None)
    room.wake_next()
    assert first.woken
    room.join(lambda: None)
    room.join(lambda: None, first=True)
    assert len(room) == 2


def test_one_that_is_gone_passes_its_room_on() -> None:
    """A client that goes away just when it is its turn costs nobody's turn."""
    room, woken = WaitingRoom(10), list[str]()
    first = room.join(lambda: woken.append("first"))
    room.join(lambda: woken.append("second"))
    room.wake_next()
    room.leave(first)
    assert woken == ["first", "second"]


def test_one_that_gives_up_before_its_turn_leaves_the_queue() -> None:
    """It is not woken, and nobody else is because of it."""
    room, woken = WaitingRoom(10), list[str]()
    first = room.join(lambda: woken.append("first"))
    room.join(lambda: woken.append("second"))
    room.leave(first)
    assert (woken, len(room)) == ([], 1)
    room.wake_next()
    assert woken == ["second"]
