"""A shell: all that an indexer runs. It pumps arrivals into the hub, follows replicas, answers over
gRPC, serves what an operator reads, and logs what the core noted. It decides nothing.
"""

import asyncio
import secrets
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from indexer.answers import Answers
from indexer.config import IndexerConfig
from indexer.embedded_store import EmbeddedStore, NotStarted
from indexer.evidence import Evidence, Level
from indexer.following import Following
from indexer.hub import Hub, Link
from indexer.index import ReplicaId
from indexer.local import LocalIndexer
from indexer.metrics import HubCollector
from indexer.redis_store import RedisStore
from indexer.remembering import Remembering
from indexer.report import replica_report
from indexer.service import GrpcServer, IndexerService
from indexer.subscriber import Subscriber
from indexer.watching import ReplicaWatch
from proto.config_file import parse_listen

_log = structlog.get_logger("indexer")

# The index is updated in slices, so that a replay never starves a match (design, decision 8).
SLICE_S_MAX = 0.002
ARRIVALS_PER_TAKE = 64
TICK_S = 0.05
EVIDENCE_LOG_S = 1.0


class Pump:
    """Moves arrivals from the subscriber through the hub, in slices."""

    def __init__(
        self, subscriber: Subscriber, hub: Hub, remembering: Remembering | None = None
    ) -> None:
        self.subscriber, self.hub, self._remembering = subscriber, hub, remembering
        self.woken = asyncio.Event()

    def slice(self) -> bool:
        """At most ``SLICE_S_MAX`` of work; whether there is more."""
        hub, clock = self.hub, time.perf_counter
        until, now = clock() + SLICE_S_MAX, time.monotonic()
        while True:
            while hub.step():
                if clock() > until:
                    return True
            arrivals = self.subscriber.take(ARRIVALS_PER_TAKE)
            if not arrivals:
                return False
            for arrival in arrivals:
                hub.handle(arrival, now)

    async def run(self) -> None:
        """Until cancelled."""
        tick_at = 0.0
        while True:
            self.woken.clear()
            while self.slice():
                self._after_slice()
                await asyncio.sleep(0)
            self._after_slice()
            now = time.monotonic()
            if now >= tick_at:
                self.hub.tick(now)
                tick_at = now + TICK_S
            try:
                async with asyncio.timeout(TICK_S):
                    await self.woken.wait()
            except TimeoutError:
                pass

    def _after_slice(self) -> None:
        if self._remembering is not None:
            self._remembering.wake_if_behind()


