"""A client that breaks its prefixes as teams do, and its mended versions, over the same sessions.

Agents of one platform share a system prompt and a set of tools. Each of them takes several steps; a
step appends the answer that it got and what is asked next. Nothing in it depends on the time of day
but the clock, which is the client's own: the same seed gives the same requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

AGENTS, STEPS = 6, 5
# The third and the last step of each agent only sum up, and call nothing.
_STEPS_WITHOUT_TOOLS = (2, 4)
_CLOCK_BEGINS_S = 8 * 3600
_TICK_S = 7

_RULES = (
    "You are an agent of an airline. Answer with the policy at hand and never invent a flight."
    " Ask for the booking reference before anything is changed, and read the change back."
    " A ticket that was issued less than a day ago is refunded whole; after that the fee of its"
    " fare applies, and a fare without changes has none. Bags are counted for each leg. A child"
    " under two years travels on a lap, with a ticket. Seats in a row with an exit are for adults"
    " who can open it. If a flight is late by more than three hours, offer a meal, and a night in"
    " a hotel where the next one leaves tomorrow. Hand over to a person when you are asked to."
)
_TOOLS = {
    "find_booking": ("Find a booking by its reference.", ("reference", "last_name")),
    "find_flights": ("Find flights between two airports on a day.", ("origin", "target", "day")),
    "change_flight": ("Put a leg of a booking on another flight.", ("reference", "leg", "flight")),
    "add_bag": ("Add a bag to a leg of a booking.", ("reference", "leg", "weight_kg")),
    "refund": ("Give back what a ticket has cost, less the fee.", ("reference", "reason")),
    "hand_over": ("Hand the conversation over to a person.", ("reference", "summary")),
}
_ASKED = (
    "I would like to leave a day later than it says on my ticket, if that is possible at all.",
    "The one in the morning, please, and a seat at the window if there is one left in the row.",
    "And what does it cost me, with the bag that I have booked already for the way back?",
    "Good, then do so, and send the confirmation to the address that you have of me.",
    "Thank you. Was there something else that I have to know before I leave?",
)


@dataclass(frozen=True, slots=True)
class Client:
    """Each mistake is one of a real client's. ``platform`` makes the prompt this client's own."""

    platform: str
    clock_in_system: bool = True
    tools_left_out: bool = True

    def first_messages(self, agent: int, clock: str) -> list[dict[str, Any]]:
        system = f"Platform {self.platform}. {_RULES}"
        if self.clock_in_system:
            system = f"Current time: {clock}. {system}"
        return [{"role": "system", "content": system}, self.asks(agent, 0, clock)]

    def asks(self, agent: int, step: int, clock: str) -> dict[str, Any]:
        text = f"{_ASKED[step]} My reference is QX{agent * 1117 + 4021}."
        return {"role": "user", "content": text if self.clock_in_system else f"{text}\n({clock})"}

    def body(self, messages: Sequence[Any], step: int, rng: Random) -> dict[str, Any]:
        """Tools stand in whatever order a dictionary or a registry has them in this time."""
        body = {"model": "sim", "messages": list(messages), "max_tokens": 12, "temperature": 0}
        if step not in _STEPS_WITHOUT_TOOLS:
            return body | {"tools": rng.sample(tools(), len(_TOOLS))}
        if self.tools_left_out:
            return body
        return body | {"tools": rng.sample(tools(), len(_TOOLS)), "tool_choice": "none"}

    def at(self, messages: list[dict[str, Any]], clock: str) -> None:
        """What the clock says now stands where this client has put it."""
        if self.clock_in_system:
            text = messages[0]["content"].partition(". ")[2]
            messages[0] = {"role": "system", "content": f"Current time: {clock}. {text}"}


def sessions(client: Client) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Bodies in the order they are sent, and the messages that the answer is to be appended to."""
    rng, clock_s = Random(7), _CLOCK_BEGINS_S
    talks = [client.first_messages(agent, shown(clock_s)) for agent in range(AGENTS)]
    for step in range(STEPS):
        for agent, messages in enumerate(talks):
            clock_s += _TICK_S
            if step:
                messages.append(client.asks(agent, step, shown(clock_s)))
            client.at(messages, shown(clock_s))
            yield client.body(messages, step, rng), messages


def shown(clock_s: int) -> str:
    return f"2026-11-30 {clock_s // 3600:02}:{clock_s // 60 % 60:02}:{clock_s % 60:02}"


def tools() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {field: {"type": "string"} for field in fields},
                    "required": list(fields),
                },
            },
        }
        for name, (description, fields) in _TOOLS.items()
    ]
