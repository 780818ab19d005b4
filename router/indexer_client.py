"""A shell: the indexer over gRPC, for a router that must never wait for it.

Rules it keeps:

* Fail open: whatever is wrong is ``IndexerUnavailable``, at the deadline at the latest and at once
  where there is no connection. Connecting happens behind everybody's back, for ever.
* One stream carries every question. A stream takes one write at a time, and cancelling a write ends
  it, so one task writes; whoever asks only waits for a future, which is gone when the wait is over.
* Questions in flight are bounded; one too many is refused instead of queued.
* Messages become the contract's types at this boundary and nowhere else.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence

import grpc
import structlog

from proto import indexer_pb2 as pb
from proto.contract import HashedPrefix, IndexerUnavailable, ReplicaMatch, ReplicaView
from proto.indexer_pb2_grpc import IndexerStub
from router.indexer_messages import match_request, matches_of, view_of

_log = structlog.get_logger("router")

DEADLINE_S = 0.05
# More than that are not answered within any deadline worth having.
IN_FLIGHT_MAX = 1024
RECONNECT_S_MIN = 0.1
RECONNECT_S_MAX = 2.0
# The indexer repeats its state every two seconds.
SILENT_S = 10.0
# A peer that vanished without a word is noticed after both.
KEEPALIVE_S = 5.0
KEEPALIVE_ANSWER_S = 5.0
MESSAGE_BYTES_MAX = 64 * 2**20
# Schemes that are logged as unknown; there is one as long as versions differ.
UNKNOWN_MAX = 64

_Stream = grpc.aio.StreamStreamCall[pb.MatchStreamRequest, pb.MatchStreamResponse]
_Reply = asyncio.Future[pb.MatchStreamResponse]


class GrpcIndexer:
    """``proto.contract.Indexer``. Made, used and closed on one event loop."""

    def __init__(
        self, address: str, deadline_s: float = DEADLINE_S, in_flight_max: int = IN_FLIGHT_MAX
    ) -> None:
        self.address, self.deadline_s, self.in_flight_max = address, deadline_s, in_flight_max
        self._channel = grpc.aio.insecure_channel(address, options=_channel_options())
        self._stub = IndexerStub(self._channel)
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Reply] = {}
        self._unsent: deque[pb.MatchStreamRequest] = deque()
        self._some_unsent = asyncio.Event()
        self._unknown: set[str] = set()
        self._connected = False
        self._why_not = "not connected yet"
        self._task = asyncio.create_task(self._keep_connected())

    def __repr__(self) -> str:
        state = "connected" if self._connected else self._why_not
        return f"<GrpcIndexer {self.address} {state}, {len(self._waiting)} in flight>"

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def in_flight(self) -> int:
        """Questions that somebody waits for an answer to."""
        return len(self._waiting)

    async def close(self) -> None:
        self._connected, self._why_not = False, "closed"
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    # Matches.

    async def match(self, pool: str, prefixes: Sequence[HashedPrefix]) -> dict[str, ReplicaMatch]:
        """Replicas of the pool that hold at least the first block. Raises IndexerUnavailable."""
        if not self._connected:
            raise IndexerUnavailable(f"indexer at {self.address}: {self._why_not}")
        if max(len(self._waiting), len(self._unsent)) >= self.in_flight_max:
            raise IndexerUnavailable(f"{self.in_flight_max} questions are in flight already")
        request_id, loop = next(self._ids), asyncio.get_running_loop()
        request = pb.MatchStreamRequest(
            request_id=request_id, request=match_request(pool, prefixes)
        )
        future: _Reply = loop.create_future()
        self._waiting[request_id] = future
        self._unsent.append(request)
        self._some_unsent.set()
        deadline = loop.call_later(self.deadline_s, self._expire, request_id)
        try:
            reply = await future
        finally:
            deadline.cancel()
            self._waiting.pop(request_id, None)
        if reply.WhichOneof("outcome") != "response":
            raise IndexerUnavailable(f"indexer at {self.address} refused: {reply.error}")
        return matches_of(reply.response)

    def _expire(self, request_id: int) -> None:
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            error = f"indexer at {self.address}: no answer within {self.deadline_s * 1e3:g} ms"
            future.set_exception(IndexerUnavailable(error))

    async def _keep_connected(self) -> None:
        """One stream after another, until cancelled."""
        pause_s = RECONNECT_S_MIN
        while True:
            try:
                await self._channel.channel_ready()
                if await self._stream():
                    pause_s = RECONNECT_S_MIN
            except Exception as error:
                # Whatever the transport comes up with, traffic goes on without the indexer.
                self._lost(_text_of(error))
            finally:
                self._lost("closed")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_S_MAX)

    async def _stream(self) -> bool:
        """Until it breaks; whether anything was answered on it."""
        call = self._stub.MatchStream()
        answered = False
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(call))
            try:
                self._connected = True
                _log.info("indexer_connected", address=self.address)
                while isinstance(reply := await call.read(), pb.MatchStreamResponse):
                    answered = True
                    future = self._waiting.pop(reply.request_id, None)
                    if future is not None and not future.done():
                        future.set_result(reply)
                self._lost(f"the stream ended: {await call.details() or 'without a reason'}")
            except grpc.aio.AioRpcError as error:
                self._lost(_text_of(error))
            finally:
                writing.cancel()
                call.cancel()
        return answered

    async def _write(self, call: _Stream) -> None:
        """Writes what is asked; of what nobody waits for any more, nothing."""
        try:
            while True:
                while self._unsent:
                    request = self._unsent.popleft()
                    if request.request_id in self._waiting:
                        await call.write(request)
                self._some_unsent.clear()
                await self._some_unsent.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The call is over, which its reader learns too.
            return

    def _lost(self, why: str) -> None:
        """Nobody waits for what will not come."""
        if self._connected:
            _log.warning("indexer_lost", address=self.address, why=why)
            self._connected, self._why_not = False, why
        self._unsent.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(IndexerUnavailable(f"indexer at {self.address}: {why}"))

    # Replicas.

    async def watch(self) -> AsyncIterator[tuple[ReplicaView, ...]]:
        """The whole state at once, and again whenever it changes; it reconnects for ever."""
        pause_s = RECONNECT_S_MIN
        while True:
            call = self._stub.WatchReplicas(pb.WatchReplicasRequest(), wait_for_ready=True)
            try:
                while (state := await self._next_state(call)) is not None:
                    pause_s = RECONNECT_S_MIN
                    self._note_unknown_schemes(state)
                    yield tuple(map(view_of, state.replicas))
            finally:
                call.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RECONNECT_S_MAX)

    def _note_unknown_schemes(self, state: pb.WatchReplicasResponse) -> None:
        """Once per scheme: its replicas get no matches, which an operator has to be told."""
        for replica in state.replicas:
            known = {scheme.id for scheme in view_of(replica).schemes}
            for scheme in replica.schemes:
                if scheme.id not in known | self._unknown and len(self._unknown) < UNKNOWN_MAX:
                    self._unknown.add(scheme.id)
                    _log.warning("scheme_unknown", replica=replica.replica, id=scheme.id)

    async def _next_state(
        self, call: grpc.aio.UnaryStreamCall[pb.WatchReplicasRequest, pb.WatchReplicasResponse]
    ) -> pb.WatchReplicasResponse | None:
        """None: it is over with this call."""
        try:
            async with asyncio.timeout(SILENT_S):
                state = await call.read()
        except (grpc.aio.AioRpcError, TimeoutError):
            return None
        return state if isinstance(state, pb.WatchReplicasResponse) else None


def _channel_options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1e3)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_ANSWER_S * 1e3)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", int(RECONNECT_S_MIN * 1e3)),
        ("grpc.min_reconnect_backoff_ms", int(RECONNECT_S_MAX * 1e3)),
        ("grpc.max_reconnect_backoff_ms", int(RECONNECT_S_MAX * 1e3)),
        # The indexer is a neighbour; a proxy for the world outside is not on the way to it.
        ("grpc.enable_http_proxy", 0),
    ]


def _text_of(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
