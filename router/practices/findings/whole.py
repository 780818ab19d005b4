"""What breaks a prefix as a whole: a salt of its own, a history that was rewritten, no length."""

from typing import Any

from router.practices.bodies import Body, leading, messages_of, text_of
from router.practices.templates import digest
from router.practices.traffic import Traffic


class Salts:
    """A salt is dropped where the same system prompt was seen under another one."""

    kind = "salts"
    remedy = (
        "Salt only what must be isolated: requests with a private prompt. Send prompts that all"
        " share without cache_salt, or with one salt per tenant instead of one per request."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._prompt_of: list[int] = []
        self._salts: dict[int, set[int]] = {}
        for index, body in traffic.bodies():
            prompt = traffic.template_of[index] or _begin(body)
            self._prompt_of.append(prompt)
            self._salts.setdefault(prompt, set()).add(digest(_salt(body)))

    def fix(self, index: int, body: Body) -> Body | None:
        if not _salt(body) or len(self._salts[self._prompt_of[index]]) < 2:
            return None
        return {key: value for key, value in body.items() if key != "cache_salt"}

    def example(self) -> str:
        most = max(map(len, self._salts.values()), default=0)
        return f"one system prompt under {most} different salts"


class RewrittenHistory:
    """A step gets back what the steps before it said, and goes on from there."""

    kind = "rewritten_history"
    remedy = (
        "Only append to a conversation. Shorten it rarely and by much (at a threshold, not at every"
        " step), and cut tool results when they are first added, never afterwards."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._requests = traffic.requests
        self._whole = traffic.histories.whole
        self._rewritings = traffic.histories.rewritings

    def fix(self, index: int, body: Body) -> Body | None:
        segments = self._whole.get(index)
        if segments is None:
            return None
        messages = messages_of(body)
        said: list[dict[str, Any]] = []
        for segment in segments:
            source = body if segment.request == index else self._requests[segment.request].body
            theirs = messages_of(source)
            said += theirs[leading(theirs) :][segment.begin : segment.end]
        return {**body, "messages": messages[: leading(messages)] + said}

    def example(self) -> str:
        first = next(iter(self._rewritings.values()), None)
        if first is None:
            return ""
        return (
            f"{self._requests[first.request].where} repeats {first.kept} of the {first.messages}"
            f" messages of {self._requests[first.previous].where}, and not those behind them"
        )


class ShortPrompt:
    """Nothing mends it in the prompt: below a block there is nothing to find."""

    kind = "short_prompt"
    remedy = (
        "A prompt needs more tokens than a block has before anything of it can be found again. Put"
        " shared instructions in front, or leave these requests out of the comparison."
    )

    def fix(self, index: int, body: Body) -> Body | None:
        return None

    def example(self) -> str:
        return ""


def _salt(body: Body) -> str:
    salt = body.get("cache_salt")
    return salt if isinstance(salt, str) else ""


def _begin(body: Body) -> int:
    """Of a chat without a system message, its first; of a completion its first line."""
    messages = messages_of(body)
    prompt = body.get("prompt")
    if messages:
        return digest(text_of(messages[0]))
    return digest(prompt.partition("\n")[0]) if isinstance(prompt, str) else 0
