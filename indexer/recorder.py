"""A shell: records one replica's KV events into a file, as the engine encoded them.

What is written is what ``inspect`` reads: a meta line, the engine's event sources, then frames.
Rules it keeps:

* The hub decides continuity, as it does for the index: history is replayed from 0 where the engine
  has a replay endpoint, each batch is written once and in order, a restart begins at 0 again.
* Where the log does not continue what was written, a note line says why.
* Every line is flushed, so that a recording that is killed ends with a whole batch.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from typing import TextIO
from urllib.parse import urlsplit

import aiohttp

from indexer.discovery import DiscoveryError, EngineFacts, discover
from indexer.hub import Hub, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.inspection import head_lines
from indexer.recording_log import RecordingLog
from indexer.replica import ReplicaState
from indexer.sources import EventSource, offset_endpoint
from indexer.stream_outputs import Apply, Clear
from indexer.subscriber import ListenError, Subscriber

DISCOVERY_S_MAX = 10.0
_ARRIVALS_PER_TURN_MAX = 1000
_TURN_S_MAX = 0.1


class RecordingFailed(Exception):
    """The text says what to check."""


class NotRecordable(RecordingFailed):
    """It was asked for wrongly: other flags would help."""


class _Abandoned(RecordingFailed):
    """Nothing could be heard; no file is left behind."""


class _CannotListen(NotRecordable, _Abandoned):
    pass


@dataclass(frozen=True, slots=True)
class Recording:
    """What to record. ``seconds`` None: until stopped. ``bind``: of rank 0, as vLLM offsets it."""

    replica_url: str
    out: str
    seconds: float | None = None
    bind: str | None = None


def record(recording: Recording) -> int:
    """Records until Ctrl-C, SIGTERM or ``seconds``; returns the frames written.

    Raises RecordingFailed.
    """
    return asyncio.run(_record(recording))


async def _record(recording: Recording) -> int:
    stop = _Stop(asyncio.get_running_loop())
    facts = await _discover(recording.replica_url)
    sources = _usable_sources(facts, recording)
    subscriber = Subscriber(stop.wake_from_thread)
    subscriber.start()
    try:
        with _open(recording.out) as file:
            head = head_lines(facts, _origin(recording.replica_url))
            log = RecordingLog(file, sys.stderr, time.monotonic, head)
            hub = _hub(subscriber, sources, recording, log)
            _listen(subscriber, hub, recording.bind)
            await _follow(subscriber, hub, log, stop, recording.seconds)
        if log.not_heard and not log.frames:
            raise _Abandoned(log.not_heard)
        log.finish(hub)
    except OSError as error:
        raise RecordingFailed(f"{recording.out} cannot be written: {error.strerror}") from error
    except _Abandoned:
        os.unlink(recording.out)
        raise
    finally:
        subscriber.stop()
    return log.frames


async def _follow(
    subscriber: Subscriber, hub: Hub, log: RecordingLog, stop: "_Stop", seconds: float | None
) -> None:
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
    while not stop.stopped and time.monotonic() < deadline:
        if not _turn(subscriber, hub, log):
            await stop.wait(min(_TURN_S_MAX, deadline - time.monotonic()))
    _turn(subscriber, hub, log)


class _Stop:
    """Wakes the loop for arrivals and for the signals that end the recording."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stopped = False
        self._loop = loop
        self._wake = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        self.stopped = True
        self._wake.set()

    def wake_from_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        self._wake.clear()


async def _discover(replica_url: str) -> EngineFacts:
    key = os.environ.get("VLLM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            return await discover(session, replica_url, DISCOVERY_S_MAX)
    except DiscoveryError as error:
        raise RecordingFailed(str(error)) from error


def _usable_sources(facts: EngineFacts, recording: Recording) -> tuple[EventSource, ...]:
    if facts.sources is None:
        raise RecordingFailed(
            f"vLLM {facts.version} does not say where it publishes (/kv_event_sources, 0.31 and"
            " newer); its events cannot be recorded by this command"
        )
    if not facts.sources:
        raise RecordingFailed(
            "the replica publishes no KV events; start vLLM with --kv-events-config"
            " '{\"enable_kv_cache_events\": true, ...}' and with prefix caching on"
        )
    for source in facts.sources:
        if not source.binds and not source.may_be_resolved and recording.bind is None:
            raise NotRecordable(
                f"rank {source.rank} connects to {source.endpoint} instead of listening; give"
                " --bind with the address to listen on, such as tcp://*:5557 (rank r: port + r)"
            )
    return facts.sources


def _open(path: str) -> TextIO:
    """A new file, line by line flushed: an older recording is never overwritten."""
    try:
        return open(path, "x", buffering=1, encoding="utf-8")
    except FileExistsError:
        raise NotRecordable(f"{path} exists already; choose another --out") from None
    except OSError as error:
        raise NotRecordable(f"{path} cannot be written: {error.strerror}") from None


def _listen(subscriber: Subscriber, hub: Hub, bind: str | None) -> None:
    """Where the engine connects, each rank does so to a port of its own."""
    for link in hub.links.values():
        if bind is not None and link.source.endpoint is None:
            try:
                subscriber.bind(offset_endpoint(bind, link.source.rank))
            except (ListenError, DiscoveryError) as error:
                raise _CannotListen(str(error)) from error


def _hub(
    subscriber: Subscriber,
    sources: tuple[EventSource, ...],
    recording: Recording,
    log: RecordingLog,
) -> Hub:
    hub = Hub(subscriber)
    for source in sources:
        listens = recording.bind is not None and not source.binds
        rank_source = RankSource(
            ReplicaId(f"rank {source.rank}"),
            PoolName(""),
            engine=recording.replica_url,
            rank=source.rank,
            endpoint=None if listens else source.endpoint,
            replay_endpoint=source.replay_endpoint,
            topic=source.topic.encode(),
        )
        hub.add(rank_source, time.monotonic()).state = _RecordedRank(rank_source, log)
    return hub


def _turn(subscriber: Subscriber, hub: Hub, log: RecordingLog) -> bool:
    """Whether more is there to take at once."""
    arrivals, now = subscriber.take(_ARRIVALS_PER_TURN_MAX), time.monotonic()
    for arrival in arrivals:
        log.heard(arrival)
        hub.handle(arrival, now)
    hub.tick(now)
    while hub.step():
        pass
    log.progress()
    return len(arrivals) == _ARRIVALS_PER_TURN_MAX


class _RecordedRank(ReplicaState):
    """Stands where a replica's index would: what is to be applied is written instead."""

    def __init__(self, source: RankSource, log: RecordingLog) -> None:
        super().__init__(source.replica_id, source.pool)
        self._source, self._log = source, log

    def apply(self, output: Apply) -> None:
        self._log.frame(self._source, output)

    def clear(self, output: Clear) -> None:
        self._log.note(self._source, output.reason)


def _origin(replica_url: str) -> str:
    """Who recorded what; a password that the URL may hold stays out of the file."""
    address = urlsplit(replica_url).netloc.rpartition("@")[2]
    return f"pointsman {metadata.version('pointsman')}, {address}"