class IndexerApp:
    """Everything that an indexer runs, in a process of its own or in the router's.

    Once ``ready`` is set, ``address`` and ``grpc_address`` say where it listens, and ``local`` asks
    it on its own event loop.
    """

    def __init__(
        self,
        config: IndexerConfig,
        headers: Mapping[str, str] | None = None,
        redis_password: str | None = None,
    ) -> None:
        self.config = config
        self._headers, self._redis_password = headers, redis_password
        self.remembering: Remembering | None = None
        self._embedded: EmbeddedStore | None = None
        self._evidence: dict[ReplicaId, Evidence] = {}
        self._full_times = 0

    async def run(
        self, ready: asyncio.Event | None = None, stopping: asyncio.Event | None = None
    ) -> None:
        """Until ``stopping`` is set; without one, until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        if stopping is None:
            stopping = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
        subscriber = Subscriber(
            lambda: self._wake(loop),
            frames_max=self.config.events.queue_frames_max,
            bytes_max=self.config.events.queue_bytes_max,
        )
        self.hub = Hub(
            subscriber,
            seeds=tuple(self.config.hash_seeds),
            replays_max=self.config.events.replays_max,
            writer=secrets.token_hex(16) if self.config.redis.is_configured else None,
        )
        await self._start_store()
        self.pump = Pump(subscriber, self.hub, self.remembering)
        self.answers = Answers(self.hub)
        self.watch = ReplicaWatch(self.answers)
        load = self.remembering.load if self.remembering is not None else None
        self.following = Following(self.hub, self.config, self._headers, load)
        subscriber.start()
        try:
            for endpoint in self.config.events.bind:
                subscriber.bind(endpoint)
            await self._serve_until(stopping, ready)
        finally:
            subscriber.stop()
            if self._embedded is not None:
                await self._embedded.stop()

    async def _start_store(self) -> None:
        url, folder = self.config.redis.url, self.config.redis.folder
        if folder is not None:
            self._embedded = EmbeddedStore(Path(folder))
            url = self._embedded.url
            try:
                await self._embedded.start()
            except NotStarted as error:
                # The index is answered from all the same; that it is not durable is shown.
                _log.warning("store_not_started", error=str(error))
                self._embedded = None
        if url is not None:
            self.remembering = Remembering(RedisStore(url, self._redis_password), self.hub)

    @property
    def local(self) -> LocalIndexer:
        return LocalIndexer(self.answers, self.watch)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """From the reader thread, which may outlive the loop by a moment."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.pump.woken.set)

    async def _serve_until(self, stopping: asyncio.Event, ready: asyncio.Event | None) -> None:
        runner = web.AppRunner(self._application(), access_log=None)
        server = GrpcServer(IndexerService(self.answers, self.watch, self.following))
        await runner.setup()
        try:
            await server.start(*parse_listen(self.config.grpc.listen, "grpc.listen"))
            host, port = parse_listen(self.config.http.listen, "http.listen")
            await web.TCPSite(runner, host, port).start()
            self.address, self.grpc_address = runner.addresses[0], server.address
            _log.info("indexer_started", listen=self.address[:2], grpc=self.grpc_address)
            if ready is not None:
                ready.set()
            await self._work_until(stopping)
        finally:
            await server.stop()
            await runner.cleanup()
            _log.info("indexer_stopped")

    async def _work_until(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            works = [self.pump.run(), self.following.run(), self.watch.run(), self._log_changes()]
            if self.remembering is not None:
                works.append(self.remembering.run())
            if self._embedded is not None:
                works.append(self._embedded.run())
            tasks = [group.create_task(work) for work in works]
            await stopping.wait()
            for task in tasks:
                task.cancel()
        if self.remembering is not None:
            await self.remembering.stop()

    # What an operator sees.

    async def _log_changes(self) -> None:
        while True:
            now = time.monotonic()
            for link in self.hub.links.values():
                self._log_notes(link)
                evidence = self.hub.evidence(link.source.replica_id, now)
                if self._evidence.get(link.source.replica_id) != evidence:
                    self._evidence[link.source.replica_id] = evidence
                    _log.info(
                        "evidence_changed",
                        replica=link.source.replica_id,
                        evidence=evidence.level,
                        reasons=list(evidence.reasons),
                    )
            stats = self.pump.subscriber.stats
            if stats.full_total != self._full_times:
                self._full_times = stats.full_total
                _log.warning("queue_full", frames=stats.queued_frames, bytes=stats.queued_bytes)
            await asyncio.sleep(EVIDENCE_LOG_S)

    def _log_notes(self, link: Link) -> None:
        """One line per kind of note since the last time, with how many there were."""
        notes = link.state.notes.take()
        times = Counter(note.event for note in notes)
        for note in notes:
            count = times.pop(note.event, 0)
            if count:
                log = _log.warning if note.warning else _log.info
                log(note.event, replica=link.source.replica_id, times=count, **note.fields)

    def _application(self) -> web.Application:
        registry = CollectorRegistry()
        registry.register(HubCollector(self.hub, lambda: self.pump.subscriber.stats))

        async def metrics(request: web.Request) -> web.Response:
            body = generate_latest(registry)
            return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

        async def replicas(request: web.Request) -> web.Response:
            return web.json_response(
                {"replicas": self._replicas(), "errors": self.following.errors}
            )

        async def health(request: web.Request) -> web.Response:
            return web.json_response({"status": "ok"})

        async def ready(request: web.Request) -> web.Response:
            levels = [self.hub.evidence(r, time.monotonic()).level for r in self.hub.links]
            usable = any(level is not Level.FALLBACK for level in levels)
            body = {"ready": usable, **self._durability()}
            return web.json_response(body, status=200 if usable else 503)

        application = web.Application()
        application.router.add_get("/metrics", metrics)
        application.router.add_get("/replicas", replicas)
        application.router.add_get("/health", health)
        application.router.add_get("/ready", ready)
        return application

    def _durability(self) -> dict[str, object]:
        remembering = self.remembering
        if remembering is None:
            return {"durable": False, "store_error": "none is configured"}
        return {
            "durable": remembering.durable(time.monotonic()),
            "store_error": remembering.error,
        }

    def _replicas(self) -> list[dict[str, object]]:
        now = time.monotonic()
        return [replica_report(self.hub, link, now) for link in self.hub.links.values()]
