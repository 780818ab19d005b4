"""Who goes next when there is room."""

import pytest

from router.waiting import Waiter, WaitingFull, WaitingRoom


class Room(WaitingRoom):
    """Notes who was woken."""

    def __init__(self, waiting_max: int = 10) -> None:
        super().__init__(waiting_max)
        self.woken = list[str]()

    def come(self, name: str) -> Waiter:
        return self.join(lambda: self.woken.append(name))


def test_one_waiter_at_a_time_looks_in_order() -> None:
    """First come, first served: nobody overtakes one that is still looking."""
    room = Room()
    first, second, _ = (room.come(name) for name in "abc")
    room.wake_next()
    room.wake_next()
    assert room.woken == ["a"]
    room.leave(first)
    assert room.woken == ["a", "b"]
    room.leave(second)
    assert room.woken == ["a", "b", "c"]


def test_room_that_is_released_while_one_looks_has_it_look_again() -> None:
    """A wake-up that comes at the wrong moment is not lost."""
    room = Room()
    room.come("a")
    room.come("b")
    room.wake_next()
    room.join_again(lambda: room.woken.append("a again"))
    assert room.woken == ["a"]
    room.wake_next()
    room.wake_next()
    room.join_again(lambda: room.woken.append("a once more"))
    assert room.woken == ["a", "a again", "a once more"]


def test_the_room_is_bounded_but_not_for_one_that_keeps_its_place() -> None:
    """A waiter that was woken in vain has not to queue anew."""
    room = Room(waiting_max=1)
    room.come("a")
    with pytest.raises(WaitingFull):
        room.come("b")
    room.wake_next()
    room.come("b")
    room.join_again(lambda: None)
    assert len(room) == 2


def test_one_that_gives_up_before_its_turn_leaves_the_queue() -> None:
    """It is not woken, and nobody else is because of it."""
    room = Room()
    first = room.come("a")
    room.come("b")
    room.leave(first)
    assert (room.woken, len(room)) == ([], 1)
    room.wake_next()
    assert room.woken == ["b"]
