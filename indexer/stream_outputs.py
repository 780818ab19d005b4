"""What a stream asks for: imperative outputs, and the batch that continuity is proven with.

Structs with ``gc=False``, because two are made for every batch and none holds a container: a frozen
dataclass takes ten times as long to make.
"""

from hashlib import sha256

import msgspec


class LastBatch(msgspec.Struct, frozen=True, gc=False):
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

    def sha256(self) -> bytes:
        """What a store keeps of the bytes."""
        if self.payload is not None:
            return sha256(self.payload).digest()
        assert self.digest is not None, "made with neither bytes nor digest"
        return self.digest


class Apply(msgspec.Struct, frozen=True, gc=False):
    seq: int
    payload: bytes


class Clear(msgspec.Struct, frozen=True, gc=False):
    """Forget the replica's blocks: what follows does not continue what was applied."""

    reason: str
    restart: bool = False


class RequestReplay(msgspec.Struct, frozen=True, gc=False):
    """Ask the engine for every batch from ``start_seq`` on; ``request`` names the question."""

    request: int
    start_seq: int


class CancelReplay(msgspec.Struct, frozen=True, gc=False):
    request: int


class Reconnect(msgspec.Struct, frozen=True, gc=False):
    """Give this connection up; the next stream starts without a history."""

    reason: str


Output = Apply | Clear | RequestReplay | CancelReplay | Reconnect
