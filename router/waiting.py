"""Requests that wait until some replica has room: in order of arrival, and bounded.

It holds no timer: the shell waits for ``wake``. Rules: a release wakes one waiter; one that was
woken and is gone passes the room on; one that was woken and could not go keeps its place.
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

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, wake: Callable[[], None], *, first: bool = False) -> Waiter:
        """``first``: it has waited before and keeps its place. Raises WaitingFull."""
        waiter = Waiter(wake)
        if first:
            self._queue.appendleft(waiter)
        elif len(self._queue) >= self.waiting_max:
            raise WaitingFull
        else:
            self._queue.append(waiter)
        return waiter

    def wake_next(self) -> None:
        """There may be room."""
        if self._queue:
            waiter = self._queue.popleft()
            waiter.woken = True
            waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        """It gave up. The room that it was offered goes to the next."""
        if waiter.woken:
            self.wake_next()
        else:
            self._queue.remove(waiter)
