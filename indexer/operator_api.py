"""A shell: what an operator reads over HTTP. It is for the inside of a network: it asks for no
password, and tells which blocks a replica holds.
"""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from indexer.block_lines import block_lines, head_line
from indexer.evidence import Level
from indexer.following import Following
from indexer.hub import Hub
from indexer.index import ReplicaId
from indexer.metrics import HubCollector
from indexer.remembering import Remembering
from indexer.report import replica_report
from indexer.snapshots import Busy, Snapshots
from indexer.subscriber import SubscriberStats

# A reader that does not read holds a copy of the blocks for so long.
BLOCKS_S_MAX = 120.0


class OperatorApi:
    """``no_store``: why nothing is kept, where nothing is."""

    def __init__(
        self,
        hub: Hub,
        following: Following,
        snapshots: Snapshots,
        remembering: Remembering | None,
        no_store: str,
        stats: Callable[[], SubscriberStats],
    ) -> None:
        self._hub, self._following, self._snapshots = hub, following, snapshots
        self._remembering, self._no_store = remembering, no_store
        self._registry = CollectorRegistry()
        self._registry.register(HubCollector(hub, stats))

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/replicas", self._replicas),
                web.get("/replicas/{replica}/blocks", self._blocks),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
            ]
        )
        return application

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _replicas(self, request: web.Request) -> web.Response:
        now, remembering = time.monotonic(), self._remembering
        return web.json_response(
            {
                "replicas": [replica_report(self._hub, x, now) for x in self._hub.links.values()],
                "errors": self._following.errors,
                "store": remembering.url if remembering is not None else None,
            }
        )

    async def _blocks(self, request: web.Request) -> web.StreamResponse:
        """JSON lines, see ``block_lines``; ``?as_kept=1`` at a moment that a store has too."""
        replica = ReplicaId(request.match_info["replica"])
        link = self._hub.links.get(replica)
        if link is None:
            return _refusal(404, f"there is no replica {replica!r}: GET /replicas lists them")
        try:
            async with asyncio.timeout(BLOCKS_S_MAX):
                head, counts = await self._snapshots.take(
                    link,
                    lambda: self._hub.evidence(replica, time.monotonic()),
                    as_kept=request.query.get("as_kept") == "1",
                )
                response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
                await response.prepare(request)
                await response.write(head_line(head))
                for lines in block_lines(counts):
                    await response.write(lines)
                    await asyncio.sleep(0)
        except Busy as error:
            return _refusal(429, str(error))
        return response

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        levels = [self._hub.evidence(replica, now).level for replica in self._hub.links]
        usable = any(level is not Level.FALLBACK for level in levels)
        body = {"ready": usable, **self._durability()}
        return web.json_response(body, status=200 if usable else 503)

    def _durability(self) -> dict[str, object]:
        remembering = self._remembering
        if remembering is None:
            return {"durable": False, "store_error": self._no_store}
        return {
            "durable": remembering.durable(time.monotonic()),
            "store_error": remembering.error,
        }


def _refusal(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
