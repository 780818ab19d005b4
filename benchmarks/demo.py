"""A shell: `pointsman demo`, which shows on this machine what routing by prefix is worth.

It starts simulated replicas and ``pointsman serve`` as processes, sends the same conversations of
agents through the real OpenAI client with one policy after the other, and prints a table. Rules:

* Each policy finds replicas whose engines have just started, and a service of its own.
* Half way the service of one policy is killed and started again. No request is under way then: what
  would be cut off is a client's to ask again, and no question of the index.
* Its processes end with it, whatever ends it; what they said last is shown where they fail.
* The exit status is 0 only if every request of every policy was answered.
"""

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.conversations import Conversation, Workload, make_workload
from benchmarks.demo_fleet import BLOCK_SIZE, MODEL, DemoSettings, ServeLog, ServeUrls
from benchmarks.demo_report import (
    PolicyRun,
    Progress,
    Record,
    Restart,
    best_hit_rate,
    prediction_counts,
    restart_lines,
    table,
)
from benchmarks.demo_service import (
    Service,
    forget_everything,
    get_text,
    seconds_to_exact,
    shared_tokens_of,
    start_replicas,
    until_in_service,
    until_kept,
)
from benchmarks.processes import ProcessFailed

if TYPE_CHECKING:
    from openai import AsyncOpenAI

POLICIES = ("round_robin", "prefix")
RESTARTED = "prefix"
_REQUEST_SECONDS_MAX = 60.0
_SHOWN_FAILURES_MAX = 5


