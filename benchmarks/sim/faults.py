"""What goes wrong on a replica's HTTP side, and until when.

Rules it keeps:

* Faults of time end by themselves; one of the same kind replaces the one before.
* Faults of a stream wait for the next requests that generate text, in order, one fault each.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite

from benchmarks.sim.bodies import FaultBody

# A slow replica whose steps take no time would be as fast as ever.
_SLOW_STEP_SECONDS_MIN = 0.001


@dataclass(frozen=True)
class StreamFault:
    """Sending stops once so many tokens are out; `seconds` None resets the connection then."""

    tokens: int
    seconds: float | None


class HttpFaults:
    KINDS = ("refuse", "unavailable", "slow", "hang", "reset")

    def __init__(self) -> None:
        self._ends = dict.fromkeys(("refuse", "unavailable", "slow"), 0.0)
        self._factor = 1.0
        self._streams: deque[StreamFault] = deque()

    def __repr__(self) -> str:
        return f"<HttpFaults until {self._ends}, {len(self._streams)} streams to come>"

    def begin(self, fault: FaultBody, now: float) -> None:
        """Raises ValueError for what makes no sense; nothing is changed then."""
        if not (isfinite(fault.seconds) and fault.seconds >= 0):
            raise ValueError(f"fault of {fault.seconds} seconds: a number from 0")
        if fault.kind in self._ends:
            if fault.kind == "slow":
                self._slow_down(fault.factor)
            self._ends[fault.kind] = now + fault.seconds
            return
        if fault.tokens < 0 or not 1 <= fault.requests <= 10_000:
            raise ValueError(f"fault after {fault.tokens} tokens of {fault.requests} requests")
        seconds = fault.seconds if fault.kind == "hang" else None
        self._streams += [StreamFault(fault.tokens, seconds)] * fault.requests

    def lasts(self, kind: str, now: float) -> bool:
        return now < self._ends[kind]

    def step_seconds(self, seconds: float, now: float) -> float:
        """How long a step takes that would take so many seconds."""
        if not self.lasts("slow", now):
            return seconds
        return max(seconds, _SLOW_STEP_SECONDS_MIN) * self._factor

    def take_stream(self) -> StreamFault | None:
        """The fault of the request that begins now."""
        return self._streams.popleft() if self._streams else None

    def _slow_down(self, factor: float) -> None:
        if not (isfinite(factor) and factor >= 1):
            raise ValueError(f"factor {factor}: at least 1")
        self._factor = factor
