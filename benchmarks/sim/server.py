"""A shell: the HTTP side of a simulated replica, but for what needs a tokenizer.

Rules it keeps:

* A request whose client goes away is aborted.
* Endpoints vLLM has answer as vLLM does; what only a simulator has is under ``/sim/``.
* A replica that refuses connections closes its socket and cuts off the connections it has when they
  ask for something; one that is unavailable answers 503 to everything but ``/sim/``.
"""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web

from benchmarks.sim import report
from benchmarks.sim.bodies import FaultBody, GenerateBody
from benchmarks.sim.faults import HttpFaults
from benchmarks.sim.simulator import RequestAborted, Simulator
from proto.blockhash import show

_BODY_BYTES_MAX = 64 * 2**20
# A request still running when the server stops is cut off after this.
_SHUTDOWN_SECONDS_MAX = 2.0


class Listener:
    """The listening socket of a server, which can go away for a while."""

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._address = ("", 0)
        self._reopening: asyncio.Task[None] | None = None

    async def open(self, runner: web.AppRunner, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it is taken."""
        self._runner = runner
        self._site = web.TCPSite(runner, host, port)
        await self._site.start()
        self._address = (host, runner.addresses[0][1])
        return self._address[1]

    async def close_for(self, seconds: float) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None
        if self._reopening is not None:
            self._reopening.cancel()
        self._reopening = asyncio.create_task(self._reopen(seconds))

    async def close(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)

    async def _reopen(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        assert self._runner is not None
        await self.open(self._runner, *self._address)


SIMULATOR = web.AppKey("simulator", Simulator)
LISTENER = web.AppKey("listener", Listener)


def create_app(simulator: Simulator) -> web.Application:
    """The application; it starts the simulator's loops and closes the simulator with itself."""
    app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_faulty, _errors])
    app[SIMULATOR] = simulator
    app[LISTENER] = Listener()
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
        return runner, await app[LISTENER].open(runner, host, port)
    except BaseException:
        await runner.cleanup()
        raise


def reset_connection(request: web.Request) -> None:
    """Cut the client off with a TCP reset instead of an end of stream."""
    transport = request.transport
    if transport is None:
        return
    linger_for_nothing = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, linger_for_nothing
    )
    transport.abort()


async def _running(app: web.Application) -> AsyncIterator[None]:
    app[SIMULATOR].start()
    yield
    await app[LISTENER].close()
    await app[SIMULATOR].close()


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _faulty(request: web.Request, handler: _Handler) -> web.StreamResponse:
    faults, now = request.app[SIMULATOR].faults, time.monotonic()
    if request.path.startswith("/sim/"):
        return await handler(request)
    if faults.lasts("refuse", now):
        reset_connection(request)
        return web.Response()
    if faults.lasts("unavailable", now):
        return web.Response(status=503, text="unavailable for a while")
    return await handler(request)


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
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
    if body.kind in HttpFaults.KINDS:
        return await _http_fault(request, body)
    if body.kind not in faults:
        known = (*faults, *HttpFaults.KINDS)
        raise ValueError(f"fault {body.kind!r}: known are {', '.join(known)}")
    faults[body.kind]()
    if body.kind != "stall":
        await asyncio.to_thread(publisher.flush)
    return web.json_response({"kind": body.kind})


async def _http_fault(request: web.Request, body: FaultBody) -> web.Response:
    request.app[SIMULATOR].faults.begin(body, time.monotonic())
    if body.kind == "refuse":
        await request.app[LISTENER].close_for(body.seconds)
    return web.json_response({"kind": body.kind})


def _checked_rank(simulator: Simulator, rank: int) -> int:
    if not 0 <= rank < len(simulator.publishers):
        raise ValueError(f"rank {rank}: there are {len(simulator.publishers)}")
    return rank
