"""A shell: the indexer's process. It pumps arrivals into the hub, asks replicas about themselves,
serves what an operator reads, and logs what the core noted. It decides nothing.
"""

import asyncio
import dataclasses
import signal
import time
from collections import Counter
from collections.abc import Mapping

import aiohttp
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from indexer.config import IndexerConfig
from indexer.discovery import DiscoveryError, discover
from indexer.evidence import Evidence, Level
from indexer.hub import Hub, Link, RankSource
from indexer.index import ReplicaId
from indexer.membership import NotFollowable, rank_sources
from indexer.metrics import HubCollector
from indexer.report import replica_report
from indexer.sources import EngineFacts
from indexer.subscriber import Subscriber
from proto.cborchain import token_table
from proto.config_file import parse_listen
from proto.replica_config import ReplicaConfig

_log = structlog.get_logger("indexer")

# The index is updated in slices, so that a replay never starves a match (design, decision 8).
SLICE_S_MAX = 0.002
ARRIVALS_PER_TAKE = 64
TICK_S = 0.05
EVIDENCE_LOG_S = 1.0
_AWAKE = "awake"


class Pump:
    """Moves arrivals from the subscriber through the hub, in slices."""

    def __init__(self, subscriber: Subscriber, hub: Hub) -> None:
        self.subscriber, self.hub = subscriber, hub
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
            while self.slice():  # noqa: ASYNC110  # a yield between slices, not a poll
                await asyncio.sleep(0)
            now = time.monotonic()
            if now >= tick_at:
                self.hub.tick(now)
                tick_at = now + TICK_S
            try:
                async with asyncio.timeout(TICK_S):
                    await self.woken.wait()
            except TimeoutError:
                pass


class IndexerApp:
    """Everything that an indexer runs, in a process of its own or in the router's."""

    def __init__(self, config: IndexerConfig, headers: Mapping[str, str] | None = None) -> None:
        self.config = config
        self._headers = headers
        self._errors: dict[str, str] = {}
        self._evidence: dict[ReplicaId, Evidence] = {}
        self._links_of: dict[str, tuple[RankSource, ...]] = {}
        self._full_times = 0

    async def run(
        self, ready: asyncio.Event | None = None, stopping: asyncio.Event | None = None
    ) -> None:
        """Until ``stopping`` is set; without one, until SIGTERM or SIGINT."""
        token_table()
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
        )
        self.pump = Pump(subscriber, self.hub)
        subscriber.start()
        try:
            for endpoint in self.config.events.bind:
                subscriber.bind(endpoint)
            await self._serve_until(stopping, ready)
        finally:
            subscriber.stop()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """From the reader thread, which may outlive the loop by a moment."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.pump.woken.set)

    async def _serve_until(self, stopping: asyncio.Event, ready: asyncio.Event | None) -> None:
        runner = web.AppRunner(self._application(), access_log=None)
        await runner.setup()
        host, port = parse_listen(self.config.http.listen, "http.listen")
        try:
            await web.TCPSite(runner, host, port).start()
            _log.info("indexer_started", listen=runner.addresses[0][:2])
            self.address = runner.addresses[0]
            if ready is not None:
                ready.set()
            async with aiohttp.ClientSession(headers=self._headers) as session:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.pump.run())]
                    tasks.append(group.create_task(self._log_changes()))
                    for replica in self.config.replicas:
                        tasks.append(group.create_task(self._follow(session, replica)))
                    await stopping.wait()
                    for task in tasks:
                        task.cancel()
        finally:
            await runner.cleanup()
            _log.info("indexer_stopped")

    # Discovery.

    async def _follow(self, session: aiohttp.ClientSession, replica: ReplicaConfig) -> None:
        """Asks one replica about itself, again and again, and follows what it says."""
        settings = self.config.discovery
        while True:
            try:
                facts = await discover(session, replica.url, settings.timeout_s)
                sources = rank_sources(replica, facts, listening=bool(self.config.events.bind))
                self._reconcile(replica, sources)
                self._learn(sources, facts)
                self._report_error(replica, None)
            except (DiscoveryError, NotFollowable, ValueError) as error:
                self._report_error(replica, str(error))
            await asyncio.sleep(settings.interval_s)

    def _reconcile(self, replica: ReplicaConfig, sources: tuple[RankSource, ...]) -> None:
        """Links that are right stay; the others go, new ones come."""
        # What an engine says of its pool is learnt, and no reason to forget what it holds.
        sources = tuple(dataclasses.replace(source, blocks=None) for source in sources)
        before = self._links_of.get(replica.name, ())
        for source in before:
            if source not in sources:
                self.hub.remove(source.replica_id)
                _log.info("replica_left", replica=source.replica_id)
        self._links_of[replica.name] = tuple(source for source in before if source in sources)
        for source in sources:
            if source not in before:
                self.hub.add(source, time.monotonic())
                self._links_of[replica.name] += (source,)
                _log.info(
                    "replica_joined",
                    replica=source.replica_id,
                    events=source.endpoint or f"topic {source.topic.decode()!r}",
                    replay=source.replay_endpoint,
                )

    def _learn(self, sources: tuple[RankSource, ...], facts: EngineFacts) -> None:
        for source in sources:
            state = self.hub.links[source.replica_id].state
            if source.blocks is not None:
                state.blocks.capacity = source.blocks
            state.learn(version=facts.version, lora_paths=facts.lora_paths)
            if facts.sleep_states.get(source.rank, _AWAKE) != _AWAKE:
                state.slept()

    def _report_error(self, replica: ReplicaConfig, error: str | None) -> None:
        if error == self._errors.get(replica.name):
            return
        if error is None:
            del self._errors[replica.name]
            _log.info("replica_answers", replica=replica.name)
        else:
            self._errors[replica.name] = error
            _log.warning("replica_not_followed", replica=replica.name, error=error)

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
                        level=evidence.level,
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
            return web.json_response({"replicas": self._replicas(), "errors": self._errors})

        async def health(request: web.Request) -> web.Response:
            return web.json_response({"status": "ok"})

        async def ready(request: web.Request) -> web.Response:
            levels = [self.hub.evidence(r, time.monotonic()).level for r in self.hub.links]
            usable = any(level is not Level.FALLBACK for level in levels)
            return web.json_response({"ready": usable}, status=200 if usable else 503)

        application = web.Application()
        application.router.add_get("/metrics", metrics)
        application.router.add_get("/replicas", replicas)
        application.router.add_get("/health", health)
        application.router.add_get("/ready", ready)
        return application

    def _replicas(self) -> list[dict[str, object]]:
        now = time.monotonic()
        return [replica_report(self.hub, link, now) for link in self.hub.links.values()]
