from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.shell.zmq_peers import Listening, Peers


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.destroy()


@pytest.fixture
def listening() -> Iterator[Callable[..., Listening]]:
    """Makes subscribers with small limits on time, and stops them."""
    made: list[Listening] = []

    def make(**limits: Any) -> Listening:
        made.append(Listening(**{"connect_ms_max": 3000, "heartbeat_ms": 2000, **limits}))
        return made[-1]

    yield make
    for each in made:
        each.subscriber.stop()
