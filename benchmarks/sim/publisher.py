"""A shell: the ZMQ sockets of one engine, one PUB and one ROUTER, in the format of its version.

Rules it keeps, all of them vLLM's:

* Sequence numbers run from 0 and are taken before anything else can go wrong.
* The PUB socket binds for ``*``, ``::``, ipc and inproc and connects otherwise; `bind` overrules
  that for tests on a loopback address. The replay socket always binds.
* Rank r adds r to every tcp port but port 0, which stands for any free port.
* One thread owns both sockets; batches and replays wait for each other there.

The faults go beyond vLLM. They act in the same thread, in order with the batches around them.
"""

import errno
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import zmq

from benchmarks.sim.endpoints import QUEUED_MAX, PublisherSettings, offset_endpoint
from benchmarks.sim.events import KVEvent
from benchmarks.sim.wire import WireFormat

END_OF_REPLAY = b"\xff" * 8
_REOPEN_SECONDS_MAX = 5.0
_CLOSE_SECONDS_MAX = 5.0
# 0xc1 is the one byte that never occurs in msgpack, so what begins with it is garbage for sure.
_NEVER_MSGPACK = b"\xc1"


class _Sockets:
    """Both sockets of one incarnation, opened together, and the endpoints they really got."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        settings: PublisherSettings,
        endpoint: str,
        replay_endpoint: str | None,
        replay_queue_fits_buffer: bool,
    ) -> None:
        self.endpoint, self.replay_endpoint = endpoint, replay_endpoint
        self.publish = context.socket(zmq.PUB)
        self.replay = context.socket(zmq.ROUTER)
        self.publish.set_hwm(settings.hwm)
        if replay_queue_fits_buffer:
            self.replay.setsockopt(zmq.SNDHWM, 2 * (settings.buffer_steps + 1))
        try:
            if settings.binds:
                self.endpoint = _bind(self.publish, endpoint)
            else:
                self.publish.connect(endpoint)
            if replay_endpoint is not None:
                self.replay_endpoint = _bind(self.replay, replay_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"{endpoint}, {replay_endpoint}: {error}") from error

    def close(self) -> None:
        # As vLLM: what the peers have not taken by now is lost.
        self.publish.close(linger=0)
        self.replay.close(linger=0)


def _bind(bound: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind, and return the endpoint as peers may use it: as given unless the port was free."""
    if not endpoint.startswith("tcp://") or not endpoint.endswith(":0"):
        bound.bind(endpoint)
        return endpoint
    # vLLM binds its own address here, not every interface; a simulator's own address is loopback.
    host = endpoint.removeprefix("tcp://").removesuffix(":0").replace("*", "127.0.0.1")
    bound.bind(f"tcp://{host}:*")
    resolved = bound.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(resolved, bytes)
    return resolved.decode()


