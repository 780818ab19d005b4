"""One replay: asks an engine for its buffered batches and reports them up to the end marker.

Rules it keeps:

* A DEALER with an empty delimiter, because the engine's ROUTER answers nothing else in full.
* Replies are read from the right, since engines from 0.26 on put a topic frame before the
  sequence number.
* Exactly one end is reported. Whatever leaves open whether all batches came is no end marker.
* The silence is counted from the last batch, and not while the queue keeps us from reading.
"""

import zmq

from indexer.arrival_queue import Burst
from indexer.arrivals import ReplayBatchReceived, ReplayEnded, ReplayId, ReplayStopped
from indexer.monitored_socket import LOSSES, MonitoredSocket

_END_SEQ = b"\xff" * 8
_SEQ_BYTES = 8
# Delimiter, sequence number, batch; and the topic between the first two from 0.26 on.
_REPLY_FRAMES_MIN = 3


class ReplaySocket:
    def __init__(
        self,
        replay: ReplayId,
        socket: MonitoredSocket,
        *,
        now: float,
        silence_ms_max: int,
    ) -> None:
        self.number: int = replay
        self.replay = replay
        self.socket = socket
        self.finished = False
        self._silence_ms_max = silence_ms_max
        self.deadline: float | None = None
        self._why_lost: str | None = None
        self.resume(now)

    def observe(self) -> None:
        for kind, _ in self.socket.events():
            if self._why_lost is None and kind in LOSSES:
                self._why_lost = LOSSES[kind]

    def visit(self, burst: Burst, now: float) -> bool:
        """Report what is there; True when there may be more."""
        # Only a loss seen before the reading proves that the reading finds everything.
        why_lost = self._why_lost
        exhausted = self._read(burst)
        if burst.messages:
            self.resume(now)
        if not exhausted or self.finished:
            return not self.finished
        if why_lost is None and self.deadline is not None and now >= self.deadline:
            why_lost = f"silent for {self._silence_ms_max} ms"
        if why_lost is not None:
            self.end(burst, why_lost)
        return False

    def end(self, burst: Burst, why: str) -> None:
        if not self.finished:
            self.finished = True
            burst.add(ReplayStopped(self.replay, why))

    fail = end

    def resume(self, now: float) -> None:
        """Count the silence from now on."""
        self.deadline = now + self._silence_ms_max / 1000

    def _read(self, burst: Burst) -> bool:
        """True when the socket has nothing left."""
        while burst.has_room and not self.finished:
            frames = self.socket.receive(burst.messages)
            if frames is None:
                return True
            burst.messages += 1
            self._report(burst, frames)
        return False

    def _report(self, burst: Burst, frames: list[zmq.Frame]) -> None:
        if len(frames) < _REPLY_FRAMES_MIN:
            return self.end(burst, f"a reply of {len(frames)} frames, not 3 or 4")
        seq, payload = frames[-2].bytes, frames[-1].bytes
        if len(seq) != _SEQ_BYTES:
            return self.end(burst, f"a reply with a sequence number of {len(seq)} bytes, not 8")
        if seq == _END_SEQ or not payload:
            self.finished = True
            burst.add(ReplayEnded(self.replay))
        else:
            burst.add(ReplayBatchReceived(self.replay, int.from_bytes(seq, "big"), payload))
