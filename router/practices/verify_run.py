"""A shell: the acceptance procedure, step by step, one request after the other.

What a step proves is for ``verify_verdicts``; here it is only sent. A request that fails ends its
step, and the next step goes on; a run that is out of time ends.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from router.practices.verify_client import OutOfTime, Refused, VerifyClient
from router.practices.verify_prompts import (
    TURN_WORDS,
    assistant,
    chat,
    listed,
    question,
    user,
    words,
)
from router.practices.verify_verdicts import (
    NO_SALT,
    Answer,
    Sent,
    Verdict,
    cached_tokens,
    judged,
    judged_salted,
    repeat_note,
    skipped,
    source_of,
    undone,
)

CONTROL, PREFIX, REPEAT, CONVERSATION, SALTED = STEPS = (
    "control",
    "fixed prefix",
    "repeat",
    "conversation",
    "salted control",
)
_TURNS = 4
_CONTROL_REQUESTS_MAX = 3
_CALIBRATION_WORDS = 200
# A conversation grows to about this share of the long prefix, and begins with half of it.
_CONVERSATION_SHARE = 0.5
_NO_TEXT = "I have noted the list."

Progress = Callable[[str], None]


@dataclass(slots=True)
class Run:
    """``nonce``: nobody's before. ``prefix_tokens``: about so many, by what a word costs."""

    client: VerifyClient
    model: str
    nonce: str
    requests: int
    prefix_tokens: int
    answer_tokens: int
    ends_at: float
    progress: Progress
    _word_tokens: float = 1.0
    _sent: dict[str, list[Sent]] = field(default_factory=dict)
    _refused_salt: str | None = None

    async def run(self) -> list[Verdict]:
        """Raises Refused where not even the first, small request is answered."""
        await self._calibrate()
        steps: Mapping[str, Callable[[], Awaitable[None]]] = {
            CONTROL: self._control,
            PREFIX: self._fixed_prefix,
            REPEAT: self._repeat,
            CONVERSATION: self._conversation,
            SALTED: self._salted,
        }
        for step, send in steps.items():
            if monotonic() >= self.ends_at:
                break
            self.progress(step)
            self._sent[step] = []
            await send()
        return self._verdicts()

    async def _calibrate(self) -> None:
        """What a word costs. It also pays for what an engine does at its first request only."""
        self.progress("first request")
        text = listed(f"{self.nonce} calibration", _CALIBRATION_WORDS)
        answer = await self.client.ask(self._body([user(text + question(0))]))
        self._word_tokens = answer.prompt_tokens / _CALIBRATION_WORDS

    async def _control(self) -> None:
        for number in range(min(self.requests, _CONTROL_REQUESTS_MAX)):
            text = self._list(f"control {number}")
            await self._ask(CONTROL, [user(text + question(number))], 0)

    async def _fixed_prefix(self) -> None:
        expected_tokens = 0
        for number in range(self.requests):
            answer = await self._ask(PREFIX, self._prefix_messages(number), expected_tokens)
            if answer is None:
                return
            expected_tokens = expected_tokens or answer.prompt_tokens

    async def _repeat(self) -> None:
        """Of a prompt that is new, so that the first time is what makes it known."""
        messages = [user(self._list("repeat") + question(0))]
        answer = await self._ask(REPEAT, messages, 0)
        if answer is not None:
            await self._ask(REPEAT, messages, answer.prompt_tokens)

    async def _conversation(self) -> None:
        text = self._list("conversation", _CONVERSATION_SHARE)
        messages, expected_tokens = [user(text + question(0))], 0
        for turn in range(_TURNS):
            answer = await self._ask(CONVERSATION, messages, expected_tokens)
            if answer is None:
                return
            expected_tokens = answer.prompt_tokens
            said = words(f"{self.nonce} turn {turn}", TURN_WORDS)
            messages += [
                assistant(answer.text or _NO_TEXT),
                user(f"{said}. {question(turn + 1)}"),
            ]

    async def _salted(self) -> None:
        """The prefix that everybody has by now: with a salt it is new, and then it is known."""
        salt = f"verify-{self.nonce}"
        messages = self._prefix_messages(self.requests)
        answer = await self._ask(SALTED, messages, 0, salt)
        if answer is not None:
            await self._ask(SALTED, self._prefix_messages(1), answer.prompt_tokens, salt)

    async def _ask(
        self,
        step: str,
        messages: list[dict[str, str]],
        expected_tokens: int,
        salt: str | None = None,
    ) -> Answer | None:
        sent = self._sent[step]
        name = f"request {len(sent) + 1}"
        try:
            answer = await self.client.ask(self._body(messages, salt))
        except OutOfTime:
            self._sent[step] = []
            return None
        except Refused as error:
            if salt is not None and error.status is not None and 400 <= error.status < 500:
                self._refused_salt = str(error)
            else:
                sent.append(Sent(name, expected_tokens, failed=str(error)))
            return None
        sent.append(Sent(name, expected_tokens, answer))
        return answer

    def _verdicts(self) -> list[Verdict]:
        source = source_of([sent for step in self._sent.values() for sent in step])
        return [self._verdict(step, source) for step in STEPS]

    def _verdict(self, step: str, source: Any) -> Verdict:
        sent = self._sent.get(step)
        if step == SALTED and self._refused_salt is not None:
            return skipped(step, f"a cache_salt is refused: {self._refused_salt}", NO_SALT)
        if not sent:
            return undone(step, "there was no time left for it: give more with --seconds-max")
        notes = []
        if step == REPEAT and (last := sent[-1].answer) is not None and sent[-1].expected_tokens:
            cached = cached_tokens(last, source)
            if cached:
                notes.append(repeat_note(last.prompt_tokens, cached))
        if step == SALTED:
            return judged_salted(step, sent, source)
        return judged(step, sent, source, notes=notes)

    def _body(self, messages: list[dict[str, str]], salt: str | None = None) -> dict[str, Any]:
        return chat(self.model, messages, self.answer_tokens, salt)

    def _prefix_messages(self, number: int) -> list[dict[str, str]]:
        return [user(self._list("prefix") + question(number))]

    def _list(self, name: str, share: float = 1.0) -> str:
        count = round(self.prefix_tokens * share / self._word_tokens)
        return listed(f"{self.nonce} {name}", count)
