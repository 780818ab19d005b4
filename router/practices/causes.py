"""Why two prompts part: the likely cause, and what to do about it.

A cause is read off both requests and the place where their texts part. Rules:

* What a remedy would gain is measured, not guessed: the requests are mended, tokenized again, and
  the tokens that they then share are told.
* The first cause is the likely one. A salt and the model's name come besides: they part prompts
  whose tokens are equal.
* ``remedy`` is empty where nothing is wrong: a conversation that goes on, another question at the
  end.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from router.practices.layout import Section
from router.practices.marking import Place
from router.practices.prompt import TokenizedBody
from router.practices.remedies import REMEDIES

# Fields that reach the template beside messages and tools, or change what is tokenized.
SETTINGS = (
    "chat_template_kwargs",
    "reasoning_effort",
    "tool_choice",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
)
_SHOWN_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class Cause:
    """``shared_tokens``: what the two would share without it; None: not measured."""

    kind: str
    what: str
    remedy: str = ""
    shared_tokens: int | None = None


class Measure(Protocol):
    """Shared tokens of two requests, or of two texts; None where they have no tokens here."""

    def bodies(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None: ...

    def texts(self, a: str, b: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One of two prompts that part. Their texts are equal up to ``offset``, which need not be the
    beginning of a token. ``place`` None: not known; ``section``: what of the text is that part."""

    tokenized: TokenizedBody
    offset: int
    place: Place | None = None
    section: Section | None = None

    @property
    def body(self) -> Mapping[str, Any]:
        return self.tokenized.body

    @property
    def messages(self) -> list[Any]:
        messages = self.body.get("messages")
        return messages if isinstance(messages, list) else []

    @property
    def own_text(self) -> str:
        """The part that holds the difference, or all of the text."""
        text = self.tokenized.text or ""
        return text if self.section is None else text[self.section.start : self.section.end]

    @property
    def own_offset(self) -> int:
        return self.offset if self.section is None else self.offset - self.section.start


@dataclass(frozen=True, slots=True)
class Parted:
    """Two prompts, the tokens that they share, and how to measure what a remedy gains."""

    a: Side
    b: Side
    shared_tokens: int
    measure: Measure

    def kinds(self) -> set[str]:
        return {side.place.kind for side in (self.a, self.b) if side.place is not None}

    def gain_of_bodies(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None:
        return self._gained(self.measure.bodies(a, b))

    def gain_of_texts(self, a: str, b: str) -> int | None:
        return self._gained(self.measure.texts(a, b))

    def _gained(self, tokens: int | None) -> int | None:
        """None where it gains nothing, so that nobody is promised it."""
        return None if tokens is None or tokens <= self.shared_tokens else tokens


Find = Callable[[Parted], Cause | None]


def cause(kind: str, what: str, shared_tokens: int | None = None) -> Cause:
    return Cause(kind, what, REMEDIES[kind], shared_tokens)


def besides(a: TokenizedBody, b: TokenizedBody) -> Iterator[Cause]:
    """What parts prompts in the cache whatever their tokens."""
    if a.cache_salt != b.cache_salt:
        one = a.cache_salt is None or b.cache_salt is None
        which = "one has a cache_salt, the other none" if one else "their cache_salt differs"
        yield cause("salt", f"{which}: blocks of different salts are never shared")
    if a.body.get("model") != b.body.get("model"):
        names = " and ".join(shown(side.body.get("model")) for side in (a, b))
        yield cause("model", f"they ask for the models {names}")


def cause_of_settings(parted: Parted) -> Cause | None:
    """Where the settings of one, given to the other, keep the two together for longer."""
    a, b = parted.a.body, parted.b.body
    differing = [key for key in SETTINGS if a.get(key) != b.get(key)]
    if not differing:
        return None
    others = {key: value for key, value in b.items() if key not in differing}
    mended = {**others, **{key: a[key] for key in differing if key in a}}
    gained = parted.gain_of_bodies(a, mended)
    if gained is None:
        return None
    values = ", ".join(f"{key} {shown(a.get(key))} and {shown(b.get(key))}" for key in differing)
    kind = "settings_of_the_answer" if "generation" in parted.kinds() else "settings"
    return cause(kind, f"the template is given other settings: {values}", gained)


def shown(value: Any) -> str:
    """A value in few characters, on one line."""
    if value is None:
        return "none"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}\u2026"
