"""What one stream decides, rule by rule; the seeded simulation covers how the rules meet."""

from hashlib import sha256

from indexer.stream import (
    HELD_FRAMES_MAX,
    PROBE_INTERVAL_S,
    REPLAY_FAILURES_MAX,
    RETRY_INTERVAL_S,
    ReplicaStream,
)
from indexer.stream_outputs import Apply, CancelReplay, Clear, LastBatch, Reconnect, RequestReplay

A = [b"batch %d" % seq for seq in range(40)]
B = [b"other %d" % seq for seq in range(40)]


def kinds(outputs: list[object]) -> list[type]:
    return [type(output) for output in outputs]


def synced(upto: int) -> ReplicaStream:
    """A stream that has applied batches 0..upto live and is confirmed."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    stream.frame(0, A[0], 0.0)
    stream.replay_batch(1, 0, A[0], 0.0)
    stream.replay_ended(1, 0.0)
    for seq in range(1, upto + 1):
        assert stream.frame(seq, A[seq], 0.0) == [Apply(seq, A[seq])]
    return stream


def test_a_first_connection_asks_for_the_whole_log() -> None:
    """The history comes by replay from 0, and live batches wait until it has."""
    stream = ReplicaStream(replay=True)
    assert stream.opened(0.0) == [RequestReplay(1, 0)]
    assert stream.frame(2, A[2], 0.0) == []
    assert stream.replay_batch(1, 0, A[0], 0.0) == [Apply(0, A[0])]
    assert stream.replay_batch(1, 1, A[1], 0.0) == [Apply(1, A[1])]
    assert stream.replay_batch(1, 2, A[2], 0.0) == [Apply(2, A[2])]
    assert stream.replay_ended(1, 0.0) == []
    assert stream.frame(3, A[3], 0.0) == [Apply(3, A[3])]


def test_an_unconfirmed_live_batch_is_asked_for_before_it_counts() -> None:
    """Replay and live are one log only when one batch came over both and was equal."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    stream.replay_batch(1, 0, A[0], 0.0)
    stream.replay_ended(1, 0.0)
    assert stream.frame(1, A[1], 0.0) == [RequestReplay(2, 0)]
    assert stream.replay_batch(2, 0, A[0], 0.0) == []
    assert stream.replay_batch(2, 1, A[1], 0.0) == [Apply(1, A[1])]


def test_live_and_replay_of_two_engines_are_told_apart() -> None:
    """Different bytes under one number: clear, and give the connection up."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    stream.frame(1, B[1], 0.0)
    stream.replay_batch(1, 0, A[0], 0.0)
    assert kinds(stream.replay_batch(1, 1, A[1], 0.0)) == [Clear, Reconnect]
    assert stream.closed and stream.last is None


def test_a_gap_is_replayed_from_the_last_applied_batch() -> None:
    """The last batch is asked for again, proves the incarnation, and the gap closes."""
    stream = synced(3)
    assert stream.frame(6, A[6], 0.0) == [RequestReplay(2, 3)]
    assert stream.replay_batch(2, 3, A[3], 0.0) == []
    outputs = [stream.replay_batch(2, seq, A[seq], 0.0) for seq in (4, 5, 6)]
    assert outputs == [[Apply(seq, A[seq])] for seq in (4, 5, 6)]
    assert stream.replay_ended(2, 0.0) == []
    assert stream.frame(7, A[7], 0.0) == [Apply(7, A[7])]


def test_a_live_batch_that_replay_overtook_is_dropped() -> None:
    """A number that was applied already never counts twice."""
    stream = synced(3)
    stream.frame(6, A[6], 0.0)
    for seq in (3, 4, 5, 6, 7):
        stream.replay_batch(2, seq, A[seq], 0.0)
    stream.replay_ended(2, 0.0)
    assert stream.frame(7, A[7], 0.0) == []
    assert stream.frame(8, A[8], 0.0) == [Apply(8, A[8])]


def test_a_burnt_number_clears_and_goes_on() -> None:
    """A hole directly behind the proof can never be filled: what follows is a mere suffix."""
    stream = synced(3)
    stream.frame(5, A[5], 0.0)
    stream.replay_batch(2, 3, A[3], 0.0)
    assert kinds(stream.replay_batch(2, 5, A[5], 0.0)) == [Clear, Apply]


def test_a_hole_inside_a_replay_is_asked_for_again() -> None:
    """What was lost on the way is asked for from where the replay stopped, not given up."""
    stream = synced(3)
    stream.frame(9, A[9], 0.0)
    stream.replay_batch(2, 3, A[3], 0.0)
    stream.replay_batch(2, 4, A[4], 0.0)
    assert stream.replay_batch(2, 7, A[7], 0.0) == [CancelReplay(2), RequestReplay(3, 4)]
    assert stream.replay_batch(2, 8, A[8], 0.0) == [], "a cancelled replay is not heard any more"


def test_a_missing_end_marker_is_asked_again() -> None:
    """A replay that breaks off goes on from where it stopped, after a pause."""
    stream = synced(3)
    stream.frame(9, A[9], 0.0)
    stream.replay_batch(2, 3, A[3], 0.0)
    stream.replay_batch(2, 4, A[4], 0.0)
    assert stream.replay_stopped(2, 1.0) == []
    assert stream.tick(1.0) == []
    assert stream.tick(1.0 + RETRY_INTERVAL_S) == [RequestReplay(3, 4)]


def test_a_silent_replay_endpoint_is_given_up() -> None:
    """Three times no answer: live batches count from here on, on an empty index."""
    stream = synced(3)
    outputs, now, request = stream.frame(6, A[6], 0.0), 0.0, 2
    for _ in range(REPLAY_FAILURES_MAX):
        outputs = stream.replay_stopped(request, now)
        now, request = now + 1.0, request + 1
        stream.tick(now)
    assert kinds(outputs) == [Clear, Apply]
    assert stream.frame(7, A[7], now) == [Apply(7, A[7])] and not stream.can_replay


def test_the_same_bytes_prove_the_same_incarnation() -> None:
    """A new connection goes on where the index stands, by bytes or by a kept digest."""
    digest = sha256(A[5]).digest()
    for resume in (LastBatch(5, payload=A[5]), LastBatch(5, digest=digest)):
        stream = ReplicaStream(replay=True, resume=resume)
        assert stream.opened(0.0) == [RequestReplay(1, 5)] and stream.recovering
        assert stream.replay_batch(1, 5, A[5], 0.0) == []
        assert stream.replay_batch(1, 6, A[6], 0.0) == [Apply(6, A[6])]
        assert stream.replay_ended(1, 0.0) == [] and not stream.recovering


def test_other_bytes_or_none_are_another_incarnation() -> None:
    """Whatever does not equal the last batch clears and is replayed from 0."""
    stream = ReplicaStream(replay=True, resume=LastBatch(5, payload=A[5]))
    stream.opened(0.0)
    assert kinds(stream.replay_batch(1, 5, B[5], 0.0)) == [Clear, RequestReplay]
    ended = ReplicaStream(replay=True, resume=LastBatch(5, payload=A[5]))
    ended.opened(0.0)
    outputs = ended.replay_ended(1, 0.0)
    assert kinds(outputs) == [Clear, RequestReplay] and outputs[1] == RequestReplay(2, 0)


def test_a_buffer_that_no_longer_reaches_back_clears() -> None:
    """Without the last batch there is no proof: what is left is applied to an empty index."""
    stream = ReplicaStream(replay=True, resume=LastBatch(5, payload=A[5]))
    stream.opened(0.0)
    assert kinds(stream.replay_batch(1, 9, A[9], 0.0)) == [Clear, Apply]


def test_a_confirmed_connection_to_another_incarnation_is_given_up() -> None:
    """What such a connection still delivers must never follow what its successor replays."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    for seq in (1, 3):
        stream.frame(seq, A[seq], 0.0)
    stream.replay_batch(1, 0, A[0], 0.0)
    stream.replay_batch(1, 1, A[1], 0.0)
    stream.replay_stopped(1, 0.0)
    assert stream.tick(RETRY_INTERVAL_S) == [RequestReplay(2, 1)]
    assert kinds(stream.replay_batch(2, 1, B[1], 1.0)) == [Clear, Reconnect]


