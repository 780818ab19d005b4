"""Request bodies as data that a fix may copy and change: their messages, texts and tools.

Nothing here changes what it is given: every function returns a body of its own. What has no known
shape is left as it is; the engine refuses it, and the replay counts it as not tokenized.
"""

from collections.abc import Callable, Iterator
from typing import Any

Body = dict[str, Any]
Message = dict[str, Any]

_SYSTEM = ("system", "developer")


def messages_of(body: Body) -> list[Message]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def tools_of(body: Body) -> list[Any]:
    tools = body.get("tools")
    return tools if isinstance(tools, list) else []


def tool_name(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def text_of(message: Message) -> str:
    """A content's text, its parts joined as most templates join them; "" where there is none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part["text"] for part in content if _is_text(part))


def with_text(message: Message, text: str) -> Message:
    return {**message, "content": text}


def is_plain(message: Message) -> bool:
    """Whether its text may be written anew: no images, which only parts can hold."""
    content = message.get("content")
    return isinstance(content, str) or (
        isinstance(content, list) and bool(content) and all(map(_is_text, content))
    )


def leading(messages: list[Message]) -> int:
    """How many messages of the system begin the conversation."""
    count = 0
    while count < len(messages) and messages[count].get("role") in _SYSTEM:
        count += 1
    return count


def shared_positions(messages: list[Message]) -> Iterator[int]:
    """Where text that many requests share stands: the system's messages, and the first other."""
    begin = leading(messages)
    yield from range(begin)
    if begin < len(messages) and messages[begin].get("role") == "user":
        yield begin


def position_name(message: Message) -> str:
    return "system" if message.get("role") in _SYSTEM else "user"


def mapped_texts(
    body: Body, positions: Iterator[int] | range, change: Callable[[str, str], str]
) -> Body | None:
    """``change(position name, text)`` at these messages; None where nothing is changed."""
    messages = list(messages_of(body))
    changed = False
    for position in positions:
        message = messages[position]
        if not is_plain(message):
            continue
        before = text_of(message)
        after = change(position_name(message), before)
        if after != before:
            messages[position], changed = with_text(message, after), True
    return {**body, "messages": messages} if changed else None


def appended(body: Body, text: str) -> Body:
    """``text`` at the end of the newest message, if a user or a tool has said it."""
    messages = list(messages_of(body))
    if messages and messages[-1].get("role") in ("user", "tool") and is_plain(messages[-1]):
        messages[-1] = with_text(messages[-1], f"{text_of(messages[-1])}\n{text}")
    return {**body, "messages": messages}


def before_first_question(body: Body, text: str) -> Body:
    """``text`` in front of the first message behind the system's."""
    messages = list(messages_of(body))
    first = leading(messages)
    if first < len(messages) and is_plain(messages[first]):
        messages[first] = with_text(messages[first], f"{text}\n{text_of(messages[first])}")
    return {**body, "messages": messages}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
