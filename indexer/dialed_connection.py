"""One connection to an engine that listens: one socket, one TCP connection, one stream.

Rules it keeps: what arrived before the loss is reported before it; nothing is reported after it;
a connection without a handshake within ``connect_ms_max`` is lost.
"""

import zmq

from indexer.arrival_queue import Burst
from indexer.arrivals import (
    ConnectionId,
    ConnectionLost,
    ConnectionOpened,
    FrameMalformed,
    FrameReceived,
)
from indexer.monitored_socket import LOSSES, MonitoredSocket

_HANDSHAKE_SUCCEEDED = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_SEQ_BYTES = 8


def parse_frame(
    connection: ConnectionId, frames: list[zmq.Frame]
) -> FrameReceived | FrameMalformed:
    """A live message: topic, sequence number (8 bytes, big-endian), batch."""
    if len(frames) != 3:
        return FrameMalformed(connection, f"{len(frames)} frames where vLLM sends 3")
    topic, seq, payload = frames
    seq_bytes = seq.bytes
    if len(seq_bytes) != _SEQ_BYTES:
        return FrameMalformed(connection, f"a sequence number of {len(seq_bytes)} bytes, not 8")
    return FrameReceived(connection, topic.bytes, int.from_bytes(seq_bytes, "big"), payload.bytes)


class DialedConnection:
    def __init__(
        self,
        connection: ConnectionId,
        socket: MonitoredSocket,
        *,
        now: float,
        connect_ms_max: int,
    ) -> None:
        self.number: int = connection
        self.connection = connection
        self.socket = socket
        self.finished = False
        self.deadline: float | None = now + connect_ms_max / 1000
        self._why_late = f"no handshake within {connect_ms_max} ms"
        self._reported = False
        self._handshaken = False
        self._why_lost: str | None = None

    def observe(self) -> None:
        for kind, _ in self.socket.events():
            if kind == _HANDSHAKE_SUCCEEDED:
                self._handshaken = True
                self.deadline = None
            elif self._why_lost is None and kind in LOSSES:
                self._why_lost = LOSSES[kind]
                self.deadline = None

    def visit(self, burst: Burst, now: float) -> bool:
        """Report what is there; True when there may be more."""
        # Only a loss seen before the reading proves that the reading finds everything.
        why_lost = self._why_lost
        if self._handshaken:
            self._report_opened(burst)
        if not self._read(burst):
            return True
        if why_lost is None and self.deadline is not None and now >= self.deadline:
            why_lost = self._why_late
        if why_lost is not None:
            self.end(burst, why_lost)
        return False

    def end(self, burst: Burst, why: str) -> None:
        if not self.finished:
            self.finished = True
            burst.add(ConnectionLost(self.connection, why))

    fail = end

    def resume(self, now: float) -> None:
        """The handshake does not wait for room in the queue, so neither does its deadline."""

    def _read(self, burst: Burst) -> bool:
        """True when the socket has nothing left."""
        receive, connection = self.socket.receive, self.connection
        while burst.messages < burst.messages_max and burst.bytes < burst.bytes_max:
            frames = receive(burst.messages)
            if frames is None:
                return True
            burst.messages += 1
            if not self._reported:  # The handshake came after the look at the monitor.
                self._report_opened(burst)
            burst.add(parse_frame(connection, frames))
        return False

    def _report_opened(self, burst: Burst) -> None:
        if not self._reported:
            self._reported = True
            self.deadline = None
            burst.add(ConnectionOpened(self.connection, None))
