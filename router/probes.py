"""A shell: asks every engine, again and again, whether it is well and what it serves.

It decides nothing: what an answer means for an engine is in ``replicas``. An engine whose probe
does not come back in time has failed it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import structlog

from router.replicas import Engine, ProbeAnswer, ReplicaSet, ServedModel

_log = structlog.get_logger("router")

_MODELS_MAX = 10_000
_ANSWER_BYTES_MAX = 4 * 2**20


class ProbeFailed(Exception):
    """The text says what the engine did instead of answering."""


class Probes:
    """One task per engine. ``on_change`` is called when an engine came back or left, ``on_cold``
    when one came that is to be warmed up.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        session: aiohttp.ClientSession,
        *,
        interval_s: float,
        timeout_s: float,
        on_change: Callable[[], None] = lambda: None,
        on_cold: Callable[[Engine], None] = lambda engine: None,
    ) -> None:
        self._replicas, self._session = replicas, session
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._on_change, self._on_cold = on_change, on_cold

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for engine in self._replicas.engines.values():
                group.create_task(self._follow(engine))

    async def _follow(self, engine: Engine) -> None:
        was_up, joins = None, 0
        while True:
            await self.probe(engine)
            if engine.joins != joins:
                joins = engine.joins
                if engine.warming:
                    self._on_cold(engine)
            if engine.up != was_up:
                was_up = engine.up
                self._say(engine)
                self._on_change()
            # One that is out is asked more often: it is missed.
            await asyncio.sleep(self._interval_s if engine.up else self._interval_s / 4)

    async def probe(self, engine: Engine) -> None:
        """Ask one engine once."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask(engine.config.url)
        except TimeoutError:
            engine.probe_failed(f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            engine.probe_failed(str(error) or type(error).__name__)
        except ProbeFailed as error:
            engine.probe_failed(str(error))
        else:
            self._replicas.answered(engine, answer)

    async def _ask(self, url: str) -> ProbeAnswer:
        async with self._session.get(f"{url}/health") as response:
            if response.status != 200:
                raise ProbeFailed(f"/health answers {response.status}")
        models = await self._json(f"{url}/v1/models")
        if models is None:
            raise ProbeFailed("it has no /v1/models")
        return ProbeAnswer(_models(models), _ranks(await self._json(f"{url}/kv_event_sources")))

    async def _json(self, url: str) -> Any:
        """None where there is no such page."""
        async with self._session.get(url) as response:
            if response.status == 404:
                return None
            if response.status != 200:
                hint = "; is VLLM_API_KEY set?" if response.status == 401 else ""
                raise ProbeFailed(f"{response.url.path} answers {response.status}{hint}")
            body = await read_answer(response, _ANSWER_BYTES_MAX)
            try:
                return msgspec.json.decode(body)
            except msgspec.DecodeError:
                raise ProbeFailed(f"{response.url.path} is no JSON") from None

    def _say(self, engine: Engine) -> None:
        if engine.up:
            _log.info(
                "engine_in_service",
                engine=engine.config.name,
                models=list(engine.models),
                state=engine.state,
            )
        else:
            _log.warning("engine_out_of_service", engine=engine.config.name, error=engine.error)


async def read_answer(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """A whole body, or so much of it that it is too long to be what was asked for."""
    body = b""
    while len(body) < bytes_max and (chunk := await response.content.readany()):
        body += chunk
    return body[:bytes_max]


def _models(answer: Any) -> tuple[ServedModel, ...]:
    """Raises ProbeFailed for what is no list of models."""
    try:
        entries = answer["data"][:_MODELS_MAX]
        return tuple(_model(entry) for entry in entries)
    except (TypeError, KeyError, AttributeError):
        raise ProbeFailed("/v1/models is no list of models") from None


def _model(entry: dict[str, Any]) -> ServedModel:
    """An adapter has a parent, and its path as root (reference, section 6)."""
    path = entry.get("root") if entry.get("parent") is not None else None
    return ServedModel(str(entry["id"]), path if isinstance(path, str) else None, entry)


def _ranks(sources: Any) -> tuple[int, ...] | None:
    """The ranks that this front end serves. vLLM older than 0.31, or without events, tells none."""
    if not isinstance(sources, dict) or not sources:
        return None
    ranks = [rank for rank in sources if isinstance(rank, str) and rank.isdecimal()]
    return tuple(sorted(map(int, ranks))) or None
