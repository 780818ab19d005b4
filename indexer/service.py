"""A shell: ``pointsman.indexer.v1.Indexer`` over gRPC, with health and reflection.

Rules it keeps:

* What is wrong with a request is INVALID_ARGUMENT with the text of the error; on a stream it
  concerns that one request.
* Everything has a limit: bytes of a message, calls, watchers, prompts waiting to be hashed. A
  stream's requests are answered one at a time, so a client that does not read stops only itself.
* Hashing a prompt takes milliseconds and runs in a thread of its own; every other answer is short
  and comes from the event loop, so it needs no lock.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from indexer.answers import Answers, Hashing, MalformedAsk, hash_prompt
from indexer.following import (
    AlreadyRegistered,
    Configured,
    Following,
    NotRegistered,
    TooManyRegistered,
)
from indexer.listener import ListenError
from indexer.messages import add_matches, prefixes_of, replica_config_of, replica_messages
from indexer.watching import ReplicaWatch, TooManyWatchers
from proto import indexer_pb2 as pb
from proto.config_file import ConfigError
from proto.contract import HashedPrefix
from proto.indexer_pb2_grpc import IndexerServicer, add_IndexerServicer_to_server

SERVICE = "pointsman.indexer.v1.Indexer"
# Two million token ids of five bytes each fit; so do the hashes of several schemes.
MESSAGE_BYTES_MAX = 16 * 2**20
# Streams included. A router has two; a gateway that asks call by call has one per request.
CALLS_MAX = 512
# A prompt takes up to some ten milliseconds, so these are a fraction of a second.
HASHINGS_WAITING_MAX = 32
# Streams never end by themselves, so this is what a stop takes while there are any.
STOP_S = 0.3


class TooManyHashings(Exception):
    """Too many prompts wait to be hashed."""


Context = grpc.aio.ServicerContext[Any, Any]
_STATUS_OF = {
    MalformedAsk: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    AlreadyRegistered: grpc.StatusCode.ALREADY_EXISTS,
    Configured: grpc.StatusCode.FAILED_PRECONDITION,
    NotRegistered: grpc.StatusCode.NOT_FOUND,
    TooManyRegistered: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyWatchers: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyHashings: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class IndexerService(IndexerServicer):
    """Every call of the contract."""

    def __init__(
        self,
        answers: Answers,
        watch: ReplicaWatch,
        following: Following,
        hashings_waiting_max: int = HASHINGS_WAITING_MAX,
    ) -> None:
        self._answers, self._watch, self._following = answers, watch, following
        self._thread = ThreadPoolExecutor(1, "hashing")
        self._hashings, self._hashings_max = 0, hashings_waiting_max

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def MatchPrefix(
        self, request: pb.MatchPrefixRequest, context: Context
    ) -> pb.MatchPrefixResponse:
        response = pb.MatchPrefixResponse()
        try:
            self._match(request, response)
        except MalformedAsk as error:
            await _refuse(context, error)
        return response

    async def MatchStream(
        self, request_iterator: AsyncIterator[pb.MatchStreamRequest], context: Context
    ) -> AsyncIterator[pb.MatchStreamResponse]:
        async for request in request_iterator:
            response = pb.MatchStreamResponse(request_id=request.request_id)
            try:
                self._match(request.request, response.response)
                response.response.SetInParent()
            except MalformedAsk as error:
                response.error = str(error)
            yield response

    def _match(self, request: pb.MatchPrefixRequest, response: pb.MatchPrefixResponse) -> None:
        matches = self._answers.match_prefix(request.pool, prefixes_of(request), time.monotonic())
        add_matches(response, matches)

    async def MatchTokens(
        self, request: pb.MatchTokensRequest, context: Context
    ) -> pb.MatchPrefixResponse:
        lora_name, salt = request.lora_name or None, request.cache_salt or None
        response = pb.MatchPrefixResponse()
        try:
            hashings = self._answers.hashings(request.pool, request.token_ids, lora_name, salt)
            prefixes = await self._hash(hashings, request.token_ids)
            now = time.monotonic()
            matches = self._answers.match_hashed(request.pool, prefixes, now, lora_name)
            add_matches(response, matches)
        except (MalformedAsk, TooManyHashings) as error:
            await _refuse(context, error)
        return response

    async def _hash(
        self, hashings: Sequence[Hashing], token_ids: Sequence[int]
    ) -> list[HashedPrefix]:
        """In the thread. A caller that goes away leaves its place only when its work is done."""
        if self._hashings >= self._hashings_max:
            raise TooManyHashings(f"{self._hashings_max} prompts wait to be hashed; ask later")
        self._hashings += 1
        loop = asyncio.get_running_loop()
        future = self._thread.submit(
            lambda: hash_prompt(hashings, array("I", token_ids)),
        )
        future.add_done_callback(lambda _: _call_soon(loop, self._hashed))
        return await asyncio.wrap_future(future)

    def _hashed(self) -> None:
        self._hashings -= 1

    async def ListReplicas(
        self, request: pb.ListReplicasRequest, context: Context
    ) -> pb.ListReplicasResponse:
        views = self._answers.list_replicas(request.pool, time.monotonic())
        return pb.ListReplicasResponse(replicas=replica_messages(views))

    async def WatchReplicas(
        self, request: pb.WatchReplicasRequest, context: Context
    ) -> AsyncIterator[pb.WatchReplicasResponse]:
        try:
            async for views in self._watch.watch(request.pool):
                yield pb.WatchReplicasResponse(replicas=replica_messages(views))
        except TooManyWatchers as error:
            await _refuse(context, error)

    async def RegisterReplica(
        self, request: pb.RegisterReplicaRequest, context: Context
    ) -> pb.RegisterReplicaResponse:
        try:
            added = self._following.register(replica_config_of(request))
        except (ConfigError, AlreadyRegistered, TooManyRegistered) as error:
            await _refuse(context, error)
        return pb.RegisterReplicaResponse(added=added)

    async def DeregisterReplica(
        self, request: pb.DeregisterReplicaRequest, context: Context
    ) -> pb.DeregisterReplicaResponse:
        try:
            self._following.deregister(request.name)
        except (Configured, NotRegistered) as error:
            await _refuse(context, error)
        return pb.DeregisterReplicaResponse()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """From the hashing thread, which may outlive the loop by a moment."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


async def _refuse(context: Context, error: Exception) -> NoReturn:
    await context.abort(_STATUS_OF[type(error)], str(error))
    raise AssertionError("abort raises")


class GrpcServer:
    """The service on a port. ``address`` is known once it has started."""

    def __init__(self, service: IndexerService) -> None:
        self._service = service
        self._health = health.aio.HealthServicer()
        self.address = ""

    async def start(self, host: str, port: int) -> None:
        """Raises ListenError."""
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=CALLS_MAX,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                # Otherwise a second indexer would share the port, and half of the questions.
                ("grpc.so_reuseport", 0),
                # A router's keepalive is no abuse, also while it asks nothing.
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        add_IndexerServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        at = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{at}:{port}")
        except RuntimeError:
            raise ListenError(
                f"grpc.listen: {at}:{port} cannot be listened on; is another indexer running?"
            ) from None
        await self._server.start()
        self.address = f"{at}:{bound}"
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_S)
        self._service.close()
