"""The log against an ideal cache, as it is and with each practice: what a fault costs.

Decides what is a finding. Rules it keeps:

* A fault counts where mending it makes the cache find more of the same prompts: tokens that are
  found and need no longer be computed. What a fix leaves out of a prompt is no gain of the cache.
* Faults hide behind each other: a clock in front of shuffled tools makes both fixes useless alone.
  So each is also measured as what is lost when everything but it is mended; the larger counts.
* A body is tokenized once for each set of fixes that change it. What is remembered is bounded.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from router.practices.bodies import Body
from router.practices.findings.practice import Practice
from router.practices.findings.texts import RetrievalFirst, Whitespace
from router.practices.findings.tools import KeyOrder, ToolOrder, ToolsMissing
from router.practices.findings.volatile_values import clock, ids, names
from router.practices.findings.whole import RewrittenHistory, Salts, ShortPrompt
from router.practices.ideal_cache import IdealCache, PromptBlocks, prompt_blocks
from router.practices.lint_report import Finding
from router.practices.traffic import Traffic

# The order in which fixes are applied: lines are recognised before their values leave them.
PRACTICES: tuple[Callable[[Traffic], Practice], ...] = (
    RewrittenHistory,
    ToolsMissing,
    ToolOrder,
    KeyOrder,
    RetrievalFirst,
    Whitespace,
    names,
    ids,
    clock,
    Salts,
)
KINDS = (
    "clock",
    "ids",
    "names",
    "retrieval_first",
    "tool_order",
    "key_order",
    "tools_missing",
    "whitespace",
    "salts",
    "rewritten_history",
    "short_prompt",
)
# Some 500 bytes a prompt of a thousand tokens.
_REMEMBERED_BLOCKS_MAX = 8 << 20
# What mending brings to a request counts from this share of its prompt on: two prompts that begin
# with the same phrase share a block by chance.
_GAIN_SHARE_MIN = 0.02
# Fewer short prompts than this share are no matter of the traffic's hit rate.
_SHORT_SHARE_MIN = 0.01

# Token ids of each prompt of a body; ValueError where there are none.
Tokenize = Callable[[str, bytes], Sequence[Sequence[int]]]
_Fixes = tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """Of each request: its prompts' tokens, and how many of them the cache had."""

    prompt_tokens: "array[int]" = field(default_factory=lambda: array("Q"))
    hit_tokens: "array[int]" = field(default_factory=lambda: array("Q"))

    @property
    def hit_rate(self) -> float:
        return sum(self.hit_tokens) / max(1, sum(self.prompt_tokens))

    def gains_over(self, other: "Outcome") -> list[int]:
        """Tokens of each request that are found here, and had to be computed there."""
        rows = zip(
            self.prompt_tokens,
            self.hit_tokens,
            other.prompt_tokens,
            other.hit_tokens,
            strict=True,
        )
        return [_gain(*row) for row in rows]


def _gain(tokens: int, hit: int, tokens_before: int, hit_before: int) -> int:
    gain = min(hit - hit_before, (tokens_before - hit_before) - (tokens - hit))
    return gain if gain > _GAIN_SHARE_MIN * tokens_before else 0


