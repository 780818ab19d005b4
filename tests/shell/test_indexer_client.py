"""The router's client of the indexer, against a real server, none, a silent one and a lying one."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from indexer.answers import HASHES_MAX, PREFIXES_MAX, Answers
from indexer.config import IndexerConfig
from indexer.following import Following
from indexer.hub import Hub
from indexer.local import LocalIndexer
from indexer.service import GrpcServer, IndexerService
from indexer.watching import ReplicaWatch
from proto import indexer_pb2 as pb
from proto.contract import HashedPrefix, Indexer, IndexerUnavailable, ReplicaMatch
from proto.indexer_pb2_grpc import IndexerServicer, add_IndexerServicer_to_server
from router.indexer_client import GrpcIndexer
from tests.followed_hub import SHA, XXH, follow, new_hub
from tests.ports import free_port_pair

PROMPT = list(range(1000, 1200))
PREFIXES = [HashedPrefix(SHA.id, array("Q", SHA.block_hashes(PROMPT)))]
# Where a test is not about the deadline, a busy machine must not make it be.
PATIENT_S = 20.0


class Server:
    """One hub, served on one port as often as it is started."""

    def __init__(self) -> None:
        self.hub: Hub = new_hub()
        self.answers = Answers(self.hub)
        self.watch = ReplicaWatch(self.answers)
        self.port = free_port_pair()
        self.address = f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        following = Following(self.hub, IndexerConfig())
        server = GrpcServer(IndexerService(self.answers, self.watch, following))
        await server.start("127.0.0.1", self.port)
        looking = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            looking.cancel()
            await server.stop()


@asynccontextmanager
async def client_of(address: str, **settings: Any) -> AsyncIterator[GrpcIndexer]:
    client = GrpcIndexer(address, **{"deadline_s": PATIENT_S} | settings)
    try:
        yield client
    finally:
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


async def connected(client: GrpcIndexer) -> GrpcIndexer:
    await until(lambda: client.connected)
    return client


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with server.running():
        yield server


async def test_it_answers_as_the_indexer_itself_does(server: Server) -> None:
    """The same matches and the same replicas, whichever way they are asked for."""
    follow(server.hub, "a").holds(PROMPT)
    gone = follow(server.hub, "b")
    gone.holds(PROMPT[:64])
    gone.leaves()
    follow(server.hub, "c", XXH).holds(PROMPT)
    follow(server.hub, "d", pool="other")
    local = LocalIndexer(server.answers, server.watch)
    async with client_of(server.address) as client:
        await connected(client)
        asked: list[Indexer] = [client, local]
        for prefixes in (PREFIXES, [*PREFIXES, HashedPrefix(XXH.id, XXH.block_hashes(PROMPT))], []):
            answers = [await indexer.match("default", prefixes) for indexer in asked]
            assert answers[0] == answers[1] and len(answers[0]) == (0, 2, 3)[len(prefixes)]
        assert answers[0] == {}
        states = []
        for indexer in asked:
            watch = indexer.watch()
            states.append(await anext(watch))
            await watch.aclose()
        assert states[0] == states[1] and len(states[0]) == 4
        assert states[0][0].schemes[0].block_hashes(PROMPT) == SHA.block_hashes(PROMPT)


async def test_matches_have_the_contract_s_types(server: Server) -> None:
    """Evidence as words, reasons as a tuple: what policies and log lines read."""
    replica = follow(server.hub, "a")
    replica.holds(PROMPT)
    replica.leaves()
    async with client_of(server.address) as client:
        matches = await (await connected(client)).match("", PREFIXES)
    assert matches == {"a": ReplicaMatch("a", 12, 12, 12, 16, "degraded", ("recovering",), 0)}
    assert type(matches["a"].evidence) is str


async def test_many_at_once_get_each_its_own_answer(server: Server) -> None:
    """Answers find the question they belong to."""
    follow(server.hub, "a").holds(PROMPT)
    async with client_of(server.address) as client:
        await connected(client)
        hashes = PREFIXES[0].block_hashes
        asked = [client.match("", [HashedPrefix(SHA.id, hashes[: 1 + n % 12])]) for n in range(500)]
        answers = await asyncio.gather(*asked)
        assert [answer["a"].gpu_blocks for answer in answers] == [1 + n % 12 for n in range(500)]
        assert client.in_flight == 0


@pytest.mark.parametrize(
    "prefixes",
    [[HashedPrefix("x", [])] * (PREFIXES_MAX + 1), [HashedPrefix("x", [0] * (HASHES_MAX + 1))]],
    ids=["prefixes", "hashes"],
)
async def test_a_refused_question_is_no_answer(
    server: Server, prefixes: list[HashedPrefix]
) -> None:
    """Beyond the limits both ways are unavailable, and say why; the stream goes on."""
    follow(server.hub, "a").holds(PROMPT)
    async with client_of(server.address) as client:
        await connected(client)
        for indexer in (client, LocalIndexer(server.answers, server.watch)):
            with pytest.raises(IndexerUnavailable, match=r"refused: .*at most"):
                await indexer.match("", prefixes)
            assert (await indexer.match("", PREFIXES))["a"].gpu_blocks == 12


async def test_without_an_indexer_nobody_waits() -> None:
    """Unavailable at once, whatever the deadline; closing needs no connection."""
    async with client_of(f"127.0.0.1:{free_port_pair()}", deadline_s=3600) as client:
        for _ in range(3):
            with pytest.raises(IndexerUnavailable, match="not connected"):
                await client.match("", PREFIXES)
            await asyncio.sleep(0.05)


async def test_a_stopped_indexer_is_noticed_and_found_again() -> None:
    """Whoever waits is told, questions fail at once, and a restart on the same port is found."""
    server = Server()
    follow(server.hub, "a").holds(PROMPT)
    async with client_of(server.address) as client:
        watch = client.watch()
        for _ in range(2):
            async with server.running():
                await connected(client)
                assert (await client.match("", PREFIXES))["a"].gpu_blocks == 12
                async with asyncio.timeout(PATIENT_S):
                    assert [view.replica for view in await anext(watch)] == ["a"]
            await until(lambda: not client.connected)
            with pytest.raises(IndexerUnavailable, match=server.address):
                await client.match("", PREFIXES)
        await watch.aclose()


class Silent(IndexerServicer):
    """Takes every question and answers when told to, with a lie if it is one."""

    def __init__(self) -> None:
        self.asked: list[pb.MatchStreamRequest] = []
        self.answers: asyncio.Queue[pb.MatchStreamResponse] = asyncio.Queue()
        self.broken = False

    async def MatchStream(self, request_iterator: Any, context: Any) -> Any:
        async def read() -> None:
            async for request in request_iterator:
                self.asked.append(request)

        reading = asyncio.create_task(read())
        try:
            while True:
                yield await self.answers.get()
        finally:
            reading.cancel()

    async def refuse(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such thing here")

    MatchPrefix = MatchTokens = ListReplicas = WatchReplicas = refuse
    RegisterReplica = DeregisterReplica = refuse


@pytest.fixture
async def silent() -> AsyncIterator[Silent]:
    service, server = Silent(), grpc.aio.server()
    add_IndexerServicer_to_server(service, server)
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield service
    await server.stop(0)


async def test_a_deadline_is_kept_and_late_answers_are_dropped(silent: Silent) -> None:
    """No answer in time is IndexerUnavailable; when it comes later it harms nobody."""
    async with client_of(silent.address, deadline_s=0.02) as client:
        await connected(client)
        with pytest.raises(IndexerUnavailable, match="no answer within 20 ms"):
            await client.match("", PREFIXES)
        assert client.in_flight == 0
        client.deadline_s = PATIENT_S
        question = asyncio.create_task(client.match("", PREFIXES))
        await until(lambda: len(silent.asked) == 2)
        late, own = (request.request_id for request in silent.asked)
        for request_id in (late, 12345, own, own):
            reply = pb.MatchStreamResponse(request_id=request_id)
            reply.response.SetInParent()
            silent.answers.put_nowait(reply)
        assert await question == {}
        assert client.connected


async def test_an_answer_without_an_outcome_is_none(silent: Silent) -> None:
    """What the contract does not know is unavailable, never an empty match."""
    async with client_of(silent.address) as client:
        await connected(client)
        question = asyncio.create_task(client.match("", PREFIXES))
        await until(lambda: bool(silent.asked))
        silent.answers.put_nowait(pb.MatchStreamResponse(request_id=silent.asked[0].request_id))
        with pytest.raises(IndexerUnavailable, match="refused"):
            await question


async def test_questions_in_flight_are_bounded(silent: Silent) -> None:
    """One too many is refused at once; the others go on waiting."""
    async with client_of(silent.address, in_flight_max=4) as client:
        await connected(client)
        asked = [asyncio.create_task(client.match("", PREFIXES)) for _ in range(4)]
        await until(lambda: len(silent.asked) == 4)
        with pytest.raises(IndexerUnavailable, match="4 questions are in flight"):
            await client.match("", PREFIXES)
        assert not any(task.done() for task in asked)
        await client.close()
        for task in asked:
            with pytest.raises(IndexerUnavailable):
                await task


async def test_a_cancelled_question_leaves_nothing_behind(silent: Silent) -> None:
    """Before it is written and after: no future stays, and the stream lives on."""
    async with client_of(silent.address) as client:
        await connected(client)
        for written in (False, True):
            before = len(silent.asked)
            question = asyncio.create_task(client.match("", PREFIXES))
            await asyncio.sleep(0)
            assert client.in_flight == 1
            if written:
                await until(lambda before=before: len(silent.asked) > before)
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            assert client.in_flight == 0
        assert client.connected
        question = asyncio.create_task(client.match("", PREFIXES))
        await until(lambda: silent.asked[-1].request_id == 3)
        reply = pb.MatchStreamResponse(request_id=3)
        reply.response.SetInParent()
        silent.answers.put_nowait(reply)
        assert await question == {}


async def test_whoever_waits_is_told_when_the_server_dies(silent: Silent) -> None:
    """Not at the deadline, which may be far away, but when the connection ends."""
    async with client_of(silent.address, deadline_s=3600) as client:
        await connected(client)
        question = asyncio.create_task(client.match("", PREFIXES))
        await until(lambda: bool(silent.asked))
        silent.answers.put_nowait(None)  # type: ignore[arg-type]  # no message: the handler fails
        with pytest.raises(IndexerUnavailable, match=silent.address):
            await question


async def test_a_watch_of_a_server_that_cannot_is_patient(silent: Silent) -> None:
    """It neither raises nor ends; closing it ends it."""
    async with client_of(silent.address) as client:
        watch = client.watch()
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await watch.aclose()
