"""A shell: the one thread that turns prompts into block hashes, and what the event loop awaits.

Rules it keeps:

* The event loop hands a prompt over and awaits; rendering, tokenizing and hashing happen in one
  thread for all pools, in slices of about a millisecond, between which the loop gets the lock.
* A prompt that is not done by its deadline goes on without hashes, and is not worked on any more.
  Nor is one whose client has gone.
* Sessions take turns, slice by slice, so that a long prompt or a busy session delays the others by
  little. What does not fit the queue is refused at once.
"""

import asyncio
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple

from proto.blockhash import EngineScheme, HashScheme, RequestKeys
from proto.contract import HashedPrefix
from router.hashing import PrefixHashes
from router.pool_tokenizer import PoolTokenizer, TokenizerError
from router.prompts import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from router.render import NotRendered

__all__ = [
    "HashedPrompt",
    "HashingThread",
    "NotTokenized",
    "PoolTokenizer",
    "PromptHasher",
    "TokenizerError",
]

# transformers is imported later than this. It need not tell anybody that there is no PyTorch, and
# it has no business on a network.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

Reason = Literal["deadline", "busy", "opaque", "too_long", "error"]

# The design's deadline: 50 ms and 1 ms per 1,000 tokens, at four characters a token.
DEADLINE_S = 0.05
DEADLINE_S_PER_CHAR = 0.001 / 4000
# Some million tokens: no engine would take it, and a single call on it cannot be interrupted.
TEXT_CHARS_MAX = 4_000_000
JOBS_MAX = 256
QUEUED_CHARS_MAX = 64_000_000
_SLICE_S = 0.001
# A sleep that really ends: sleep(0) tends to take the lock back before anybody wakes up.
_GIVE_WAY_S = 0.00005


class NotTokenized(Exception):
    """This prompt goes on without hashes. ``str`` is one of the reasons, ``detail`` says more."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class HashedPrompt(NamedTuple):
    """``prefixes``: one per scheme and distinct request keys that the scheme can hash.

    ``phases`` in ms: queue_ms, render_ms, tokenize_ms, hash_ms, as waited for.
    """

    prompt_tokens: int
    prefixes: tuple[HashedPrefix, ...]
    phases: dict[str, float]


Slices = Generator[None, None, HashedPrompt]


class Job:
    """One prompt's work. ``settle`` is called in the thread, once, with a result or an error."""

    def __init__(
        self,
        work: Slices,
        deadline_s: float,
        chars: int,
        settle: Callable[[HashedPrompt | Exception], None],
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
        """Raises NotTokenized("busy"). A job without a session is a session of its own."""
        with self._lock:
            if (
                self._closed
                or self._jobs >= self._jobs_max
                or self._chars + job.chars > self._chars_max
            ):
                raise NotTokenized("busy")
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


class PromptHasher:
    """A pool's prompts to block hashes. ``hashes`` is its cache of earlier prompts."""

    def __init__(
        self, tokenizer: PoolTokenizer, thread: HashingThread, *, patience_s: float = DEADLINE_S
    ) -> None:
        """``patience_s``: how late a prompt may be, beside the time its length is given."""
        self.tokenizer, self.hashes = tokenizer, PrefixHashes()
        self._thread, self._patience_s = thread, patience_s

    async def hash(
        self,
        prompt: Prompt,
        schemes: Sequence[HashScheme],
        variants: Sequence[RequestKeys],
        session: str | None = None,
    ) -> HashedPrompt:
        """Raises NotTokenized: late, not known here, or too much of it."""
        if isinstance(prompt, OpaquePrompt):
            raise NotTokenized("opaque", prompt.reason)
        chars = _chars(prompt)
        if chars > TEXT_CHARS_MAX:
            raise NotTokenized("too_long")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[HashedPrompt] = loop.create_future()
        wait_s = self._patience_s + chars * DEADLINE_S_PER_CHAR

        def settle(outcome: HashedPrompt | Exception) -> None:
            try:
                loop.call_soon_threadsafe(_settle, done, outcome)
            except RuntimeError:
                pass  # The loop is closed: nobody waits.

        work = self._work(prompt, schemes, variants, time.perf_counter())
        job = Job(work, time.monotonic() + wait_s, chars, settle)
        self._thread.submit(job, session)
        late = loop.call_later(wait_s, _settle, done, NotTokenized("deadline"))
        try:
            return await done
        finally:
            late.cancel()
            job.given_up = True

    def _work(
        self,
        prompt: ChatPrompt | TextPrompt | TokenPrompt,
        schemes: Sequence[HashScheme],
        variants: Sequence[RequestKeys],
        queued_at: float,
    ) -> Slices:
        times = [queued_at, time.perf_counter()]
        if isinstance(prompt, ChatPrompt):
            prompt = self.tokenizer.render(prompt)
            if len(prompt.text) > TEXT_CHARS_MAX:
                raise NotTokenized("too_long")
            yield
        times.append(time.perf_counter())
        if isinstance(prompt, TextPrompt):
            token_ids = yield from self.tokenizer.encode_steps(prompt)
            yield
        else:
            token_ids = prompt.token_ids
        times.append(time.perf_counter())
        prefixes = []
        for keys in dict.fromkeys(variants):
            for scheme in schemes:
                try:
                    hashes = yield from self.hashes.steps(scheme, token_ids, keys)
                except ValueError:
                    continue  # It needs the path of an adapter, which is not known.
                prefixes.append(HashedPrefix(scheme.id, hashes))
        times.append(time.perf_counter())
        names = ("queue_ms", "render_ms", "tokenize_ms", "hash_ms")
        spans = zip(names, times, times[1:], strict=False)
        phases = {name: (end - start) * 1e3 for name, start, end in spans}
        return HashedPrompt(len(token_ids), tuple(prefixes), phases)


def _settle(done: "asyncio.Future[HashedPrompt]", outcome: HashedPrompt | Exception) -> None:
    if done.done():
        return
    if isinstance(outcome, HashedPrompt):
        done.set_result(outcome)
    elif isinstance(outcome, NotTokenized):
        done.set_exception(outcome)
    elif isinstance(outcome, NotRendered):
        done.set_exception(NotTokenized("opaque", str(outcome)))
    else:
        done.set_exception(NotTokenized("error", repr(outcome)))


def _chars(prompt: ChatPrompt | TextPrompt | TokenPrompt) -> int:
    """About as many characters as the prompt's text has; four for a token."""
    if isinstance(prompt, TokenPrompt):
        return 4 * len(prompt.token_ids)
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return sum(_content_chars(message) for message in prompt.body["messages"])


def _content_chars(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return sum(len(text) for text in texts if isinstance(text, str))
