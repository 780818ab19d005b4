import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from benchmarks.sim.endpoints import PublisherSettings, offset_endpoint
from benchmarks.sim.events import BlockRemoved
from benchmarks.sim.publisher import END_OF_REPLAY, EventPublisher
from benchmarks.sim.wire import WireFormat

WAIT_MS = 3000
QUIET_MS = 150


class Peer:
    """A subscriber and a replay client of one publisher, on sockets of their own."""

    def __init__(self, version: str = "0.33", **settings) -> None:
        self.context = zmq.Context()
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.subscribe(b"")
        defaults = {"endpoint": "tcp://127.0.0.1:0", "bind": True, "topic": "kv@sim"}
        self.publisher = EventPublisher(
            WireFormat(version),
            PublisherSettings(replay_endpoint="tcp://127.0.0.1:0", **(defaults | settings)),
        )
        if self.publisher.settings.binds:
            self.subscribe()
        self.asker = self.context.socket(zmq.DEALER)
        self.asker.rcvhwm = 0
        self.asker.connect(self.publisher.replay_endpoint)

    def subscribe(self) -> None:
        """Returns once the subscription has reached the publisher, so that nothing is missed."""
        monitor = self.subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.subscriber.connect(self.publisher.endpoint)
        assert monitor.poll(WAIT_MS)
        self.subscriber.disable_monitor()
        monitor.close(0)
        # The subscription follows the handshake on the same connection; the loopback needs no more.
        self.subscriber.poll(50)

    def close(self) -> None:
        self.publisher.close()
        self.context.destroy(0)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.publisher.publish((BlockRemoved(bytes(31) + b"\x05"),))
        self.publisher.flush()

    def live(self) -> list[bytes] | None:
        """The next live frames, or None where none come."""
        return self.subscriber.recv_multipart() if self.subscriber.poll(WAIT_MS) else None

    def live_seqs(self, count: int) -> list[int]:
        return [int.from_bytes(self.live()[1], "big") for _ in range(count)]

    def is_quiet(self) -> bool:
        return not self.subscriber.poll(QUIET_MS)

    def replay(self, start: int) -> list[list[bytes]]:
        """Everything up to the end marker, that included."""
        self.asker.send_multipart([b"", start.to_bytes(8, "big")])
        replies: list[list[bytes]] = []
        while not replies or replies[-1][-2] != END_OF_REPLAY:
            assert self.asker.poll(WAIT_MS), "no end marker"
            replies.append(self.asker.recv_multipart())
        return replies

    def replayed_seqs(self, start: int) -> list[int]:
        return [int.from_bytes(frames[-2], "big") for frames in self.replay(start)[:-1]]


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_live_frames_are_topic_seq_payload(peer: Peer):
    """A batch is three frames: topic, eight big-endian bytes from 0, msgpack with the rank."""
    peer.publish(2)
    topic, seq, payload = peer.live()
    assert (topic, seq) == (b"kv@sim", bytes(8)) and peer.live()[1] == bytes(7) + b"\x01"
    timestamp, (event,), rank = msgspec.msgpack.decode(payload)
    assert timestamp > 1.7e9 and event["block_hashes"] == [5] and rank == 0


@pytest.mark.parametrize("version", ["0.23", "0.28", "0.33"])
def test_replay_has_the_version_s_frames(version: str):
    """Replies carry the topic since 0.26; the payloads are the live bytes; an end marker ends."""
    peer = Peer(version)
    try:
        peer.publish(3)
        live = [peer.live() for _ in range(3)]
        *replies, end = peer.replay(1)
        topic = [] if version == "0.23" else [b"kv@sim"]
        assert replies == [[b"", *topic, seq, payload] for _, seq, payload in live[1:]]
        assert end == [b"", *([] if version == "0.23" else [b""]), END_OF_REPLAY, b""]
    finally:
        peer.close()


def test_replay_past_the_newest_is_the_end_marker_alone(peer: Peer):
    """Asking beyond the last batch, or of an empty buffer, is answered by the end."""
    assert len(peer.replay(0)) == 1
    peer.publish(2)
    assert len(peer.replay(2)) == 1


def test_malformed_replay_request_gets_no_answer(peer: Peer):
    """A request without the empty delimiter, or with a frame more, is ignored."""
    peer.publish(1)
    peer.asker.send_multipart([bytes(8)])
    peer.asker.send_multipart([b"", bytes(8), b"more"])
    assert not peer.asker.poll(QUIET_MS)
    assert peer.replayed_seqs(0) == [0]


def test_buffer_keeps_the_last_steps():
    """Only the last buffer_steps batches can be replayed, whatever was asked for."""
    peer = Peer(buffer_steps=3)
    try:
        peer.publish(5)
        assert peer.replayed_seqs(0) == [2, 3, 4]
    finally:
        peer.close()


