"""A shell: prompts to block hashes, as the event loop awaits them.

Rules it keeps:

* The event loop hands a prompt over and awaits; rendering, tokenizing and hashing happen in one
  thread for all pools (``hashing_thread``).
* A short prompt is done at once where the thread has nothing to do: handing it over would cost more
  than the work.
* A prompt that is not done by its deadline goes on without hashes. Nobody works on it any more, nor
  on one whose client has gone.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from proto.blockhash import HashScheme, RequestKeys
from proto.contract import HashedPrefix
from router.hashing import PrefixHashes
from router.hashing_thread import HashingThread, Job, QueueFull, Slices
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
# Some 500 tokens: 0.2 ms.
AT_ONCE_CHARS_MAX = 2_000
_AT_ONCE_MESSAGES_MAX = 16
_COUNTED_KEYS = frozenset(("role", "content"))
_UNCOUNTED_FIELDS = frozenset(("tools", "documents", "chat_template_kwargs"))


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


class PromptHasher:
    """A pool's prompts to block hashes. ``hashes`` is its cache of earlier prompts."""

    def __init__(
        self,
        tokenizer: PoolTokenizer,
        thread: HashingThread,
        *,
        patience_s: float = DEADLINE_S,
        at_once_chars_max: int = AT_ONCE_CHARS_MAX,
    ) -> None:
        """``patience_s``: how late a prompt may be, beside the time its length is given."""
        self.tokenizer, self.hashes = tokenizer, PrefixHashes()
        self._thread, self._patience_s = thread, patience_s
        self._at_once_chars_max = at_once_chars_max

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
        work = self._work(prompt, schemes, variants, time.perf_counter())
        # Only this thread submits jobs, so one without a job touches nothing that is used here.
        if chars <= self._at_once_chars_max and _is_plain(prompt) and not len(self._thread):
            return _done(work)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[HashedPrompt] = loop.create_future()
        wait_s = self._patience_s + chars * DEADLINE_S_PER_CHAR

        def settle(outcome: HashedPrompt | Exception) -> None:
            try:
                loop.call_soon_threadsafe(_settle, done, outcome)
            except RuntimeError:
                pass  # The loop is closed: nobody waits.

        job = Job(work, time.monotonic() + wait_s, chars, settle)
        try:
            self._thread.submit(job, session)
        except QueueFull:
            raise NotTokenized("busy") from None
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
    else:
        done.set_exception(_translated(outcome))


def _translated(error: Exception) -> NotTokenized:
    if isinstance(error, NotTokenized):
        return error
    if isinstance(error, NotRendered):
        return NotTokenized("opaque", str(error))
    return NotTokenized("error", repr(error))


def _done(work: Slices) -> HashedPrompt:
    """All of it, here and now. Raises NotTokenized."""
    try:
        while True:
            next(work)
    except StopIteration as stop:
        hashed: HashedPrompt = stop.value
        return hashed
    # As in the thread: a foreign library raises what it likes.
    except Exception as error:
        raise _translated(error) from error


def _is_plain(prompt: ChatPrompt | TextPrompt | TokenPrompt) -> bool:
    """Whether all of the prompt's text is counted by ``_chars``."""
    if not isinstance(prompt, ChatPrompt):
        return True
    if prompt.body.keys() & _UNCOUNTED_FIELDS:
        return False
    messages = prompt.body["messages"]
    return len(messages) <= _AT_ONCE_MESSAGES_MAX and all(
        message.keys() <= _COUNTED_KEYS for message in messages
    )


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
