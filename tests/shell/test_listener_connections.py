"""Engines that connect to us over real sockets: who is who, and what happens when one dies."""

import socket

from indexer.arrivals import ConnectionLost, ConnectionOpened, FrameReceived
from tests.shell.zmq_peers import speak_zmtp_once


def listening_engines(listening, peers, count, endpoint="tcp://127.0.0.1:0", **limits):
    here = listening(**limits)
    listener = here.subscriber.bind(endpoint)
    engines = [peers.publisher(connect=here.endpoint_of(listener)) for _ in range(count)]
    for engine in engines:
        engine.wait_for_subscriber()
    here.until_opened(count)
    return here, listener, engines


def address(endpoint: str) -> tuple[str, int]:
    return "127.0.0.1", int(endpoint.rpartition(":")[2])


def senders(here) -> dict[bytes, set[int]]:
    """Payload -> connections it came from."""
    by_payload: dict[bytes, set[int]] = {}
    for frame in here.of(FrameReceived):
        by_payload.setdefault(frame.payload, set()).add(frame.connection)
    return by_payload


def test_publishers_of_one_listener_are_told_apart(listening, peers):
    """Each engine is a connection of its own, opened with the listener's id before its frames."""
    here, listener, engines = listening_engines(listening, peers, 3)
    for seq in range(300):
        for name, engine in enumerate(engines):
            engine.publish(seq, b"%d" % name)
    here.until(lambda: len(here.of(FrameReceived)) == 900)
    assert [opened.listener for opened in here.of(ConnectionOpened)] == [listener] * 3
    by_payload = senders(here)
    assert sorted(len(connections) for connections in by_payload.values()) == [1, 1, 1]
    assert len(set.union(*by_payload.values())) == 3
    for connection in set.union(*by_payload.values()):
        opened, *frames = here.about(connection)
        assert isinstance(opened, ConnectionOpened)
        assert [frame.seq for frame in frames] == list(range(300))


def test_one_of_two_publishers_dies(listening, peers):
    """The dying engine's frames are reported, then its loss; the other is heard on."""
    here, _, (dying, living) = listening_engines(listening, peers, 2)
    for seq in range(500):
        dying.publish(seq, b"dying")
        living.publish(seq, b"living")
    dying.close()
    here.until(lambda: len(here.lost()) == 1)
    living.publish(500, b"living")
    here.until(lambda: len(here.of(FrameReceived)) == 1001)
    (lost,) = here.lost()
    assert senders(here)[b"dying"] == {lost}
    assert here.seqs(lost) == list(range(500))
    assert isinstance(here.about(lost)[-1], ConnectionLost)
    (other,) = senders(here)[b"living"]
    assert here.seqs(other) == list(range(501))


def test_engines_that_come_and_go_are_never_confused(listening, peers):
    """With descriptors reused again and again no frame is reported of another engine."""
    here = listening()
    listener = here.subscriber.bind("tcp://127.0.0.1:0")
    for name in range(30):
        engine = peers.publisher(connect=here.endpoint_of(listener))
        engine.wait_for_subscriber()
        for seq in range(20):
            engine.publish(seq, b"%d" % name)
        engine.close()
    here.until(lambda: len(here.lost()) == len(here.of(ConnectionOpened)) > 0)
    assert all(len(connections) == 1 for connections in senders(here).values())
    for connection in here.lost():
        kinds = [type(arrival) for arrival in here.about(connection)]
        frames = len(kinds) - 2
        assert kinds == [ConnectionOpened, *[FrameReceived] * frames, ConnectionLost]
    dropped = here.subscriber.stats.unattributed_total
    assert len(here.of(FrameReceived)) + dropped == here.subscriber.stats.received_total


def test_a_peer_stuck_in_its_handshake_hides_nobody(listening, peers):
    """While a stranger never finishes its handshake, an engine is heard from its first frame."""
    here = listening()
    listener = here.subscriber.bind("tcp://127.0.0.1:0")
    with socket.create_connection(address(here.endpoint_of(listener))):
        engine = peers.publisher(connect=here.endpoint_of(listener))
        engine.wait_for_subscriber()
        engine.publish(1)
        here.until(lambda: len(here.of(FrameReceived)) == 1)
        assert len(here.of(ConnectionOpened)) == 1


def test_strangers_are_not_reported(listening, peers):
    """Who connects without speaking ZMTP is neither opened nor lost."""
    here = listening()
    listener = here.subscriber.bind("tcp://127.0.0.1:0")
    for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(70)):
        with socket.create_connection(address(here.endpoint_of(listener))) as stranger:
            stranger.sendall(greeting)
    peers.publisher(connect=here.endpoint_of(listener)).wait_for_subscriber()
    here.until_opened(1)
    assert len(here.arrivals) == 1


def test_an_engine_that_falls_silent_is_lost(listening):
    """A bound connection whose peer answers no heartbeat is lost."""
    here = listening(heartbeat_ms=50)
    listener = here.subscriber.bind("tcp://127.0.0.1:0")
    with socket.create_connection(address(here.endpoint_of(listener))) as engine:
        speak_zmtp_once(engine)
        (connection,) = here.until_opened(1)
        here.until_last(ConnectionLost, wait_s=3)
    assert here.lost() == [connection]


def test_a_closed_connection_is_not_heard_again(listening, peers):
    """Closing one connection of a listener reports its loss once and leaves the others alone."""
    here, _, engines = listening_engines(listening, peers, 2)
    for engine in engines:
        engine.publish(0, engine.endpoint.encode())
    here.until(lambda: len(here.of(FrameReceived)) == 2)
    closed, other = (frame.connection for frame in here.of(FrameReceived))
    here.subscriber.close(closed)
    here.until_last(ConnectionLost)
    for engine in engines:
        engine.publish(1)
    here.until(lambda: here.seqs(other) == [0, 1])
    for engine in engines:
        engine.close()
    here.until(lambda: len(here.lost()) == 2)
    assert here.seqs(closed) == [0]
    assert here.lost() == [closed, other]


def test_engines_on_a_full_listener_are_heard_afterwards(listening, peers):
    """What two engines sent before they died while the queue was full is reported in the end."""
    here, _, engines = listening_engines(listening, peers, 2, frames_max=10)
    for seq in range(200):
        for name, engine in enumerate(engines):
            engine.publish(seq, b"%d" % name)
    for engine in engines:
        engine.close()
    peers.wait_until_gone()
    here.until(lambda: len(here.lost()) == 2)
    assert [here.seqs(connection) for connection in here.lost()] == [list(range(200))] * 2


def test_unix_sockets_carry_events_too(listening, peers, tmp_path):
    """A listener on ipc:// tells its engines apart as well."""
    here, _, engines = listening_engines(listening, peers, 2, f"ipc://{tmp_path}/events")
    for name, engine in enumerate(engines):
        engine.publish(0, b"%d" % name)
    here.until(lambda: len(here.of(FrameReceived)) == 2)
    assert len({frame.connection for frame in here.of(FrameReceived)}) == 2
