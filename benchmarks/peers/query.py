"""One question over the network: who holds how much of these blocks, of 64 replicas; p50 per round.

The indexer is a process of its own, loopback lies between, one question at a time over a kept
connection, and every replica holds 10,000 blocks: a prefix of the prompt whose length is random,
the rest of other prompts. The prompt is hashed beforehand in both figures.

Ours is the router's own client: it packs the hashes into a message for ``MatchStream`` and unpacks
the answer each time. Theirs is ``POST /query_by_hash`` of Dynamo's standalone indexer, whose wheel
brings it: the request's bytes are made once, and the answer's JSON is decoded each time. Theirs was
filled through 64 publishers of events; ours holds what it would hold after such events.
"""

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from statistics import median

import uvloop
import zmq
from msgspec.structs import replace
from structlog.testing import capture_logs

from benchmarks.micro.measurement import scaled
from benchmarks.micro.network import Fleet, serving
from benchmarks.micro.publishing import process
from benchmarks.micro.workload import BLOCK_TOKENS, SEED, random_hashes, scheme
from benchmarks.peers import dynamo_indexer as dynamo
from benchmarks.peers.figures import OURS, Line, NotMeasured
from benchmarks.peers.installing import installed
from benchmarks.peers.keepalive import Connection
from benchmarks.peers.taking_turns import Round, take_turns
from benchmarks.sim.events import BlockStored
from benchmarks.sim.wire import WireFormat
from proto.contract import DEFAULT_POOL, HashedPrefix
from router.indexer_client import GrpcIndexer

_PROMPTS = (512, 8192)
_REPLICAS = 64
_REPLICA_BLOCKS = 10_000
_CALLS = 301
_WARM_CALLS = 30
_WAIT_S_MAX = 60.0
_LOOK_EVERY_S = 0.05


def measure(rounds: int, scale: float = 1.0) -> Iterator[Line]:
    # One loop for all: gRPC's poller belongs to a process, and wakes every loop there has been.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, capture_logs():
        for blocks in _PROMPTS:
            asked = _Asked(runner, blocks, scale)
            entrants = {OURS: asked.ours, dynamo.PEER: asked.theirs}
            yield from take_turns(asked.name, {asked.name: "us"}, entrants, rounds)


class _Asked:
    def __init__(self, runner: asyncio.Runner, blocks: int, scale: float) -> None:
        self.name = f"query_{blocks}_blocks_{_REPLICAS}_replicas"
        self._runner = runner
        self._blocks = scaled(blocks, scale, 16)
        self._replicas = scaled(_REPLICAS, scale, 2)
        self._held = scaled(_REPLICA_BLOCKS, scale, self._blocks)
        self._calls = scaled(_CALLS, scale, 2)

    @contextmanager
    def ours(self) -> Iterator[Round]:
        prompt = random_hashes(Random(SEED), self._blocks)
        prefixes = [HashedPrefix(scheme().id, array("Q", prompt))]
        with process(serving, None) as (pipe, _):
            pipe.send(Fleet(self._replicas, 1, self._held, tuple(prompt)))
            served = pipe.recv()
            assert served is not None
            client = self._runner.run(_connected(served.address))

            async def ask() -> None:
                if len(await client.match(DEFAULT_POOL, prefixes)) != self._replicas:
                    raise NotMeasured("not every replica matches")

            try:
                yield lambda: {self.name: self._runner.run(self._p50_us(ask))}
            finally:
                self._runner.run(client.close())

    @contextmanager
    def theirs(self) -> Iterator[Round]:
        prompt, holdings = self._holdings()
        question = dynamo.question(prompt)
        with (
            dynamo.indexer(installed(dynamo.PACKAGE)) as program,
            _Publishers(holdings) as publishers,
        ):
            connection = self._runner.run(Connection.open(program.port))
            self._runner.run(publishers.fill(connection))

            async def ask() -> None:
                if len(dynamo.scores(await connection.ask(question))) != self._replicas:
                    raise NotMeasured("not every replica matches")

            yield lambda: {self.name: self._runner.run(self._p50_us(ask))}
            connection.close()

    def _holdings(self) -> tuple[list[int], list[list[BlockStored]]]:
        """The prompt's tokens, and what each replica announces."""
        rng = Random(SEED)
        prompt = _stored(rng, _tokens(rng, self._blocks))
        filler = _tokens(rng, self._held)
        holdings = []
        for number in range(self._replicas):
            depth = rng.randint(1, self._blocks)
            # Its first token makes a replica's filler its own: the chain differs from there on.
            other = _stored(rng, [number, *filler[1:]])
            events = [_first(prompt, depth), _first(other, self._held - depth)]
            holdings.append([event for event in events if event.block_hashes])
        return list(prompt.token_ids), holdings

    async def _p50_us(self, ask: Callable[[], Awaitable[None]]) -> float:
        times = []
        for _ in range(_WARM_CALLS + self._calls):
            begun = time.perf_counter()
            await ask()
            times.append((time.perf_counter() - begun) * 1e6)
        return median(times[_WARM_CALLS:])


