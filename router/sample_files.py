"""A shell: the files of samples in one folder, which never hold more than they may.

Files are readable by their owner alone. One is written until it is full, then the next; before a
new one begins, the oldest go, so that the folder never exceeds ``bytes_max``. A line is in a file
whole or not at all.
"""

import errno
import os
import time

_NAME = "samples-"
_ENDING = ".jsonl"


class SampleFiles:
    """``append`` and ``close`` may raise OSError; the next ``append`` tries again."""

    def __init__(self, folder: str, file_bytes_max: int, bytes_max: int) -> None:
        self._folder = folder
        self._file_bytes_max, self._bytes_max = file_bytes_max, bytes_max
        self._file: int | None = None
        self._bytes = 0
        self._count = 0

    def prepare(self) -> None:
        """Create the folder and look whether it can be written to. Raises OSError."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "not writable", self._folder)

    def append(self, line: bytes) -> None:
        if len(line) > self._file_bytes_max:
            raise OSError(errno.EFBIG, "too long a line for file_bytes_max", self._folder)
        if self._file is not None and self._bytes + len(line) > self._file_bytes_max:
            self.close()
        if self._file is None:
            self._open()
        assert self._file is not None
        try:
            written = os.write(self._file, line)
        except OSError:
            os.ftruncate(self._file, self._bytes)
            raise
        if written < len(line):
            # The disk is full: what is there of the line would spoil the next one.
            os.ftruncate(self._file, self._bytes)
            raise OSError(errno.ENOSPC, "No space left on device", self._folder)
        self._bytes += written

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open(self) -> None:
        self._remove_oldest()
        self._count += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{_NAME}{stamp}-{os.getpid()}-{self._count:06}{_ENDING}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(os.path.join(self._folder, name), flags, 0o600)
        self._bytes = 0

    def _remove_oldest(self) -> None:
        """Names begin with their time, so the first is the oldest."""
        with os.scandir(self._folder) as entries:
            sizes = {
                entry.path: entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.name.startswith(_NAME) and entry.name.endswith(_ENDING)
            }
        total = sum(sizes.values())
        for path in sorted(sizes):
            if total + self._file_bytes_max <= self._bytes_max:
                return
            os.unlink(path)
            total -= sizes[path]
