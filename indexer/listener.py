"""Who sent which frame where engines connect to us: many connections, one bound socket.

A frame names its connection only by file descriptor, and the kernel gives a closed descriptor to
the next connection. Rules it keeps:

* The monitor is drained before each burst (by the reader) and after it. What was known to be
  disconnected before a burst that read until nothing was left has nothing more to say: its loss
  is reported then.
* A descriptor that was disconnected and accepted again while frames of both could be waiting is
  doubtful until one such burst has passed; its frames are dropped and counted. So are frames of
  unknown descriptors. Their streams notice the hole and replay.
* ``HANDSHAKE_SUCCEEDED`` names no descriptor. Successes are counted, and assigned when as many
  connections wait for one; a frame, too, proves its sender's handshake. A failed handshake is
  announced directly before its ``DISCONNECTED``, so the count stays exact. Peers that never
  finish a handshake are reported by nobody.
* libzmq cannot close one connection of a bound socket: a closed connection is no longer heard.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from indexer.arrival_queue import Burst
from indexer.arrivals import ConnectionId, ConnectionLost, ConnectionOpened, ListenerId
from indexer.dialed_connection import parse_frame
from indexer.monitored_socket import MonitoredSocket

_ACCEPTED = int(zmq.Event.ACCEPTED)
_DISCONNECTED = int(zmq.Event.DISCONNECTED)
_HANDSHAKE_SUCCEEDED = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_HANDSHAKE_FAILED = frozenset(
    int(event)
    for event in (
        zmq.Event.HANDSHAKE_FAILED_AUTH,
        zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
        zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    )
)
_SRCFD = int(zmq.SRCFD)
_WHY_LOST = "the engine closed the connection or stopped answering heartbeats"


class ListenError(Exception):
    """The endpoint cannot be listened on; the text says why and what to do."""


def describe_bind_failure(endpoint: str, error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {endpoint}: the address is in use; stop the process that "
            "listens there or choose another port"
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return f"cannot listen on {endpoint}: this machine has no such address; try tcp://*:PORT"
    return f"cannot listen on {endpoint}: {error.strerror}"


@dataclass(slots=True, eq=False)
class _BoundConnection:
    connection: ConnectionId
    fd: int
    handshaken: bool = False
    reported: bool = False
    muted: bool = False


class Listener:
    def __init__(
        self,
        listener: ListenerId,
        socket: MonitoredSocket,
        new_connection: Callable[[], ConnectionId],
    ) -> None:
        self.number: int = listener
        self.listener = listener
        self.socket = socket
        self.finished = False
        self.deadline: float | None = None
        self.unattributed_total = 0
        self._new_connection = new_connection
        self._live: dict[int, _BoundConnection] = {}
        self._departed: list[_BoundConnection] = []
        # Descriptor -> the burst in which it became doubtful.
        self._doubtful: dict[int, int] = {}
        self._burst_number = 0
        self._handshakes_unassigned = 0
        self._handshake_failed = False

    def __repr__(self) -> str:
        return f"<Listener {self.socket.last_endpoint} {len(self._live)} connections>"

    def observe(self) -> None:
        for kind, value in self.socket.events():
            if kind == _ACCEPTED:
                self._accepted(value)
            elif kind == _DISCONNECTED:
                self._disconnected(value)
            elif kind == _HANDSHAKE_SUCCEEDED:
                self._handshakes_unassigned += 1
            self._handshake_failed = kind in _HANDSHAKE_FAILED
        self._assign_handshakes()

    def visit(self, burst: Burst, now: float) -> bool:
        """Report what is there; True when there may be more."""
        leaving = list(self._departed)
        self._burst_number += 1
        messages, exhausted = self._read(burst)
        self.observe()
        for bound in self._live.values():
            if bound.handshaken:
                self._report_opened(burst, bound)
        for fd, frames in messages:
            self._attribute(burst, fd, frames)
        if exhausted:
            self._settle(burst, leaving)
        return not exhausted or bool(self._departed or self._doubtful)

    def close_connection(self, burst: Burst, connection: ConnectionId, why: str) -> bool:
        """False when the connection is not one of this listener's."""
        for bound in (*self._live.values(), *self._departed):
            if bound.connection == connection:
                self._report_lost(burst, bound, why)
                return True
        return False

    def end(self, burst: Burst, why: str) -> None:
        self.finished = True
        for bound in (*self._departed, *self._live.values()):
            self._report_lost(burst, bound, why)

    def fail(self, burst: Burst, why: str) -> None:
        """A fault costs the frames of one burst, which their streams notice; listen on."""

    def resume(self, now: float) -> None:
        """Nothing here waits for anything."""

    def _read(self, burst: Burst) -> tuple[list[tuple[int, list[zmq.Frame]]], bool]:
        messages: list[tuple[int, list[zmq.Frame]]] = []
        # Not counted in the burst yet: some may be dropped.
        bytes_left = burst.bytes_max
        while burst.messages < burst.messages_max and bytes_left > 0:
            frames = self.socket.receive(burst.messages)
            if frames is None:
                return messages, True
            burst.messages += 1
            bytes_left -= sum(map(len, frames))
            messages.append((self._source_fd(frames[0]), frames))
        return messages, False

    @staticmethod
    def _source_fd(frame: zmq.Frame) -> int:
        try:
            return int(frame.get(_SRCFD))
        except zmq.ZMQError:  # A transport without descriptors.
            return -1

    def _attribute(self, burst: Burst, fd: int, frames: list[zmq.Frame]) -> None:
        bound = self._owner(fd)
        if bound is None:
            self.unattributed_total += 1
        elif not bound.muted:
            self._prove_handshake(bound)
            self._report_opened(burst, bound)
            burst.add(parse_frame(bound.connection, frames))

    def _owner(self, fd: int) -> _BoundConnection | None:
        if fd in self._doubtful:
            return None
        if fd in self._live:
            return self._live[fd]
        return next((bound for bound in self._departed if bound.fd == fd), None)

    def _accepted(self, fd: int) -> None:
        self._disconnected(fd)  # Never live here; but two owners must not exist.
        if any(bound.fd == fd for bound in self._departed):
            self._doubtful[fd] = self._burst_number
        self._live[fd] = _BoundConnection(self._new_connection(), fd)

    def _disconnected(self, fd: int) -> None:
        bound = self._live.pop(fd, None)
        if bound is None:
            return
        if not bound.handshaken:
            if self._handshake_failed or not self._handshakes_unassigned:
                return  # It never spoke.
            self._prove_handshake(bound)
        if fd in self._doubtful:
            # Its frames are dropped in any case; they, too, must be out before trust returns.
            self._doubtful[fd] = self._burst_number
            if not bound.reported:
                return
        self._departed.append(bound)

    def _prove_handshake(self, bound: _BoundConnection) -> None:
        if not bound.handshaken:
            bound.handshaken = True
            self._handshakes_unassigned = max(0, self._handshakes_unassigned - 1)

    def _assign_handshakes(self) -> None:
        if self._handshakes_unassigned:
            waiting = [bound for bound in self._live.values() if not bound.handshaken]
            if len(waiting) <= self._handshakes_unassigned:
                for bound in waiting:
                    bound.handshaken = True
                self._handshakes_unassigned = 0

    def _settle(self, burst: Burst, leaving: list[_BoundConnection]) -> None:
        for bound in leaving:
            self._report_lost(burst, bound, _WHY_LOST)
        self._departed = [bound for bound in self._departed if bound not in leaving]
        self._doubtful = {
            fd: number for fd, number in self._doubtful.items() if number >= self._burst_number
        }

    def _report_opened(self, burst: Burst, bound: _BoundConnection) -> None:
        if not bound.reported:
            bound.reported = True
            burst.add(ConnectionOpened(bound.connection, self.listener))

    def _report_lost(self, burst: Burst, bound: _BoundConnection, why: str) -> None:
        if bound.reported and not bound.muted:
            burst.add(ConnectionLost(bound.connection, why))
        bound.muted = True