def test_numbers_that_fall_back_are_a_restart() -> None:
    """Within one connection live numbers only grow."""
    stream = synced(3)
    outputs = stream.frame(0, B[0], 0.0)
    assert kinds(outputs) == [Clear, RequestReplay]
    assert isinstance(outputs[0], Clear) and outputs[0].restart


def test_a_silent_replica_is_probed() -> None:
    """Every two seconds its last batch is asked for again, and an answer counts as life."""
    stream = synced(3)
    assert stream.tick(PROBE_INTERVAL_S - 0.1) == []
    assert stream.tick(PROBE_INTERVAL_S) == [RequestReplay(2, 3)]
    stream.replay_batch(2, 3, A[3], 2.1)
    assert stream.replay_batch(2, 4, A[4], 2.1) == [Apply(4, A[4])], "a lost last batch is found"
    stream.replay_ended(2, 2.1)
    assert not stream.silent(4.0) and stream.silent(60.0)


def test_without_a_replay_endpoint_only_the_beginning_is_sure() -> None:
    """A reconnect clears, a gap clears, and what comes live is applied."""
    stream = ReplicaStream(replay=False, resume=LastBatch(5, payload=A[5]))
    assert kinds(stream.opened(0.0)) == [Clear]
    assert stream.frame(6, A[6], 0.0) == [Apply(6, A[6])]
    assert kinds(stream.frame(8, A[8], 0.0)) == [Clear, Apply]
    assert stream.tick(100.0) == []


def test_what_is_held_is_bounded() -> None:
    """Live frames beyond the bound are dropped, and replayed later."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    for seq in range(5, HELD_FRAMES_MAX + 100):
        assert stream.frame(seq, b"x", 0.0) == []
    assert len(stream._held) == HELD_FRAMES_MAX


def test_an_idle_probe_tells_when_there_was_nothing_newer() -> None:
    """The moment of the question counts, and a probe that brought more has none to tell."""
    stream = synced(1)
    assert stream.tick(PROBE_INTERVAL_S) == [RequestReplay(2, 1)]
    stream.replay_batch(2, 1, A[1], 2.5)
    stream.replay_ended(2, 2.6)
    assert stream.nothing_newer_at == PROBE_INTERVAL_S
    assert stream.tick(5.0) == [RequestReplay(3, 1)]
    stream.replay_batch(3, 1, A[1], 5.0)
    assert stream.replay_batch(3, 2, A[2], 5.0) == [Apply(2, A[2])]
    stream.replay_ended(3, 5.1)
    assert stream.nothing_newer_at == PROBE_INTERVAL_S


def test_an_engine_that_has_published_nothing_is_known_to_have() -> None:
    """Only once its whole log was asked for, and until the first batch or a clear."""
    stream = ReplicaStream(replay=True)
    stream.opened(0.0)
    assert not stream.nothing_published
    stream.replay_ended(1, 0.1)
    assert stream.nothing_published
    assert stream.frame(0, A[0], 1.0) == [Apply(0, A[0])]
    assert not stream.nothing_published
    assert not ReplicaStream(replay=False).nothing_published
