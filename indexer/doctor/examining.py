"""A shell: asks engines what they are, listens to their events, and sends the probes.

Only ``--probe`` sends requests that an engine computes. All engines are looked at at once, each of
their ranks with a thread of its own; nothing of what an engine does keeps another from being looked
at.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec

from indexer.discovery import DiscoveryError, KeyRefused, ReplicaUnavailable, discover, fetch
from indexer.doctor.ears import Ears
from indexer.doctor.facts import Asked, Examination, ParityFacts, ProbeFacts, RankFacts
from indexer.doctor.log import ExaminedLog
from indexer.doctor.places import sources_of
from indexer.doctor.probes import (
    ChatIds,
    cached_tokens_of,
    compared,
    parity_bodies,
    probe_body,
    shown,
)
from indexer.doctor.sockets import RankSockets
from indexer.doctor.targets import Target
from indexer.sources import EngineFacts, host_of

DISCOVERY_S_MAX = 10.0
ANSWER_S_MAX = 60.0
_ANSWER_BYTES_MAX = 4 * 2**20
# Ranks that are listened to at once; the others wait for their turn.
_THREADS_MAX = 32


@dataclass(frozen=True, slots=True)
class Doctor:
    """What to ask, and how. ``model``: of the probes; None: the first that each engine serves.

    ``binds``: where engines connect to us.
    """

    asked: Asked
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    binds: Sequence[str] = ()


def examine(targets: Sequence[Target], doctor: Doctor) -> list[Examination]:
    ears = Ears(doctor.binds) if doctor.binds else None
    try:
        return asyncio.run(_examine_all(targets, doctor, ears))
    finally:
        if ears is not None:
            ears.close()


async def _examine_all(
    targets: Sequence[Target], doctor: Doctor, ears: Ears | None
) -> list[Examination]:
    with ThreadPoolExecutor(_THREADS_MAX) as threads:
        async with aiohttp.ClientSession(headers=doctor.headers) as session:
            patients = [_Patient(target, doctor, session, threads, ears) for target in targets]
            return await asyncio.gather(*(patient.examine() for patient in patients))


class _Refused(Exception):
    """The engine did not serve a request; the text says what it answered."""


@dataclass(frozen=True, slots=True)
class _Patient:
    """One engine while it is looked at."""

    target: Target
    doctor: Doctor
    session: aiohttp.ClientSession
    threads: ThreadPoolExecutor
    ears: Ears | None

    @property
    def url(self) -> str:
        return self.target.url

    async def examine(self) -> Examination:
        exam = Examination(self.url, blocks=self.target.blocks)
        try:
            engine = await discover(self.session, self.url, DISCOVERY_S_MAX)
            told = engine.sources is None or self.target.told.by_file
            sources = sources_of(engine, host_of(self.url), self.target.told)
        except KeyRefused as error:
            return replace(exam, refusal="key", why=str(error))
        except ReplicaUnavailable as error:
            return replace(exam, refusal="unreachable", why=str(error))
        except DiscoveryError as error:
            return replace(exam, refusal="not_vllm", why=str(error))
        exam = replace(exam, engine=engine, configured=told, unhealthy=await self._unhealthy())
        seeds = self.doctor.asked.seeds
        logs = [ExaminedLog(engine.version, engine.lora_paths, seeds) for _ in sources]
        sockets = [
            RankSockets(source, log, told=told, ears=self.ears)
            for source, log in zip(sources, logs, strict=True)
        ]
        try:
            await asyncio.gather(*(self._in_thread(rank.connect) for rank in sockets))
            exam = await self._probed(exam, engine, len(sources))
            ranks = await asyncio.gather(*(self._in_thread(rank.read) for rank in sockets))
        finally:
            await asyncio.gather(*(self._in_thread(rank.close) for rank in sockets))
        return replace(exam, ranks=tuple(ranks))

    async def _in_thread(self, function: Any) -> RankFacts:
        """What the function returns; only that of ``read`` is of use."""
        loop = asyncio.get_running_loop()
        result: RankFacts = await loop.run_in_executor(self.threads, function)
        return result

    async def _unhealthy(self) -> str | None:
        try:
            async with asyncio.timeout(DISCOVERY_S_MAX):
                await fetch(self.session, self.url, "/health")
        except (DiscoveryError, TimeoutError) as error:
            return str(error) or "no answer of /health"
        return None

    async def _probed(self, exam: Examination, engine: EngineFacts, ranks: int) -> Examination:
        if not self.doctor.asked.probe:
            return exam
        model = self.doctor.model or engine.models[0]
        block_size = engine.cache.block_size_tokens
        probes = [await self._probe(model, block_size, r, ranks) for r in range(max(1, ranks))]
        parity: list[ParityFacts] = []
        if self.target.chat_ids is not None:
            parity = [
                await self._parity(name, body, self.target.chat_ids)
                for name, body in parity_bodies(model)
            ]
        return replace(exam, probes=tuple(probes), parity=tuple(parity))

    async def _probe(self, model: str, block_size: int | None, rank: int, ranks: int) -> ProbeFacts:
        """Twice the same, to the same rank."""
        body = probe_body(model, uuid.uuid4().hex, block_size)
        headers = {"X-data-parallel-rank": str(rank)} if ranks > 1 else {}
        try:
            await self._post("/v1/completions", body, headers)
            answer = await self._post("/v1/completions", body, headers)
        except _Refused as error:
            return ProbeFacts(rank, refused=str(error))
        return ProbeFacts(rank, cached_tokens=cached_tokens_of(answer))

    async def _parity(self, name: str, body: bytes, chat_ids: ChatIds) -> ParityFacts:
        try:
            answer = await self._post("/v1/chat/completions", body, {})
        except _Refused as error:
            return compared(name, body, str(error), chat_ids)
        return compared(name, body, answer, chat_ids)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        """The answer's JSON object. Raises _Refused."""
        url = self.url.rstrip("/") + path
        sent = {**headers, "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                self.session.post(url, data=body, headers=sent, allow_redirects=False) as response,
            ):
                answer = await response.content.read(_ANSWER_BYTES_MAX)
                while not response.content.at_eof() and len(answer) < _ANSWER_BYTES_MAX:
                    answer += await response.content.read(_ANSWER_BYTES_MAX - len(answer))
                if response.status != 200:
                    raise _Refused(shown(response.status, answer))
            return msgspec.json.decode(answer, type=dict[str, Any])
        except TimeoutError:
            raise _Refused(f"no answer within {ANSWER_S_MAX:g} s") from None
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, RecursionError) as error:
            raise _Refused(str(error) or type(error).__name__) from None
