"""Listens to the engines: hands out connections, listeners and replays; arrivals are taken here.

Called from the event loop's thread; one reader thread (``indexer.reader``) does the work, because
it can drain a socket without a task switch for each message. This module decides nothing: when to
connect again, what to replay and how many replays may run is up to the caller.

Host names are resolved by libzmq inside its only I/O thread: a resolver that hangs stalls every
stream. Give addresses where that matters.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Thread
from time import monotonic

import structlog
import zmq

from indexer.arrival_queue import ArrivalQueue
from indexer.arrivals import (
    Arrival,
    ConnectionId,
    ConnectionLost,
    ListenerId,
    ReplayId,
    ReplayStopped,
)
from indexer.dialed_connection import DialedConnection
from indexer.listener import Listener, ListenError, describe_bind_failure
from indexer.monitored_socket import MonitoredSocket, SocketLimits
from indexer.reader import Reader
from indexer.replay_socket import ReplaySocket
from indexer.sources import DiscoveryError, parse_endpoint

__all__ = ["ListenError", "Subscriber", "SubscriberStats"]

_log = structlog.get_logger(__name__)

# The reader answers a bind between two turns, so within milliseconds.
_BIND_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class SubscriberStats:
    """``queued_frames`` counts arrivals of every kind; ``received_total`` counts messages read."""

    queued_frames: int
    queued_bytes: int
    full: bool
    full_total: int
    received_total: int
    unattributed_total: int


class _DialError(Exception):
    """No attempt could be made; the text becomes the reason of the loss."""


class Subscriber:
    def __init__(
        self,
        wake: Callable[[], None],
        *,
        frames_max: int = 10_000,
        bytes_max: int = 256 * 2**20,
        receive_hwm: int = 100_000,
        replay_silence_ms_max: int = 2000,
        connect_ms_max: int = 5000,
        heartbeat_ms: int = 2000,
        message_bytes_max: int = 64 * 2**20,
    ) -> None:
        """``wake`` runs in the reader thread whenever something is there to take again."""
        self._limits = SocketLimits(
            receive_hwm=receive_hwm,
            replay_silence_ms_max=replay_silence_ms_max,
            connect_ms_max=connect_ms_max,
            heartbeat_ms=heartbeat_ms,
            message_bytes_max=message_bytes_max,
        )
        self._queue = ArrivalQueue(
            frames_max=frames_max,
            bytes_max=bytes_max,
            wake=wake,
            resume=lambda: self._reader.resume(),
        )
        # One sequence for all kinds: an id of one kind never passes for one of another.
        self._numbers = count(1)
        self._listeners: dict[ListenerId, Listener] = {}
        self._endpoints: dict[ListenerId, str] = {}
        self._reader = Reader(self._queue)
        self._thread: Thread | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Subscriber stopped={self._stopped} {self._queue!r}>"

    def start(self) -> None:
        assert self._thread is None, "started twice"
        self._thread = Thread(target=self._reader.run, name="subscriber", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Joins the thread; every socket is closed then. What was not taken can still be taken."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread is None:
            self._reader.close()
        else:
            self._submit(self._reader.stop)
            self._thread.join()

    def connect(self, endpoint: str) -> ConnectionId:
        """One attempt. It ends in ``ConnectionLost``, whatever it was that failed."""
        connection = ConnectionId(next(self._numbers))
        self._submit(partial(self._open_connection, connection, endpoint))
        return connection

    def bind(self, endpoint: str) -> ListenerId:
        """Listen for engines that connect to us; raises ``ListenError``."""
        try:
            parse_endpoint(endpoint, zero_port=True)
        except DiscoveryError as error:
            raise ListenError(f"cannot listen on {endpoint!r}: {error}") from error
        assert self._thread is not None and not self._stopped, "not running"
        listener = ListenerId(next(self._numbers))
        bound: Future[str] = Future()
        self._submit(partial(self._open_listener, listener, endpoint, bound))
        self._endpoints[listener] = bound.result(_BIND_S_MAX)
        return listener

    def endpoint_of(self, listener: ListenerId) -> str:
        """Where it listens, with the port the kernel chose if that was left open."""
        return self._endpoints[listener]

    def close(self, connection: ConnectionId) -> None:
        """Its unread frames are dropped; ``ConnectionLost`` follows unless it is lost already."""
        self._submit(partial(self._close_connection, connection))

    def replay(self, endpoint: str, start_seq: int) -> ReplayId:
        """Ask for every buffered batch from ``start_seq`` on."""
        assert 0 <= start_seq < 2**64
        replay = ReplayId(next(self._numbers))
        self._submit(partial(self._open_replay, replay, endpoint, start_seq))
        return replay

    def cancel_replay(self, replay: ReplayId) -> None:
        """``ReplayStopped`` follows unless the replay has ended already."""
        self._submit(partial(self._reader.end, replay, "cancelled"))

    def take(self, limit: int) -> list[Arrival]:
        """The oldest arrivals. As many as ``limit`` means: come again, nobody will wake you."""
        return self._queue.take(limit)

    @property
    def stats(self) -> SubscriberStats:
        queue = self._queue.stats()
        return SubscriberStats(
            queued_frames=queue.queued_frames,
            queued_bytes=queue.queued_bytes,
            full=queue.full,
            full_total=queue.full_total,
            received_total=queue.received_total,
            unattributed_total=sum(
                listener.unattributed_total for listener in tuple(self._listeners.values())
            ),
        )

    def _resume(self) -> None:
        self._reader.resume()

    def _submit(self, command: Callable[[], None]) -> None:
        self._reader.submit(command)

    # Everything below runs in the reader thread.

    def _open_connection(self, connection: ConnectionId, endpoint: str) -> None:
        try:
            socket = self._dial(zmq.SUB, endpoint, [])
        except _DialError as error:
            self._report(ConnectionLost(connection, str(error)))
        else:
            self._reader.add(
                DialedConnection(
                    connection,
                    socket,
                    now=monotonic(),
                    connect_ms_max=self._limits.connect_ms_max,
                )
            )

    def _open_replay(self, replay: ReplayId, endpoint: str, start_seq: int) -> None:
        try:
            request = [b"", start_seq.to_bytes(8, "big")]
            socket = self._dial(zmq.DEALER, endpoint, request)
        except _DialError as error:
            self._report(ReplayStopped(replay, str(error)))
        else:
            self._reader.add(
                ReplaySocket(
                    replay,
                    socket,
                    now=monotonic(),
                    silence_ms_max=self._limits.replay_silence_ms_max,
                )
            )

    def _open_listener(self, listener: ListenerId, endpoint: str, bound: "Future[str]") -> None:
        try:
            socket = self._open(zmq.SUB, endpoint, MonitoredSocket.bind)
        except zmq.ZMQError as error:
            bound.set_exception(ListenError(describe_bind_failure(endpoint, error)))
        except Exception as error:
            bound.set_exception(error)
        else:
            channel = Listener(listener, socket, self._next_connection)
            self._listeners[listener] = channel
            self._reader.add(channel)
            bound.set_result(socket.last_endpoint)

    def _close_connection(self, connection: ConnectionId) -> None:
        why = "closed by us"
        self._reader.end(connection, why)
        burst = self._queue.burst()
        for listener in self._listeners.values():
            listener.close_connection(burst, connection, why)
        self._reader.report(burst)

    def _dial(self, kind: int, endpoint: str, request: list[bytes]) -> MonitoredSocket:
        """Whatever happens, the caller of ``connect`` has an id and waits to hear of its end."""
        try:
            parse_endpoint(endpoint)
            socket = self._open(kind, endpoint, MonitoredSocket.connect)
            if request:
                socket.send(request)
            return socket
        except (DiscoveryError, zmq.ZMQError) as error:
            raise _DialError(f"cannot connect to {endpoint!r}: {error}") from error
        except Exception as error:
            _log.exception("subscriber_dial_failed", endpoint=endpoint)
            raise _DialError(f"internal fault: {error!r}") from error

    def _open(
        self, kind: int, endpoint: str, attach: Callable[[MonitoredSocket, str], None]
    ) -> MonitoredSocket:
        socket = MonitoredSocket(self._reader.context, kind, self._limits, endpoint)
        try:
            attach(socket, endpoint)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def _report(self, arrival: Arrival) -> None:
        burst = self._queue.burst()
        burst.add(arrival)
        self._reader.report(burst)

    def _next_connection(self) -> ConnectionId:
        return ConnectionId(next(self._numbers))
