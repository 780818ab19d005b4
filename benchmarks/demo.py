"""A shell: `pointsman demo`, which shows on this machine what routing by prefix is worth.

It starts simulated replicas and ``pointsman serve`` as processes, sends the same conversations of
agents through the real OpenAI client with one policy after the other, and prints a table. Rules:

* Each policy finds replicas whose engines have just started, and a router of its own.
* Its processes end with it, whatever ends it; what they said last is shown where they fail.
* The exit status is 0 only if every request of every policy was answered.
"""

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.conversations import Agent, Conversation, Workload, make_workload
from benchmarks.demo_fleet import (
    BLOCK_SIZE,
    MODEL,
    DemoSettings,
    router_config,
    router_url,
    sim_arguments,
    sim_url,
)
from benchmarks.demo_report import (
    PolicyRun,
    Progress,
    Record,
    best_hit_rate,
    prediction_counts,
    table,
)
from benchmarks.processes import ProcessFailed, pointsman

if TYPE_CHECKING:
    from openai import AsyncOpenAI

POLICIES = ("round_robin", "prefix")
_START_SECONDS_MAX = 30.0
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
        urls = await _start_replicas(stack, settings)
        shared_tokens = await _shared_tokens(urls[0], workload)
        runs = []
        for policy in POLICIES:
            runs.append(await _run_policy(policy, urls, workload, folder, show))
    best = best_hit_rate(runs[-1].records, shared_tokens, BLOCK_SIZE)
    return _tell(runs, best, show)


def _tell(runs: Sequence[PolicyRun], best_hit_rate: float, show: Progress) -> int:
    show.line("\n" + table(runs, best_hit_rate))
    failures = [f"{run.policy}: {failure}" for run in runs for failure in run.failures]
    for failure in failures[:_SHOWN_FAILURES_MAX]:
        show.line(f"failed: {failure}")
    if not failures and any(run.sizes() != runs[0].sizes() for run in runs):
        show.line("the policies were not asked the same: the answers of the replicas differ")
        return 1
    return 1 if failures else 0


async def _run_policy(
    policy: str, urls: Sequence[str], workload: Workload, folder: Path, show: Progress
) -> PolicyRun:
    from openai import AsyncOpenAI

    run = PolicyRun(policy)
    show.update(f"{policy}: starting pointsman serve")
    await _forget_everything(urls)
    async with _router(policy, urls, folder) as url:
        await _until_ready(url)
        client = AsyncOpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=_REQUEST_SECONDS_MAX
        )
        started = time.monotonic()

        def told() -> None:
            done = len(run.records) + len(run.failures)
            seconds = time.monotonic() - started
            show.update(
                f"{policy}: {done} of {workload.requests} requests, {seconds:.0f} s,"
                f" hit rate {run.hit_rate:.1%}",
                done / workload.requests,
            )

        async with client, asyncio.TaskGroup() as group:
            for agent in workload.agents:
                group.create_task(_converse(client, workload, agent, run, told))
        run.seconds = time.monotonic() - started
        run.predictions = prediction_counts(await _get(f"{url}/metrics"))
    show.line(f"{policy}: {len(run.records)} answers in {run.seconds:.1f} s")
    return run


async def _start_replicas(stack: AsyncExitStack, settings: DemoSettings) -> list[str]:
    """All at once, since each takes seconds; their URLs."""
    arguments = sim_arguments(settings)

    async def start() -> str:
        replica = pointsman(*arguments, ready=sim_url, seconds_max=_START_SECONDS_MAX)
        return await stack.enter_async_context(replica)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start()) for _ in range(settings.replicas)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _router(policy: str, urls: Sequence[str], folder: Path) -> AbstractAsyncContextManager[str]:
    """`pointsman serve` for these replicas; gives its URL."""
    path = folder / f"{policy}.toml"
    path.write_text(router_config(policy, urls), encoding="utf-8")
    return pointsman(
        "serve", "--config", str(path), ready=router_url, seconds_max=_START_SECONDS_MAX
    )


async def _converse(
    client: "AsyncOpenAI",
    workload: Workload,
    agent: Agent,
    run: PolicyRun,
    told: Callable[[], None],
) -> None:
    """One agent, turn by turn; a failure ends its conversation and counts for what is left."""
    import openai

    conversation = Conversation(workload, agent)
    while not conversation.is_over:
        turn = conversation.ask()
        await asyncio.sleep(turn.pause_seconds)
        try:
            record, text = await _ask(
                client, agent.name, conversation.messages, workload.tools, turn.answer_tokens
            )
        except (openai.OpenAIError, ValueError) as error:
            run.failures.append(f"{agent.name}: {type(error).__name__}: {error}")
            return
        conversation.answered(text)
        run.records.append(record)
        told()


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


async def _shared_tokens(url: str, workload: Workload) -> int:
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


async def _forget_everything(urls: Sequence[str]) -> None:
    """As if every engine's process had been started anew; costs no time."""
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(f"{url}/sim/fault", json={"kind": "restart"}) as response:
                response.raise_for_status()


async def _until_ready(url: str) -> None:
    """Until the router has a replica in service, or time is up; the requests tell then."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/ready") as response:
                report = await response.json()
                if all(state == "up" for state in report["engines"].values()):
                    return
            await asyncio.sleep(0.05)


async def _get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        response.raise_for_status()
        return await response.text()
