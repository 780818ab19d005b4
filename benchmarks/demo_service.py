"""A shell: the processes of the demo, and what it asks of them before and after the requests.

A service that was killed leaves the server of its store behind; whoever starts it next adopts that.
At the end of the demo none is left, whatever ended it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.conversations import Conversation, Workload
from benchmarks.demo_fleet import (
    DemoSettings,
    ServeLog,
    ServeUrls,
    router_config,
    sim_arguments,
    sim_url,
)
from benchmarks.processes import pointsman
from indexer.embedded_store import EmbeddedStore

# Some seconds, and many on a busy machine.
START_SECONDS_MAX = 90.0
_READY_SECONDS_MAX = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Service:
    """`pointsman serve` with one policy, which may be started more than once."""

    policy: str
    replica_urls: Sequence[str]
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / self.policy

    @asynccontextmanager
    async def running(self, log: ServeLog, *, killed: bool = False) -> AsyncIterator[ServeUrls]:
        """Until the context ends, by SIGKILL where ``killed``. Raises ProcessFailed."""
        path = self.folder / f"{self.policy}.toml"
        text = router_config(self.policy, self.replica_urls, self.data)
        path.write_text(text, encoding="utf-8")
        command = ("serve", "--config", str(path))
        async with pointsman(
            *command, ready=log.urls, seconds_max=START_SECONDS_MAX, killed=killed
        ) as urls:
            yield urls

    async def end(self) -> None:
        """The server of its store, where one was left behind."""
        await EmbeddedStore(self.data).stop()


async def start_replicas(stack: AsyncExitStack, settings: DemoSettings) -> list[str]:
    """All at once, since each takes seconds; their URLs."""
    arguments = sim_arguments(settings)

    async def start() -> str:
        replica = pointsman(*arguments, ready=sim_url, seconds_max=START_SECONDS_MAX)
        return await stack.enter_async_context(replica)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start()) for _ in range(settings.replicas)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def shared_tokens_of(url: str, workload: Workload) -> int:
    """How many tokens all prompts begin with: those that two first turns have in common."""
    prompts = []
    for agent in workload.agents[:2]:
        conversation = Conversation(workload, agent)
        conversation.ask()
        body = {"messages": conversation.messages, "tools": workload.tools}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/tokenize", json=body) as response:
                prompts.append((await response.json())["tokens"])
    pairs = zip(prompts[0], prompts[-1], strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), 0)


async def forget_everything(urls: Sequence[str]) -> None:
    """As if every engine's process had been started anew; costs no time."""
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(f"{url}/sim/fault", json={"kind": "restart"}) as response:
                response.raise_for_status()


async def until_in_service(urls: ServeUrls) -> None:
    """Until every replica is up and heard, or time is up; the requests tell then."""
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < deadline:
        engines = (await _json(f"{urls.router}/ready"))["engines"].values()
        replicas = (await _json(f"{urls.indexer}/replicas"))["replicas"]
        heard = [replica["connected"] for replica in replicas]
        if all(state == "up" for state in engines) and len(heard) == len(engines) and all(heard):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def until_kept(urls: ServeUrls) -> None:
    """Until the store has what was applied, or time is up: it is behind by up to 50 ms, and a kill
    within them costs what they brought."""
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < deadline:
        replicas = (await _json(f"{urls.indexer}/replicas"))["replicas"]
        if all(replica["durable_seq"] == replica["seq"] for replica in replicas):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def seconds_to_exact(urls: ServeUrls) -> float | None:
    """From now until the index of every replica that has stored something is exact; None where that
    takes too long."""
    started = time.monotonic()
    while time.monotonic() - started < _READY_SECONDS_MAX:
        replicas = (await _json(f"{urls.indexer}/replicas"))["replicas"]
        used = [replica for replica in replicas if replica["reasons"] != ["nothing_stored"]]
        if used and all(replica["evidence"] == "exact" for replica in used):
            return time.monotonic() - started
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def get_text(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        response.raise_for_status()
        return await response.text()


async def _json(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.json()
