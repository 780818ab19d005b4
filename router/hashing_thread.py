"""A shell: the one thread in which prompts are tokenized and hashed, in slices.

Sessions take turns, slice by slice, so that a long prompt or a busy session delays the others by
little. Between slices the event loop gets the interpreter's lock. What does not fit the queue is
refused at once; what has become late, or is given up, is not worked on any more.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

from proto.blockhash import EngineScheme

JOBS_MAX = 256
QUEUED_CHARS_MAX = 64_000_000
_SLICE_S = 0.001
# A sleep that really ends: sleep(0) tends to take the lock back before anybody wakes up.
_GIVE_WAY_S = 0.00005

Slices = Generator[None, None, Any]


class QueueFull(Exception):
    """As much as may wait is waiting."""


class Job:
    """One prompt's work. ``settle`` is called in the thread, once, with a result or an error."""

    def __init__(
        self,
        work: Slices,
        deadline_s: float,
        chars: int,
        settle: Callable[[Any], None],
    ) -> None:
        self.work, self.deadline_s, self.chars, self.settle = work, deadline_s, chars, settle
        self.given_up = False

    def advance(self) -> bool:
        """One slice of work; True when there is nothing left to do. ``deadline_s``: monotonic."""
        until = time.monotonic() + _SLICE_S
        try:
            while not self.given_up:
                next(self.work)
                now = time.monotonic()
                if now >= self.deadline_s:
                    break
                if now >= until:
                    return False
            # Whoever waits for it has stopped waiting.
            self.work.close()
        except StopIteration as stop:
            self.settle(stop.value)
        # A foreign library raises what it likes, and the thread has to live.
        except Exception as error:
            self.settle(error)
        return True


class HashingThread:
    """Advances jobs, one slice each, session by session; a session's own jobs in their order."""

    def __init__(self, jobs_max: int = JOBS_MAX, chars_max: int = QUEUED_CHARS_MAX) -> None:
        # What the first long prompt would have to wait for: tables and imports.
        EngineScheme("sha256_cbor", "0", 16).block_hashes(range(1024))
        self._jobs_max, self._chars_max = jobs_max, chars_max
        self._sessions: OrderedDict[str | int, deque[Job]] = OrderedDict()
        self._jobs = self._chars = 0
        self._lock = threading.Condition()
        self._closed = False
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="hashing", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Jobs that are queued or in work."""
        return self._jobs

    def submit(self, job: Job, session: str | None) -> None:
        """Raises QueueFull. A job without a session is a session of its own."""
        with self._lock:
            if (
                self._closed
                or self._jobs >= self._jobs_max
                or self._chars + job.chars > self._chars_max
            ):
                raise QueueFull
            self._jobs += 1
            self._chars += job.chars
            key = next(self._numbers) if session is None else session
            self._sessions.setdefault(key, deque()).append(job)
            self._lock.notify()

    def close(self) -> None:
        """Stops after the slice in work; what is queued is not done."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            key, job = turn
            if job.advance():
                self._finished(key, job)
            if self._sessions:
                time.sleep(_GIVE_WAY_S)

    def _next(self) -> tuple[str | int, Job] | None:
        with self._lock:
            while not self._sessions and not self._closed:
                self._lock.wait()
            if self._closed:
                return None
            key, jobs = next(iter(self._sessions.items()))
            self._sessions.move_to_end(key)
            return key, jobs[0]

    def _finished(self, key: str | int, job: Job) -> None:
        with self._lock:
            self._jobs -= 1
            self._chars -= job.chars
            jobs = self._sessions[key]
            jobs.popleft()
            if not jobs:
                del self._sessions[key]
