"""Connections the subscriber makes: what is reported of each, in which order, and how it ends."""

import pytest

from indexer.arrivals import ConnectionLost, ConnectionOpened, FrameMalformed, FrameReceived
from tests.shell.zmq_peers import poll_until, raw_server, speak_zmtp_once


def connected(listening, peers, **limits):
    here, publisher = listening(**limits), peers.publisher()
    connection = here.subscriber.connect(publisher.endpoint)
    publisher.wait_for_subscriber()
    here.until_opened(1)
    return here, publisher, connection


def test_frames_come_between_opening_and_loss_in_their_order(listening, peers):
    """A connection is opened, then all its frames come in order, then it is lost once."""
    here, publisher, connection = connected(listening, peers)
    for seq in range(2000):
        publisher.publish(seq, b"batch %d" % seq)
    publisher.close()
    here.until_last(ConnectionLost)
    opened, *frames, lost = here.about(connection)
    assert opened == ConnectionOpened(connection, None)
    assert frames == [
        FrameReceived(connection, b"kv", seq, b"batch %d" % seq) for seq in range(2000)
    ]
    assert lost.connection == connection


def test_frames_unread_at_the_loss_are_still_reported(listening, peers):
    """Frames that wait in the socket while the queue is full survive the loss of the peer."""
    here, publisher, connection = connected(listening, peers, frames_max=10)
    for seq in range(500):
        publisher.publish(seq)
    poll_until(lambda: here.subscriber.stats.full)
    publisher.close()
    peers.wait_until_gone()  # Returns when everything has left and the connection is closed.
    here.until_last(ConnectionLost)
    assert here.seqs(connection) == list(range(500))


def test_a_refused_connection_is_lost_without_being_opened(listening, peers):
    """A port where nobody listens gives ConnectionLost at once, and nothing else."""
    here, publisher = listening(), peers.publisher()
    publisher.close()
    peers.wait_until_gone()
    connection = here.subscriber.connect(publisher.endpoint)
    here.until_last(ConnectionLost, wait_s=2)
    assert [type(arrival) for arrival in here.about(connection)] == [ConnectionLost]


def test_a_lost_connection_is_never_resumed(listening, peers):
    """A publisher that comes back on the same port is not heard until somebody connects anew."""
    here, publisher, connection = connected(listening, peers, frames_max=10)
    # The queue is full, so the socket of the lost connection lives on, and could reconnect.
    for seq in range(20):
        publisher.publish(seq)
    poll_until(lambda: here.subscriber.stats.full)
    publisher.close()
    peers.wait_until_gone()
    visitors = peers.publisher(bind=publisher.endpoint).socket.get_monitor_socket()
    assert not visitors.poll(500), "somebody came back"
    here.until_last(ConnectionLost)
    again = here.subscriber.connect(publisher.endpoint)
    here.until(lambda: bool(here.about(again)))
    assert again != connection
    assert here.about(again) == [ConnectionOpened(again, None)]


def test_closing_reports_the_loss_once(listening, peers):
    """A closed connection is lost exactly once, and its publisher's later frames are not heard."""
    here, publisher, connection = connected(listening, peers)
    here.subscriber.close(connection)
    here.subscriber.close(connection)
    publisher.wait_for_subscriber()  # The withdrawal of the subscription, sent by the TCP close.
    publisher.publish(1)
    other = peers.publisher()
    here.subscriber.connect(other.endpoint)
    here.until_opened(2)
    assert here.about(connection) == [
        ConnectionOpened(connection, None),
        ConnectionLost(connection, "closed by us"),
    ]


def test_a_peer_that_never_speaks_is_given_up(listening):
    """A TCP peer without a handshake is lost after connect_ms_max, unopened."""
    here = listening(connect_ms_max=200)
    with raw_server(lambda peer: None) as endpoint:
        connection = here.subscriber.connect(endpoint)
        here.until_last(ConnectionLost, wait_s=2)
    assert [type(arrival) for arrival in here.about(connection)] == [ConnectionLost]


def test_a_peer_that_falls_silent_is_noticed_by_heartbeats(listening):
    """A peer that stops answering heartbeats is lost, though its TCP connection stays up."""
    here = listening(heartbeat_ms=50)
    with raw_server(speak_zmtp_once) as endpoint:
        connection = here.subscriber.connect(endpoint)
        here.until_last(ConnectionLost, wait_s=3)
    kinds = [type(arrival) for arrival in here.about(connection)]
    assert kinds == [ConnectionOpened, ConnectionLost]


def test_a_peer_that_speaks_something_else_is_lost(listening):
    """An HTTP server behind the port gives one ConnectionLost."""
    here = listening(connect_ms_max=500)
    with raw_server(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as endpoint:
        connection = here.subscriber.connect(endpoint)
        here.until_last(ConnectionLost, wait_s=3)
    assert here.lost() == [connection]


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "tcp://host", "tcp://127.0.0.1:0", "tcp://127.0.0.1:99999"]
)
def test_an_invalid_endpoint_is_a_loss_with_a_reason(listening, endpoint):
    """Also an endpoint that cannot be tried has an id, and ends in ConnectionLost."""
    here = listening()
    connection = here.subscriber.connect(endpoint)
    lost = here.until_last(ConnectionLost, wait_s=2)
    assert lost.connection == connection
    assert repr(endpoint) in lost.why


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", bytes(8)],
        [b"", bytes(8), b"payload", b"more"],
        [b"x"] * 100,
        [b"", b"1234567", b"payload"],
        [b"", b"123456789", b"payload"],
    ],
)
def test_a_malformed_message_costs_only_itself(listening, peers, frames):
    """A message of another form is reported as such, and the next one is read in step."""
    here, publisher, connection = connected(listening, peers)
    publisher.publish(1)
    publisher.send(*frames)
    publisher.publish(2)
    here.until(lambda: here.seqs(connection) == [1, 2])
    assert [type(arrival) for arrival in here.about(connection)] == [
        ConnectionOpened,
        FrameReceived,
        FrameMalformed,
        FrameReceived,
    ]


def test_sequence_numbers_are_unsigned_and_big_endian(listening, peers):
    """The largest number and the order of the bytes come through."""
    here, publisher, connection = connected(listening, peers)
    publisher.publish(2**64 - 1)
    publisher.publish(1)
    here.until(lambda: here.seqs(connection) == [2**64 - 1, 1])


def test_an_oversized_message_ends_the_connection(listening, peers):
    """A message above message_bytes_max is never held in memory; its sender is lost."""
    here, publisher, connection = connected(listening, peers, message_bytes_max=1000)
    publisher.publish(1, b"x" * 1000)
    here.until(lambda: here.seqs(connection) == [1])
    publisher.publish(2, b"x" * 1001)
    here.until_last(ConnectionLost)
    assert here.seqs(connection) == [1]
