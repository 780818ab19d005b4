"""A shell: holds a running indexer's memory against its store and against simulated engines.

The index moves while it is looked at. So memory and store are compared at a flush: the indexer says
to which position it leads, and the store is read while it stands there. Memory and engine are
compared while the memory's sequence number stays. Whatever does not come to rest is tried again,
for as long as ``wait_s``.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from indexer.block_lines import Head
from indexer.comparing import Checked, Comparison, Verdict, with_engine, with_store
from indexer.index import PoolName, ReplicaId
from indexer.index_reading import IndexReader, NotRead, truth_of
from indexer.redis_store import RedisStore, StoreUnavailable
from indexer.saved_state import NotReadable, Saved

# A flush is written within milliseconds, and the next one comes 50 ms later.
_REACHED_S_MAX = 0.5
_REACHED_POLL_S = 0.005
_RETRY_S = 0.1
# An engine that says nothing is asked every 2 s whether it has: what it has said is known by then.
STILL_S = 2.5


@dataclass(frozen=True, slots=True)
class Verifier:
    """``store`` None: none is configured."""

    reader: IndexReader
    store: RedisStore | None
    session: aiohttp.ClientSession
    wait_s: float

    async def verify(self, replica: Mapping[str, Any]) -> Checked:
        """One of what ``GET /replicas`` lists. Raises NotRead."""
        name = ReplicaId(replica["replica"])
        store, engine = await self._store(name, replica), await self._engine(name, replica)
        reasons = "|".join(replica["reasons"])
        evidence = f"{replica['evidence']}({reasons})" if reasons else str(replica["evidence"])
        return Checked(name, evidence, (store, engine))

    # Memory and store.

    async def _store(self, name: ReplicaId, replica: Mapping[str, Any]) -> Comparison:
        if self.store is None:
            return Comparison("store", Verdict.NOT_THERE, why="none is configured")
        if replica["store_rewrites"] is None:
            why = "it is not kept: the engine has no replay_endpoint"
            return Comparison("store", Verdict.NOT_THERE, why=why)
        until = time.monotonic() + self.wait_s
        while True:
            found = await self._compared_with(self.store, name)
            if found.verdict is not Verdict.UNDECIDED or time.monotonic() > until:
                return found
            await asyncio.sleep(_RETRY_S)

    async def _compared_with(self, store: RedisStore, name: ReplicaId) -> Comparison:
        """One attempt."""
        async with self.reader.blocks(name, as_kept=True) as answer:
            head = answer.head
            if head.translated or head.seq is None:
                why = "nothing is known of it yet" if head.seq is None else "translated: not kept"
                return Comparison("store", Verdict.NOT_THERE, why=why)
            if head.position is None:
                return Comparison("store", Verdict.UNDECIDED, head.blocks, head.not_kept or "")
            try:
                # Before the blocks are read: with many, the store would have moved on.
                saved = await _loaded_at(store, head)
            except StoreUnavailable as error:
                return Comparison("store", Verdict.UNDECIDED, head.blocks, str(error))
            except NotReadable as error:
                why = f"what the store has is not to be believed: {error}"
                return Comparison("store", Verdict.DIFFERS, head.blocks, why)
            if saved is None:
                why = "it does not hold still: the store was never where the memory was"
                return Comparison("store", Verdict.UNDECIDED, head.blocks, why)
            return with_store(head, await answer.blocks(), saved)

    # Memory and engine.

    async def _engine(self, name: ReplicaId, replica: Mapping[str, Any]) -> Comparison:
        until, since, seq = time.monotonic() + self.wait_s, time.monotonic(), None
        while True:
            before = await self._seq(name)
            truth = await truth_of(self.session, replica["url"], replica["rank"])
            if truth is None:
                return Comparison("engine", Verdict.NOT_THERE, why="it is not a simulated one")
            async with self.reader.blocks(name) as answer:
                head, memory = answer.head, await answer.blocks()
            if head.translated:
                why = "names of a translated replica are not the engine's"
                return Comparison("engine", Verdict.NOT_THERE, why=why)
            now = time.monotonic()
            if head.seq != before or seq != before:
                since, seq = now, head.seq
            found = with_engine(head, memory, truth)
            if found.verdict is not Verdict.DIFFERS and head.seq == before:
                return found
            if found.verdict is Verdict.DIFFERS and now - since > STILL_S:
                return found
            if now > until:
                why = "it does not hold still: batches come faster than it can be compared"
                return Comparison("engine", Verdict.UNDECIDED, head.blocks, why)
            await asyncio.sleep(_RETRY_S)

    async def _seq(self, name: ReplicaId) -> int | None:
        for replica in (await self.reader.known()).replicas:
            if replica["replica"] == name:
                seq: int | None = replica["seq"]
                return seq
        raise NotRead(f"replica {name!r} has gone")


async def _loaded_at(store: RedisStore, head: Head) -> Saved | None:
    """None where the store is not at the head's position. Raises StoreUnavailable, NotReadable."""
    pool, name = PoolName(head.pool), ReplicaId(head.replica)
    until = time.monotonic() + _REACHED_S_MAX
    while await store.position(pool, name) != head.position:
        if time.monotonic() > until:
            return None
        await asyncio.sleep(_REACHED_POLL_S)
    saved = await store.load(pool, name)
    return saved if saved is not None and saved.position == head.position else None
