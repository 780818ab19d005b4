"""pointsman's commands as processes, their output in a file, for as long as a context lasts."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

MAIN = (sys.executable, "-m", "router.main")
ROOT = Path(__file__).parent.parent
# Long, because a machine with much to do takes a minute to start a process; it costs only failures.
WAIT_S = 180.0
_STOP_S = 20.0

_Value = TypeVar("_Value")


def until(condition: Callable[[], _Value], what: str | Callable[[], str]) -> _Value:
    """What the condition gives, once that is something. What cannot be reached yet is nothing."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            value = condition()
        except (urllib.error.URLError, ConnectionError):
            value = None  # type: ignore[assignment]
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {WAIT_S:g} s: {what if isinstance(what, str) else what()}")


def call(url: str, body: Any = None) -> Any:
    """GET, or POST of JSON; the JSON that comes back."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=WAIT_S) as response:
        return json.load(response)


class Running:
    """A process and what it has printed."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process, self.output = process, output

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; a last line that is not complete yet is left out."""
        text = self.output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """With SIGTERM; its exit status."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


@contextmanager
def running(folder: Path, *arguments: str, ready: str) -> Iterator[Running]:
    """A command that has printed ``ready``; stopped at the end, if it is not by then.

    What it keeps unless it is told where is in ``folder``, never in the user's home.
    """
    output = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    with output.open("wb") as file:
        process = subprocess.Popen(
            (*MAIN, *arguments), stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while ready not in output.read_text():
            assert process.poll() is None, f"{arguments}: {output.read_text()}"
            assert time.monotonic() < deadline, f"{arguments}: {output.read_text()}"
            time.sleep(0.05)
        yield Running(process, output)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(WAIT_S)
