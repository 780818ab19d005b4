"""What reaches the indexer from the engines' sockets, in the past tense.

These are the inputs of the streams. Rules whoever reports them keeps:

* A connection is one TCP connection, never a reconnected one. ``ConnectionOpened`` comes before
  its frames, ``ConnectionLost`` after them and exactly once; after that the id is never heard
  of again. A connection that was never established is lost without having been opened.
* A replay has exactly one end: ``ReplayEnded`` or ``ReplayStopped``, after its last batch.
* ``payload`` is what the engine encoded, untouched and not yet decoded.
"""

from typing import NewType

import msgspec

ConnectionId = NewType("ConnectionId", int)
ListenerId = NewType("ListenerId", int)
ReplayId = NewType("ReplayId", int)


class ConnectionOpened(msgspec.Struct, frozen=True, gc=False):
    """The handshake is done. ``listener`` is set where the engine connected to us."""

    connection: ConnectionId
    listener: ListenerId | None


class FrameReceived(msgspec.Struct, frozen=True, gc=False):
    """One published batch. ``gc=False``: made for every message, and holds no containers."""

    connection: ConnectionId
    topic: bytes
    seq: int
    payload: bytes


class FrameMalformed(msgspec.Struct, frozen=True, gc=False):
    """A message that is not three frames, or whose sequence number is not 8 bytes."""

    connection: ConnectionId
    why: str


class ConnectionLost(msgspec.Struct, frozen=True, gc=False):
    connection: ConnectionId
    why: str


class ReplayBatchReceived(msgspec.Struct, frozen=True, gc=False):
    replay: ReplayId
    seq: int
    payload: bytes


class ReplayEnded(msgspec.Struct, frozen=True, gc=False):
    """The end marker came: the engine has sent all it had."""

    replay: ReplayId


class ReplayStopped(msgspec.Struct, frozen=True, gc=False):
    """No end marker: silence, a malformed reply, or the connection closed."""

    replay: ReplayId
    why: str


Arrival = (
    ConnectionOpened
    | FrameReceived
    | FrameMalformed
    | ConnectionLost
    | ReplayBatchReceived
    | ReplayEnded
    | ReplayStopped
)
