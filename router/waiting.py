"""Requests that wait until some replica has room: in order of arrival, and bounded.

It holds no timer: the shell waits for ``wake``. Rules: one waiter at a time looks for room, and
room that is released meanwhile has it look again; one that went, or is gone, has the next look.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


class WaitingFull(Exception):
    """As many as may wait are waiting."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One turn in the queue; ``wake`` is called at most once."""

    wake: Callable[[], None]
    woken: bool = False


@dataclass(slots=True)
class WaitingRoom:
    """The waiters of one pool."""

    waiting_max: int
    _queue: deque[Waiter] = field(default_factory=deque)
    _looking: bool = False
    _look_again: bool = False

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, wake: Callable[[], None]) -> Waiter:
        """At the end of the queue. Raises WaitingFull."""
        if len(self._queue) >= self.waiting_max:
            raise WaitingFull
        waiter = Waiter(wake)
        self._queue.append(waiter)
        return waiter

    def join_again(self, wake: Callable[[], None]) -> Waiter:
        """For one that looked and found no room: it keeps its place."""
        waiter = Waiter(wake)
        self._queue.appendleft(waiter)
        self._looking = False
        if self._look_again:
            self.wake_next()
        return waiter

    def wake_next(self) -> None:
        """There may be room."""
        self._look_again = self._looking
        if self._queue and not self._looking:
            waiter = self._queue.popleft()
            waiter.woken = self._looking = True
            waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        """It went, or gave up. What it leaves of the room is for the next."""
        if waiter.woken:
            self._looking = False
            self.wake_next()
        else:
            self._queue.remove(waiter)
