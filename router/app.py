"""A shell: all that a router runs. It puts the parts together, follows what the indexer says of the
replicas, probes engines, and serves. It decides nothing.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import structlog
from aiohttp import web

from proto.config_file import ConfigError, parse_listen
from proto.contract import Indexer
from router.admin import AdminServer, fingerprint_handlers, release_handlers
from router.config import PoolConfig, RouterFile, SampleConfig
from router.fingerprint_table import FingerprintTable
from router.fleet import Fleet
from router.http_server import Handler, make_runner
from router.load import InflightLoad
from router.metrics import ReleaseCollector
from router.policy import POLICIES
from router.preparation import PoolPractices, Preparation
from router.probes import Probes
from router.releases import Releases
from router.routing import PoolRouting, Routing
from router.salting import Tenancy, tenancy_of
from router.sampling import Sampler
from router.server import RouterServer
from router.tenancy_config import TenancyConfig
from router.tokenizer import HashingThread, PoolTokenizer, PromptHasher, TokenizerError
from router.upstream import Upstream
from router.waiting import WaitingRoom
from router.warm_bodies import NoWarmBodies, load_warm_bodies, prepared_warm_bodies
from router.warm_up import WarmUpPlan
from router.warming import WarmUps

_log = structlog.get_logger("router")

_BACKLOG = 1024
# Requests that are still running when the process is asked to stop.
_DRAIN_S_MAX = 30.0


def load_tokenizers(file: RouterFile) -> dict[str, PoolTokenizer]:
    """Per pool; seconds of work, before anything starts. Raises ConfigError."""
    tokenizers = {}
    for name, pool in file.pools.items():
        try:
            tokenizers[name] = PoolTokenizer.load(
                pool.tokenizer,
                pool.chat_template,
                default_kwargs=pool.chat_template_kwargs,
                exclude_unused_tools=pool.exclude_tools_when_tool_choice_none,
            )
        except TokenizerError as error:
            raise ConfigError(f"pools.{name}: {error}") from None
    return tokenizers


def load_warm_ups(file: RouterFile) -> dict[str, WarmUpPlan]:
    """Per pool that has bodies to warm up with. Raises ConfigError."""
    plans = {}
    for name, pool in file.pools.items():
        if pool.warm_up is not None:
            try:
                bodies = load_warm_bodies(pool.warm_up)
                prepared = prepared_warm_bodies(bodies, _practices(pool))
                plans[name] = WarmUpPlan(prepared, pool.warm_up_s_max)
            except NoWarmBodies as error:
                raise ConfigError(f"pools.{name}.warm_up: {error}") from None
    return plans


def load_tenancy(file: RouterFile, environment: Mapping[str, str]) -> Tenancy | None:
    """None where the file has no policy. Raises ConfigError, such as for a secret not set."""
    if file.tenancy == TenancyConfig():
        return None
    return tenancy_of(file.tenancy, environment)


class RouterApp:
    """Everything that a router runs. Once ``ready`` is set, ``address`` says where it listens."""

    def __init__(
        self,
        file: RouterFile,
        tokenizers: Mapping[str, PoolTokenizer],
        indexer: Indexer,
        engine_headers: Mapping[str, str] | None = None,
        warm_ups: Mapping[str, WarmUpPlan] | None = None,
        tenancy: Tenancy | None = None,
    ) -> None:
        self.file, self._tokenizers, self._indexer = file, tokenizers, indexer
        self._engine_headers, self._warm_ups = engine_headers, warm_ups or {}
        self._tenancy = tenancy
        self.fingerprints = FingerprintTable(file.router.fingerprints_max)

    async def run(
        self, ready: asyncio.Event | None = None, stopping: asyncio.Event | None = None
    ) -> None:
        """Until ``stopping`` is set; without one, until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        if stopping is None:
            stopping = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
        thread = HashingThread()
        upstream = Upstream()
        try:
            self.routing = self._routing(thread)
            await self._serve_until(stopping, ready, upstream)
        finally:
            await upstream.close()
            thread.close()

    def _routing(self, thread: HashingThread) -> Routing:
        config = self.file.router
        fleet = Fleet(InflightLoad(config.inflight_max))
        fleet.replicas.reset(self.file.engines)
        hashers = {
            name: PromptHasher(tokenizer, thread, patience_s=config.tokenize_s_max)
            for name, tokenizer in self._tokenizers.items()
        }
        pools = {
            name: PoolRouting(hashers.get(name), WaitingRoom(config.waiting_max))
            for name in {engine.pool for engine in self.file.engines}
        }
        routing = Routing(
            fleet,
            pools,
            self._indexer,
            POLICIES[config.policy](config.policy_settings),
            wait_s_max=config.wait_s_max,
            expose_matches=config.expose_matches,
        )
        fleet.load.on_release = routing.wake_one
        return routing

    async def _serve_until(
        self, stopping: asyncio.Event, ready: asyncio.Event | None, upstream: Upstream
    ) -> None:
        config = self.file.router
        async with AsyncExitStack() as listeners:
            sampler = _sampler(config.sample)
            if sampler is not None:
                listeners.callback(sampler.close)
            server = RouterServer(
                self.routing,
                upstream,
                body_bytes_max=config.body_bytes_max,
                sampler=sampler,
                preparation=self._preparation(),
                fingerprints=self.fingerprints,
            )
            self.admin_address = await self._start_admin(server, listeners)
            runner = await listeners.enter_async_context(_set_up(server.handle))
            site = await _listen(runner, config.listen, "router.listen")
            self.address = runner.addresses[0]
            _log.info(
                "router_started",
                listen=self.address[:2],
                admin=self.admin_address and self.admin_address[:2],
                policy=config.policy,
                salt_secret_id=self._tenancy and self._tenancy.secret_id,
            )
            if ready is not None:
                ready.set()
            await self._work_until(stopping)
            await site.stop()
            await self._drain()
        _log.info("router_stopped")

    def _preparation(self) -> Preparation:
        practices = {name: _practices(pool) for name, pool in self.file.pools.items()}
        return Preparation(practices, self._tenancy)

    async def _start_admin(
        self, server: RouterServer, listeners: AsyncExitStack
    ) -> tuple[str, int] | None:
        """Where it listens, None where it is not wanted."""
        if not self.file.admin.listen:
            return None
        releases = Releases()
        server.registry.register(ReleaseCollector(releases))
        handlers: dict[tuple[str, str], Handler] = {
            **release_handlers(releases),
            **fingerprint_handlers(self.fingerprints),
        }
        runner = await listeners.enter_async_context(_set_up(AdminServer(handlers).handle))
        await _listen(runner, self.file.admin.listen, "admin.listen")
        address: tuple[str, int] = runner.addresses[0]
        return address

    async def _work_until(self, stopping: asyncio.Event) -> None:
        config = self.file.router
        async with aiohttp.ClientSession(headers=self._engine_headers) as session:
            warm_ups = WarmUps(self.routing, session, self._warm_ups)
            probes = Probes(
                self.routing.fleet.replicas,
                session,
                interval_s=config.probe_interval_s,
                timeout_s=config.probe_timeout_s,
                on_change=self.routing.wake_one,
                on_cold=warm_ups.begin,
            )
            async with asyncio.TaskGroup() as group:
                works = (warm_ups.run(), probes.run(), self._watch())
                tasks = [group.create_task(work) for work in works]
                await stopping.wait()
                for task in tasks:
                    task.cancel()

    async def _watch(self) -> None:
        async for views in self._indexer.watch():
            self.routing.fleet.learn(views)

    async def _drain(self) -> None:
        """Requests in flight may finish; nobody new is let in."""
        load = self.routing.fleet.load
        try:
            async with asyncio.timeout(_DRAIN_S_MAX):
                while load.inflight:  # noqa: ASYNC110  # leases know nothing of an event loop
                    await asyncio.sleep(0.05)
        except TimeoutError:
            _log.warning("requests_cut_off", inflight=load.inflight)


def _sampler(config: SampleConfig) -> Sampler | None:
    """Raises OSError, which names the key."""
    if not config.folder:
        return None
    try:
        return Sampler(config)
    except OSError as error:
        why = error.strerror or error
        raise OSError(f"router.sample.folder: {config.folder}: {why}") from None


def _practices(pool: PoolConfig) -> PoolPractices:
    return PoolPractices(pool.canonical_tools, pool.exclude_tools_when_tool_choice_none)


@asynccontextmanager
async def _set_up(handler: Handler) -> AsyncIterator[web.ServerRunner]:
    runner = make_runner(handler)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


async def _listen(runner: web.ServerRunner, listen: str, key: str) -> web.TCPSite:
    """Raises OSError, which names the key: with two listeners, which of them is half the answer."""
    host, port = parse_listen(listen, key)
    site = web.TCPSite(runner, host, port, backlog=_BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise OSError(f"{key}: {error.strerror or error}") from None
    return site
