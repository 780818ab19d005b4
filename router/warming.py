"""A shell: sends a replica the bodies that warm it up, and asks what has become resident there.

It decides nothing: who is held meanwhile is in ``replicas``. Rules it keeps:

* Bodies go out one after the other, to each rank of an engine in turn: a replica that joins is not
  met by a burst. Engines are warmed at the same time; none waits for another.
* Whatever happens, the warm-up ends within its time, and then the replica takes traffic. One body
  that is refused does not spoil the others; an engine that cannot be reached ends it.
* What is resident is what the indexer says, not what was sent.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import aiohttp
import structlog

from proto.contract import IndexerUnavailable
from router.fleet import usable_schemes
from router.probes import read_answer
from router.replicas import Engine, Replica
from router.routing import Routing
from router.tokenizer import NotTokenized
from router.usage import JsonUsage, Usage
from router.warm_bodies import WarmBody
from router.warm_up import Warmed, WarmUpPlan, WarmUpReport

_log = structlog.get_logger("router")

_ANSWER_BYTES_MAX = 2**20
_ERROR_CHARS_MAX = 300
# Whoever sends bodies has a deadline for all of them.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
# What an engine stored is announced a step after its answer, and the first of it has to be proven.
_EVENTS_S_MAX = 5.0
_ASK_AGAIN_S = 0.05


class BodyNotTaken(Exception):
    """The replica answered, but not with what was asked for."""


class WarmUps:
    """``plans`` by pool. ``begin`` is for engines that come into service; ``run`` does the work."""

    def __init__(
        self, routing: Routing, session: aiohttp.ClientSession, plans: Mapping[str, WarmUpPlan]
    ) -> None:
        self._routing, self._session, self._plans = routing, session, plans
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled. A bug in one warm-up ends all."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()

    def begin(self, engine: Engine) -> None:
        """An earlier warm-up of the same engine is of a cache that is gone."""
        assert self._group is not None
        earlier = self._tasks.get(engine.config.name)
        if earlier is not None:
            earlier.cancel()
        work = self._warm_up(engine, engine.joins, self._plans[engine.config.pool])
        self._tasks[engine.config.name] = self._group.create_task(work)

    async def _warm_up(self, engine: Engine, join: int, plan: WarmUpPlan) -> None:
        started, error = time.monotonic(), None
        done: dict[str, list[Warmed]] = {}
        _log.info(
            "warm_up_begun",
            engine=engine.config.name,
            bodies=len(plan.bodies),
            takes_traffic=not engine.held,
        )
        try:
            async with asyncio.timeout(plan.s_max) as deadline:
                for replica in engine.replicas:
                    await self._warm(replica, plan.bodies, done.setdefault(replica.id, []))
        except (aiohttp.ClientError, OSError) as failure:
            late = f"not done within {plan.s_max:g} s"
            error = late if deadline.expired() else str(failure) or type(failure).__name__
        report = WarmUpReport(done, time.monotonic() - started, error)
        if engine.warmed(join, report):
            log = _log.info if report.outcome == "ok" else _log.warning
            log("warm_up_over", engine=engine.config.name, **report.described())
            self._routing.wake_one()

    async def _warm(self, replica: Replica, bodies: Sequence[WarmBody], done: list[Warmed]) -> None:
        """Fills ``done`` in as far as it comes."""
        for body in bodies:
            try:
                usage = await send_body(self._session, replica, body)
            except BodyNotTaken as refusal:
                done.append(Warmed(body.name, str(refusal)))
            else:
                done.append(warmed(body, usage))
        with suppress(TimeoutError):
            async with asyncio.timeout(_EVENTS_S_MAX):
                while not await self._see(replica, bodies, done):  # noqa: ASYNC110  # see there
                    await asyncio.sleep(_ASK_AGAIN_S)

    async def _see(self, replica: Replica, bodies: Sequence[WarmBody], done: list[Warmed]) -> bool:
        """Notes what is resident of each body that was answered; whether that is all of it.

        Nobody tells when an index has caught up, so it is asked again and again.
        """
        all_seen = True
        for index, body in enumerate(bodies):
            if done[index].error is not None:
                continue
            known = await self._resident(replica, body)
            if known is not None:
                resident, blocks = known
                done[index] = replace(done[index], resident_blocks=resident, prompt_blocks=blocks)
            all_seen = all_seen and known is not None and known[0] == known[1]
        return all_seen

    async def _resident(self, replica: Replica, body: WarmBody) -> tuple[int, int] | None:
        """Blocks that are there, and blocks that the prompt has; None where nobody can say."""
        fleet, request = self._routing.fleet, body.request
        hasher = self._routing.pools[replica.pool].hasher
        if hasher is None:
            return None
        variants = fleet.key_variants(replica.pool, request)
        schemes = usable_schemes(fleet.schemes(replica.pool), variants)
        try:
            hashed = await hasher.hash(request.prompts[0], schemes, variants, request.session)
            matches = await self._routing.indexer.match(replica.pool, hashed.prefixes)
        except (NotTokenized, IndexerUnavailable):
            return None
        proven = fleet.scheme_ids(replica.id)
        lengths = [len(p.block_hashes) for p in hashed.prefixes if p.scheme_id in proven]
        match = matches.get(replica.id)
        return (match.any_tier_blocks if match else 0, max(lengths)) if lengths else None


async def send_body(
    session: aiohttp.ClientSession, replica: Replica, body: WarmBody
) -> Usage | None:
    """What the engine says of it; None where it says nothing.

    Raises BodyNotTaken, and aiohttp.ClientError or OSError where it cannot be reached.
    """
    headers = {"Content-Type": "application/json"}
    if replica.header_rank is not None:
        headers["X-data-parallel-rank"] = str(replica.header_rank)
    url, request = f"{replica.url}{body.request.path}", body.request
    async with session.post(
        url, data=request.body, headers=headers, allow_redirects=False, timeout=_NO_TIMEOUT
    ) as response:
        answer = await read_answer(response, _ANSWER_BYTES_MAX)
        if response.status != 200:
            text = " ".join(answer.decode(errors="replace").split())
            raise BodyNotTaken(f"answered {response.status}: {text}"[:_ERROR_CHARS_MAX])
    reader = JsonUsage()
    reader.feed(answer)
    return reader.usage


def warmed(body: WarmBody, usage: Usage | None) -> Warmed:
    """A body that was answered."""
    if usage is None:
        return Warmed(body.name)
    return Warmed(body.name, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
