"""The bounded queue between reader and event loop, and the reader thread's manners."""

import os
import sys
import threading

import pytest
import zmq

from indexer.arrivals import (
    ConnectionLost,
    FrameReceived,
    ReplayBatchReceived,
    ReplayEnded,
    ReplayStopped,
)
from indexer.subscriber import ListenError, Subscriber
from tests.shell.zmq_peers import Listening, Peers, poll_until


def connected(listening, peers, **limits):
    here, publisher = listening(**limits), peers.publisher()
    connection = here.subscriber.connect(publisher.endpoint)
    publisher.wait_for_subscriber()
    here.until_opened(1)
    return here, publisher, connection


@pytest.mark.parametrize("limits", [{"frames_max": 50}, {"bytes_max": 50 * 102}])
def test_a_full_queue_stops_the_reading_and_loses_nothing(listening, peers, limits):
    """At a limit reading stops; taking resumes it, and every frame comes in order."""
    here, publisher, connection = connected(listening, peers, **limits)
    other = peers.publisher()
    here.subscriber.connect(other.endpoint)
    other.wait_for_subscriber()
    here.until_opened(2)
    for seq in range(1000):
        publisher.publish(seq, b"x" * 100)
    poll_until(lambda: here.subscriber.stats.full)
    other.publish(0)  # A socket that becomes readable now is not looked at again and again.
    assert here.subscriber.stats.queued_frames == 50
    assert here.subscriber.stats.queued_bytes == 50 * 102
    assert here.turns_within(0.1) <= 3
    assert here.subscriber.stats.received_total == 50
    here.until(lambda: len(here.seqs(connection)) == 1000)
    assert here.seqs(connection) == list(range(1000))
    assert here.subscriber.stats.full_total >= 2
    assert not here.subscriber.stats.full
    assert here.subscriber.stats.queued_bytes == 0


def test_one_taken_frame_is_room_for_one(listening, peers):
    """Whoever takes single frames from a full queue gets all of them."""
    here, publisher, connection = connected(listening, peers, frames_max=3)
    for seq in range(50):
        publisher.publish(seq)
    poll_until(lambda: here.subscriber.stats.full)

    def take_one() -> bool:
        here.take(1)
        return len(here.seqs(connection)) == 50

    poll_until(take_one)
    assert here.seqs(connection) == list(range(50))


def test_the_event_loop_is_woken_only_for_an_empty_queue(listening, peers):
    """However much arrives, wake is called once until everything was taken."""
    here, publisher, _ = connected(listening, peers)
    wakes = here.wakes
    for seq in range(300):
        publisher.publish(seq)
    poll_until(lambda: here.subscriber.stats.queued_frames == 300)
    assert here.wakes == wakes + 1
    here.take()
    publisher.publish(300)
    poll_until(lambda: here.subscriber.stats.queued_frames == 1)
    assert here.wakes == wakes + 2


def test_silence_is_not_counted_while_the_queue_is_full(listening, peers):
    """A replay that we keep waiting is not stopped for being silent."""
    here = listening(frames_max=5, replay_silence_ms_max=300)
    server = peers.replay_server()
    replay = here.subscriber.replay(server.endpoint, 0)
    server.receive()
    for seq in range(20):
        server.reply(b"", seq.to_bytes(8, "big"), b"batch")
    poll_until(lambda: here.subscriber.stats.full)
    assert here.turns_within(0.7) <= 3
    here.until(lambda: len(here.of(ReplayBatchReceived)) == 20)
    assert not here.of(ReplayStopped)
    here.until_last(ReplayStopped)
    assert here.about(replay)[-1] == ReplayStopped(replay, "silent for 300 ms")


def test_silence_starts_anew_when_there_is_room_again(listening, peers):
    """A replay that had nothing to say while the queue was full gets its whole time afterwards."""
    here, publisher, _ = connected(listening, peers, frames_max=5, replay_silence_ms_max=500)
    server = peers.replay_server()
    replay = here.subscriber.replay(server.endpoint, 0)
    server.receive()
    for seq in range(6):
        publisher.publish(seq)
    poll_until(lambda: here.subscriber.stats.full)
    here.turns_within(0.8)
    here.take()
    poll_until(lambda: here.subscriber.stats.queued_frames > 0)  # It reads again.
    server.reply(b"", b"\xff" * 8, b"")
    here.until(lambda: bool(here.about(replay)))
    assert here.about(replay) == [ReplayEnded(replay)]


