"""What one connection delivered -> what to do: the continuity of an engine's event log.

A stream object lives exactly as long as one connection to one publisher (one DP rank). It hears
what arrived and answers with what to do; it never decodes a payload. Rules (design, decisions 5
and 7):

* Applying any suffix of the log to an empty replica is safe. Applying across a hole, or a batch
  twice, is not. So a gap is closed by replay, and where that fails: clear, and go on from there.
* Sequence numbers restart with the engine, and nothing on the wire names the incarnation. Each
  replay asks again for the last applied batch: the same bytes (they carry the engine's clock) prove
  the same incarnation. Other bytes, or a log that ends before it, prove another one: clear, and
  replay from 0 (a new connection's first proof) or reconnect (an established one has died unseen).
* Live and replay come over two connections, hence maybe from two incarnations. Live frames are held
  until one batch that came over both ways was found equal; from then on they are one log.
* Within one connection live sequence numbers only grow; one that falls back is a restart.
* A hole inside a replay: what was lost on the way is asked for again from where the replay stopped;
  a hole directly behind the batch that was asked for can never be filled: clear.
* A replay without an end marker is asked again from where it stopped. After three in a row that
  brought nothing new the replay is given up until it answers a probe, and a gap clears.
* While a replica is silent its last batch is asked again every two seconds: the only way to notice
  a lost last batch, a half-open connection or a silent restart.
"""

from collections import deque
from dataclasses import dataclass

from indexer.stream_outputs import (
    Apply,
    CancelReplay,
    Clear,
    LastBatch,
    Output,
    Reconnect,
    RequestReplay,
)

# While silent, the last batch is asked again this often (design, decision 7).
PROBE_INTERVAL_S = 2.0
# Replays that broke off are asked again after this long, so that a dead endpoint is not hammered.
RETRY_INTERVAL_S = 0.5
REPLAY_FAILURES_MAX = 3
# Replays in a row that ended in order and yet did not lead up to what is held: the source is
# another engine's. The race between the end of a replay and the next live batch needs two at most.
ROUNDS_MAX = 5
# Live frames held while a replay runs; beyond it they are dropped and replayed later.
HELD_FRAMES_MAX = 10_000
HELD_BYTES_MAX = 64 * 2**20
# No word from the engine for this long, although it was asked three times.
SILENT_S = 3 * PROBE_INTERVAL_S + 2.0


@dataclass(slots=True)
class _Replay:
    """The replay under way. ``proof`` is the batch its first reply must equal."""

    request: int
    proof: LastBatch | None
    unproven: bool
    asked_at: float
    progressed: bool = False


