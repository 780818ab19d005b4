"""Conversations as agents have them: one system prompt and one set of tools, histories that grow.

Everything is a function of one source of random numbers, so the same seed gives the same requests
wherever they are sent; what the assistant says is filled in by whoever sends them. Rules it keeps:

* All agents share the system prompt and the tools, so every prompt begins with the same tokens.
* A turn repeats the whole history and adds to its end: first a task, then by turns what a tool
  returned and what the user says next.
* Where a tool has returned something, the turn before called it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Draws uniformly from [0, 1): `random.Random(seed).random`, which is the same in every version.
Draw = Callable[[], float]

_WORDS = (
    "the a of to in is for that with on as are be by an it from at or this which not all has can "
    "file name value list line code type class call error return string object number default "
    "module test key set index state index path argument result read write open close first last "
    "next each other same new old empty given used called found raised stored changed checked"
).split()
_TOOLS = {
    "read_file": "Read a file of the repository, whole or some of its lines.",
    "search": "Search the repository for an expression and list where it was found.",
    "run_tests": "Run the tests that match a name and return what failed.",
    "write_file": "Write a file of the repository and return what changed.",
}


@dataclass(frozen=True)
class Turn:
    """``messages`` are added to the history; ``call`` is what the assistant called before them."""

    messages: tuple[dict[str, Any], ...]
    call: dict[str, Any] | None
    answer_tokens: int
    pause_seconds: float


@dataclass(frozen=True)
class Agent:
    name: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Workload:
    system: dict[str, Any]
    tools: tuple[dict[str, Any], ...]
    agents: tuple[Agent, ...]

    @property
    def requests(self) -> int:
        return sum(len(agent.turns) for agent in self.agents)


@dataclass(frozen=True)
class Sizes:
    """Words are about a token each, as in the tokenizer of this repository."""

    system_words: int = 1_600
    task_words: int = 3_000
    added_words: int = 250
    answer_tokens: int = 10
    pause_seconds_max: float = 0.5


def make_workload(
    draw: Draw,
    agents: int,
    turns: int,
    sizes: Sizes = Sizes(),
) -> Workload:
    """Raises ValueError for fewer than one agent or turn."""
    if agents < 1 or turns < 1:
        raise ValueError(f"{agents} agents with {turns} turns: at least one of each")
    system = {"role": "system", "content": _text(draw, sizes.system_words)}
    tools = tuple(_tool(draw, name, text) for name, text in _TOOLS.items())
    return Workload(
        system,
        tools,
        tuple(_agent(draw, f"agent-{number}", turns, sizes) for number in range(1, agents + 1)),
    )


class Conversation:
    """One agent's history, as far as it has come."""

    def __init__(self, workload: Workload, agent: Agent) -> None:
        self.agent = agent
        self.messages: list[dict[str, Any]] = [workload.system]
        self._turns = list(reversed(agent.turns))

    @property
    def is_over(self) -> bool:
        return not self._turns

    def ask(self) -> Turn:
        """The next turn; its messages are in the history then."""
        turn = self._turns.pop()
        if turn.call is not None:
            self.messages[-1]["tool_calls"] = [turn.call]
        self.messages += turn.messages
        return turn

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def cached_at_best(turns: Sequence[tuple[int, int]], shared_tokens: int, block_size: int) -> int:
    """Prompt tokens of one conversation that a cache without end would have had.

    ``turns`` are the prompt's and the answer's tokens; ``shared_tokens`` begin every conversation
    and are there already. The last token of an answer is never computed, so never cached.
    """
    cached, known = 0, shared_tokens
    for prompt_tokens, answer_tokens in turns:
        cached += min(known // block_size, (prompt_tokens - 1) // block_size) * block_size
        known = prompt_tokens + answer_tokens - 1
    return cached


def _agent(draw: Draw, name: str, turns: int, sizes: Sizes) -> Agent:
    made = [_turn(draw, ({"role": "user", "content": _text(draw, sizes.task_words)},), None, sizes)]
    for number in range(1, turns):
        content = _text(draw, sizes.added_words)
        if number % 2:
            call = _call(draw, f"call-{name}-{number}")
            message = {"role": "tool", "tool_call_id": call["id"], "content": content}
            made.append(_turn(draw, (message,), call, sizes))
        else:
            made.append(_turn(draw, ({"role": "user", "content": content},), None, sizes))
    return Agent(name, tuple(made))


def _turn(
    draw: Draw, messages: tuple[dict[str, Any], ...], call: dict[str, Any] | None, sizes: Sizes
) -> Turn:
    answer_tokens = max(1, int(sizes.answer_tokens * (0.5 + draw())))
    return Turn(messages, call, answer_tokens, sizes.pause_seconds_max * draw())


def _call(draw: Draw, id: str) -> dict[str, Any]:
    arguments = {"path": f"{_pick(draw, _WORDS)}/{_pick(draw, _WORDS)}.py"}
    function = {"name": _pick(draw, tuple(_TOOLS)), "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def _tool(draw: Draw, name: str, description: str) -> dict[str, Any]:
    path = {"type": "string", "description": _text(draw, 12)}
    parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _text(draw: Draw, words: int) -> str:
    """So many words, in lines as source code and its documentation have them."""
    lines, left = [], words
    while left > 0:
        count = min(left, 6 + int(draw() * 9))
        lines.append(" ".join(_pick(draw, _WORDS) for _ in range(count)))
        left -= count
    return "\n".join(lines)


def _pick(draw: Draw, choices: Sequence[str]) -> str:
    return choices[int(draw() * len(choices))]
