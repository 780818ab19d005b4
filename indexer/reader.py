"""The one thread that owns every ZMQ socket: waits, reads without blocking, reports.

Rules it keeps:

* It waits on the sockets' own descriptors with the kernel's selector. ``zmq_poll`` asks every
  socket on every turn; this asks the ones that have something. The descriptors say "look again",
  not "there is a message": a socket is read until it has nothing or its burst is over, and in the
  latter case it is visited again without waiting.
* Monitors that have something are drained before any message of the same turn is read.
* When the queue is full no message is read and no silence is counted. Monitors are still drained,
  because the I/O thread blocks when they fill up. The thread then waits on them and for commands.
* Other threads change nothing here; they submit commands.
* No exception ends the thread. A fault in one socket is logged and ends that socket's connection.
"""

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import structlog
import zmq

from indexer.arrival_queue import ArrivalQueue, Burst
from indexer.monitored_socket import MonitoredSocket

# A fault that repeats costs ten log lines a second, not a core.
_FAULT_PAUSE_S = 0.1
# libzmq's default of 1023 is two for each of 500 replicas.
_SOCKETS_MAX = 16_384
_WAKE_BYTES_MAX = 4096

_log = structlog.get_logger(__name__)


class Channel(Protocol):
    """A socket and what its messages mean. ``number`` is its id, whose type depends on its kind."""

    number: int
    socket: MonitoredSocket
    finished: bool
    deadline: float | None

    def observe(self) -> None:
        """Take note of what the monitor says; report nothing."""

    def visit(self, burst: Burst, now: float) -> bool:
        """Report what is there; True when there may be more."""

    def end(self, burst: Burst, why: str) -> None:
        """Report the end and be finished."""

    def fail(self, burst: Burst, why: str) -> None:
        """Report what a fault of ours ends."""

    def resume(self, now: float) -> None:
        """Reading was suspended until now."""


class Reader:
    """Runs in its thread; ``submit`` and ``resume`` are for the others."""

    def __init__(self, queue: ArrivalQueue) -> None:
        self.queue = queue
        self.context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        self._commands: deque[Callable[[], None]] = deque()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        # Everything, and what is still looked at while the queue is full.
        self._all = selectors.DefaultSelector()
        self._control = selectors.DefaultSelector()
        for selector in (self._all, self._control):
            selector.register(self._wakened, selectors.EVENT_READ, None)
        self._channels: dict[int, Channel] = {}
        self._timed: dict[Channel, None] = {}
        # To be visited without waiting, in this order.
        self._eager: dict[Channel, None] = {}
        self._was_full = False
        self._stopping = False

    def submit(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self.resume()

    def resume(self) -> None:
        # Refused when it has plenty to wake up for, or has ended.
        with suppress(OSError):
            self._waker.send(b"\0")

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._turn()
                except Exception:
                    _log.exception("subscriber_turn_failed")
                    time.sleep(_FAULT_PAUSE_S)
        finally:
            self.close()

    def add(self, channel: Channel) -> None:
        """Takes the socket over.

        Looks at once: a pipe that was never found empty does not signal its first message.
        """
        channel.observe()
        self._channels[channel.number] = channel
        self._eager[channel] = None
        if channel.deadline is not None:
            self._timed[channel] = None
        for selector in (self._all, self._control):
            selector.register(channel.socket.monitor_fd, selectors.EVENT_READ, channel)
        self._all.register(channel.socket.data_fd, selectors.EVENT_READ, channel)

    def report(self, burst: Burst) -> None:
        self.queue.put(burst)
        self._was_full |= self.queue.full

    def end(self, number: int, why: str) -> None:
        """Ends a channel that may have ended by itself a moment ago."""
        channel = self._channels.get(number)
        if channel is not None:
            burst = self.queue.burst()
            channel.end(burst, why)
            self.report(burst)
            self._discard(channel)

    def _discard(self, channel: Channel) -> None:
        del self._channels[channel.number]
        self._timed.pop(channel, None)
        self._eager.pop(channel, None)
        for selector in (self._all, self._control):
            selector.unregister(channel.socket.monitor_fd)
        self._all.unregister(channel.socket.data_fd)
        channel.socket.close()

    def _turn(self) -> None:
        self._wait()
        self._run_commands()
        now = time.monotonic()
        if self._was_full and not self.queue.full:
            self._was_full = False
            for channel in self._timed:
                channel.resume(now)
        self._eager.update(dict.fromkeys(self._expired(now)))
        visits, self._eager = self._eager, {}
        for channel in visits:
            if not channel.finished and self._serve(channel, now):
                self._eager[channel] = None

    def _wait(self) -> None:
        full = self.queue.full
        selector = self._control if full else self._all
        for key, _ in selector.select(self._wait_s(full)):
            channel: Channel | None = key.data
            if channel is None:
                self._wakened.recv(_WAKE_BYTES_MAX)
                continue
            self._eager[channel] = None
            if key.fd == channel.socket.monitor_fd:
                self._observe(channel)

    def _wait_s(self, full: bool) -> float | None:
        if full:
            return None
        if self._eager:
            return 0
        deadlines = [channel.deadline for channel in self._timed if channel.deadline is not None]
        return max(0, min(deadlines) - time.monotonic()) if deadlines else None

    def _expired(self, now: float) -> Iterable[Channel]:
        if self.queue.full:
            return []
        for channel in [channel for channel in self._timed if channel.deadline is None]:
            del self._timed[channel]
        return [channel for channel in self._timed if (channel.deadline or now) <= now]

    def _run_commands(self) -> None:
        while self._commands:
            try:
                self._commands.popleft()()
            except Exception:
                _log.exception("subscriber_command_failed")

    def _serve(self, channel: Channel, now: float) -> bool:
        """True when the channel wants to be visited again at once."""
        burst = self.queue.burst()
        if not burst.has_room:
            return True
        more = False
        try:
            more = channel.visit(burst, now)
        except Exception as error:
            self._note_fault(channel, burst, error)
        self.report(burst)
        if channel.finished:
            self._discard(channel)
        return more and not channel.finished

    def _observe(self, channel: Channel) -> None:
        try:
            channel.observe()
        except Exception as error:
            burst = self.queue.burst()
            self._note_fault(channel, burst, error)
            self.report(burst)
            if channel.finished:
                self._discard(channel)

    def _note_fault(self, channel: Channel, burst: Burst, error: Exception) -> None:
        _log.exception("subscriber_socket_failed", socket=repr(channel.socket))
        channel.fail(burst, f"internal fault: {error!r}")
        time.sleep(_FAULT_PAUSE_S)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.socket.close()
        self._channels.clear()
        self._all.close()
        self._control.close()
        self._wakened.close()
        self._waker.close()
        self.context.term()
