"""The other ends of the subscriber's sockets: publishers, replay servers, and worse."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq

from indexer.arrivals import (
    Arrival,
    ConnectionId,
    ConnectionLost,
    ConnectionOpened,
    FrameReceived,
    ListenerId,
    ReplayId,
)
from indexer.subscriber import Subscriber

WAIT_S = 10.0
END = b"\xff" * 8


def poll_until(holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


class Listening:
    """A running subscriber and everything taken from it so far."""

    def __init__(self, **limits: Any) -> None:
        self.wakes = 0
        self._woken = threading.Event()
        self.subscriber = Subscriber(self._wake, **limits)
        self.subscriber.start()
        self.arrivals: list[Arrival] = []

    def _wake(self) -> None:
        self.wakes += 1
        self._woken.set()

    def take(self, limit: int = 100_000) -> list[Arrival]:
        taken = self.subscriber.take(limit)
        self.arrivals += taken
        return taken

    def until(self, holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Takes until ``holds`` does."""
        deadline = time.monotonic() + wait_s
        while self.take() or not holds():
            assert time.monotonic() < deadline, f"waited in vain; got {self.arrivals[-5:]}"
            self._woken.wait(0.01)
            self._woken.clear()

    def until_last(self, kind: type[Arrival], wait_s: float = WAIT_S) -> Arrival:
        self.until(lambda: bool(self.arrivals) and isinstance(self.arrivals[-1], kind), wait_s)
        return self.arrivals[-1]

    def until_opened(self, count: int) -> list[ConnectionId]:
        self.until(lambda: len(self.of(ConnectionOpened)) >= count)
        return [arrival.connection for arrival in self.of(ConnectionOpened)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [arrival for arrival in self.arrivals if isinstance(arrival, kind)]

    def about(self, number: ConnectionId | ReplayId) -> list[Arrival]:
        return [
            arrival
            for arrival in self.arrivals
            if number in (getattr(arrival, "connection", None), getattr(arrival, "replay", None))
        ]

    def seqs(self, connection: ConnectionId) -> list[int]:
        return [frame.seq for frame in self.of(FrameReceived) if frame.connection == connection]

    def lost(self) -> list[ConnectionId]:
        return [arrival.connection for arrival in self.of(ConnectionLost)]

    def endpoint_of(self, listener: ListenerId) -> str:
        return self.subscriber.endpoint_of(listener)

    def turns_within(self, seconds: float) -> int:
        """How often the reader thread woke up in that time."""
        reader, turns = self.subscriber._reader, 0
        turn = reader._turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        reader._turn = counted
        reader.resume()
        poll_until(lambda: turns > 0)
        time.sleep(seconds)
        return turns


class Publisher:
    """Binds or connects like an engine; an XPUB, because it can wait for its subscriber."""

    def __init__(self, context: zmq.Context[Any], *, connect: str | None, bind: str) -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.sndhwm = 0
        self.socket.linger = 5000
        if connect:
            self.socket.connect(connect)
        else:
            self.socket.bind(bind)
        self.endpoint = self.socket.last_endpoint.decode()

    def wait_for_subscriber(self) -> None:
        assert self.socket.poll(WAIT_S * 1000), "nobody subscribes"
        self.socket.recv()

    def publish(self, seq: int, payload: bytes = b"batch", topic: bytes = b"kv") -> None:
        self.send(topic, seq.to_bytes(8, "big"), payload)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def close(self) -> None:
        self.socket.close()


class ReplayServer:
    """An engine's ROUTER, answering by hand."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        # As vLLM 0.33 does: with the default of 1000 a slow reader would miss replies.
        self.socket.sndhwm = 0
        self.socket.linger = 5000
        self.socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self.socket.last_endpoint.decode()
        self.asker = b""

    def receive(self) -> list[bytes]:
        assert self.socket.poll(WAIT_S * 1000), "nobody asks"
        self.asker, *request = self.socket.recv_multipart()
        return request

    def reply(self, *frames: bytes) -> None:
        self.socket.send_multipart([self.asker, *frames])

    def close(self) -> None:
        self.socket.close()


class Peers:
    """Everything at the other end; one context, so that it can be waited for."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        # Sockets may be closed but not collected: what a test lets go of stays alive here.
        self._made: list[Publisher | ReplayServer] = []

    def publisher(
        self, *, connect: str | None = None, bind: str = "tcp://127.0.0.1:0"
    ) -> Publisher:
        publisher = Publisher(self.context, connect=connect, bind=bind)
        self._made.append(publisher)
        return publisher

    def replay_server(self) -> ReplayServer:
        server = ReplayServer(self.context)
        self._made.append(server)
        return server

    def wait_until_gone(self) -> None:
        """Everything was closed before; returns when all of it is sent and disconnected."""
        self.context.term()
        self.context = zmq.Context()

    def destroy(self) -> None:
        self.context.destroy(linger=0)


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server whose only connection is handed to ``serve`` and then kept open, silent."""
    server = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def run() -> None:
        with suppress(OSError):
            peer, _ = server.accept()
            accepted.append(peer)
            serve(peer)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for peer in accepted:
            peer.close()


def speak_zmtp_once(peer: socket.socket) -> None:
    """The handshake of a PUB, by hand; heartbeats will not be answered."""
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY" + b"\x0bSocket-Type" + (3).to_bytes(4, "big") + b"PUB"
    peer.sendall(bytes([4, len(ready)]) + ready)
