"""Replays: both reply formats, and every way in which the end marker may not come."""

import pytest

from indexer.arrivals import ReplayBatchReceived, ReplayEnded, ReplayStopped
from tests.shell.zmq_peers import END


def seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def asked(listening, peers, start_seq=0, **limits):
    here, server = listening(**limits), peers.replay_server()
    replay = here.subscriber.replay(server.endpoint, start_seq)
    request = server.receive()
    return here, server, replay, request


@pytest.mark.parametrize(
    ("head", "end"),
    [
        ([b""], [b"", END, b""]),
        ([b"", b"topic"], [b"", b"", END, b""]),
        ([b"", b""], [b"", b"", END, b"ignored"]),
        ([b"", b""], [b"", b"", seq_bytes(3), b""]),
    ],
    ids=["before 0.26", "since 0.26", "marker with payload", "empty payload"],
)
def test_replies_of_every_version_are_read(listening, peers, head, end):
    """Batches come in order and once, and the end marker ends them."""
    here, server, replay, request = asked(listening, peers, start_seq=2**40 + 5)
    assert request == [b"", seq_bytes(2**40 + 5)]
    for seq in range(2000):
        server.reply(*head, seq_bytes(seq), b"batch %d" % seq)
    server.reply(*end)
    server.reply(*head, seq_bytes(7), b"after the end")
    here.until_last(ReplayEnded)
    assert here.about(replay) == [
        *(ReplayBatchReceived(replay, seq, b"batch %d" % seq) for seq in range(2000)),
        ReplayEnded(replay),
    ]


def test_a_missing_end_marker_is_silence(listening, peers):
    """Batches without an end marker are followed by ReplayStopped after the silence."""
    here, server, replay, _ = asked(listening, peers, replay_silence_ms_max=200)
    server.reply(b"", seq_bytes(4), b"batch")
    here.until_last(ReplayStopped, wait_s=2)
    assert here.about(replay) == [
        ReplayBatchReceived(replay, 4, b"batch"),
        ReplayStopped(replay, "silent for 200 ms"),
    ]


def test_a_slow_replay_is_not_silent(listening, peers):
    """Silence is counted from the last batch, not from the request."""
    here, server, replay, _ = asked(listening, peers, replay_silence_ms_max=400)
    for seq in range(6):
        server.reply(b"", seq_bytes(seq), b"batch")
        server.socket.poll(100)  # Nothing comes; this is the pace.
    server.reply(b"", END, b"")
    here.until_last(ReplayEnded)
    assert len(here.about(replay)) == 7


def test_an_unanswered_request_is_silence(listening, peers):
    """A server that answers nothing, as vLLM does to malformed requests, stops the replay."""
    here, _, replay, _ = asked(listening, peers, replay_silence_ms_max=100)
    here.until_last(ReplayStopped, wait_s=2)
    assert here.about(replay) == [ReplayStopped(replay, "silent for 100 ms")]


@pytest.mark.parametrize(
    "reply",
    [
        [b""],
        [b"payload"],
        [seq_bytes(1), b"payload"],
        [b"", b"topic", b"1234567", b"payload"],
        [b"", seq_bytes(1), b"topic", b"payload"],
        [b"", b"", b""],
        [b"x"] * 50,
    ],
)
def test_a_malformed_reply_stops_the_replay(listening, peers, reply):
    """What is no reply of vLLM's is not guessed at; nothing after it is reported."""
    here, server, replay, _ = asked(listening, peers)
    server.reply(b"", seq_bytes(1), b"batch")
    server.reply(*reply)
    server.reply(b"", END, b"")
    here.until_last(ReplayStopped, wait_s=2)
    batch, stopped = here.about(replay)
    assert batch == ReplayBatchReceived(replay, 1, b"batch")
    assert stopped.why.startswith("a reply")


def test_a_lost_connection_stops_the_replay_after_its_batches(listening, peers):
    """What came before the connection closed is reported before ReplayStopped."""
    here, server, replay, _ = asked(listening, peers)
    for seq in range(100):
        server.reply(b"", seq_bytes(seq), b"batch")
    server.close()
    here.until_last(ReplayStopped)
    *batches, stopped = here.about(replay)
    assert [batch.seq for batch in batches] == list(range(100))
    assert "closed" in stopped.why


def test_a_refused_replay_stops_at_once(listening, peers):
    """A replay port where nobody listens does not wait for the silence."""
    server = peers.replay_server()
    server.close()
    peers.wait_until_gone()
    here = listening(replay_silence_ms_max=60_000)
    replay = here.subscriber.replay(server.endpoint, 0)
    here.until_last(ReplayStopped, wait_s=2)
    assert [type(arrival) for arrival in here.about(replay)] == [ReplayStopped]


def test_a_replay_from_a_publisher_stops(listening, peers):
    """Asking the port of the live events gives ReplayStopped, not silence for ever."""
    here, publisher = listening(), peers.publisher()
    replay = here.subscriber.replay(publisher.endpoint, 0)
    here.until_last(ReplayStopped, wait_s=3)
    assert [type(arrival) for arrival in here.about(replay)] == [ReplayStopped]


def test_an_invalid_endpoint_stops_the_replay(listening):
    """Also a replay that cannot be asked for has an id and an end."""
    here = listening()
    replay = here.subscriber.replay("tcp://*:5558", 0)
    here.until_last(ReplayStopped, wait_s=2)
    assert [type(arrival) for arrival in here.about(replay)] == [ReplayStopped]


def test_cancelling_ends_a_replay_once(listening, peers):
    """A cancelled replay is stopped exactly once and reports no batch afterwards."""
    here, server, replay, _ = asked(listening, peers)
    here.subscriber.cancel_replay(replay)
    here.subscriber.cancel_replay(replay)
    here.until_last(ReplayStopped)
    server.reply(b"", seq_bytes(1), b"batch")
    other = here.subscriber.replay(server.endpoint, 0)
    server.receive()
    server.reply(b"", END, b"")
    here.until_last(ReplayEnded)
    assert here.about(replay) == [ReplayStopped(replay, "cancelled")]
    assert here.about(other) == [ReplayEnded(other)]
