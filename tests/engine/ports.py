"""Free ports that no outgoing connection takes before whoever is to listen there does.

Engines open many connections as they start, so ports come from below those that the system gives
out by itself; of each the next few are free too, for ranks and what vLLM derives from them.
"""

import itertools
import random
import socket

_FIRST, _LAST, _APART = 20_000, 32_000, 8
_candidates = itertools.count(random.randrange(_FIRST, _LAST), _APART)


def free_port() -> int:
    while True:
        port = _FIRST + (next(_candidates) - _FIRST) % (_LAST - _FIRST)
        if all(_is_free(port + offset) for offset in range(_APART)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
