"""The indexer's gRPC service, asked by real clients over a real port."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from indexer.answers import HASHES_MAX, PREFIXES_MAX, Answers
from indexer.config import IndexerConfig
from indexer.following import REGISTERED_MAX, Following
from indexer.hub import Hub
from indexer.service import MESSAGE_BYTES_MAX, SERVICE, GrpcServer, IndexerService
from indexer.watching import WATCHERS_MAX, ReplicaWatch
from proto import indexer_pb2 as pb
from proto.blockhash import RequestKeys
from proto.indexer_pb2_grpc import IndexerStub
from proto.replica_config import ReplicaConfig
from tests.followed_hub import SHA, XXH, follow, new_hub

PROMPT = list(range(1000, 1200))
HASHES = array("Q", SHA.block_hashes(PROMPT))
CONFIGURED = ReplicaConfig("configured", "http://127.0.0.1:1")
Code = grpc.StatusCode
WAIT_S = 60.0


class Served:
    """A hub, its service, and a client's channel to it."""

    def __init__(self) -> None:
        self.hub: Hub = new_hub()
        answers = Answers(self.hub)
        self.watch = ReplicaWatch(answers, refresh_s=3600)
        self.following = Following(self.hub, IndexerConfig(replicas=[CONFIGURED]))
        service = IndexerService(answers, self.watch, self.following, hashings_waiting_max=2)
        self.server = GrpcServer(service)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start("127.0.0.1", 0)
    looking = asyncio.create_task(served.watch.run())
    async with grpc.aio.insecure_channel(served.server.address) as served.channel:
        served.stub = IndexerStub(served.channel)
        yield served
    looking.cancel()
    await served.server.stop()


