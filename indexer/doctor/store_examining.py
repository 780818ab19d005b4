"""A shell: asks a store what it is, and changes nothing in it."""

import asyncio

from indexer.doctor.store_findings import StoreFacts
from indexer.redis_store import RedisStore, StoreUnavailable


def examine_store(url: str, password: str | None) -> StoreFacts:
    return asyncio.run(_examine(url, password))


async def _examine(url: str, password: str | None) -> StoreFacts:
    store = RedisStore(url, password)
    try:
        return StoreFacts(infos=tuple(await store.infos()))
    except StoreUnavailable as error:
        return StoreFacts(error=str(error))
    finally:
        await store.close()
