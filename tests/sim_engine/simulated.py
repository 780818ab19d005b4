"""A simulated replica with its text endpoints, served in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache

import aiohttp

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.sim.cost import Pacing
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.openai_api import create_openai_app
from benchmarks.sim.prompts import PromptMaker
from benchmarks.sim.replica import ReplicaSettings
from benchmarks.sim.server import serve
from benchmarks.sim.simulator import Simulator

EVENTS = PublisherSettings(
    endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", bind=True
)


class TextReplica:
    def __init__(self, session: aiohttp.ClientSession, url: str, simulator: Simulator) -> None:
        self.session, self.url, self.simulator = session, url, simulator

    @property
    def engine(self) -> SimulatedEngine:
        return self.simulator.replica.engines[0]

    async def post(
        self, path: str, body: dict | bytes, status: int = 200, headers: dict | None = None
    ) -> dict:
        """The JSON answer, its status checked."""
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(self.url + path, headers=headers, **content) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def fault(self, kind: str, **more) -> None:
        await self.post("/sim/fault", {"kind": kind, **more})

    async def published(self) -> int:
        """Batches that rank 0 has published, once everything it has said is on its way."""
        publisher = self.simulator.publishers[0]
        await asyncio.to_thread(publisher.flush)
        return publisher.next_seq

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            # The engine has no event to wait for: it is core and knows no event loop.
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@cache
def prompt_maker() -> PromptMaker:
    return PromptMaker(TOKENIZER_DIRECTORY)


@asynccontextmanager
async def text_replica(pacing: Pacing | None = None, **settings) -> AsyncIterator[TextReplica]:
    prompts = prompt_maker()
    settings = {"next_token": prompts.next_token()} | settings
    simulator = Simulator(ReplicaSettings(**settings), EVENTS, pacing)
    runner, port = await serve(create_openai_app(simulator, prompts), "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            yield TextReplica(session, f"http://127.0.0.1:{port}", simulator)
    finally:
        await runner.cleanup()