def run_demo(settings: DemoSettings) -> int:
    """0 where everything was answered, 1 where not, 2 where something is missing, 130 on Ctrl-C."""
    try:
        import openai  # noqa: F401
    except ImportError:
        print(
            "pointsman demo: the openai package is missing: install it beside pointsman, for"
            " example with `uv pip install openai`, or run `make demo`",
            file=sys.stderr,
        )
        return 2
    try:
        return asyncio.run(_until_signalled(_demo(settings)))
    except (ProcessFailed, aiohttp.ClientError) as error:
        print(f"\npointsman demo: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("\npointsman demo: stopped", file=sys.stderr)
        return 130


async def _until_signalled(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


async def _demo(settings: DemoSettings) -> int:
    workload = make_workload(random.Random(settings.seed).random, settings.agents, settings.turns)
    show = Progress(sys.stdout)
    show.line(
        f"{settings.replicas} simulated replicas ({settings.cost_model}, {settings.speedup:g} times"
        f" faster, {(settings.blocks - 1) * BLOCK_SIZE:,} tokens of cache each);"
        f" {settings.agents} agents with {settings.turns} turns"
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-demo-")))
        show.update("starting the replicas")
        urls = await start_replicas(stack, settings)
        shared_tokens = await shared_tokens_of(urls[0], workload)
        runs = []
        for policy in POLICIES:
            service = Service(policy, urls, folder)
            stack.push_async_callback(service.end)
            run = PolicyRun(policy)
            await _Run(service, workload, run, show).through(restart=policy == RESTARTED)
            runs.append(run)
    return _tell(runs, shared_tokens, show)


def _tell(runs: Sequence[PolicyRun], shared_tokens: int, show: Progress) -> int:
    show.line("\n" + table(runs, best_hit_rate(runs[-1].records, shared_tokens, BLOCK_SIZE)))
    for run in runs:
        if run.restart is not None:
            show.line("\n" + "\n".join(restart_lines(run, shared_tokens, BLOCK_SIZE)))
    failures = [f"{run.policy}: {failure}" for run in runs for failure in run.failures]
    for failure in failures[:_SHOWN_FAILURES_MAX]:
        show.line(f"failed: {failure}")
    if not failures and any(run.sizes() != runs[0].sizes() for run in runs):
        show.line("the policies were not asked the same: the answers of the replicas differ")
        return 1
    return 1 if failures else 0


@dataclass
class _Run:
    """One policy, from engines that have just started to the last answer."""

    service: Service
    workload: Workload
    run: PolicyRun
    show: Progress

    async def through(self, *, restart: bool) -> None:
        """``restart``: kill the service when half of the turns are answered, and start it again."""
        self.show.update(f"{self.run.policy}: starting pointsman serve")
        await forget_everything(self.service.replica_urls)
        conversations = [Conversation(self.workload, agent) for agent in self.workload.agents]
        log, turns = ServeLog(), max(len(agent.turns) for agent in self.workload.agents)
        async with self.service.running(log, killed=restart) as urls:
            await until_in_service(urls)
            await self._converse(conversations, urls, turns // 2 if restart else turns)
            if restart:
                await until_kept(urls)
        if restart:
            await self._again(conversations, turns - turns // 2)
        run = self.run
        self.show.line(f"{run.policy}: {len(run.records)} answers in {run.seconds:.1f} s")

    async def _again(self, conversations: Sequence[Conversation], turns: int) -> None:
        self.show.update(f"{self.run.policy}: killed; starting pointsman serve again")
        killed, log = time.monotonic(), ServeLog()
        async with self.service.running(log) as urls:
            down = time.monotonic() - killed
            exact = await seconds_to_exact(urls)
            answered = len(self.run.records)
            self.run.restart = Restart(answered, log.loaded_blocks, down, exact)
            await until_in_service(urls)
            await self._converse(conversations, urls, turns)

    async def _converse(
        self, conversations: Sequence[Conversation], urls: ServeUrls, turns: int
    ) -> None:
        """So many turns of every agent, all agents at once."""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            base_url=f"{urls.router}/v1",
            api_key="unused",
            max_retries=0,
            timeout=_REQUEST_SECONDS_MAX,
        )
        started = time.monotonic()
        async with client, asyncio.TaskGroup() as group:
            for conversation in conversations:
                group.create_task(self._turns(client, conversation, turns))
        self.run.seconds += time.monotonic() - started
        self.run.predictions += prediction_counts(await get_text(f"{urls.router}/metrics"))

    async def _turns(self, client: "AsyncOpenAI", conversation: Conversation, turns: int) -> None:
        """A failure ends the conversation and counts for what is left of it."""
        import openai

        name, run = conversation.agent.name, self.run
        for _ in range(turns):
            if conversation.is_over or any(text.startswith(f"{name}:") for text in run.failures):
                return
            turn = conversation.ask()
            await asyncio.sleep(turn.pause_seconds)
            try:
                record, text = await _ask(
                    client, name, conversation.messages, self.workload.tools, turn.answer_tokens
                )
            except (openai.OpenAIError, ValueError) as error:
                run.failures.append(f"{name}: {type(error).__name__}: {error}")
                return
            conversation.answered(text)
            run.records.append(record)
            self._told()

    def _told(self) -> None:
        run, requests = self.run, self.workload.requests
        done = len(run.records) + len(run.failures)
        self.show.update(
            f"{run.policy}: {done} of {requests} requests, hit rate {run.hit_rate:.1%}",
            done / requests,
        )


async def _ask(
    client: "AsyncOpenAI",
    name: str,
    messages: Sequence[Any],
    tools: Sequence[Any],
    answer_tokens: int,
) -> tuple[Record, str]:
    """Raises openai.OpenAIError, and ValueError where an answer lacks its end."""
    started = time.monotonic()
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=list(messages),
        tools=list(tools),
        max_tokens=answer_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, first_seconds, usage = [], None, None
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_seconds = first_seconds or time.monotonic() - started
            texts.append(chunk.choices[0].delta.content)
        usage = chunk.usage or usage
    if usage is None or usage.prompt_tokens_details is None or first_seconds is None:
        raise ValueError("the answer ended without text or usage")
    cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
    sizes = (usage.prompt_tokens, cached_tokens, usage.completion_tokens)
    return Record(name, *sizes, first_seconds), "".join(texts)
