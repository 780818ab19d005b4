"""A shell: which replicas are followed, and the tasks that ask each about itself.

Rules it keeps:

* Configured replicas are there for good. Registered ones come and go while the indexer runs, are
  bounded in number, and are forgotten with the process.
* Each replica has one task, which discovers it again and again. What it says decides which ranks
  the hub follows: links that are right stay, the others go, new ones come.
* A credential goes to replicas that the configuration names, and to registered ones only where the
  configuration says so: whoever can register a URL could otherwise read it there.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import structlog

from indexer.config import IndexerConfig, check_endpoints
from indexer.discovery import DiscoveryError, discover
from indexer.hub import Hub, RankSource
from indexer.index import ReplicaId
from indexer.membership import NotFollowable, rank_sources
from indexer.saved_state import Saved
from indexer.sources import EngineFacts
from proto.replica_config import ReplicaConfig, check_replica

_log = structlog.get_logger("indexer")

# Each costs a task, a request now and then, and an index; whoever needs more has a configuration.
REGISTERED_MAX = 1024
_AWAKE = "awake"


class AlreadyRegistered(Exception):
    """The name is taken by a replica with other fields."""


class NotRegistered(Exception):
    """No replica of this name has been registered."""


class Configured(Exception):
    """The configuration names this replica, so it cannot be deregistered."""


class TooManyRegistered(Exception):
    """There is no room for another registered replica."""


class Following:
    """The replicas of one hub. Used on one event loop."""

    def __init__(
        self,
        hub: Hub,
        config: IndexerConfig,
        headers: Mapping[str, str] | None = None,
        load: Callable[[RankSource], Awaitable[Saved | None]] | None = None,
    ) -> None:
        self.errors: dict[str, str] = {}
        self._hub, self._config, self._headers = hub, config, headers
        self._load = load
        self._configured = {replica.name: replica for replica in config.replicas}
        self._registered: dict[str, ReplicaConfig] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._links_of: dict[str, tuple[RankSource, ...]] = {}

    def __repr__(self) -> str:
        return f"<Following {len(self._configured)} + {len(self._registered)} registered>"

    async def run(self) -> None:
        """Follow until cancelled. A bug in any of the tasks ends all of them."""
        async with (
            aiohttp.ClientSession(headers=self._headers) as trusted,
            aiohttp.ClientSession() as plain,
            asyncio.TaskGroup() as group,
        ):
            self._trusted, self._plain, self._group = trusted, plain, group
            for replica in (*self._configured.values(), *self._registered.values()):
                self._start(replica)
            await asyncio.Event().wait()

    def register(self, replica: ReplicaConfig) -> bool:
        """Whether it is new. Raises ConfigError, AlreadyRegistered, TooManyRegistered."""
        check_replica(replica)
        check_endpoints(replica)
        known = self._configured.get(replica.name) or self._registered.get(replica.name)
        if known == replica:
            return False
        if known is not None:
            raise AlreadyRegistered(
                f"{replica.name!r} is already followed at {known.url} with other fields:"
                " deregister it first, or choose another name"
            )
        if len(self._registered) >= REGISTERED_MAX:
            raise TooManyRegistered(f"{REGISTERED_MAX} replicas are registered; deregister some")
        self._registered[replica.name] = replica
        _log.info("replica_registered", replica=replica.name, url=replica.url, pool=replica.pool)
        self._start(replica)
        return True

    def deregister(self, name: str) -> None:
        """Stop to follow it and forget its ranks. Raises Configured, NotRegistered."""
        if name in self._configured:
            raise Configured(f"{name!r} is in the configuration: take it out there")
        if self._registered.pop(name, None) is None:
            raise NotRegistered(f"no replica {name!r} is registered")
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        for source in self._links_of.pop(name, ()):
            self._remove(source)
        self.errors.pop(name, None)
        _log.info("replica_deregistered", replica=name)

    def _start(self, replica: ReplicaConfig) -> None:
        if self._group is not None:
            self._tasks[replica.name] = self._group.create_task(self._follow(replica))

    def _session(self, replica: ReplicaConfig) -> aiohttp.ClientSession:
        trusted = replica.name in self._configured or self._config.grpc.trust_registered
        return self._trusted if trusted else self._plain

    async def _follow(self, replica: ReplicaConfig) -> None:
        """Asks one replica about itself, again and again, and follows what it says."""
        settings, session = self._config.discovery, self._session(replica)
        listening = bool(self._config.events.bind)
        while True:
            try:
                facts = await discover(session, replica.url, settings.timeout_s)
                sources = rank_sources(replica, facts, listening=listening)
                saved = await self._kept(replica, sources)
                self._reconcile(replica, sources, saved)
                self._learn(sources, facts)
                self._report_error(replica, None)
            except (DiscoveryError, NotFollowable, ValueError) as error:
                self._report_error(replica, str(error))
            await asyncio.sleep(settings.interval_s)

    async def _kept(
        self, replica: ReplicaConfig, sources: tuple[RankSource, ...]
    ) -> dict[ReplicaId, Saved | None]:
        """What a store kept of the ranks that are new. Nothing awaits between this and its use."""
        known = {source.replica_id for source in self._links_of.get(replica.name, ())}
        new = [source for source in sources if source.replica_id not in known]
        if self._load is None:
            return {}
        loaded = await asyncio.gather(*map(self._load, new))
        return {source.replica_id: saved for source, saved in zip(new, loaded, strict=True)}

    def _reconcile(
        self,
        replica: ReplicaConfig,
        sources: tuple[RankSource, ...],
        saved: Mapping[ReplicaId, Saved | None],
    ) -> None:
        # What an engine says of its pool is learnt, and no reason to forget what it holds.
        sources = tuple(dataclasses.replace(source, blocks=None) for source in sources)
        before = self._links_of.get(replica.name, ())
        for source in before:
            if source not in sources:
                self._remove(source)
        self._links_of[replica.name] = tuple(source for source in before if source in sources)
        for source in sources:
            if source not in before:
                self._hub.add(source, time.monotonic(), saved.get(source.replica_id))
                self._links_of[replica.name] += (source,)
                _log.info(
                    "replica_joined",
                    replica=source.replica_id,
                    events=source.endpoint or f"topic {source.topic.decode()!r}",
                    replay=source.replay_endpoint,
                )

    def _remove(self, source: RankSource) -> None:
        self._hub.remove(source.replica_id)
        _log.info("replica_left", replica=source.replica_id)

    def _learn(self, sources: tuple[RankSource, ...], facts: EngineFacts) -> None:
        for source in sources:
            state = self._hub.links[source.replica_id].state
            if source.blocks is not None:
                state.blocks.capacity = source.blocks
            state.learn(version=facts.version, lora_paths=facts.lora_paths)
            if facts.sleep_states.get(source.rank, _AWAKE) != _AWAKE:
                state.slept()

    def _report_error(self, replica: ReplicaConfig, error: str | None) -> None:
        if error == self.errors.get(replica.name):
            return
        if error is None:
            del self.errors[replica.name]
            _log.info("replica_answers", replica=replica.name)
        else:
            self.errors[replica.name] = error
            _log.warning("replica_not_followed", replica=replica.name, error=error)
