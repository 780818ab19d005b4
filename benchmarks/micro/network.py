"""How long one match takes over the network: the indexer's service in a process of its own.

Honest because the questions come from the router's own client, over its one stream and a loopback
connection, one at a time; because every replica holds 10,000 blocks of which most are of other
prompts; and because the hub, its evidence and the conversion to and from messages are those of the
product. Two fleets: in one every replica holds some part of the prompt, in the other every eighth
one does, as where prompts have sessions. Beside the times, the bytes of the replies.
"""

import asyncio
import itertools
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from multiprocessing.connection import Connection
from random import Random
from typing import NamedTuple

from structlog.testing import capture_logs

from benchmarks.micro.matching import stored_event
from benchmarks.micro.measurement import Measurement, scaled
from benchmarks.micro.publishing import process
from benchmarks.micro.workload import SEED, as_decoded, random_hashes, scheme
from indexer.answers import Answers
from indexer.arrivals import ConnectionId, ConnectionOpened, ReplayId
from indexer.config import IndexerConfig
from indexer.following import Following
from indexer.hub import Hub, RankSource
from indexer.index import PoolName, ReplicaId
from indexer.messages import add_matches
from indexer.service import GrpcServer, IndexerService
from indexer.watching import ReplicaWatch
from proto import indexer_pb2 as pb
from proto.blockhash import BlockHash
from proto.contract import DEFAULT_POOL, HashedPrefix
from router.indexer_client import GrpcIndexer

_PROMPTS = (512, 8192)
_REPLICAS = (8, 64, 256)
_REPLICA_BLOCKS = 10_000
_FEW = 8
_RUNS = 1001
_WARM_RUNS = 100
_CONNECT_S_MAX = 60.0


class Fleet(NamedTuple):
    """One replica in ``holders_each`` holds a part of the prompt; the others nothing."""

    replicas: int
    holders_each: int
    replica_blocks: int
    prompt: tuple[BlockHash, ...]


class Serving(NamedTuple):
    address: str
    reply_bytes: int


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    import uvloop

    # One loop for all: gRPC's poller belongs to a process, and wakes every loop there has been.
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        capture_logs(),
        process(serving, None) as (pipe, _),
    ):
        for hashes, replicas, each in product(_PROMPTS, _REPLICAS, (1, _FEW)):
            prompt = random_hashes(Random(SEED), scaled(hashes, scale, 16))
            blocks = scaled(_REPLICA_BLOCKS, scale, len(prompt))
            pipe.send(Fleet(scaled(replicas, scale, 2), each, blocks, tuple(prompt)))
            served = pipe.recv()
            assert served is not None
            asked = runner.run(_ask(served.address, prompt, scaled(_RUNS, scale, 2)))
            who = "all_hold" if each == 1 else f"1_in_{each}_holds"
            name = f"network_match_{hashes}_hashes_{replicas}_replicas_{who}"
            yield Measurement.of(name, "us", asked)
            yield Measurement.of(f"{name}_reply", "bytes", [served.reply_bytes])


async def _ask(address: str, prompt: list[BlockHash], runs: int) -> list[float]:
    """Microseconds of each question, after some that nobody counts."""
    client, times = GrpcIndexer(address, deadline_s=_CONNECT_S_MAX), []
    prefixes = [HashedPrefix(scheme().id, array("Q", prompt))]
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            while not client.connected:  # noqa: ASYNC110  # the client has no event
                await asyncio.sleep(0.01)
        for _ in range(_WARM_RUNS + runs):
            begun = time.perf_counter()
            await client.match(DEFAULT_POOL, prefixes)
            times.append((time.perf_counter() - begun) * 1e6)
    finally:
        await client.close()
    return times[_WARM_RUNS:]


def serving(pipe: "Connection[Serving | None, object]", given: None) -> None:
    """One fleet after another, each until the next one comes; ends when the pipe closes."""
    import uvloop

    pipe.send(None)
    with suppress(EOFError):
        uvloop.run(_serve(pipe))


async def _serve(pipe: "Connection[Serving | None, object]") -> None:
    fleet = await asyncio.to_thread(pipe.recv)
    while True:
        assert isinstance(fleet, Fleet)
        answers = Answers(_hub(fleet))
        following = Following(answers.hub, IndexerConfig())
        server = GrpcServer(IndexerService(answers, ReplicaWatch(answers), following))
        await server.start("127.0.0.1", 0)
        try:
            pipe.send(Serving(server.address, _reply_bytes(answers, fleet)))
            fleet = await asyncio.to_thread(pipe.recv)
        finally:
            await server.stop()


def _reply_bytes(answers: Answers, fleet: Fleet) -> int:
    response, prefixes = pb.MatchPrefixResponse(), [HashedPrefix(scheme().id, fleet.prompt)]
    add_matches(response, answers.match_prefix(DEFAULT_POOL, prefixes, time.monotonic()))
    assert len(response.matches) == -(-fleet.replicas // fleet.holders_each)
    return response.ByteSize()


def _hub(fleet: Fleet) -> Hub:
    """As if every replica had connected, proven its recipe and told all that it holds."""
    hub, rng = Hub(Unconnected()), Random(SEED)
    for number in range(fleet.replicas):
        name = f"replica-{number}"
        source = RankSource(ReplicaId(name), PoolName(DEFAULT_POOL), name, endpoint="tcp://h:1")
        state = hub.add(source, time.monotonic()).state
        depth = 0 if number % fleet.holders_each else rng.randint(1, len(fleet.prompt))
        state.blocks.stored(stored_event(random_hashes(rng, fleet.replica_blocks - depth)))
        if depth:
            state.blocks.stored(stored_event(as_decoded(fleet.prompt[:depth])))
        state.proof.base = scheme()
        state.indexed.history_complete = True
        state.learn(version="0.33.0", lora_paths={})
    hub.tick(time.monotonic())
    for link in hub.links.values():
        assert link.connection is not None
        hub.handle(ConnectionOpened(link.connection, None), time.monotonic())
    return hub


class Unconnected:
    """A transport whose connections are opened by whoever made it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def connect(self, endpoint: str) -> ConnectionId:
        return ConnectionId(next(self._numbers))

    def close(self, connection: ConnectionId) -> None:
        raise AssertionError("no connection ends")

    def replay(self, endpoint: str, start_seq: int) -> ReplayId:
        raise AssertionError("nobody can replay")

    def cancel_replay(self, replay: ReplayId) -> None:
        raise AssertionError("nobody can replay")
