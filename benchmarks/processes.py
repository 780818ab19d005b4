"""A shell: other processes of ours, for as long as a context lasts.

Rules it keeps:

* A process is there when it has printed what says so; until then nothing goes on.
* It ends with the context, however that ends: SIGTERM, and SIGKILL where that does not help, or
  where it is to die without a word.
* A signal to the terminal's group does not reach it: whoever started it decides when it goes.
* What it prints is read all the time, so that it never waits for a reader; the end is kept.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

_Ready = TypeVar("_Ready")

_LINES_KEPT = 15
# A line that is longer is cut into several.
_LINE_BYTES_MAX = 1 << 20
_STOP_SECONDS_MAX = 5.0
_END_SECONDS_MAX = 0.2
# Where the packages of this distribution are: a `python -m` of ours finds ours there.
_ROOT = Path(__file__).resolve().parent.parent


class ProcessFailed(Exception):
    """It ended, or did not get ready in time; the text says which one and what it said last."""


@asynccontextmanager
async def pointsman(
    *arguments: str,
    ready: Callable[[str], _Ready | None],
    seconds_max: float,
    killed: bool = False,
) -> AsyncIterator[_Ready]:
    """Run the command `pointsman`; gives what ``ready`` made of the first line it knows.

    ``ready`` is called with the lines after that, too. ``killed``: it ends by SIGKILL.

    Raises ProcessFailed where the process is not ready in time or ends before the context does.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.main",
        *arguments,
        cwd=_ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=_LINE_BYTES_MAX,
    )
    name, lines = f"pointsman {arguments[0]}", deque[str](maxlen=_LINES_KEPT)
    found: asyncio.Future[_Ready] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(process, lines, ready, found))
    try:
        waited: set[asyncio.Future[Any]] = {reading, found}
        await asyncio.wait(waited, timeout=seconds_max, return_when="FIRST_COMPLETED")
        if not found.done():
            why = "ended" if reading.done() else f"was not ready within {seconds_max:g} s"
            raise ProcessFailed(_told(name, why, lines))
        yield found.result()
        if reading.done():
            raise ProcessFailed(_told(name, "ended", lines))
    except ProcessFailed:
        raise
    except Exception as error:
        # Where the process has gone, this is a consequence; its pipes close a little later.
        await asyncio.wait({reading}, timeout=_END_SECONDS_MAX)
        if reading.done():
            raise ProcessFailed(_told(name, "ended", lines)) from error
        raise
    finally:
        await _stop(process, killed)
        await asyncio.gather(reading, return_exceptions=True)


async def _read(
    process: asyncio.subprocess.Process,
    lines: deque[str],
    ready: Callable[[str], _Ready | None],
    found: asyncio.Future[_Ready],
) -> None:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        lines.append(line)
        value = ready(line)
        if value is not None and not found.done():
            found.set_result(value)


async def _stop(process: asyncio.subprocess.Process, killed: bool) -> None:
    if process.returncode is None:
        _signal(process, signal.SIGKILL if killed else signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # Also where this is cancelled: whoever cancels twice does not want to wait.
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """To its whole session, so that nothing it started stays."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def _told(name: str, why: str, lines: deque[str]) -> str:
    said = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
    return f"{name} {why}; it said:\n{said}"
