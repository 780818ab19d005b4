"""Cancels a coroutine at each of its awaits in turn.

``at_every_await`` runs a fresh scenario again and again. The first time it is cancelled where it
suspends for the first time, then where it suspends for the second time, and so on, until a run is
through before its turn came. What the scenario waits for is real: its other side runs in tasks of
the same loop, so each suspension is one that production has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

# A scenario with more suspensions than this does not end.
_AWAITS_MAX = 1000


class _CancelledAt:
    """Awaits ``inner`` and cancels it when it suspends for the ``turn``-th time, from 0."""

    def __init__(self, inner: Coroutine[Any, Any, Any], turn: int) -> None:
        self._inner = inner
        self._turn = turn
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        suspensions = 0
        thrown: BaseException | None = None
        value: Any = None
        while True:
            try:
                if thrown is None:
                    awaited = self._inner.send(value)
                else:
                    awaited = self._inner.throw(thrown)
            except StopIteration as end:
                return end.value
            thrown = value = None
            if suspensions == self._turn:
                # As ``Task.cancel`` does: what is awaited is cancelled, and the coroutine told.
                self.cancelled = True
                if awaited is not None:
                    awaited._asyncio_future_blocking = False
                    awaited.cancel()
                thrown = asyncio.CancelledError()
            else:
                try:
                    value = yield awaited
                except BaseException as error:
                    thrown = error
            suspensions += 1


async def at_every_await(
    scenario: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[bool], Awaitable[None]]
) -> int:
    """How many awaits there were. ``check`` is called after each run: was it cancelled?

    Raises AssertionError where the coroutine swallows its cancellation.
    """
    for turn in range(_AWAITS_MAX):
        run = _CancelledAt(scenario(), turn)
        task = asyncio.ensure_future(_await(run))
        try:
            await task
            swallowed = run.cancelled
        except asyncio.CancelledError:
            swallowed = False
        assert not swallowed, f"the cancellation at await {turn} was swallowed"
        await check(run.cancelled)
        if not run.cancelled:
            return turn
    raise AssertionError(f"not through after {_AWAITS_MAX} awaits")


async def _await(run: _CancelledAt) -> Any:
    return await run
