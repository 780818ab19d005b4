"""Clients that send their tools with some steps of a conversation and not with others.

Tools stand at the front of a prompt, so a step without them shares nothing with the steps around
it. With the tools and ``tool_choice`` "none" the model calls none either and the prefix is kept,
unless the engine leaves unused tools out of the prompt. Rules it keeps:

* A conversation is one session with one system text; without a session, one system text with one
  first message behind it. Another system text is another prefix, and no fault.
* It is bounded: the conversation that has been silent for longest is forgotten first.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import xxhash

CONVERSATIONS_MAX = 10_000
_SYSTEM_ROLES = ("system", "developer")


class ToolSteps:
    """What the last step of each conversation was."""

    def __init__(self, conversations_max: int = CONVERSATIONS_MAX) -> None:
        self._with_tools: OrderedDict[int, bool] = OrderedDict()
        self._conversations_max = conversations_max

    def __len__(self) -> int:
        return len(self._with_tools)

    def alternates(self, conversation: int, with_tools: bool) -> bool:
        """Whether the step before this one was different."""
        before = self._with_tools.get(conversation)
        self._with_tools[conversation] = with_tools
        self._with_tools.move_to_end(conversation)
        if len(self._with_tools) > self._conversations_max:
            self._with_tools.popitem(last=False)
        return before is not None and before is not with_tools


def conversation_of(
    body: Mapping[str, Any], session: str | None, system: bytes | None
) -> int | None:
    """A name for it that is no secret of anybody's; None where nothing tells it from others.

    ``system``: digest of its system text.
    """
    name = session or _first_text(body)
    if not name:
        return None
    kind = "session" if session else "message"
    text = name.encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(b"%b\0%b\0%b" % (kind.encode(), system or b"", text))


def _first_text(body: Mapping[str, Any]) -> str | None:
    """Of the first message that is no system's, where it is one string or begins with one."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") not in _SYSTEM_ROLES:
            return _text(message.get("content"))
    return None


def _text(content: Any) -> str | None:
    if isinstance(content, list) and content:
        content = content[0].get("text") if isinstance(content[0], dict) else content[0]
    return content if isinstance(content, str) else None
