"""Free ports on the loopback, for processes that a test starts."""

import socket
from contextlib import ExitStack


def free_port_pair() -> int:
    """A port whose neighbour is free too, for two ranks."""
    return free_ports(2)


def free_ports(count: int) -> int:
    """The first of so many in a row, one for each rank."""
    while True:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            sockets[0].bind(("", 0))
            port = int(sockets[0].getsockname()[1])
            try:
                for number, each in enumerate(sockets[1:], 1):
                    each.bind(("", port + number))
            except (OSError, OverflowError):
                continue
            return port
