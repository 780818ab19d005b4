"""Free ports on the loopback, for processes that a test starts."""

import socket


def free_port_pair() -> int:
    """A port whose neighbour is free too, for two ranks."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("", port + 1))
            except OSError:
                continue
            return port
