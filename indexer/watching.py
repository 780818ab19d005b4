"""A shell: tells watchers when the replicas have changed, so that each need not look for itself.

One task compares the shape of the whole (membership, schemes, evidence) on a short interval, while
anybody watches. What changes with every batch (blocks, sequence numbers) is no reason to wake
anyone; a watcher gets it with the next state, at the latest after ``REFRESH_S``.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from indexer.answers import Answers
from proto.contract import ReplicaView

LOOK_S = 0.1
REFRESH_S = 2.0
# Each gets a whole state every REFRESH_S. A router needs one.
WATCHERS_MAX = 128


class TooManyWatchers(Exception):
    """There is no room for another watcher."""


class ReplicaWatch:
    """Changes of one hub's replicas."""

    def __init__(self, answers: Answers, refresh_s: float = REFRESH_S) -> None:
        self._answers, self._refresh_s = answers, refresh_s
        self._changed = asyncio.Event()
        self._watchers = 0

    def __repr__(self) -> str:
        return f"<ReplicaWatch {self._watchers} watchers>"

    async def run(self) -> None:
        """Until cancelled."""
        shape = self._answers.shape(time.monotonic())
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._watchers:
                continue
            looked = self._answers.shape(time.monotonic())
            if looked != shape:
                shape = looked
                self._changed.set()
                self._changed = asyncio.Event()

    async def watch(self, pool: str = "") -> AsyncIterator[tuple[ReplicaView, ...]]:
        """The whole state at once, and again when it changes. Raises TooManyWatchers."""
        if self._watchers >= WATCHERS_MAX:
            raise TooManyWatchers(f"{WATCHERS_MAX} watch already")
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                yield self._answers.list_replicas(pool, time.monotonic())
                try:
                    async with asyncio.timeout(self._refresh_s):
                        await changed.wait()
                except TimeoutError:
                    pass
        finally:
            self._watchers -= 1
