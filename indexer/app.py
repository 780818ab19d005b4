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

from indexer.answers import Answers
from indexer.config import IndexerConfig
from indexer.embedded_store import EmbeddedStore, NotStarted
from indexer.evidence import Evidence
from indexer.following import Following
from indexer.hub import Hub, Link
from indexer.index import ReplicaId
from indexer.local import LocalIndexer
from indexer.operator_api import OperatorApi
from indexer.redis_store import RedisStore
from indexer.remembering import Remembering
from indexer.service import GrpcServer, IndexerService
from indexer.snapshots import Snapshots
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
        self._pauses = 0

    def pause(self) -> None:
        """From now on nothing is applied; as often as it is called, so often ``resume``."""
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        self.woken.set()

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
            while not self._pauses and self.slice():
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
        self._no_store = "none is configured"
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
        try:
            store = await self._start_store()
            self._make_parts(subscriber, store)
            subscriber.start()
            try:
                for endpoint in self.config.events.bind:
                    subscriber.bind(endpoint)
                await self._serve_until(stopping, ready)
            finally:
                subscriber.stop()
        finally:
            if self._embedded is not None:
                await self._embedded.stop()

    async def _start_store(self) -> RedisStore | None:
        """None where nothing is kept; ``_no_store`` says why."""
        redis = self.config.redis
        if not redis.enabled:
            self._no_store = "it is switched off"
        elif redis.folder is not None:
            embedded = EmbeddedStore(Path(redis.folder))
            try:
                await embedded.start()
            except NotStarted as error:
                # The index is answered from all the same; that it is not durable is shown.
                self._no_store = str(error)
                _log.warning("store_not_started", error=str(error), durable=False)
                return None
            self._embedded = embedded
            return RedisStore(embedded.url)
        elif redis.url is not None:
            return RedisStore(redis.url, self._redis_password)
        return None

    def _make_parts(self, subscriber: Subscriber, store: RedisStore | None) -> None:
        self.hub = Hub(
            subscriber,
            seeds=tuple(self.config.hash_seeds),
            replays_max=self.config.events.replays_max,
            writer=secrets.token_hex(16) if store is not None else None,
        )
        if store is not None:
            self.remembering = Remembering(store, self.hub)
        self.pump = Pump(subscriber, self.hub, self.remembering)
        self.answers = Answers(self.hub)
        self.watch = ReplicaWatch(self.answers)
        load = self.remembering.load if self.remembering is not None else None
        self.following = Following(self.hub, self.config, self._headers, load)

    @property
    def local(self) -> LocalIndexer:
        return LocalIndexer(self.answers, self.watch)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """From the reader thread, which may outlive the loop by a moment."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.pump.woken.set)

    async def _serve_until(self, stopping: asyncio.Event, ready: asyncio.Event | None) -> None:
        runner = web.AppRunner(self._operator_api().application(), access_log=None)
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

    def _operator_api(self) -> OperatorApi:
        return OperatorApi(
            self.hub,
            self.following,
            Snapshots(self.pump, self.remembering),
            self.remembering,
            self._no_store,
            lambda: self.pump.subscriber.stats,
        )

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
