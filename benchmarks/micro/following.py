"""The consumer's side: subscriber, hub and pump as the indexer's process runs them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from benchmarks.micro.publishing import Published
from indexer.app import Pump
from indexer.hub import Hub, Link, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.redis_store import RedisStore
from indexer.remembering import Remembering
from indexer.subscriber import Subscriber

POOL = PoolName("model")
FOLLOWED = ReplicaId("followed")
# Fine enough, and costs well below a percent of the processor.
_LOOK_EVERY_S = 0.005
_WAIT_S_MAX = 60.0


@asynccontextmanager
async def following(
    published: Published, blocks: int | None, store_url: str | None = None
) -> AsyncIterator[Hub]:
    """A hub that follows one rank, and keeps it in a store, for as long as the context lasts."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(pump.woken.set)

    subscriber = Subscriber(wake)
    hub = Hub(subscriber, writer="writer" if store_url is not None else None)
    remembering = Remembering(RedisStore(store_url), hub) if store_url is not None else None
    pump = Pump(subscriber, hub, remembering)
    source = RankSource(
        FOLLOWED,
        POOL,
        engine="engine",
        endpoint=published.endpoint,
        replay_endpoint=published.replay_endpoint,
        blocks=blocks,
    )
    hub.add(source, time.monotonic())
    subscriber.start()
    works = [pump.run()] if remembering is None else [pump.run(), remembering.run()]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield hub
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if remembering is not None:
            await remembering.stop()
        subscriber.stop()


async def applied(hub: Hub, batches: int) -> Link:
    """Waits until so many batches were applied; TimeoutError where they do not come."""
    link = hub.links[FOLLOWED]
    async with asyncio.timeout(_WAIT_S_MAX):
        while link.state.counters.batches < batches:  # noqa: ASYNC110  # the hub has no events
            await asyncio.sleep(_LOOK_EVERY_S)
    return link


def check_complete(link: Link, published: Published, pool_blocks: int | None) -> None:
    """What was published is what is held: nothing lost, nothing cleared, the recipe proven."""
    counters, held = link.state.counters, len(link.state.blocks.primary.counts)
    assert counters.batches == published.batches, counters
    assert counters.stored == published.blocks, counters
    assert held == min(published.blocks, pool_blocks or published.blocks), held
    assert not (counters.clears or counters.malformed_batches or counters.drifts), counters
    assert link.state.indexed.scheme_ids and link.state.translator is None, "not proven"