async def refused(call: Any) -> tuple[Code, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def ask(*prefixes: pb.HashedPrefix, pool: str = "") -> pb.MatchPrefixRequest:
    return pb.MatchPrefixRequest(pool=pool, prefixes=prefixes)


def as_bytes(hashes: "array[int]" = HASHES, scheme_id: str = SHA.id) -> pb.HashedPrefix:
    encoded = b"".join(value.to_bytes(8, "little") for value in hashes)
    return pb.HashedPrefix(scheme_id=scheme_id, block_hashes=encoded)


def as_words(hashes: "array[int]" = HASHES) -> pb.HashedPrefix:
    return pb.HashedPrefix(scheme_id=SHA.id, block_hash_words=hashes)


@pytest.mark.parametrize("prefix", [as_bytes(), as_words()], ids=["bytes", "words"])
async def test_a_match_says_who_holds_how_much(served: Served, prefix: pb.HashedPrefix) -> None:
    """Both encodings mean the same, and every field of the reply is filled in."""
    follow(served.hub, "a").holds(PROMPT[:64])
    follow(served.hub, "b").holds([5] * 64)
    reply = await served.stub.MatchPrefix(ask(prefix))
    assert list(reply.matches) == [
        pb.ReplicaMatch(
            replica="a",
            matched_blocks_gpu=4,
            matched_blocks_gpu_or_cpu=4,
            matched_blocks_any_tier=4,
            block_size=16,
            evidence=pb.Evidence(level=pb.EVIDENCE_LEVEL_EXACT),
            seq=0,
        )
    ]


async def test_evidence_comes_with_its_reasons(served: Served) -> None:
    """A replica that has gone is still matched, and the reply says why that may be too little."""
    replica = follow(served.hub, "a")
    replica.holds(PROMPT)
    replica.leaves()
    reply = await served.stub.MatchPrefix(ask(as_bytes()))
    evidence = reply.matches[0].evidence
    assert (evidence.level, list(evidence.reasons)) == (pb.EVIDENCE_LEVEL_DEGRADED, ["recovering"])


async def test_who_asks_for_nobody_gets_nobody(served: Served) -> None:
    """An unknown pool, an unknown scheme, no hash and no prefix are no errors."""
    follow(served.hub, "a").holds(PROMPT)
    unknown = pb.HashedPrefix(scheme_id="0" * 16, block_hashes=bytes(16))
    empty = pb.HashedPrefix(scheme_id=SHA.id)
    for request in (ask(as_bytes(), pool="x"), ask(unknown), ask(empty), ask()):
        assert not (await served.stub.MatchPrefix(request)).matches


MALFORMED = [
    (ask(pb.HashedPrefix(scheme_id=SHA.id, block_hashes=bytes(15))), "15 bytes"),
    (ask(pb.HashedPrefix(block_hashes=bytes(8), block_hash_words=[1])), "not both"),
    (ask(*[as_bytes()] * (PREFIXES_MAX + 1)), "at most 64"),
    (ask(pb.HashedPrefix(block_hashes=bytes(8 * HASHES_MAX + 8))), "block hashes in one request"),
]


@pytest.mark.parametrize(("request_", "text"), MALFORMED, ids=[text for _, text in MALFORMED])
async def test_a_malformed_request_says_what_is_wrong(
    served: Served, request_: pb.MatchPrefixRequest, text: str
) -> None:
    """INVALID_ARGUMENT for a call; on a stream an error for that one, and the stream goes on."""
    follow(served.hub, "a").holds(PROMPT)
    code, details = await refused(served.stub.MatchPrefix(request_))
    assert code is Code.INVALID_ARGUMENT and text in details
    stream = served.stub.MatchStream()
    await stream.write(pb.MatchStreamRequest(request_id=7, request=request_))
    reply = await stream.read()
    assert reply.request_id == 7 and text in reply.error
    await stream.write(pb.MatchStreamRequest(request_id=8, request=ask(as_bytes())))
    reply = await stream.read()
    assert reply.request_id == 8 and reply.response.matches[0].matched_blocks_gpu == 12
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_a_stream_answers_every_request(served: Served) -> None:
    """Whatever is written before anything is read; no match is an answer as well."""
    follow(served.hub, "a").holds(PROMPT)
    stream = served.stub.MatchStream()
    for number in range(100):
        pool = "x" if number % 2 else ""
        await stream.write(
            pb.MatchStreamRequest(request_id=number, request=ask(as_bytes(), pool=pool))
        )
    await stream.done_writing()
    replies = {reply.request_id: reply async for reply in stream}
    assert set(replies) == set(range(100))
    assert all(reply.WhichOneof("outcome") == "response" for reply in replies.values())
    assert all(bool(replies[n].response.matches) == (n % 2 == 0) for n in replies)


async def test_a_message_may_be_large_but_not_endless(served: Served) -> None:
    """As many hashes as are allowed fit into a message; more bytes than the limit do not."""
    most = pb.HashedPrefix(scheme_id=SHA.id, block_hashes=bytes(8 * HASHES_MAX))
    assert not (await served.stub.MatchPrefix(ask(most))).matches
    tokens = pb.MatchTokensRequest(token_ids=[200_000] * 1_500_000)
    assert not (await served.stub.MatchTokens(tokens)).matches
    endless = pb.HashedPrefix(block_hashes=bytes(MESSAGE_BYTES_MAX))
    code, _ = await refused(served.stub.MatchPrefix(ask(endless)))
    assert code is Code.RESOURCE_EXHAUSTED


async def test_tokens_are_hashed_here(served: Served) -> None:
    """Under every scheme, with salt and LoRA; a wrong ask is INVALID_ARGUMENT."""
    follow(served.hub, "sha").holds(PROMPT)
    follow(served.hub, "xxh", XXH).holds(PROMPT)
    follow(served.hub, "salted").holds(PROMPT, RequestKeys(cache_salt="s"))
    lora = follow(served.hub, "lora", lora_paths={"l": "/l"})
    lora.holds([9] * 16)
    lora.holds(PROMPT, RequestKeys(lora_name="l", lora_path="/l"))

    async def found(**keys: str) -> dict[str, int]:
        reply = await served.stub.MatchTokens(pb.MatchTokensRequest(token_ids=PROMPT, **keys))
        return {match.replica: match.matched_blocks_gpu for match in reply.matches}

    assert await found() == {"sha": 12, "xxh": 6}
    assert await found(cache_salt="s") == {"salted": 12}
    assert await found(lora_name="l") == {"lora": 12}
    assert await found(pool="nobody's") == {}
    salt = pb.MatchTokensRequest(cache_salt="s" * 5000)
    code, details = await refused(served.stub.MatchTokens(salt))
    assert code is Code.INVALID_ARGUMENT and "cache_salt" in details


async def test_prompts_that_wait_to_be_hashed_are_bounded(served: Served) -> None:
    """More are RESOURCE_EXHAUSTED at once; a caller that goes away does not keep its place."""
    follow(served.hub, "a").holds(PROMPT)
    long = pb.MatchTokensRequest(token_ids=range(400_000))
    outcomes = await asyncio.gather(
        *(served.stub.MatchTokens(long) for _ in range(8)), return_exceptions=True
    )
    errors = [error for error in outcomes if isinstance(error, grpc.aio.AioRpcError)]
    assert 1 <= len(errors) <= 6
    for error in errors:
        assert error.code() is Code.RESOURCE_EXHAUSTED and "ask later" in str(error.details())
    for call in [served.stub.MatchTokens(long) for _ in range(2)]:
        await asyncio.sleep(0.01)
        call.cancel()
    short = pb.MatchTokensRequest(token_ids=PROMPT)
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                both = await asyncio.gather(*(served.stub.MatchTokens(short) for _ in range(2)))
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is Code.RESOURCE_EXHAUSTED
                await asyncio.sleep(0.01)
    assert all(reply.matches[0].matched_blocks_gpu == 12 for reply in both)


async def test_replicas_are_listed_by_pool(served: Served) -> None:
    """With whole scheme descriptions; an empty pool is all of them."""
    follow(served.hub, "a").holds(PROMPT)
    follow(served.hub, "b", pool="other")
    reply = await served.stub.ListReplicas(pb.ListReplicasRequest())
    first, second = reply.replicas
    scheme = pb.HashScheme(id=SHA.id, **SHA.describe())
    assert first == pb.Replica(
        replica="a",
        pool="default",
        url="http://a",
        evidence=pb.Evidence(level=pb.EVIDENCE_LEVEL_EXACT),
        schemes=[scheme],
        blocks=12,
    )
    assert (second.seq, second.evidence.level) == (-1, pb.EVIDENCE_LEVEL_FALLBACK)
    reply = await served.stub.ListReplicas(pb.ListReplicasRequest(pool="other"))
    assert [replica.replica for replica in reply.replicas] == ["b"]


async def test_a_watcher_learns_of_changes(served: Served) -> None:
    """The state at once; again with a new replica, with its proof, and when it has gone."""
    watch = served.stub.WatchReplicas(pb.WatchReplicasRequest())

    async def until(wanted: list[tuple[str, int]]) -> None:
        while (state := await watch.read()) is not grpc.aio.EOF:
            if [(r.replica, r.evidence.level) for r in state.replicas] == wanted:
                return

    async with asyncio.timeout(WAIT_S):
        await until([])
        replica = follow(served.hub, "a")
        await until([("a", pb.EVIDENCE_LEVEL_FALLBACK)])
        replica.holds(PROMPT)
        await until([("a", pb.EVIDENCE_LEVEL_EXACT)])
        served.hub.remove(replica.link.source.replica_id)
        await until([])
    watch.cancel()


async def test_a_watcher_hears_of_blocks_now_and_then() -> None:
    """What changes all the time wakes nobody, and comes with the next state."""
    hub = new_hub()
    replica = follow(hub, "a")
    replica.holds(PROMPT)
    states = ReplicaWatch(Answers(hub), refresh_s=0.01).watch()
    assert [view.blocks for view in await anext(states)] == [12]
    replica.holds([5] * 160)
    assert [(view.blocks, view.seq) for view in await anext(states)] == [(22, 1)]
    await states.aclose()


async def test_watchers_are_bounded_and_leave_their_place(served: Served) -> None:
    """One too many is RESOURCE_EXHAUSTED; when one goes another may come."""
    watches = [served.stub.WatchReplicas(pb.WatchReplicasRequest()) for _ in range(WATCHERS_MAX)]
    for watch in watches:
        assert await watch.read() is not grpc.aio.EOF
    code, _ = await refused(served.stub.WatchReplicas(pb.WatchReplicasRequest()).read())
    assert code is Code.RESOURCE_EXHAUSTED
    watches[0].cancel()
    async with asyncio.timeout(WAIT_S):
        while True:
            another = served.stub.WatchReplicas(pb.WatchReplicasRequest())
            try:
                await another.read()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)


