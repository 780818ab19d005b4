"""A shell: the HTTP side of a simulated replica, and the loops that step its engines.

Rules it keeps:

* One task per rank steps its engine while it has requests; everything happens on one event loop.
* A step takes `step_seconds` plus `token_seconds` for each token it computes; 0 is as fast as it
  gets.
* A request whose client goes away is aborted.
* Endpoints vLLM has answer as vLLM does; what only a simulator has is under ``/sim/``.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web

from benchmarks.sim import report
from benchmarks.sim.bodies import FaultBody, GenerateBody, Pace
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.engine import Progress
from benchmarks.sim.publisher import EventPublisher
from benchmarks.sim.replica import ReplicaSettings, SimulatedReplica
from proto.blockhash import show

_BODY_BYTES_MAX = 64 * 2**20
# A request still running when the server stops is cut off after this.
_SHUTDOWN_SECONDS_MAX = 2.0


class RequestAborted(Exception):
    """The engine dropped the request: it was put to sleep or restarted."""


class Simulator:
    """Owns the sockets, the replica and the loops; `start` and `close` belong to one event loop."""

    def __init__(
        self, settings: ReplicaSettings, events: PublisherSettings, pace: Pace | None = None
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
        self.started_seconds = time.time()
        self._pace = pace or Pace()
        self._waiters: dict[str, asyncio.Queue[Progress | None]] = {}
        self._work = [asyncio.Event() for _ in self.publishers]
        self._numbers = itertools.count()
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
        if not 0 <= body.rank < len(self._work):
            raise ValueError(f"rank {body.rank}: there are {len(self._work)}")
        name = f"request-{next(self._numbers)}"
        keys = self.settings.keys(body.lora_name, body.cache_salt)
        self.replica.add_request(
            body.rank,
            name,
            body.token_ids,
            body.max_tokens,
            keys,
            body.skip_cache,
            body.report_full,
        )
        waiter = self._waiters[name] = asyncio.Queue()
        self._work[body.rank].set()
        try:
            while (progress := await waiter.get()) is not None:
                yield progress
                if progress.finished:
                    return
            raise RequestAborted(name)
        finally:
            del self._waiters[name]
            self.replica.abort(body.rank, name)

    def sleep(self, level: int) -> None:
        self._abort(list(self.replica.sleep(level)))

    def wake(self) -> None:
        self.replica.wake()
        for work in self._work:
            work.set()

    def restart(self) -> None:
        self.replica.restart()
        self._abort(list(self._waiters))

    def _abort(self, names: list[str]) -> None:
        for name in names:
            if name in self._waiters:
                self._waiters[name].put_nowait(None)

    def _close_publishers(self) -> None:
        for publisher in self.publishers:
            publisher.close()

    async def _run(self, rank: int) -> None:
        while True:
            await self._work[rank].wait()
            step = self.replica.step(rank)
            if not step.scheduled_tokens:
                self._work[rank].clear()
            pace = self._pace
            await asyncio.sleep(pace.step_seconds + pace.token_seconds * step.scheduled_tokens)
            for progress in step.progress:
                if progress.request_id in self._waiters:
                    self._waiters[progress.request_id].put_nowait(progress)


SIMULATOR = web.AppKey("simulator", Simulator)


def create_app(simulator: Simulator) -> web.Application:
    """The application; it starts the simulator's loops and closes the simulator with itself."""
    app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_errors])
    app[SIMULATOR] = simulator
    app.cleanup_ctx.append(_running)
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/version", _version),
            web.get("/metrics", _metrics),
            web.get("/v1/models", _models),
            web.get("/is_sleeping", _is_sleeping),
            web.post("/reset_prefix_cache", _reset_prefix_cache),
            web.post("/sleep", _sleep),
            web.post("/wake_up", _wake_up),
            web.post("/sim/generate", _generate),
            web.get("/sim/blocks", _blocks),
            web.post("/sim/fault", _fault),
        ]
    )
    if simulator.settings.wire().has_event_sources:
        app.router.add_get("/kv_event_sources", _event_sources)
    return app


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner to clean up and the port. Raises OSError where it is taken."""
    # Without handler_cancellation a handler outlives its client, and nothing would be aborted.
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS_MAX
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]


async def _running(app: web.Application) -> AsyncIterator[None]:
    app[SIMULATOR].start()
    yield
    await app[SIMULATOR].close()


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except (ValueError, msgspec.DecodeError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except RequestAborted as error:
        return web.json_response({"error": f"{error} was aborted"}, status=503)


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": f"{request.app[SIMULATOR].settings.vllm_version}.0"})


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text=report.metrics_text(request.app[SIMULATOR].replica))


async def _models(request: web.Request) -> web.Response:
    simulator = request.app[SIMULATOR]
    return web.json_response(report.models(simulator.settings, int(simulator.started_seconds)))


async def _event_sources(request: web.Request) -> web.Response:
    return web.json_response(
        {
            str(publisher.rank): publisher.settings.source(
                publisher.endpoint, publisher.replay_endpoint
            )
            for publisher in request.app[SIMULATOR].publishers
        }
    )


async def _is_sleeping(request: web.Request) -> web.Response:
    return web.json_response({"is_sleeping": request.app[SIMULATOR].replica.sleep_level > 0})


async def _reset_prefix_cache(request: web.Request) -> web.Response:
    preempt = request.query.get("reset_running_requests", "false").lower() == "true"
    done = request.app[SIMULATOR].replica.reset_prefix_cache(preempt)
    return web.json_response({"success": done})


async def _sleep(request: web.Request) -> web.Response:
    request.app[SIMULATOR].sleep(int(request.query.get("level", "1")))
    return web.Response()


async def _wake_up(request: web.Request) -> web.Response:
    request.app[SIMULATOR].wake()
    return web.Response()


async def _generate(request: web.Request) -> web.Response:
    body = msgspec.json.decode(await request.read(), type=GenerateBody)
    made = [progress async for progress in request.app[SIMULATOR].generate(body)]
    return web.json_response(
        {
            "prompt_tokens": len(body.token_ids),
            "cached_tokens": made[-1].cached_tokens,
            "output_token_ids": [progress.token_id for progress in made],
        }
    )


async def _blocks(request: web.Request) -> web.Response:
    simulator = request.app[SIMULATOR]
    rank = _checked_rank(simulator, int(request.query.get("rank", "0")))
    truth = simulator.replica.engines[rank].truth()
    return web.json_response({show(block): copies for block, copies in truth.items()})


async def _fault(request: web.Request) -> web.Response:
    """Do what the body asks for; 200 says it happened, or for drop and lose that it will."""
    body = msgspec.json.decode(await request.read(), type=FaultBody)
    simulator = request.app[SIMULATOR]
    publisher = simulator.publishers[_checked_rank(simulator, body.rank)]
    faults: dict[str, Callable[[], None]] = {
        "drop": partial(publisher.drop, body.batches),
        "lose": partial(publisher.lose, body.batches),
        "garbage": publisher.garbage,
        "stall": partial(publisher.stall, body.seconds),
        "restart": simulator.restart,
    }
    if body.kind not in faults:
        raise ValueError(f"fault {body.kind!r}: known are {', '.join(faults)}")
    faults[body.kind]()
    if body.kind != "stall":
        await asyncio.to_thread(publisher.flush)
    return web.json_response({"kind": body.kind})


def _checked_rank(simulator: Simulator, rank: int) -> int:
    if not 0 <= rank < len(simulator.publishers):
        raise ValueError(f"rank {rank}: there are {len(simulator.publishers)}")
    return rank
