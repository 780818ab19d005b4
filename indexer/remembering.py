"""A shell: between the journals of a hub and the store. What is written and when is theirs to say.

It loads what was kept of a replica, asks the journals again and again, passes their flushes on, and
says whether the store answers. While it does not, one flush a second asks whether it is back.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from indexer.durability import BEHIND_S_MAX, Answer, Elsewhere, Flush, Journal, Written
from indexer.hub import Hub, Link, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.redis_store import StoreUnavailable
from indexer.saved_state import NotReadable, Saved

_log = structlog.get_logger("indexer")

# A store that starts at the same time as the indexer is waited for; what it keeps is worth that.
START_S_MAX = 3.0
START_RETRY_S = 0.2
DOWN_RETRY_S = 1.0
STOP_S_MAX = 1.0
# More would only wait for one another: the server does one thing at a time.
FLUSHES_MAX = 8


class Store(Protocol):
    """What this asks of a store. All raise StoreUnavailable; ``load`` raises NotReadable too."""

    url: str

    async def flush(self, pool: PoolName, replica_id: ReplicaId, flush: Flush) -> Answer: ...
    async def load(self, pool: PoolName, replica_id: ReplicaId) -> Saved | None: ...
    async def warnings(self) -> list[str]: ...
    async def close(self) -> None: ...


class Remembering:
    """One hub's store. ``error`` says why it does not answer, None while it does."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self.error: str | None = None
        self.woken = asyncio.Event()
        self._store, self._hub = store, hub
        self._busy: set[Link] = set()
        self._watchers: dict[Link, Callable[[str], None]] = {}
        self._turns = asyncio.Semaphore(FLUSHES_MAX)
        self._started_at = time.monotonic()
        self._checked = False

    @property
    def url(self) -> str:
        """Where the store is; no password is in it."""
        return self._store.url

    def __repr__(self) -> str:
        return f"<Remembering in {self._store!r}: {self.error or 'it answers'}>"

    def durable(self, now: float) -> bool:
        """Whether every replica is kept, but for the last moment."""
        journals = [link.journal for link in self._hub.links.values()]
        return self.error is None and all(j is not None and j.durable(now) for j in journals)

    @contextmanager
    def watched(self, link: Link, flushed: Callable[[str], None]) -> Iterator[None]:
        """Call ``flushed`` at once when a flush is made that leaves the store with all that the
        memory then holds, with the position that it leads to. One at a time for each link.
        """
        self._watchers[link] = flushed
        try:
            yield
        finally:
            del self._watchers[link]

    def _tell(self, link: Link, position: str | None) -> None:
        if position is not None and link in self._watchers:
            self._watchers[link](position)

    # At the start.

    async def load(self, source: RankSource) -> Saved | None:
        """What is kept of a rank. None too where it cannot be had: then its log is replayed."""
        if not self._hub.keeps(source):
            return None
        try:
            saved = await self._load(source)
        except NotReadable as error:
            _log.warning("store_not_readable", replica=source.replica_id, error=str(error))
            return None
        if saved is not None:
            _log.info(
                "replica_restored",
                replica=source.replica_id,
                blocks=len(saved.counts),
                seq=saved.state.seq,
            )
        return saved

    async def _load(self, source: RankSource) -> Saved | None:
        while True:
            try:
                async with self._turns:
                    saved = await self._store.load(source.pool, source.replica_id)
            except StoreUnavailable as error:
                self._says(str(error))
                if time.monotonic() - self._started_at > START_S_MAX:
                    return None
                await asyncio.sleep(START_RETRY_S)
            else:
                self._says(None)
                return saved

    # All the time.

    def wake_if_behind(self) -> None:
        """After each slice of work: not more than so many blocks wait for the clock."""
        if any(link.journal and link.journal.behind for link in self._hub.links.values()):
            self.woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            down_until = 0.0
            while True:
                self.woken.clear()
                now = time.monotonic()
                for link, journal in self._journals():
                    journal.bound_changes()
                    if link in self._busy or now < down_until:
                        continue
                    flush = journal.next(now)
                    if flush is None:
                        continue
                    self._tell(link, journal.mirrored(now))
                    self._busy.add(link)
                    group.create_task(self._flush(link, journal, flush))
                    if self.error is not None:
                        down_until = now + DOWN_RETRY_S
                await self._wait()

    async def stop(self) -> None:
        """Write what is pending, and give the leases back; not for long."""
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await asyncio.gather(*(self._last(*pair) for pair in self._journals()))
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("store_left_behind", error=str(error))
        try:
            await self._store.close()
        except StoreUnavailable as error:
            _log.warning("store_not_closed", error=str(error))

    def _journals(self) -> list[tuple[Link, Journal]]:
        links = self._hub.links.values()
        return [(link, link.journal) for link in links if link.journal is not None]

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(BEHIND_S_MAX):
                await self.woken.wait()
        except TimeoutError:
            pass

    async def _flush(self, link: Link, journal: Journal, flush: Flush) -> None:
        source = link.source
        try:
            async with self._turns:
                answer = await self._store.flush(source.pool, source.replica_id, flush)
                if not self._checked:
                    await self._check()
        except StoreUnavailable as error:
            journal.unanswered(flush, time.monotonic())
            self._says(str(error))
        else:
            if isinstance(answer, Elsewhere) and journal.written_seq is not None:
                _log.warning("store_lost_data", replica=source.replica_id, found=answer.position)
            journal.answered(flush, answer, time.monotonic())
            self._says(None)
        finally:
            self._busy.discard(link)

    async def _last(self, link: Link, journal: Journal) -> None:
        """A flush that is under way first, then one that gives the lease back."""
        source, released = link.source, False
        while not released:
            flush = journal.last(time.monotonic())
            answer = await self._store.flush(source.pool, source.replica_id, flush)
            journal.answered(flush, answer, time.monotonic())
            released = not flush.lease_s or not isinstance(answer, Written)

    async def _check(self) -> None:
        """Once the server answers, what is wrong with it for good."""
        self._checked = True
        for warning in await self._store.warnings():
            _log.warning("store_unfit", warning=warning)

    def _says(self, error: str | None) -> None:
        if (error is None) != (self.error is None):
            if error is None:
                _log.info("store_answers")
            else:
                _log.warning("store_unavailable", error=error)
        self.error = error
