"""What the event loop gets from the hashing thread: hashes, or a reason, in time and in turn."""

import asyncio
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proto.blockhash import NO_KEYS, CanonicalScheme, EngineScheme, RequestKeys
from router.chat_template import ChatTemplate, ChatTemplates
from router.encoders import Encoder
from router.openai import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from router.tokenizer import (
    TEXT_CHARS_MAX,
    HashingThread,
    Job,
    NotTokenized,
    PoolTokenizer,
    PromptHasher,
    Slices,
)

SCHEME = EngineScheme("sha256", "0", 4)
PATIENT_S = 60.0


def letters(text: str, add_special_tokens: bool) -> "array[int]":
    return array("I", text.encode("utf-32-le"))


class Gate:
    """An encoder that waits until it is opened, and says when somebody is there."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.encoded: list[str] = []

    def encode(self, text: str, add_special_tokens: bool) -> "array[int]":
        if text:
            self.entered.set()
            assert self.opened.wait(PATIENT_S)
            self.encoded.append(text)
        return letters(text, add_special_tokens)


def pool_tokenizer(encode: Any = letters, render: Any = None) -> PoolTokenizer:
    template = ChatTemplate(render, "string", True)
    templates = ChatTemplates(template, template) if render else None
    return PoolTokenizer(Encoder("test", "a test's own", encode), templates)


@pytest.fixture
async def thread() -> AsyncIterator[HashingThread]:
    made = HashingThread()
    yield made
    made.close()


def hasher(thread: HashingThread, tokenizer: PoolTokenizer | None = None) -> PromptHasher:
    return PromptHasher(
        tokenizer or pool_tokenizer(), thread, patience_s=PATIENT_S, at_once_chars_max=0
    )


async def quiet(thread: HashingThread) -> None:
    while len(thread):  # noqa: ASYNC110 - the thread knows nothing of an event loop
        await asyncio.sleep(0.001)


async def reason_of(made: PromptHasher, prompt: Prompt) -> str:
    with pytest.raises(NotTokenized) as refused:
        await made.hash(prompt, [SCHEME], [NO_KEYS])
    assert str(refused.value) == refused.value.reason
    return refused.value.reason


@pytest.mark.parametrize(
    "prompt",
    [
        TextPrompt("abcdefghij" * 30),
        TokenPrompt(letters("abcdefghij" * 30, False)),
        ChatPrompt({"messages": [{"role": "user", "content": "abcdefghij" * 30}]}),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
async def test_every_scheme_and_variant_gets_its_hashes(
    thread: HashingThread, prompt: Prompt
) -> None:
    """One prefix for each scheme and each distinct variant of keys."""
    schemes = [SCHEME, EngineScheme("xxhash_cbor", "1", 16, 1), CanonicalScheme(8)]
    variants = [NO_KEYS, RequestKeys(cache_salt="s"), RequestKeys(cache_salt="s")]
    made = hasher(thread, pool_tokenizer(render=lambda messages, *_: messages[0]["content"]))
    hashed = await made.hash(prompt, schemes, variants, "session")
    token_ids = letters("abcdefghij" * 30, False)
    assert hashed.prompt_tokens == 300
    got = [(prefix.scheme_id, list(prefix.block_hashes)) for prefix in hashed.prefixes]
    assert got == [
        (scheme.id, scheme.block_hashes(token_ids, keys))
        for keys in variants[:2]
        for scheme in schemes
    ]
    assert set(hashed.phases) == {"queue_ms", "render_ms", "tokenize_ms", "hash_ms"}
    assert all(span >= 0 for span in hashed.phases.values())


async def test_a_scheme_that_cannot_hash_an_adapter_is_left_out(thread: HashingThread) -> None:
    """Others still are hashed."""
    keys = RequestKeys(lora_name="x")
    untagged = EngineScheme("sha256", "0", 4, 0, "untagged")
    hashed = await hasher(thread).hash(TextPrompt("a" * 9), [SCHEME, untagged], [keys])
    assert [prefix.scheme_id for prefix in hashed.prefixes] == [untagged.id]


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("prompt", "tokenizer", "reason"),
    [
        (OpaquePrompt("images"), pool_tokenizer(), "opaque"),
        (ChatPrompt({"messages": [{"role": "user", "content": "a"}]}), pool_tokenizer(), "opaque"),
        (TextPrompt("a" * (TEXT_CHARS_MAX + 1)), pool_tokenizer(), "too_long"),
        (
            ChatPrompt({"messages": [{"role": "user", "content": "a"}]}),
            pool_tokenizer(render=lambda *_: "a" * (TEXT_CHARS_MAX + 1)),
            "too_long",
        ),
        (
            ChatPrompt({"messages": [{"role": "user", "content": "a"}]}),
            pool_tokenizer(render=lambda *_: _raise(RecursionError())),
            "opaque",
        ),
        (
            TextPrompt("a"),
            pool_tokenizer(lambda text, _: letters("", False) if not text else _raise(OSError())),
            "error",
        ),
    ],
)
async def test_a_prompt_without_hashes_has_a_reason(
    thread: HashingThread, prompt: Prompt, tokenizer: PoolTokenizer, reason: str
) -> None:
    """One of a few words, and the thread lives on."""
    assert await reason_of(hasher(thread, tokenizer), prompt) == reason
    await hasher(thread).hash(TextPrompt("abcd"), [SCHEME], [NO_KEYS])


async def test_a_late_prompt_goes_on_without_hashes_and_is_not_worked_on(
    thread: HashingThread,
) -> None:
    """What was in the tokenizer may finish there; nothing is hashed of it any more."""
    gate = Gate()
    late = PromptHasher(pool_tokenizer(gate.encode), thread, patience_s=0.02, at_once_chars_max=0)
    assert await reason_of(late, TextPrompt("abcd" * 10)) == "deadline"
    gate.opened.set()
    await quiet(thread)
    assert late.hashes.computed_blocks == 0


async def test_a_prompt_that_is_late_in_the_queue_is_never_begun(thread: HashingThread) -> None:
    """Its deadline counts from when it was handed over."""
    gate = Gate()
    tokenizer = pool_tokenizer(gate.encode)
    first = asyncio.create_task(
        hasher(thread, tokenizer).hash(TextPrompt("first"), [SCHEME], [NO_KEYS])
    )
    await asyncio.to_thread(gate.entered.wait)
    late = PromptHasher(tokenizer, thread, patience_s=0.01, at_once_chars_max=0)
    assert await reason_of(late, TextPrompt("late")) == "deadline"
    gate.opened.set()
    await first
    await quiet(thread)
    assert gate.encoded == ["first"]


async def test_a_client_that_goes_away_ends_the_work(thread: HashingThread) -> None:
    """While its prompt is in the tokenizer, and while it waits in the queue."""
    gate = Gate()
    made = hasher(thread, pool_tokenizer(gate.encode))
    tasks = [
        asyncio.create_task(made.hash(TextPrompt(text), [SCHEME], [NO_KEYS]))
        for text in ("first " * 9, "second")
    ]
    await asyncio.to_thread(gate.entered.wait)
    for task in tasks:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in done)
    gate.opened.set()
    await quiet(thread)
    assert gate.encoded == ["first " * 9]
    assert made.hashes.computed_blocks == 0


@pytest.mark.parametrize("limits", [{"jobs_max": 1}, {"chars_max": 10}])
async def test_what_does_not_fit_the_queue_is_refused_at_once(limits: dict[str, int]) -> None:
    """Room comes back when a job is done."""
    thread = HashingThread(**limits)
    gate = Gate()
    made = hasher(thread, pool_tokenizer(gate.encode))
    first = asyncio.create_task(made.hash(TextPrompt("abcdefgh"), [SCHEME], [NO_KEYS]))
    await asyncio.to_thread(gate.entered.wait)
    assert await reason_of(made, TextPrompt("abcdefgh")) == "busy"
    gate.opened.set()
    await first
    await quiet(thread)
    await made.hash(TextPrompt("abcdefgh"), [SCHEME], [NO_KEYS])
    thread.close()
    assert await reason_of(made, TextPrompt("a")) == "busy"


def _job(name: str, steps: int, log: list[str], hold: Callable[[], Any] = lambda: None) -> Job:
    """Each step is longer than a slice, so that each is a turn."""

    def work() -> Slices:
        hold()
        for _ in range(steps):
            log.append(name)
            time.sleep(0.0015)
            yield
        raise NotTokenized("error")

    return Job(work(), time.monotonic() + PATIENT_S, 1, lambda _: None)


async def test_sessions_take_turns_and_a_sessions_own_jobs_do_not_overtake(
    thread: HashingThread,
) -> None:
    """A busy session delays another by one slice at a time."""
    log: list[str] = []
    opened = threading.Event()
    thread.submit(_job("gate", 1, log, lambda: opened.wait(PATIENT_S)), None)
    for name, session in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", None)]:
        thread.submit(_job(name, 3, log), session)
    opened.set()
    await quiet(thread)
    assert log[0] == "gate"
    turns = log[1:]
    assert turns.index("b1") < 3 and turns.index("c1") < 3
    # While a's first job has a turn left, the others have had as many.
    assert sorted(turns[:9]) == ["a1"] * 3 + ["b1"] * 3 + ["c1"] * 3
    assert turns[9:] == ["a2"] * 3


async def test_the_loop_runs_while_long_prompts_are_in_work(thread: HashingThread) -> None:
    """Each slice ends with the lock given away, so the loop turns many times meanwhile."""
    made = hasher(thread)
    tasks = [
        asyncio.create_task(made.hash(TextPrompt(chr(i) * 120_000), [SCHEME], [NO_KEYS], str(i)))
        for i in range(97, 101)
    ]
    turns = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns += 1
    assert turns > 50
    assert [len(task.result().prefixes[0].block_hashes) for task in tasks] == [30_000] * 4


async def test_a_loop_that_is_gone_is_no_harm_to_the_thread(thread: HashingThread) -> None:
    """A prompt whose loop was closed settles nowhere, and others are hashed."""
    gate = Gate()
    made = hasher(thread, pool_tokenizer(gate.encode))

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(made.hash(TextPrompt("gone"), [SCHEME], [NO_KEYS]))
        loop.call_later(0.05, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    await asyncio.to_thread(elsewhere)
    gate.opened.set()
    await quiet(thread)
    hashed = await made.hash(TextPrompt("abcd"), [SCHEME], [NO_KEYS])
    assert len(hashed.prefixes) == 1


@pytest.mark.parametrize("busy", [False, True])
async def test_a_short_prompt_is_done_at_once_only_where_the_thread_is_idle(
    thread: HashingThread, busy: bool
) -> None:
    """What the thread uses nobody else touches meanwhile; the result is the same both ways."""
    gate, used = Gate(), list[int]()

    def encode(text: str, add_special_tokens: bool) -> "array[int]":
        if text == "short":
            used.append(threading.get_ident())
        return (
            gate.encode(text, add_special_tokens) if text == "x" * 5_000 else letters(text, False)
        )

    made = PromptHasher(pool_tokenizer(encode), thread, patience_s=PATIENT_S)
    tasks = []
    if busy:
        tasks.append(asyncio.create_task(made.hash(TextPrompt("x" * 5_000), [SCHEME], [NO_KEYS])))
        await asyncio.to_thread(gate.entered.wait, PATIENT_S)
    tasks.append(asyncio.create_task(made.hash(TextPrompt("short"), [SCHEME], [NO_KEYS])))
    await asyncio.sleep(0)
    gate.opened.set()
    hashed = (await asyncio.gather(*tasks))[-1]
    assert list(hashed.prefixes[0].block_hashes) == SCHEME.block_hashes(letters("short", False))
    assert (used == [threading.get_ident()]) is not busy


async def test_an_error_of_a_short_prompt_is_a_reason_too(thread: HashingThread) -> None:
    """A foreign library raises what it likes, in whichever thread."""

    def fail(text: str, add_special_tokens: bool) -> "array[int]":
        if text:
            raise RuntimeError("no")
        return letters(text, False)

    made = PromptHasher(pool_tokenizer(fail), thread)
    assert await reason_of(made, TextPrompt("short")) == "error"


async def test_a_prompt_with_tools_is_never_done_at_once(thread: HashingThread) -> None:
    """Its length is not known before it is rendered."""
    rendered = list[int]()

    def render(messages: Any, *_: Any) -> str:
        rendered.append(threading.get_ident())
        return "x"

    made = PromptHasher(pool_tokenizer(render=render), thread, patience_s=PATIENT_S)
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    await made.hash(ChatPrompt({"messages": messages, "tools": tools}), [SCHEME], [NO_KEYS])
    await made.hash(ChatPrompt({"messages": messages}), [SCHEME], [NO_KEYS])
    assert rendered[0] != threading.get_ident() == rendered[1]