async def test_registration_is_idempotent(served: Served) -> None:
    """Equal fields change nothing, other fields are a conflict, and what is gone may come again."""
    request = pb.RegisterReplicaRequest(name="a", url="http://h:1", topic="t", blocks=5)
    other = pb.RegisterReplicaRequest(name="a", url="http://h:2")
    forget = pb.DeregisterReplicaRequest(name="a")
    stub = served.stub
    assert [(await stub.RegisterReplica(request)).added for _ in range(2)] == [True, False]
    code, details = await refused(stub.RegisterReplica(other))
    assert code is Code.ALREADY_EXISTS and "http://h:1" in details
    await stub.DeregisterReplica(forget)
    assert (await refused(stub.DeregisterReplica(forget)))[0] is Code.NOT_FOUND
    assert (await stub.RegisterReplica(other)).added


async def test_what_is_configured_stays(served: Served) -> None:
    """It can be registered again with equal fields, and neither changed nor deregistered."""
    same = pb.RegisterReplicaRequest(name=CONFIGURED.name, url=CONFIGURED.url)
    assert not (await served.stub.RegisterReplica(same)).added
    same.pool = "other"
    assert (await refused(served.stub.RegisterReplica(same)))[0] is Code.ALREADY_EXISTS
    forget = pb.DeregisterReplicaRequest(name=CONFIGURED.name)
    assert (await refused(served.stub.DeregisterReplica(forget)))[0] is Code.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "name"),
        ({"name": "a"}, "url"),
        ({"name": "a b"}, "name: Expected"),
        ({"name": "a", "url": "h:1"}, "http://HOST:PORT"),
        ({"name": "a", "url": "http://h", "event_endpoint": "udp://h:1"}, "event_endpoint"),
        ({"name": "a", "url": "http://h", "replay_endpoint": "tcp://h:1"}, "event_endpoint"),
        ({"name": "a", "url": "http://h", "data_parallel_size": 5000}, "data_parallel_size"),
        ({"name": "a", "url": "http://h", "pool": "p/q"}, "pool"),
    ],
    ids=str,
)
async def test_a_registration_is_checked(served: Served, fields: dict[str, Any], text: str) -> None:
    """As the configuration is; the text names the field."""
    code, details = await refused(served.stub.RegisterReplica(pb.RegisterReplicaRequest(**fields)))
    assert code is Code.INVALID_ARGUMENT and text in details


async def test_registrations_are_bounded(served: Served) -> None:
    """One too many is RESOURCE_EXHAUSTED, and says that some have to go."""
    for number in range(REGISTERED_MAX):
        served.following.register(ReplicaConfig(f"a{number}", "http://h"))
    request = pb.RegisterReplicaRequest(name="b", url="http://h")
    code, details = await refused(served.stub.RegisterReplica(request))
    assert code is Code.RESOURCE_EXHAUSTED and "deregister" in details


async def test_health_and_reflection_are_served(served: Served) -> None:
    """What grpcurl and a probe ask for: the service is listed, described, and SERVING."""
    stub = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", SERVICE):
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    asks = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    reflect = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    listed, described = [reply async for reply in reflect.ServerReflectionInfo(iter(asks))]
    services = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= services
    assert described.file_descriptor_response.file_descriptor_proto