class Replay:
    """``work_done`` is called with each request that was replayed."""

    def __init__(
        self,
        traffic: Traffic,
        tokenize: Tokenize,
        block_size: int,
        work_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._traffic, self._tokenize, self._block_size = traffic, tokenize, block_size
        self._work_done = work_done
        self._remembered: OrderedDict[tuple[int, _Fixes], tuple[PromptBlocks, ...]] = OrderedDict()
        self._blocks = 0
        self.not_tokenized: dict[int, str] = {}

    def run(self, practices: Iterable[Practice] = ()) -> tuple[Outcome, set[str]]:
        """And the kinds of the fixes that changed anything."""
        fixes, outcome, active = list(practices), Outcome(), set[str]()
        cache = IdealCache(self._block_size)
        for index, body in self._traffic.bodies():
            applied, fixed = _applied(fixes, index, body)
            active.update(applied)
            space = (str(fixed.get("model")), str(fixed.get("cache_salt") or ""))
            prompts = self._prompts(index, applied, fixed)
            outcome.prompt_tokens.append(sum(prompt.tokens for prompt in prompts))
            outcome.hit_tokens.append(sum(cache.hit_tokens(space, one) for one in prompts))
            self._work_done()
        return outcome, active

    def _prompts(self, index: int, applied: _Fixes, body: Body) -> tuple[PromptBlocks, ...]:
        """None of a request whose body as logged has no tokens."""
        if index in self.not_tokenized:
            return ()
        # Salts are in no token.
        key = (index, tuple(kind for kind in applied if kind != "salts"))
        known = self._remembered.get(key)
        if known is None:
            known = self._read(index, applied, body)
            self._remembered[key] = known
            self._blocks += sum(len(prompt.chain) for prompt in known)
            while self._blocks > _REMEMBERED_BLOCKS_MAX:
                _, forgotten = self._remembered.popitem(last=False)
                self._blocks -= sum(len(prompt.chain) for prompt in forgotten)
        return known

    def _read(self, index: int, applied: _Fixes, body: Body) -> tuple[PromptBlocks, ...]:
        path = self._traffic.requests[index].path
        try:
            prompts = self._tokenize(path, msgspec.json.encode(body))
        except ValueError as error:
            if applied:
                # The engine would refuse the mended body (a template has its own ideas of turns,
                # a tool of another step is none): then nothing can be mended here.
                return self._prompts(index, (), self._traffic.requests[index].body)
            self.not_tokenized[index] = str(error)
            return ()
        return tuple(prompt_blocks(token_ids, self._block_size) for token_ids in prompts)


def _applied(fixes: Sequence[Practice], index: int, body: Body) -> tuple[_Fixes, Body]:
    applied = []
    for practice in fixes:
        changed = practice.fix(index, body)
        if changed is not None:
            applied.append(practice.kind)
            body = changed
    return tuple(applied), body


@dataclass(frozen=True, slots=True)
class Examined:
    base: Outcome
    fixed: Outcome
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Loss:
    """``with_fix`` against ``without``: alone, or where everything else is mended.

    Other fixes may have made a prompt longer; none loses more than what was logged of it.
    """

    practice: Practice
    logged: Outcome
    alone: Outcome
    with_fix: Outcome
    without: Outcome

    @property
    def gains(self) -> list[int]:
        return list(map(min, self.with_fix.gains_over(self.without), self.logged.prompt_tokens))

    @property
    def tokens(self) -> int:
        """0 where requests that gain stand against others that lose as much."""
        if self.with_fix.hit_rate <= self.without.hit_rate:
            return 0
        return sum(self.gains)


def examine(traffic: Traffic, replay: Replay, block_size: int) -> Examined:
    """Findings in the order in which mending them pays most, and what each of them brings."""
    base, _ = replay.run()
    losses = _losses(traffic, replay, base, block_size)
    by_gain = sorted(losses, key=lambda loss: (-loss.alone.hit_rate, -loss.tokens))
    findings, fixed = list[Finding](), base
    for count, loss in enumerate(by_gain, 1):
        mended = by_gain[:count]
        fixed, _ = replay.run([one.practice for one in losses if one in mended])
        findings.append(_finding(loss, fixed.hit_rate))
    return Examined(base, fixed, (*findings, *_short_prompts(base, block_size)))


def _losses(traffic: Traffic, replay: Replay, base: Outcome, block_size: int) -> list[_Loss]:
    alone, practices = dict[str, Outcome](), list[Practice]()
    for make in PRACTICES:
        practice = make(traffic)
        outcome, active = replay.run([practice])
        if active:
            practices.append(practice)
            alone[practice.kind] = outcome
    together, _ = replay.run(practices)
    losses = list[_Loss]()
    for practice in practices:
        without, _ = replay.run([other for other in practices if other is not practice])
        own = alone[practice.kind]
        both = (
            _Loss(practice, base, own, own, base),
            _Loss(practice, base, own, together, without),
        )
        losses.append(max(both, key=lambda loss: loss.tokens))
    return [loss for loss in losses if loss.tokens >= block_size]


def _finding(loss: _Loss, rate: float) -> Finding:
    practice = loss.practice
    return Finding(
        practice.kind,
        sum(gain > 0 for gain in loss.gains),
        loss.tokens,
        practice.example(),
        practice.remedy,
        loss.alone.hit_rate,
        rate,
    )


def _short_prompts(base: Outcome, block_size: int) -> list[Finding]:
    """A prompt of exactly one block is short too: its last token is always computed."""
    short = [tokens for tokens in base.prompt_tokens if 0 < tokens <= block_size]
    if len(short) < max(1, _SHORT_SHARE_MIN * len(base.prompt_tokens)):
        return []
    example = f"a prompt of {min(short)} tokens, where a block has {block_size}"
    rate = base.hit_rate
    remedy = ShortPrompt.remedy
    return [Finding("short_prompt", len(short), sum(short), example, remedy, rate, rate)]
