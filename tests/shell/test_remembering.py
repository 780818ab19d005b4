"""A store that is not there when the indexer starts, and what it kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from indexer.durability import Answer, Flush, Journal, Writer
from indexer.evidence import Level
from indexer.hub import Hub, Link, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.redis_store import StoreUnavailable
from indexer.remembering import Remembering
from indexer.replica import ReplicaState
from indexer.saved_state import Saved
from indexer.stream_outputs import Apply
from tests.followed_hub import NOW, NoTransport
from tests.simulation.store import SpecifiedStore
from tests.unit.wire import payload, stored

R = ReplicaId("a")
SOURCE = RankSource(R, PoolName("default"), "a", endpoint="tcp://a:1", replay_endpoint="tcp://a:2")


class AwayStore:
    """The specified store, reached or not."""

    url = "redis://fake"

    def __init__(self) -> None:
        self.kept = SpecifiedStore()
        self.there = False

    async def flush(self, pool: PoolName, replica_id: ReplicaId, flush: Flush) -> Answer:
        self._reached()
        return self.kept.flush(replica_id, flush)

    async def load(self, pool: PoolName, replica_id: ReplicaId) -> Saved | None:
        self._reached()
        return self.kept.load(replica_id)

    async def warnings(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass

    def _reached(self) -> None:
        if not self.there:
            raise StoreUnavailable("it is away")

    def held(self) -> dict[int, int]:
        saved = self.kept.load(R)
        return {} if saved is None else dict(saved.counts)


@pytest.fixture
def store() -> AwayStore:
    """With what an indexer before this one has kept: blocks 1 and 2, a history that is complete."""
    made = AwayStore()
    state = ReplicaState(R, PoolName("default"), track_changes=True)
    journal = Journal(state, Writer("before"))
    state.apply(Apply(0, payload(stored([1, 2]))))
    flush = journal.next(0.0)
    assert flush is not None
    made.kept.flush(R, flush)
    # Its lease has ended.
    made.kept.now = 100.0
    return made


@asynccontextmanager
async def started_without(store: AwayStore, late_s_max: float) -> AsyncIterator[tuple[Hub, Link]]:
    """An indexer that could load nothing, and has a replica with batch 5, block 9 in it."""
    hub = Hub(NoTransport(), writer="now")
    remembering = Remembering(store, hub, start_s_max=0.0, late_s_max=late_s_max)
    assert await remembering.load(SOURCE) is None and remembering.error == "it is away"
    link = hub.add(SOURCE, NOW)
    link.state.apply(Apply(5, payload(stored([9]))))
    running = asyncio.create_task(remembering.run())
    await asyncio.sleep(0.2)
    yield hub, link
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # a store has no event
            await asyncio.sleep(0.02)


async def test_one_that_comes_late_is_loaded_and_not_written_over(store: AwayStore) -> None:
    """The replica begins anew with what was kept, which its engine has to prove first."""
    async with started_without(store, late_s_max=1000.0) as (hub, link):
        assert dict(hub.links[R].state.blocks.primary.counts) == {9: 1}
        link.state.blocks.capacity = 77
        link.state.learn(version="0.33.0", lora_paths={"sql": "/sql"})
        store.there = True
        await until(lambda: hub.links[R] is not link)
        state = hub.links[R].state
        assert dict(state.blocks.primary.counts) == {1: 1, 2: 1} == store.held()
        assert (state.applied_seq, state.blocks.capacity) == (0, 77)
        assert (state.proof.version, state.proof.lora_paths) == ("0.33.0", {"sql": "/sql"})
        assert hub.evidence(R, NOW).level is not Level.EXACT
        await until(lambda: store.kept.kept[R].writer == "now")
        assert store.held() == {1: 1, 2: 1}


@pytest.mark.parametrize("complete", [False, True])
async def test_what_is_known_in_full_or_too_late_is_written(
    store: AwayStore, complete: bool
) -> None:
    """A complete history needs nothing that was kept; and one day the log is what there is."""
    async with started_without(store, late_s_max=1000.0 if complete else 0.0) as (hub, link):
        link.state.indexed.history_complete = complete
        store.there = True
        await until(lambda: store.held() == {9: 1})
        assert hub.links[R] is link


async def test_a_stop_leaves_what_could_not_be_loaded(store: AwayStore) -> None:
    """The next indexer may still need it."""
    hub = Hub(NoTransport(), writer="now")
    remembering = Remembering(store, hub, start_s_max=0.0)
    await remembering.load(SOURCE)
    hub.add(SOURCE, NOW).state.apply(Apply(5, payload(stored([9]))))
    store.there = True
    await remembering.stop()
    assert store.held() == {1: 1, 2: 1}
