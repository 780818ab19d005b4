"""Seeded traffic of a shop's agent, and each way of breaking its prefixes.

A fault is a function of a body: it gets the random numbers of its own, and where in the traffic the
body stands. ``traffic`` without faults is the clean control.
"""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from router.practices.lint_log import Origin, logged_request
from router.practices.traffic import LoggedRequest

Body = dict[str, Any]
Fault = Callable[[Random, "Place", Body], Body]

WORDS = (
    "parcel order refund window policy customer shipment label address warehouse carrier return"
    " invoice receipt voucher basket delivery courier signature weekend holiday package damaged"
    " missing late early partial complete confirm cancel exchange replace review escalate manager"
).split()


class Place:
    """``conversation`` and ``step`` count from 0; ``clock`` is seconds since midnight."""

    def __init__(self, conversation: int, step: int, clock: int) -> None:
        self.conversation, self.step, self.clock = conversation, step, clock


def sentence(rng: Random, words: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def paragraph(rng: Random, sentences: int = 3) -> str:
    return " ".join(sentence(rng) for _ in range(sentences))


def instructions(seed: int = 1) -> str:
    rng = Random(seed)
    rules = "\n".join(f"- {sentence(rng)}" for _ in range(12))
    return f"You are the agent of a shop and help with parcels.\n\n# Rules\n{rules}"


def tools(count: int = 6) -> list[dict[str, Any]]:
    rng = Random(2)
    return [
        {
            "type": "function",
            "function": {
                "name": f"{verb}_{WORDS[place]}",
                "description": sentence(rng),
                "parameters": {
                    "type": "object",
                    "properties": {
                        "order": {"type": "string", "description": sentence(rng, 6)},
                        "count": {"type": "integer", "minimum": 1},
                    },
                    "required": ["order"],
                },
            },
        }
        for place, verb in enumerate(("find", "list", "get", "set", "drop", "move")[:count])
    ]


def traffic(*faults: Fault, seed: int = 7, conversations: int = 12, steps: int = 4) -> list[Body]:
    """Conversations that take turns, each step repeating all before it."""
    rng, broken = Random(seed), Random(seed + 1)
    said: list[list[dict[str, Any]]] = [[] for _ in range(conversations)]
    bodies, clock = [], 36_000
    for step in range(steps):
        for conversation in range(conversations):
            history = said[conversation]
            history.append({"role": "user", "content": paragraph(rng, 2)})
            clock += rng.randrange(1, 50)
            body: Body = {
                "model": "m",
                "messages": [{"role": "system", "content": instructions()}, *history],
                "tools": tools(),
            }
            body = copy.deepcopy(body)
            for fault in faults:
                body = fault(broken, Place(conversation, step, clock), body)
            bodies.append(body)
            history.append({"role": "assistant", "content": paragraph(rng, 2)})
    return bodies


def logged(bodies: list[Body]) -> list[LoggedRequest]:
    return [
        logged_request(json.dumps(body).encode(), Origin("log", line))
        for line, body in enumerate(bodies, 1)
    ]


def _with_system(body: Body, text: str) -> Body:
    body["messages"][0]["content"] = text
    return body


def _system(body: Body) -> str:
    text: str = body["messages"][0]["content"]
    return text


def clock(rng: Random, place: Place, body: Body) -> Body:
    hours, rest = divmod(place.clock % 86_400, 3600)
    now = f"2026-03-04 {hours:02}:{rest // 60:02}:{rest % 60:02}"
    return _with_system(body, f"The current time is {now}.\n{_system(body)}")


def ids(rng: Random, place: Place, body: Body) -> Body:
    tag = f"{rng.getrandbits(64):016x}"
    return _with_system(body, f"Trace id: {tag}\n{_system(body)}")


def names(rng: Random, place: Place, body: Body) -> Body:
    first = ("Jane", "Omar", "Li", "Ana", "Piet", "Ola", "Kim", "Raj", "Eva", "Tom", "Uma", "Yan")
    plan = ("gold", "free", "pro")[place.conversation % 3]
    who = f"User: {first[place.conversation % 12]} Doe\nPlan: {plan}\n"
    return _with_system(body, who + _system(body))


def retrieval_first(rng: Random, place: Place, body: Body) -> Body:
    passages = "\n".join(paragraph(Random(place.conversation * 9 + i), 3) for i in range(3))
    return _with_system(body, f"# Context\n{passages}\n{_system(body)}")


def tool_order(rng: Random, place: Place, body: Body) -> Body:
    rng.shuffle(body["tools"])
    return body


def key_order(rng: Random, place: Place, body: Body) -> Body:
    for tool in body["tools"]:
        parameters = list(tool["function"]["parameters"].items())
        rng.shuffle(parameters)
        tool["function"]["parameters"] = dict(parameters)
    return body


def tools_missing(rng: Random, place: Place, body: Body) -> Body:
    """Every third step has none; which one differs between conversations."""
    if (place.step + place.conversation) % 3 == 2:
        del body["tools"]
    return body


def whitespace(rng: Random, place: Place, body: Body) -> Body:
    text = _system(body)
    if place.conversation % 3 == 1:
        text = text.replace("\n", "\r\n")
    elif place.conversation % 3 == 2:
        text = text.replace("help with", "help  with\u00a0")
    return _with_system(body, text)


def salts(rng: Random, place: Place, body: Body) -> Body:
    return {**body, "cache_salt": f"salt-{place.conversation}-{place.step}"}


def rewritten_history(rng: Random, place: Place, body: Body) -> Body:
    """A window of the last four messages."""
    messages = body["messages"]
    return {**body, "messages": messages[:1] + messages[1:][-4:]}


def short_prompt(rng: Random, place: Place, body: Body) -> Body:
    if place.conversation % 2:
        return {"prompt": "Hi", "model": "m"}
    return body


FAULTS: dict[str, Fault] = {
    "clock": clock,
    "ids": ids,
    "names": names,
    "retrieval_first": retrieval_first,
    "tool_order": tool_order,
    "key_order": key_order,
    "tools_missing": tools_missing,
    "whitespace": whitespace,
    "salts": salts,
    "rewritten_history": rewritten_history,
    "short_prompt": short_prompt,
}


def story() -> list[Body]:
    """The traffic of the worked example in docs/practices/lint.md."""

    def shuffled(rng: Random, place: Place, body: Body) -> Body:
        return tool_order(rng, place, body) if "tools" in body else body

    return traffic(tools_missing, shuffled, clock, conversations=40, steps=5)
