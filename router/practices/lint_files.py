"""A shell: reads logs, file by file and line by line, within limits that are said."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from router.practices.lint_log import NotARequest, Origin, logged_request, logged_requests
from router.practices.traffic import LoggedRequest

# As the router's own limit on a body.
LINE_BYTES_MAX = 64 << 20
# All bodies are in memory, and what is learned of them takes about as much again.
LOG_BYTES_MAX = 512 << 20
COMPLAINTS_MAX = 10
_ENDINGS = (".jsonl", ".ndjson", ".json")


@dataclass(slots=True)
class LogContents:
    """``not_read``: lines behind the limits."""

    requests: list[LoggedRequest] = field(default_factory=list)
    bad_lines: int = 0
    not_read: int = 0
    complaints: list[str] = field(default_factory=list)


class LogReader:
    def __init__(self, requests_max: int) -> None:
        self.contents = LogContents()
        self._requests_max = requests_max
        self._bytes = 0

    def read(self, path: str) -> None:
        """A file, a folder, or - for stdin. Raises OSError."""
        if path == "-":
            self._read_lines(sys.stdin.buffer, "stdin")
            return
        for file in _files(path):
            with open(file, "rb") as log:
                if file.endswith(".json"):
                    self._read_whole(log, file)
                else:
                    self._read_lines(log, file)

    def _read_lines(self, log: BinaryIO, name: str) -> None:
        for number, line in enumerate(_lines(log), 1):
            origin = Origin(name, number)
            if line is None:
                self._complain(f"{origin.at()}: longer than {LINE_BYTES_MAX} bytes")
            elif line.strip():
                self._take(line, origin, is_whole=False)

    def _read_whole(self, log: BinaryIO, name: str) -> None:
        text = log.read(LINE_BYTES_MAX + 1)
        if len(text) > LINE_BYTES_MAX:
            self._complain(f"{name}:1:1: longer than {LINE_BYTES_MAX} bytes")
        else:
            self._take(text, Origin(name, 1), is_whole=True)

    def _take(self, text: bytes, origin: Origin, *, is_whole: bool) -> None:
        contents = self.contents
        self._bytes += len(text)
        if len(contents.requests) >= self._requests_max or self._bytes > LOG_BYTES_MAX:
            contents.not_read += 1
            return
        try:
            if is_whole:
                contents.requests += logged_requests(text, origin)
            else:
                contents.requests.append(logged_request(text, origin))
        except NotARequest as error:
            self._complain(str(error))

    def _complain(self, text: str) -> None:
        self.contents.bad_lines += 1
        if len(self.contents.complaints) < COMPLAINTS_MAX:
            self.contents.complaints.append(text)


def _files(path: str) -> list[str]:
    """Of a folder the logs in it, by name: rotated files are named by their time."""
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith(_ENDINGS))
    return [os.path.join(path, name) for name in names]


def _lines(log: BinaryIO) -> Iterator[bytes | None]:
    """None for a line that is too long; it is skipped without being kept."""
    while line := log.readline(LINE_BYTES_MAX + 1):
        if len(line) <= LINE_BYTES_MAX:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = log.readline(1 << 20)
        yield None