class EventPublisher:
    """Raises OSError where an endpoint cannot be bound, ValueError where it is malformed."""

    def __init__(
        self,
        wire: WireFormat,
        settings: PublisherSettings,
        rank: int = 0,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.settings = settings
        self.rank = rank
        self.next_seq = 0
        self.endpoint = offset_endpoint(settings.endpoint, rank)
        replay = settings.replay_endpoint
        self.replay_endpoint = None if replay is None else offset_endpoint(replay, rank)
        self._sockets: _Sockets | None = None
        self._wire = wire
        self._topic = settings.topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._drops_left = self._losses_left = 0
        self._owns_context = context is None
        self._context = zmq.Context() if context is None else context
        self._commands: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUED_MAX)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._stopping = threading.Event()
        self._start()

    def __repr__(self) -> str:
        return f"<EventPublisher rank {self.rank} at {self.endpoint}, next seq {self.next_seq}>"

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Queue one batch; it carries the time of this call. Waits while the queue is full."""
        self._do(partial(self._send_batch, time.time(), events))

    def drop(self, batches: int = 1) -> None:
        """The next batches get a number and a place in the replay buffer, but are not sent."""
        self._do(partial(self._add_faults, drops=batches))

    def lose(self, batches: int = 1) -> None:
        """The next batches burn their numbers: neither sent nor kept for replay."""
        self._do(partial(self._add_faults, losses=batches))

    def garbage(self) -> None:
        """What is no msgpack goes out under the next number, and a replay repeats it."""
        payload = _NEVER_MSGPACK + os.urandom(31)
        self._do(partial(self._send_payload, lambda: payload))

    def stall(self, seconds: float) -> None:
        """Send nothing and answer nothing for a time; batches queue up."""
        self._do(partial(self._stopping.wait, seconds))

    def restart(self) -> None:
        """Sequence numbers from 0, nothing to replay, new sockets on the same endpoints."""
        self._do(self._reopen)

    def flush(self, timeout_seconds: float = 10.0) -> None:
        """Wait until everything queued so far has been handed to the socket, or raise what failed.

        Raises TimeoutError where that takes too long.
        """
        done: Future[None] = Future()
        self._do(lambda: done.set_result(None))
        done.result(timeout_seconds)

    def close(self) -> None:
        """Send what is queued, then close the sockets; a second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._do(None)
        self._thread.join(_CLOSE_SECONDS_MAX)
        self._close_rest()

    def _start(self) -> None:
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(opened,), name=f"kv-events-{self.rank}", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._thread.join()
            self._close_rest()
            raise

    def _close_rest(self) -> None:
        self._wake_reader.close()
        self._wake_writer.close()
        if self._owns_context:
            self._context.term()

    def _do(self, command: Callable[[], Any] | None) -> None:
        self._commands.put(command)
        # A full pipe already wakes the thread.
        with suppress(BlockingIOError):
            self._wake_writer.send(b"w")

    # All that follows runs in the publisher's thread.

    def _run(self, opened: Future[None]) -> None:
        try:
            self._open()
        except Exception as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while self._turn():
                pass
        finally:
            self._current.close()

    @property
    def _current(self) -> _Sockets:
        assert self._sockets is not None
        return self._sockets

    def _open(self) -> None:
        self._sockets = _Sockets(
            self._context,
            self.settings,
            self.endpoint,
            self.replay_endpoint,
            self._wire.replay_queue_fits_buffer,
        )
        self.endpoint = self._sockets.endpoint
        self.replay_endpoint = self._sockets.replay_endpoint

    def _turn(self) -> bool:
        """One replay request at most, then the commands queued so far; False at the end."""
        poller = zmq.Poller()
        poller.register(self._wake_reader, zmq.POLLIN)
        poller.register(self._current.replay, zmq.POLLIN)
        if self._current.replay in dict(poller.poll()):
            self._service_replay()
        with suppress(BlockingIOError):
            self._wake_reader.recv(65536)
        for _ in range(self._commands.qsize()):
            command = self._commands.get_nowait()
            if command is None:
                return False
            command()
        return True

    def _send_batch(self, timestamp_seconds: float, events: Sequence[KVEvent]) -> None:
        self._send_payload(partial(self._wire.encode, timestamp_seconds, events, self.rank))

    def _send_payload(self, encode: Callable[[], bytes]) -> None:
        seq = self.next_seq
        self.next_seq += 1
        if self._losses_left:
            self._losses_left -= 1
            return
        payload = encode()
        self._buffer.append((seq, payload))
        if self._drops_left:
            self._drops_left -= 1
            return
        self._current.publish.send_multipart((self._topic, _seq_frame(seq), payload))

    def _add_faults(self, drops: int = 0, losses: int = 0) -> None:
        self._drops_left += drops
        self._losses_left += losses

    def _service_replay(self) -> None:
        """Everything buffered from the number asked for on, then the end marker."""
        replay = self._current.replay
        frames = replay.recv_multipart()
        if len(frames) != 3:
            return
        client, start = frames[0], int.from_bytes(frames[2], "big")
        with_topic = self._wire.has_replay_topic
        head = (client, b"", self._topic) if with_topic else (client, b"")
        for seq, payload in self._buffer:
            if seq >= start:
                replay.send_multipart((*head, _seq_frame(seq), payload))
        head = (client, b"", b"") if with_topic else (client, b"")
        replay.send_multipart((*head, END_OF_REPLAY, b""))

    def _reopen(self) -> None:
        self._current.close()
        self._buffer.clear()
        self.next_seq = self._drops_left = self._losses_left = 0
        deadline = time.monotonic() + _REOPEN_SECONDS_MAX
        while True:
            try:
                return self._open()
            except OSError as error:
                # zmq closes in the background, so the port stays taken for a moment.
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


def _seq_frame(seq: int) -> bytes:
    return seq.to_bytes(8, "big")
