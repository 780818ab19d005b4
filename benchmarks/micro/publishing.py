"""The engine's side, in a process of its own: everything is encoded before anything is timed.

``live`` publishes the same batches to one subscriber after another; ``replaying`` holds them for
replay. Both speak to the measuring process over a pipe, and end when it closes.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

import zmq

from benchmarks.micro.workload import Shape, batches, payloads
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.publisher import EventPublisher
from benchmarks.sim.wire import WireFormat

# A fork would inherit the parent's ZMQ threads and its memory.
_SPAWN = multiprocessing.get_context("spawn")
_JOIN_S_MAX = 10.0

Given = TypeVar("Given")
Said = TypeVar("Said")


class Published(NamedTuple):
    """What will be sent. The first ``warm_batches`` are not measured."""

    endpoint: str
    replay_endpoint: str | None
    batches: int
    blocks: int
    warm_batches: int
    warm_blocks: int


@contextmanager
def process(
    body: Callable[["Connection[Said, object]", Given], None], given: Given
) -> Iterator[tuple["Connection[object, Said]", Said]]:
    """Runs ``body`` in a process: the pipe to it, and the first thing it said."""
    mine, its = _SPAWN.Pipe()
    child = _SPAWN.Process(target=body, args=(its, given), daemon=True)
    child.start()
    its.close()
    try:
        yield mine, mine.recv()
    finally:
        mine.close()
        child.join(_JOIN_S_MAX)
        child.close()


def live(pipe: "Connection[Published, object]", shape: Shape) -> None:
    """Each message on the pipe begins a run; the second one of a run ends its warm-up.

    XPUB tells when the subscription is there, and its queue has no limit: nothing is dropped.
    """
    encoded = list(payloads(shape))
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        facts = _facts(shape, [stored for stored, _ in encoded], endpoint.decode(), None)
        frames = [(b"", seq.to_bytes(8, "big"), sent) for seq, (_, sent) in enumerate(encoded)]
        pipe.send(facts)
        with suppress(EOFError):
            while pipe.recv():
                while not socket.recv().startswith(b"\x01"):
                    pass
                _send(socket, frames[: facts.warm_batches])
                pipe.recv()
                _send(socket, frames[facts.warm_batches :])


def replaying(pipe: "Connection[Published, object]", shape: Shape) -> None:
    """Every batch is in the replay buffer and none was sent live."""
    stored, all_batches = [], list(batches(shape))
    settings = PublisherSettings(
        endpoint="tcp://127.0.0.1:0",
        replay_endpoint="tcp://127.0.0.1:0",
        buffer_steps=len(all_batches),
        bind=True,
    )
    publisher = EventPublisher(WireFormat("0.33", int_hashes=True), settings)
    for events in all_batches:
        publisher.publish(events)
        stored.append(sum(len(getattr(e, "block_hashes", ())) for e in events))
    publisher.flush(60)
    pipe.send(_facts(shape, stored, publisher.endpoint, publisher.replay_endpoint))
    with suppress(EOFError):
        pipe.recv()
    publisher.close()


def _facts(
    shape: Shape, stored: list[int], endpoint: str, replay_endpoint: str | None
) -> Published:
    warm_batches = warm_blocks = 0
    while warm_blocks < shape.warm_blocks:
        warm_blocks += stored[warm_batches]
        warm_batches += 1
    return Published(
        endpoint.rstrip("\0"), replay_endpoint, len(stored), sum(stored), warm_batches, warm_blocks
    )


def _send(socket: zmq.Socket[bytes], frames: list[tuple[bytes, bytes, bytes]]) -> None:
    for message in frames:
        socket.send_multipart(message)
