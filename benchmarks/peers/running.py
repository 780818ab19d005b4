"""A shell: foreign programs, for as long as a context lasts, and the processor time they take.

Rules it keeps:

* A program is there when its port answers what it is asked; until then nothing goes on.
* It ends with the context, however that ends, and so does everything that it started.
* Processor time is that of the program and of its children, from the kernel's clock of each
  process: user and system time, all threads, in nanoseconds. The same figures in /proc/PID/stat
  have steps of 10 ms, which is a tenth of what one round takes.
"""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.peers.figures import NotMeasured

_START_S_MAX = 40.0
_STOP_S_MAX = 5.0
_LOOK_EVERY_S = 0.1
_SAID_BYTES_MAX = 600
# The kernel's number of the scheduler's clock of a whole process, as clock_getcpuclockid makes it.
_CPUCLOCK_SCHED = 2


class Program(NamedTuple):
    pid: int
    port: int

    def cpu_s(self) -> float:
        return sum(time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) for pid in _family(self.pid))


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    ready: Callable[[int], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Raises NotMeasured where it cannot be started or is not ready in time."""
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise NotMeasured(f"cannot be started: {error}") from error
        try:
            _wait_until_ready(process, port, ready, said)
            yield Program(process.pid, port)
        finally:
            _stop(process)


def answers(path: str) -> Callable[[int], bool]:
    """Whether a GET of that path is answered with 200."""

    def ready(port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ready


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", port: int, ready: Callable[[int], bool], said: IO[bytes]
) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while not ready(port):
        ended = process.poll()
        if ended is None and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            continue
        why = f"was not ready within {_START_S_MAX:g} s" if ended is None else f"ended with {ended}"
        raise NotMeasured(f"{why}\n{_end_of(said)}")


def _end_of(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _SAID_BYTES_MAX))
    return said.read().decode(errors="replace")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """To its whole session, so that nothing it started stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S_MAX)


def _family(pid: int) -> list[int]:
    """The process and what descends from it."""
    family = [pid]
    for each in family:
        for task in Path(f"/proc/{each}/task").iterdir():
            family += map(int, (task / "children").read_text().split())
    return family
