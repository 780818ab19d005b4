"""A shell: between the journals of a hub and the store. What is written and when is theirs to say.

It loads what was kept of a replica, asks the journals again and again, passes their flushes on, and
says whether the store answers. While it does not, one flush a second asks whether it is back.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
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
# One that comes later is still asked what it kept, before it is written to, until this: what it
# kept needs the engine's batches since then, and those are not there for long.
LATE_S_MAX = 60.0
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

    def __init__(
        self,
        store: Store,
        hub: Hub,
        *,
        start_s_max: float = START_S_MAX,
        late_s_max: float = LATE_S_MAX,
    ) -> None:
        self.error: str | None = None
        self.woken = asyncio.Event()
        self._store, self._hub = store, hub
        self._start_s_max, self._late_s_max = start_s_max, late_s_max
        self._busy: set[Link] = set()
        self._watchers: dict[Link, Callable[[str], None]] = {}
        # What the store kept of these could not be had yet; until when that is tried.
        self._unloaded: dict[ReplicaId, float] = {}
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
        self._unloaded.pop(source.replica_id, None)
        if not self._hub.keeps(source):
            return None
        while True:
            try:
                return await self._load(source)
            except StoreUnavailable as error:
                self._says(str(error))
            if time.monotonic() - self._started_at > self._start_s_max:
                self._unloaded[source.replica_id] = time.monotonic() + self._late_s_max
                return None
            await asyncio.sleep(START_RETRY_S)

    async def _load(self, source: RankSource) -> Saved | None:
        """Raises StoreUnavailable."""
        try:
            async with self._turns:
                saved = await self._store.load(source.pool, source.replica_id)
        except NotReadable as error:
            _log.warning("store_not_readable", replica=source.replica_id, error=str(error))
            saved = None
        self._says(None)
        if saved is not None:
            blocks, seq = len(saved.counts), saved.state.seq
            _log.info("replica_restored", replica=source.replica_id, blocks=blocks, seq=seq)
        return saved

    async def _load_late(self, link: Link) -> None:
        """A store that comes late knows more than can be replayed, as a rule; but not for ever."""
        replica_id = link.source.replica_id
        try:
            known = link.state.indexed.history_complete
            if known or time.monotonic() > self._unloaded[replica_id]:
                self._unloaded.pop(replica_id, None)
                return
            saved = await self._load(link.source)
            # It may have departed meanwhile, or come again, with a load of its own.
            if self._hub.links.get(replica_id) is link:
                self._unloaded.pop(replica_id, None)
                if saved is not None and not link.state.indexed.history_complete:
                    self._hub.begin_anew(replica_id, saved, time.monotonic())
        except StoreUnavailable as error:
            self._says(str(error))
        finally:
            self._busy.discard(link)

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
                    work = self._work(link, journal, now)
                    if work is None:
                        continue
                    self._busy.add(link)
                    group.create_task(work)
                    if self.error is not None:
                        down_until = now + DOWN_RETRY_S
                await self._wait()

    def _work(self, link: Link, journal: Journal, now: float) -> Coroutine[None, None, None] | None:
        """What there is to do for one rank, if anything. What was not loaded is not written to."""
        if link.source.replica_id in self._unloaded:
            return self._load_late(link)
        flush = journal.next(now)
        if flush is None:
            return None
        self._tell(link, journal.mirrored(now))
        return self._flush(link, journal, flush)

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
