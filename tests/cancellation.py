"""Cancels a coroutine at each of its awaits in turn.

``at_every_await`` runs a scenario again and again. The first time the coroutine that it wraps is
cancelled where it suspends for the first time, then where it suspends for the second time, and so
on, until a run is through before its turn came. Cancelling is what ``Task.cancel`` does, and what
is awaited is real, so each suspension is one that production has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

# A scenario with more suspensions than this does not end.
_AWAITS_MAX = 1000

Returned = TypeVar("Returned")


class Cancelling:
    """Given to the scenario, which awaits ``cancelling(coroutine)`` somewhere, once."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.cancelled = False
        self.swallowed = False

    def __call__(self, coroutine: Coroutine[Any, Any, Returned]) -> "_Interrupted[Returned]":
        return _Interrupted(coroutine, self)


class _Interrupted(Generic[Returned]):
    def __init__(self, coroutine: Coroutine[Any, Any, Returned], cancelling: Cancelling) -> None:
        self._coroutine = coroutine
        self._cancelling = cancelling

    def __await__(self) -> Generator[Any, Any, Returned]:
        step: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        suspensions = 0
        while True:
            try:
                awaited = step(value)
            except StopIteration as end:
                self._cancelling.swallowed = self._cancelling.cancelled
                return end.value  # type: ignore[no-any-return]
            if suspensions == self._cancelling.turn:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self._cancelling.cancelled = True
            suspensions += 1
            try:
                value = yield awaited
                step = self._coroutine.send
            except BaseException as error:
                step, value = self._coroutine.throw, error


async def at_every_await(scenario: Callable[[Cancelling], Awaitable[None]]) -> int:
    """How many awaits the coroutine has. The scenario checks what has to hold after each run.

    Raises AssertionError where the coroutine swallows its cancellation, or a task is left over.
    """
    before = asyncio.all_tasks()
    for turn in range(_AWAITS_MAX):
        cancelling = Cancelling(turn)
        await scenario(cancelling)
        assert not cancelling.swallowed, f"the cancellation at await {turn} was swallowed"
        left = asyncio.all_tasks() - before
        assert not left, f"left over after a cancellation at await {turn}: {left}"
        if not cancelling.cancelled:
            return turn
    raise AssertionError(f"not through after {_AWAITS_MAX} awaits")