@pytest.mark.parametrize(("version", "whole"), [("0.31", False), ("0.33", True)])
def test_long_replay_is_whole_since_0_33(version: str, whole: bool):
    """A slow reader gets the whole buffer since 0.33; before, its end is silently cut off."""
    peer, steps = Peer(version), 2500
    # A reader that takes little: what is replayed piles up in the replay socket's own queue.
    slow = peer.context.socket(zmq.DEALER)
    slow.rcvhwm, slow.rcvbuf = 1, 8192
    try:
        slow.connect(peer.publisher.replay_endpoint)
        for _ in range(steps):
            peer.publisher.publish((BlockRemoved(bytes(32)),) * 200)
        peer.publisher.flush()
        slow.send_multipart([b"", bytes(8)])
        slow.poll(WAIT_MS)
        peer.publisher.flush()
        count = 0
        while slow.poll(QUIET_MS * 3):
            count += 1
            slow.recv_multipart()
        assert count == steps + 1 if whole else count < steps
    finally:
        slow.close(0)
        peer.close()


def test_publisher_without_bind_connects():
    """An endpoint without wildcard is connected to: the subscriber is the one to bind."""
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    port = subscriber.bind_to_random_port("tcp://127.0.0.1")
    settings = PublisherSettings(endpoint=f"tcp://127.0.0.1:{port}")
    publisher = EventPublisher(WireFormat("0.31"), settings)
    try:
        for _ in range(100):
            publisher.publish((BlockRemoved(bytes(32)),))
            if subscriber.poll(50):
                break
        assert subscriber.recv_multipart()[0] == b""
    finally:
        publisher.close()
        subscriber.close(0)
        context.term()


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("inproc://events", True),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://router:5557", False),
    ],
)
def test_binding_is_read_off_the_endpoint(endpoint: str, binds: bool):
    """Only wildcards, ipc and inproc bind; an address of all zeros connects, as in vLLM."""
    assert PublisherSettings(endpoint=endpoint).binds is binds


def test_ranks_offset_their_ports():
    """Rank r adds r to a tcp port but not to port 0; inproc gets a suffix; ipc has no ranks."""
    assert offset_endpoint("tcp://*:5557", 2) == "tcp://*:5559"
    assert offset_endpoint("tcp://*:0", 2) == "tcp://*:0"
    assert offset_endpoint("inproc://events", 1) == "inproc://events_dp1"
    assert offset_endpoint("ipc:///tmp/events", 0) == "ipc:///tmp/events"
    for endpoint, rank in (("ipc:///tmp/events", 1), ("tcp://host", 0), ("tcp://*:65535", 1)):
        with pytest.raises(ValueError):
            offset_endpoint(endpoint, rank)


def test_dropped_batches_can_be_replayed(peer: Peer):
    """A dropped batch has a number and is replayed, but never arrives live."""
    peer.publisher.drop(2)
    peer.publish(3)
    assert peer.live_seqs(1) == [2] and peer.is_quiet()
    assert peer.replayed_seqs(0) == [0, 1, 2]


def test_lost_batches_are_gone(peer: Peer):
    """A lost batch burns its number: a gap that no replay fills."""
    peer.publisher.lose(2)
    peer.publish(3)
    assert peer.live_seqs(1) == [2] and peer.replayed_seqs(0) == [2]


def test_garbage_takes_a_number_and_is_no_msgpack(peer: Peer):
    """Garbage arrives under the next number, replays the same, and decodes to nothing."""
    peer.publish(1)
    peer.publisher.garbage()
    peer.publish(1)
    live = [peer.live() for _ in range(3)]
    assert [int.from_bytes(frames[1], "big") for frames in live] == [0, 1, 2]
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(live[1][2])
    assert peer.replay(1)[0][-1] == live[1][2]


def test_stalled_publisher_catches_up(peer: Peer):
    """While stalled nothing is sent and nothing answered; afterwards everything is, in order."""
    # Longer than a busy machine takes for the next three lines.
    peer.publisher.stall(1.5)
    peer.publisher.publish((BlockRemoved(bytes(32)),))
    peer.asker.send_multipart([b"", bytes(8)])
    assert peer.is_quiet() and not peer.asker.poll(0)
    assert peer.live_seqs(1) == [0] and peer.asker.poll(WAIT_MS)


def test_restart_begins_again_at_zero(peer: Peer):
    """After a restart numbers begin at 0 on the same endpoints and nothing old is replayed."""
    peer.publish(3)
    assert peer.live_seqs(3) == [0, 1, 2]
    endpoints = peer.publisher.endpoint, peer.publisher.replay_endpoint
    monitor = peer.subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    peer.publisher.restart()
    peer.publisher.flush()
    assert (peer.publisher.endpoint, peer.publisher.replay_endpoint) == endpoints
    assert monitor.poll(WAIT_MS), "the subscriber does not come back"
    peer.subscriber.disable_monitor()
    monitor.close(0)
    peer.subscriber.poll(50)
    peer.publish(1)
    assert peer.live_seqs(1) == [0] and peer.replayed_seqs(0) == [0]


def test_taken_port_is_an_error_and_leaks_nothing(peer: Peer):
    """A publisher that cannot bind says which endpoints, and leaves no thread behind."""
    before = threading.active_count()
    settings = PublisherSettings(endpoint=peer.publisher.endpoint, bind=True)
    with pytest.raises(OSError, match=peer.publisher.endpoint):
        EventPublisher(WireFormat("0.33"), settings)
    assert threading.active_count() == before


def test_closing_ends_the_thread_even_while_stalled():
    """Closing cuts a stall short, joins the thread and may be repeated."""
    before = threading.active_count()
    peer = Peer()
    peer.publisher.stall(60)
    peer.close()
    peer.publisher.close()
    assert threading.active_count() == before