def test_an_idle_reader_sleeps(listening, peers):
    """With open connections and nothing to read the reader thread does not wake up."""
    here, _, _ = connected(listening, peers)
    here.subscriber.bind("tcp://127.0.0.1:0")
    assert here.turns_within(0.3) <= 2


def test_a_fault_ends_only_its_own_connection(listening, peers):
    """An exception at one socket is its connection's loss; the others go on."""
    here, publisher, connection = connected(listening, peers)
    other = peers.publisher()
    faulty = here.subscriber.connect(other.endpoint)
    other.wait_for_subscriber()
    here.until_opened(2)

    def explode(*_):
        raise ZeroDivisionError("of the test")

    here.subscriber._reader._channels[faulty].visit = explode
    other.publish(1)
    here.until_last(ConnectionLost)
    assert here.lost() == [faulty]
    assert "of the test" in here.arrivals[-1].why
    publisher.publish(1)
    here.until(lambda: here.seqs(connection) == [1])


def test_a_wake_that_raises_does_not_end_the_reader(peers):
    """A closed event loop or any other fault of the callback leaves the reader running."""

    def wake() -> None:
        raise RuntimeError("of the test")

    subscriber = Subscriber(wake)
    subscriber.start()
    publisher = peers.publisher()
    subscriber.connect(publisher.endpoint)
    publisher.wait_for_subscriber()
    poll_until(lambda: bool(subscriber.take(1)))
    publisher.publish(1)
    poll_until(lambda: bool(subscriber.take(1)))
    subscriber.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_stopping_while_busy_leaves_no_thread_and_no_descriptor():
    """stop() returns under load, joins the thread and closes every socket; again is no error."""
    zmq.Context().term()  # What the process allocates once is not counted.
    before = len(os.listdir("/proc/self/fd"))
    peers = Peers()
    here, publisher = Listening(frames_max=100), peers.publisher()
    connections = [here.subscriber.connect(publisher.endpoint) for _ in range(3)]
    listener = here.subscriber.bind("tcp://127.0.0.1:0")
    engine = peers.publisher(connect=here.endpoint_of(listener))
    here.subscriber.replay(publisher.endpoint, 0)
    here.until_opened(len(connections) + 1)
    busy, done = threading.Event(), threading.Event()

    def publish() -> None:
        seq = 0
        while not done.is_set():
            publisher.publish(seq)
            engine.publish(seq)
            seq += 1
            if seq > 200:
                busy.set()

    sender = threading.Thread(target=publish)
    sender.start()
    try:
        assert busy.wait(10)
        poll_until(lambda: here.subscriber.stats.received_total > 0)
        here.take(50)
        here.subscriber.stop()
        here.subscriber.stop()
    finally:
        done.set()
        sender.join()
        peers.destroy()
    assert not [thread for thread in threading.enumerate() if thread.name == "subscriber"]
    assert len(os.listdir("/proc/self/fd")) == before
    here.take()
    assert here.of(FrameReceived)


def test_stopping_a_subscriber_that_never_ran():
    """A subscriber that was not started holds nothing after stop(), and may be asked again."""
    subscriber = Subscriber(lambda: None)
    subscriber.stop()
    subscriber.stop()
    assert subscriber.take(1) == []


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "tcp://127.0.0.1:99999", "tcp://203.0.113.7:0", "ipc:///no/such/dir/x"]
)
def test_an_endpoint_that_cannot_be_listened_on_is_a_typed_error(listening, endpoint):
    """bind() raises ListenError naming the endpoint."""
    with pytest.raises(ListenError, match="cannot listen on") as caught:
        listening().subscriber.bind(endpoint)
    assert endpoint in str(caught.value)


def test_an_address_in_use_says_so(listening):
    """The second listener of an address is told what to do."""
    here = listening()
    endpoint = here.endpoint_of(here.subscriber.bind("tcp://127.0.0.1:0"))
    with pytest.raises(ListenError, match="in use; stop the process"):
        here.subscriber.bind(endpoint)
