import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Transports differ between the loops in what they promise; the relay works on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
