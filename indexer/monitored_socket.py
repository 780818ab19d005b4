"""One ZMQ socket with the monitor that says what happens to its connections.

Rules it keeps:

* Automatic reconnection never happens in practice, but it is not switched off: with
  ``RECONNECT_IVL=-1`` libzmq removes the endpoint as soon as the peer leaves and drops every
  message not read yet. An interval of 24 days keeps them readable until the owner closes.
* An owner that wants all frames of a lost connection drains the monitor first, then reads until
  nothing is left: what the peer sent was handed over before its loss was announced. This, and
  the order of the events of one socket, hold because the context has a single I/O thread. Only
  of a peer that breaks the protocol the last frames may come too late, and are dropped.
* The monitor is drained also when nobody wants more frames: it is a bounded pipe, and the I/O
  thread of all sockets blocks when it is full.
* IPv6 is on only for literal IPv6 endpoints. With it, libzmq resolves ``localhost`` to ``::1``
  alone, where an engine listening on ``*`` cannot be reached.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import zmq

_NOBLOCK = int(zmq.NOBLOCK)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_MONITORED_EVENTS = int(
    zmq.Event.ACCEPTED
    | zmq.Event.CLOSED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_SUCCEEDED
)
_EVENT = struct.Struct("=Hi")
_RECONNECT_MS = 2**31 - 1
# More parts than any message of vLLM has; the rest of such a message is read and thrown away.
_FRAMES_MAX = 8
_HEARTBEATS_MISSED_MAX = 2

_monitor_numbers = count()

# How an outgoing connection ends, by the monitor event that says so.
LOSSES: dict[int, str] = {
    int(zmq.Event.DISCONNECTED): "the peer closed the connection or stopped answering heartbeats",
    int(zmq.Event.CLOSED): "the connection was refused or the peer is unreachable",
    int(zmq.Event.CONNECT_RETRIED): "the host name does not resolve or the peer is unreachable",
    int(zmq.Event.HANDSHAKE_FAILED_AUTH): "the peer demands authentication",
    int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL): "the peer left during the ZMTP handshake",
    int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL): "the peer does not speak ZMTP, or is no PUB/ROUTER",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    receive_hwm: int
    replay_silence_ms_max: int
    connect_ms_max: int
    heartbeat_ms: int
    message_bytes_max: int


class MonitoredSocket:
    """Made, used and closed by the reader thread only."""

    def __init__(
        self, context: zmq.Context[Any], kind: int, limits: SocketLimits, endpoint: str
    ) -> None:
        """Raises ``zmq.ZMQError`` when the process has no more sockets; leaks nothing then."""
        self._socket: zmq.Socket[bytes] = context.socket(kind)
        try:
            self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        except zmq.ZMQError:
            self._socket.close(linger=0)
            raise
        try:
            self._configure(limits, endpoint)
            address = f"inproc://pointsman-monitor-{next(_monitor_numbers)}"
            self._socket.monitor(address, _MONITORED_EVENTS)
            self._monitor.connect(address)
            self.data_fd = int(self._socket.FD)
            self.monitor_fd = int(self._monitor.FD)
        except BaseException:
            self.close()
            raise
        self._recv = self._socket.recv

    def __repr__(self) -> str:
        return f"<MonitoredSocket {self.last_endpoint}>"

    @property
    def last_endpoint(self) -> str:
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.rstrip(b"\0").decode()

    def connect(self, endpoint: str) -> None:
        self._socket.connect(endpoint)

    def bind(self, endpoint: str) -> None:
        self._socket.bind(endpoint)

    def send(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames, _NOBLOCK)

    def receive(self, already: int) -> list[zmq.Frame] | None:
        """The parts of the next message, not copied yet; None when there is none.

        ``already`` counts the messages of this burst. Most bursts have one: after the first it is
        cheaper to ask than to catch the exception of a fruitless ``recv``, after more it is not.
        """
        recv = self._recv
        if already == 1 and not int(self._socket.get(_EVENTS)) & _POLLIN:
            return None
        try:
            frame = recv(_NOBLOCK, False)
        except zmq.Again:
            return None
        frames = [frame]
        while frame.more:
            frame = recv(_NOBLOCK, False)
            if len(frames) < _FRAMES_MAX:
                frames.append(frame)
        return frames

    def events(self) -> Iterator[tuple[int, int]]:
        """What happened since the last call: pairs of ``zmq.Event`` and its value."""
        monitor = self._monitor
        while int(monitor.get(_EVENTS)) & _POLLIN:
            kind, value = _EVENT.unpack(monitor.recv_multipart(_NOBLOCK)[0])
            yield kind, value

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close(linger=0)
        self._monitor.close(linger=0)

    def _configure(self, limits: SocketLimits, endpoint: str) -> None:
        options = {
            zmq.LINGER: 0,
            zmq.RECONNECT_IVL: _RECONNECT_MS,
            zmq.MAXMSGSIZE: limits.message_bytes_max,
            zmq.CONNECT_TIMEOUT: limits.connect_ms_max,
            zmq.HANDSHAKE_IVL: limits.connect_ms_max,
            zmq.HEARTBEAT_IVL: limits.heartbeat_ms,
            zmq.HEARTBEAT_TIMEOUT: limits.heartbeat_ms * _HEARTBEATS_MISSED_MAX,
            zmq.HEARTBEAT_TTL: limits.heartbeat_ms * (_HEARTBEATS_MISSED_MAX + 1),
            zmq.IPV6: int("[" in endpoint),
            # A replay is bounded by the engine's buffer; a limit here would make the engine's
            # ROUTER drop batches, and the end marker with them.
            zmq.RCVHWM: 0 if self._socket.type == zmq.DEALER else limits.receive_hwm,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        if self._socket.type == zmq.SUB:
            self._socket.setsockopt(zmq.SUBSCRIBE, b"")
