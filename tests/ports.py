"""Free ports on the loopback, for processes that a test starts, and starts again.

They come from below those that the system gives to outgoing connections by itself, so nobody takes
one before, or between, those that are to listen there. A cluster's own port is 10,000 higher.
"""

import itertools
import random
import socket

_FIRST, _LAST, _APART = 11_000, 22_000, 4
_candidates = itertools.count(random.randrange(_FIRST, _LAST), _APART)


def free_port_pair() -> int:
    """A port whose neighbour is free too, for two ranks."""
    return free_ports(2)


def free_ports(count: int) -> int:
    """The first of so many in a row, one for each rank."""
    while True:
        taken = [next(_candidates) for _ in range(0, count, _APART)]
        port = _FIRST + (taken[0] - _FIRST) % (_LAST - _FIRST - count)
        if all(_is_free(port + offset) for offset in range(count)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
