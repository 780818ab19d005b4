"""What a stream asks for: imperative outputs, and the batch that continuity is proven with."""

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The batch that continuity is proven with: its bytes, or their sha256 as kept in a store."""

    seq: int
    payload: bytes | None = None
    digest: bytes | None = None

    def same(self, seq: int, payload: bytes) -> bool:
        if seq != self.seq:
            return False
        if self.payload is not None:
            return payload == self.payload
        return sha256(payload).digest() == self.digest


@dataclass(frozen=True, slots=True)
class Apply:
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget the replica's blocks: what follows does not continue what was applied."""

    reason: str
    restart: bool = False


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask the engine for every batch from ``start_seq`` on; ``request`` names the question."""

    request: int
    start_seq: int


@dataclass(frozen=True, slots=True)
class CancelReplay:
    request: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Give this connection up; the next stream starts without a history."""

    reason: str


Output = Apply | Clear | RequestReplay | CancelReplay | Reconnect