async def _connected(address: str) -> GrpcIndexer:
    client = GrpcIndexer(address, deadline_s=_WAIT_S_MAX)
    async with asyncio.timeout(_WAIT_S_MAX):
        while not client.connected:  # noqa: ASYNC110  # the client has no event
            await asyncio.sleep(_LOOK_EVERY_S)
    return client


class _Publishers:
    """One publisher of events for each replica, in the format of vLLM 0.33."""

    def __init__(self, holdings: list[list[BlockStored]]) -> None:
        self._holdings = holdings

    def __enter__(self) -> "_Publishers":
        self._stack = ExitStack()
        context = self._stack.enter_context(zmq.Context())
        self._sockets = [
            self._stack.enter_context(context.socket(zmq.XPUB)) for _ in self._holdings
        ]
        for each in self._sockets:
            each.setsockopt(zmq.LINGER, 0)
            each.bind("tcp://127.0.0.1:*")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def fill(self, connection: Connection) -> None:
        """Registers every replica, publishes what it holds, and waits until that is applied."""
        wire = WireFormat("0.33", int_hashes=True)
        for instance, (socket, events) in enumerate(
            zip(self._sockets, self._holdings, strict=True)
        ):
            endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(endpoint, bytes)
            await dynamo.register(connection, instance, endpoint.rstrip(b"\0").decode())
            # An XPUB socket receives the subscription: from then on nothing is dropped.
            if not socket.poll(int(_WAIT_S_MAX * 1e3)):
                raise NotMeasured(f"nobody subscribed to replica {instance}")
            payload = wire.encode(1_764_460_800.0, events, 0)
            socket.send_multipart([b"", bytes(8), payload])
        published = sum(map(len, self._holdings))
        async with asyncio.timeout(_WAIT_S_MAX):
            while await dynamo.events_applied(connection) < published:  # noqa: ASYNC110  # over HTTP
                await asyncio.sleep(_LOOK_EVERY_S)


def _tokens(rng: Random, blocks: int) -> list[int]:
    return list(memoryview(rng.randbytes(2 * blocks * BLOCK_TOKENS)).cast("H"))


def _first(event: BlockStored, blocks: int) -> BlockStored:
    """What a replica announces that holds so many blocks of a chain; equal blocks, equal hashes."""
    return replace(
        event,
        block_hashes=event.block_hashes[:blocks],
        token_ids=event.token_ids[: blocks * BLOCK_TOKENS],
        extra_keys=event.extra_keys[:blocks],
    )


def _stored(rng: Random, token_ids: list[int]) -> BlockStored:
    """A chain from its root; the engine's hashes are random, since nobody here reproduces them."""
    blocks = len(token_ids) // BLOCK_TOKENS
    digests = rng.randbytes(32 * blocks)
    return BlockStored(
        block_hashes=tuple(digests[first : first + 32] for first in range(0, len(digests), 32)),
        parent_block_hash=None,
        token_ids=tuple(token_ids),
        block_size=BLOCK_TOKENS,
        extra_keys=(None,) * blocks,
    )
