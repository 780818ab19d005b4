"""Causes in the conversation: it goes on, it was changed, or it is another one.

A is taken for the earlier of the two. Messages are counted from 1 in what is said.
"""

import json
import re
from typing import Any

from router.practices.causes import Cause, Parted, Side, cause

# A shorter message with its role, such as "Yes.", may well stand in two conversations by itself.
_TELLING_CHARS_MIN = 60
_SUMMARY = re.compile(
    r"\bsummar(?:y|ies|i[sz]ed?)\b|\bcompact(?:ed|ion)\b|\bearlier conversation\b"
)
_SUMMARY_CHARS = 400


def say_the_same(a: Side, b: Side) -> bool:
    """Whether their messages are equal, however contents are packed."""
    return _plain_messages(a) == _plain_messages(b)


def first_difference(parted: Parted) -> int | None:
    """The number of the first message that differs, or that only one has; None: there is none."""
    a, b = _plain_messages(parted.a), _plain_messages(parted.b)
    for number in range(max(len(a), len(b))):
        if a[number : number + 1] != b[number : number + 1]:
            return number
    return None


def cause_of_continuing(parted: Parted) -> Cause | None:
    """Where one conversation goes on from all messages of the other."""
    number = first_difference(parted)
    count_a, count_b = len(parted.a.messages), len(parted.b.messages)
    if number is None or number < min(count_a, count_b) or number == 0:
        return None
    if "generation" not in parted.kinds():
        return None
    longer, shorter = ("B", "A") if count_b > count_a else ("A", "B")
    what = f"{longer} goes on with message {number + 1} where {shorter} asks for the answer"
    return cause("continues", what)


def cause_in_template(parted: Parted) -> Cause | None:
    """Where the texts differ in a message that both have."""
    number = first_difference(parted)
    places = [side.place for side in (parted.a, parted.b) if side.place is not None]
    indices = [place.index for place in places if place.role and place.index is not None]
    if not indices or (number is not None and min(indices) >= number):
        return None
    what = f"message {min(indices) + 1} is the same in both, but the template writes it differently"
    return cause("template_rewrites", what)


def cause_in_last_message(parted: Parted) -> Cause | None:
    """Where all but the last message is equal, as with another question to the same prompt."""
    number = first_difference(parted)
    if number is None or not number == len(parted.a.messages) - 1 == len(parted.b.messages) - 1:
        return None
    if number == 0 and not parted.a.body.get("tools"):
        return None
    return cause(
        "last_message", f"only the last message, number {number + 1}, differs: nothing is wrong"
    )


def cause_in_system(parted: Parted) -> Cause | None:
    number = first_difference(parted)
    if number is None:
        return None
    is_system = [_role(side, number) in ("system", "developer") for side in (parted.a, parted.b)]
    if all(is_system):
        return cause("other_prompts", "another system message")
    if not any(is_system):
        return None
    a, b = _plain_messages(parted.a)[number:], _plain_messages(parted.b)[number:]
    goes_on = a[1:2] == b[:1] if is_system[0] else b[1:2] == a[:1]
    if not goes_on:
        return None
    who = "B" if is_system[0] else "A"
    what = f"{who} lacks the system message that the other has as message {number + 1}"
    return cause("system_missing", what)


def cause_in_history(parted: Parted) -> Cause | None:
    """Where messages of A stand in B again, behind the first that differs."""
    number = first_difference(parted)
    if number is None:
        return None
    again = _found_again(_plain_messages(parted.a), _plain_messages(parted.b), number)
    if again is None:
        return _summarised(parted, number)
    at_a, at_b = again
    if at_a == at_b:
        many = f"messages {number + 1} to {at_a}" if at_a > number + 1 else f"message {number + 1}"
        return cause("history_rewritten", f"{many} changed; message {at_a + 1} is the same again")
    kind, change = ("history_shortened", "lacks") if at_a > at_b else ("history_inserted", "adds")
    count = abs(at_a - at_b)
    messages = f"{count} message{'s' if count > 1 else ''} from number {number + 1} on"
    return cause(kind, f"B {change} {messages}: number {at_a + 1} of A is its number {at_b + 1}")


def cause_of_another_conversation(parted: Parted) -> Cause:
    number = first_difference(parted)
    if number:
        return cause("branch", f"two conversations part at message {number + 1}: nothing is wrong")
    if parted.a.messages and parted.b.messages and number == 0:
        return cause("other_prompts", "they begin with different messages")
    if not parted.a.messages and not parted.b.messages:
        return cause("other_prompts", "the two texts part here")
    return cause("unknown", "the requests say the same in what is compared here")


def _plain_messages(side: Side) -> list[str]:
    """Each as a text that is equal where the message is, however its content is packed."""
    return [json.dumps(_plain(message), sort_keys=True) for message in side.messages]


def _plain(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            content = "\n".join(texts)
    kept = {key: value for key, value in message.items() if value is not None}
    return {**kept, "content": content or ""}


def _role(side: Side, number: int) -> Any:
    messages = side.messages
    return messages[number].get("role") if number < len(messages) else None


def _found_again(a: list[str], b: list[str], number: int) -> tuple[int, int] | None:
    """The first message of A behind the difference that is in B, and where."""
    places = {b[at_b]: at_b for at_b in range(len(b) - 1, number - 1, -1)}
    for at_a in range(number, len(a)):
        at_b = places.get(a[at_a])
        if at_b is None:
            continue
        following = a[at_a + 1 : at_a + 2]
        if len(a[at_a]) >= _TELLING_CHARS_MIN or (
            following and following == b[at_b + 1 : at_b + 2]
        ):
            return at_a, at_b
    return None


def _summarised(parted: Parted, number: int) -> Cause | None:
    """Where B's message says so itself."""
    messages = parted.b.messages
    if number >= len(messages) or number >= len(parted.a.messages):
        return None
    content = str(messages[number].get("content"))[:_SUMMARY_CHARS].lower()
    if _SUMMARY.search(content) is None:
        return None
    return cause("history_shortened", f"message {number + 1} of B is a summary of what A has there")
