"""One dialed connection against a scripted socket: the orders that real ones rarely produce."""

import zmq

from indexer.arrival_queue import Burst
from indexer.arrivals import ConnectionId, ConnectionLost, ConnectionOpened, FrameReceived
from indexer.dialed_connection import DialedConnection

FRAME = [zmq.Frame(part) for part in (b"", bytes(8), b"batch")]
SUCCEEDED = (int(zmq.Event.HANDSHAKE_SUCCEEDED), 0)
DISCONNECTED = (int(zmq.Event.DISCONNECTED), 20)


class ScriptedSocket:
    """Stands in for a ``MonitoredSocket``."""

    def __init__(self) -> None:
        self.monitor: list[tuple[int, int]] = []
        self.messages: list[list[zmq.Frame]] = []

    def events(self):
        events, self.monitor = self.monitor, []
        return events

    def receive(self, already: int):
        return self.messages.pop(0) if self.messages else None


def dialed():
    socket = ScriptedSocket()
    return socket, DialedConnection(ConnectionId(1), socket, now=0.0, connect_ms_max=1000)


def visit(connection, now=0.0, room=256):
    burst = Burst(room, 2**20)
    more = connection.visit(burst, now)
    return more, [type(arrival) for arrival in burst.arrivals]


def test_a_frame_that_overtakes_its_handshake_comes_after_the_opening():
    """A frame proves the handshake: it opens the connection, once, and disarms the deadline."""
    socket, connection = dialed()
    socket.messages = [FRAME]
    assert visit(connection) == (False, [ConnectionOpened, FrameReceived])
    socket.monitor = [SUCCEEDED]
    connection.observe()
    assert visit(connection, now=9.0) == (False, [])


def test_a_loss_waits_until_the_socket_is_empty():
    """With more messages than room the loss is reported by a later visit, and ends it."""
    socket, connection = dialed()
    socket.monitor = [SUCCEEDED, DISCONNECTED]
    socket.messages = [FRAME, FRAME, FRAME]
    connection.observe()
    kinds = [ConnectionOpened, FrameReceived, FrameReceived]
    assert visit(connection, room=2) == (True, kinds)
    assert not connection.finished
    assert visit(connection) == (False, [FrameReceived, ConnectionLost])
    assert connection.finished


def test_an_established_connection_has_no_deadline():
    """The deadline is the handshake's alone."""
    socket, connection = dialed()
    socket.monitor = [SUCCEEDED]
    connection.observe()
    assert visit(connection, now=2.0) == (False, [ConnectionOpened])
    assert connection.deadline is None


def test_the_first_reason_of_a_loss_is_the_one_reported():
    """A failed handshake is followed by a disconnection, which explains nothing."""
    socket, connection = dialed()
    socket.monitor = [(int(zmq.Event.HANDSHAKE_FAILED_AUTH), 0), DISCONNECTED]
    connection.observe()
    burst = Burst(256, 2**20)
    connection.visit(burst, 0.0)
    assert burst.arrivals == [ConnectionLost(ConnectionId(1), "the peer demands authentication")]
