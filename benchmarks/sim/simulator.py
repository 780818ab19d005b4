"""A shell: a replica that steps itself, and the requests that wait for what it generates.

Rules it keeps:

* One task per rank steps its engine while it has requests; everything happens on one event loop.
* A step takes the time that its pacing says; its events leave at the end, before its tokens. Steps
  are due one behind another, so that what this process spends on them is no extra time.
* A request whose caller leaves is aborted.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.sim.bodies import GenerateBody
from benchmarks.sim.cost import Pace, Pacing
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.faults import HttpFaults
from benchmarks.sim.publisher import EventPublisher
from benchmarks.sim.replica import ReplicaSettings, SimulatedReplica
from benchmarks.sim.steps import Progress

_Made = tuple[int, Progress | None]
# vLLM's front end weighs a waiting request as four that run.
_WAITING_WEIGHT = 4
# Steps that are late by more than this are not caught up with: the process was stopped.
_LATE_SECONDS_MAX = 0.05


class RequestAborted(Exception):
    """The engine dropped the request: it was put to sleep or restarted."""


class Simulator:
    """Owns the sockets, the replica and the loops; `start` and `close` belong to one event loop."""

    def __init__(
        self, settings: ReplicaSettings, events: PublisherSettings, pacing: Pacing | None = None
    ) -> None:
        self.settings = settings
        self.publishers: list[EventPublisher] = []
        try:
            for rank in range(settings.data_parallel_size):
                self.publishers.append(EventPublisher(settings.wire(), events, rank))
        except BaseException:
            self._close_publishers()
            raise
        self.replica = SimulatedReplica(settings, self.publishers, threading.RLock())
        self.faults = HttpFaults()
        self.started_seconds = time.time()
        self._pacing = pacing or Pace()
        self._waiters: dict[str, Callable[[Progress | None], None]] = {}
        self._work = [asyncio.Event() for _ in self.publishers]
        self._numbers = itertools.count()
        self._turn = 0
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._loops = [asyncio.create_task(self._run(rank)) for rank in range(len(self._work))]

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._abort(list(self._waiters))
        await asyncio.to_thread(self._close_publishers)

    async def generate(self, body: GenerateBody) -> AsyncIterator[Progress]:
        """Run one request, token by token; leaving the iterator early aborts it.

        Raises ValueError for what the engine cannot run and RequestAborted where it is dropped.
        """
        with self.running([body]) as tokens:
            async for _, progress in tokens:
                yield progress

    @contextmanager
    def running(
        self, bodies: Sequence[GenerateBody]
    ) -> Iterator[AsyncIterator[tuple[int, Progress]]]:
        """Run requests at once: their tokens as they come, each with its request's index.

        What is left of them when the context ends is aborted. Raises ValueError for what the engine
        cannot run, none of the requests being in it then; the iterator raises RequestAborted.
        """
        made: asyncio.Queue[_Made] = asyncio.Queue()
        names: list[tuple[int, str]] = []
        try:
            for index, body in enumerate(bodies):
                names.append((body.rank, self._add(body, index, made)))
            yield _Tokens(made, len(bodies))
        finally:
            for rank, name in names:
                del self._waiters[name]
                self.replica.abort(rank, name)

    def least_loaded_rank(self) -> int:
        """Where vLLM's front end would send a request; equals take turns."""
        engines = self.replica.engines
        self._turn = (self._turn + 1) % len(engines)
        order = [(self._turn - 1 + offset) % len(engines) for offset in range(len(engines))]
        loads = [engine.waiting * _WAITING_WEIGHT + engine.running for engine in engines]
        return min(order, key=loads.__getitem__)

    def sleep(self, level: int) -> None:
        self._abort(list(self.replica.sleep(level)))

    def wake(self) -> None:
        self.replica.wake()
        for work in self._work:
            work.set()

    def restart(self) -> None:
        self.replica.restart()
        self._abort(list(self._waiters))

    def _add(self, body: GenerateBody, index: int, made: "asyncio.Queue[_Made]") -> str:
        if not 0 <= body.rank < len(self._work):
            raise ValueError(f"rank {body.rank}: there are {len(self._work)}")
        name = f"request-{next(self._numbers)}"
        self.replica.add_request(
            body.rank,
            name,
            body.token_ids,
            body.max_tokens,
            self.settings.keys(body.lora_name, body.cache_salt),
            body.skip_cache,
            body.report_full,
        )
        self._waiters[name] = lambda progress: made.put_nowait((index, progress))
        self._work[body.rank].set()
        return name

    def _abort(self, names: list[str]) -> None:
        for name in names:
            if name in self._waiters:
                self._waiters[name](None)

    def _close_publishers(self) -> None:
        for publisher in self.publishers:
            publisher.close()

    async def _run(self, rank: int) -> None:
        due = time.monotonic()
        while True:
            if not self._work[rank].is_set():
                await self._work[rank].wait()
                due = time.monotonic()
            engine, step = self.replica.compute(rank)
            if not step.scheduled_tokens:
                self._work[rank].clear()
            now = time.monotonic()
            due = max(due, now - _LATE_SECONDS_MAX)
            due += self.faults.step_seconds(self._pacing.seconds(step), now)
            await asyncio.sleep(due - now)
            self.replica.publish(rank, engine, step)
            for progress in step.progress:
                if progress.request_id in self._waiters:
                    self._waiters[progress.request_id](progress)


class _Tokens:
    """An iterator, not a generator, so that whoever leaves it has nothing to close."""

    def __init__(self, made: "asyncio.Queue[_Made]", unfinished: int) -> None:
        self._made = made
        self._unfinished = unfinished

    def __aiter__(self) -> "_Tokens":
        return self

    async def __anext__(self) -> tuple[int, Progress]:
        if not self._unfinished:
            raise StopAsyncIteration
        index, progress = await self._made.get()
        if progress is None:
            raise RequestAborted(f"request {index}")
        self._unfinished -= progress.finished
        return index, progress