class ReplicaStream:
    """See the module's rules. ``resume`` is where the replica's index stands, None when empty."""

    def __init__(self, *, replay: bool, resume: LastBatch | None = None, now: float = 0.0) -> None:
        self.last = resume
        self.closed = False
        # False for an engine that connects to us and has not spoken yet: only replays tell of it.
        self.connected = True
        self.highest_seen = -1 if resume is None else resume.seq
        self.replays = 0
        # When the log was last asked for more than is applied, and had no more.
        self.nothing_newer_at: float | None = None
        self._replay_configured = replay
        self._replay_lost = False
        # Live and replay are known to be one log; and self.last is known to belong to it.
        self._confirmed = not replay
        self._anchored = False
        self._replay: _Replay | None = None
        self._retry_at: float | None = None
        self._failures = 0
        self._rounds = 0
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._last_live_seq = -1
        self._heard_at = now
        self._asked_at = now

    def __repr__(self) -> str:
        return (
            f"<ReplicaStream seq {self.last.seq if self.last else None},"
            f" {len(self._held)} held, {'replaying' if self._replay else 'live'}>"
        )

    # What the shell may ask.

    @property
    def recovering(self) -> bool:
        """The index may be behind for a known reason that is being dealt with."""
        catching_up = self._replay is not None and (not self._anchored or bool(self._held))
        waiting = self._retry_at is not None or not self.connected
        return waiting or catching_up or not self._settled

    @property
    def _settled(self) -> bool:
        return self._anchored or not self.can_replay

    @property
    def lag_batches(self) -> int:
        """Batches known to exist and not yet applied."""
        return max(0, self.highest_seen - (self.last.seq if self.last else -1))

    @property
    def nothing_published(self) -> bool:
        """The whole log was asked for, and there was none."""
        return self.last is None and self.nothing_newer_at is not None and not self._held

    def silent(self, now: float) -> bool:
        """Asked, and not answered for longer than any engine step takes."""
        return self._replay_configured and now - self._heard_at > SILENT_S

    @property
    def can_replay(self) -> bool:
        """A replay endpoint is configured and was not given up."""
        return self._replay_configured and not self._replay_lost

    # What happened.

    def opened(self, now: float) -> list[Output]:
        """The connection stands: prove continuity, or begin at the beginning."""
        self._heard_at = now
        if self.can_replay:
            return [self._request(now)]
        if self.last is None:
            return []
        self.last = None
        return [Clear("continuity cannot be proven without a replay endpoint")]

    def frame(self, seq: int, payload: bytes, now: float) -> list[Output]:
        """A live batch arrived."""
        if self.closed:
            return []
        self._heard_at = self._asked_at = now
        self.highest_seen = max(self.highest_seen, seq)
        last = self.last
        if seq <= self._last_live_seq:
            return self._restarted(seq, payload, now)
        self._last_live_seq = seq
        if self._confirmed and last is not None and seq == last.seq + 1 and not self._held:
            self.last = LastBatch(seq, payload)
            return [Apply(seq, payload)]
        self._hold(seq, payload)
        return [] if self._replay or self._retry_at is not None else self._drain(now)

    def replay_batch(self, request: int, seq: int, payload: bytes, now: float) -> list[Output]:
        """A reply of the replay: the proof first, then batches to apply."""
        replay = self._replay
        if self.closed or replay is None or replay.request != request:
            return []
        self._heard_at = now
        self.highest_seen = max(self.highest_seen, seq)
        outputs: list[Output] = []
        if replay.unproven:
            replay.unproven = False
            assert replay.proof is not None
            if replay.proof.same(seq, payload):
                self._anchored = True
                return self._compare_with_held(seq, payload)
            if seq <= replay.proof.seq:
                return self._other_incarnation(now)
            # The last applied batch has left the engine's buffer: what comes is a mere suffix, and
            # whether it is of the log that is live has to be found out again.
            self._confirmed = False
            outputs.append(self._clear("the engine's replay buffer no longer reaches back"))
        return outputs + self._replayed(replay, seq, payload, now)

    def replay_ended(self, request: int, now: float) -> list[Output]:
        """The end marker came: nothing newer existed."""
        replay = self._replay
        if self.closed or replay is None or replay.request != request:
            return []
        self._heard_at = self._asked_at = now
        self._failures = 0
        self._replay_lost = False
        if replay.unproven:
            return self._other_incarnation(now)
        if not replay.progressed:
            self.nothing_newer_at = replay.asked_at
        self._replay = None
        self._anchored = True
        return self._drain(now)

    def replay_stopped(self, request: int, now: float) -> list[Output]:
        """The replay broke off without an end marker."""
        replay = self._replay
        if self.closed or replay is None or replay.request != request:
            return []
        self._replay = None
        self._failures = 0 if replay.progressed else self._failures + 1
        if self._failures < REPLAY_FAILURES_MAX:
            self._retry_at = now + RETRY_INTERVAL_S
            return []
        if not self.connected:
            # Nothing comes live, so there is nothing to go on with: keep what is known, and ask.
            self._retry_at = now + PROBE_INTERVAL_S
            return []
        return self._give_up_replay(now)

    def tick(self, now: float) -> list[Output]:
        """Time passed: retry what broke off, probe what is silent."""
        if self.closed or self._replay is not None or not self._replay_configured:
            return []
        if self._retry_at is not None:
            return [self._request(now)] if now >= self._retry_at else []
        if now - max(self._heard_at, self._asked_at) >= PROBE_INTERVAL_S:
            return [self._request(now)]
        return []

    # How it is decided.

    def _request(self, now: float) -> RequestReplay:
        self._retry_at = None
        self._asked_at = now
        self.replays += 1
        self._replay = _Replay(self.replays, self.last, self.last is not None, now)
        return RequestReplay(self.replays, self.last.seq if self.last else 0)

    def _hold(self, seq: int, payload: bytes) -> None:
        if len(self._held) < HELD_FRAMES_MAX and self._held_bytes < HELD_BYTES_MAX:
            self._held.append((seq, payload))
            self._held_bytes += len(payload)

    def _release(self) -> tuple[int, bytes]:
        seq, payload = self._held.popleft()
        self._held_bytes -= len(payload)
        return seq, payload

    def _clear(self, reason: str, *, restart: bool = False) -> Clear:
        self.last = self.nothing_newer_at = None
        if restart:
            self.highest_seen = self._held[-1][0] if self._held else -1
        return Clear(reason, restart)

    def _restarted(self, seq: int, payload: bytes, now: float) -> list[Output]:
        """Live numbers fell back: the publisher behind this connection is a new one."""
        outputs: list[Output] = [self._clear("sequence numbers fell back", restart=True)]
        if self._replay is not None:
            outputs.append(CancelReplay(self._replay.request))
            self._replay = None
        self._held.clear()
        self._held_bytes = 0
        self._last_live_seq = self.highest_seen = seq
        self._confirmed = not self.can_replay
        self._anchored = False
        self._rounds = self._failures = 0
        self._hold(seq, payload)
        return outputs + ([self._request(now)] if self.can_replay else self._drain(now))

    def _replayed(self, replay: _Replay, seq: int, payload: bytes, now: float) -> list[Output]:
        """One reply behind the proof: the next batch, an old one, or a hole."""
        outputs: list[Output] = []
        last = self.last
        if last is not None and seq <= last.seq:
            # A live batch was faster. It still shows that the replay reaches beyond its proof.
            replay.progressed = True
            return []
        if last is not None and seq > last.seq + 1:
            if replay.progressed:
                return [CancelReplay(replay.request), self._request(now)]
            outputs.append(self._clear("a hole that no replay fills"))
        replay.progressed = True
        conflict = self._compare_with_held(seq, payload)
        if conflict:
            return conflict
        self.last = LastBatch(seq, payload)
        outputs.append(Apply(seq, payload))
        return outputs

    def _compare_with_held(self, seq: int, payload: bytes) -> list[Output]:
        """Drops what both ways delivered; equal bytes prove live and replay to be one log."""
        while self._held and self._held[0][0] <= seq:
            held_seq, held = self._release()
            if held_seq == seq:
                if held != payload:
                    return self._give_up_connection("live and replay come from two engines")
                self._confirmed = True
        return []

    def _other_incarnation(self, now: float) -> list[Output]:
        """The replay comes from another process than what was applied; maybe than what is live."""
        if self._anchored or self._confirmed:
            return self._give_up_connection("the engine behind this connection was restarted")
        self._replay = None
        return [self._clear("the engine was restarted", restart=True), self._request(now)]

    def _give_up_connection(self, reason: str) -> list[Output]:
        self.closed = True
        self._replay = None
        return [self._clear(reason, restart=True), Reconnect(reason)]

    def _give_up_replay(self, now: float) -> list[Output]:
        """Nothing new three times in a row: go on with what comes live."""
        self._replay_lost = True
        outputs: list[Output] = []
        if not self._anchored and not self._confirmed and self.last is not None:
            outputs.append(self._clear("continuity could not be proven: the replay is silent"))
        self._anchored = True
        return outputs + self._drain(now)

    def _drain(self, now: float) -> list[Output]:
        """Applies held live frames as far as they continue the log."""
        outputs: list[Output] = []
        while self._held:
            seq, payload = self._held[0]
            last = self.last
            if last is not None and seq <= last.seq:
                self._release()
                if seq == last.seq and not self._confirmed:
                    if not last.same(seq, payload):
                        return outputs + self._give_up_connection(
                            "live and replay come from two engines"
                        )
                    self._confirmed = True
                continue
            if not self._continues(seq):
                if self.can_replay and self._rounds < ROUNDS_MAX:
                    self._rounds += 1
                    return [*outputs, self._request(now)]
                outputs.extend(self._go_on_without())
            self._release()
            self._confirmed = True
            self.last = LastBatch(seq, payload)
            outputs.append(Apply(seq, payload))
        self._rounds = 0
        return outputs

    def _continues(self, seq: int) -> bool:
        """Whether a live batch may be applied next. The start of a log needs no proof."""
        if self.last is None:
            return seq == 0
        return self._confirmed and seq == self.last.seq + 1

    def _go_on_without(self) -> list[Output]:
        """No replay can help: what is applied now does not continue what was."""
        if not self._confirmed:
            self._replay_lost = True
        return [self._clear("a gap that cannot be replayed")] if self.last is not None else []
