"""Free ports for engines: of each the next few are free too, for ranks and what vLLM derives."""

from tests.ports import free_ports

_APART = 8


def free_port() -> int:
    return free_ports(_APART)
