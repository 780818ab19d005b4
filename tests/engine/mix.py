"""The scripted mix of requests: lanes of clients, each going on from what it was answered.

A lane is a generator: it yields what its client asks and is sent the answer. Lanes are independent,
so they can be taken in turns, or all at once. What they send differs with ``seed``, so that a
second run of the mix finds as little in the caches as the first did.
"""

import random
from collections.abc import Callable, Generator
from typing import Any

from tests.engine.client import Answer, Ask, chat, completion

Lane = Generator[Ask, Answer, None]
_WORDS = (
    "ticket refund flight Zürich seat luggage policy booking late gate agent customer when which "
    "change cancel upgrade cabin economy 東京 travel insurance payment card confirm naïve détour "
    "passenger window aisle meal special request reservation итого schedule airport delay 🛫"
).split()


class Writer:
    """Texts and token ids of one lane, from a seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def text(self, words: int) -> str:
        return " ".join(self.rng.choice(_WORDS) for _ in range(words))

    def user(self, words: int = 30) -> dict[str, Any]:
        return {"role": "user", "content": self.text(words)}

    def system(self, words: int = 80) -> dict[str, Any]:
        return {"role": "system", "content": self.text(words)}

    def ids(self, count: int) -> list[int]:
        """Of ordinary tokens."""
        return [self.rng.randrange(1_000, 140_000) for _ in range(count)]


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {p: {"type": "string", "description": f"The {p} to use"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("get_weather", "Wetter für eine Stadt, “now”", "city", "unit"),
    _tool("book_flight", "Book a flight & pay for it", "origin", "destination", "date"),
    _tool("cancel", "Cancel a booking", "reference"),
]


def sorted_keys(value: Any) -> Any:
    """The same JSON with the keys of every object in order."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    return [sorted_keys(item) for item in value] if isinstance(value, list) else value


def conversation(write: Writer, turns: int, **fields: Any) -> Lane:
    """A history that grows by each answer and the next question."""
    messages = [write.system(), write.user()]
    for _ in range(turns):
        answer = yield chat(messages, **fields)
        messages = [*messages, answer.message, write.user(12)]


def shared_document(write: Writer) -> Lane:
    """Several users ask about one document."""
    document = write.text(250)
    for user in range(7):
        question = {"role": "user", "content": f"{document}\n\n{write.text(10)}"}
        yield chat([question], user=f"user-{user}")


def tools_in_three_orders(write: Writer) -> Lane:
    """One conversation; other orders of the tools, or of their keys, are other prompts."""
    messages = [write.system(20), write.user()]
    for tools in (TOOLS, TOOLS[::-1], sorted_keys(TOOLS)):
        for turn in range(3):
            yield chat([*messages, *([write.user(8)] if turn else [])], tools=tools)


def tool_calls(write: Writer) -> Lane:
    """An assistant's calls and the tool's answers stand in the history."""
    call = {"name": "get_weather", "arguments": '{"city": "Zürich", "unit": "c"}'}
    messages = [write.system(20), write.user()]
    for turn in range(3):
        calls = [{"id": f"call_{turn}", "type": "function", "function": call}]
        messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
        messages += [{"role": "tool", "tool_call_id": f"call_{turn}", "content": write.text(20)}]
        yield chat(messages, tools=TOOLS)


def several_systems(write: Writer) -> Lane:
    """Also in the middle, and a developer's."""
    messages = [write.system(30), write.system(30), write.user(), write.system(10)]
    for role in ("user", "developer", "user", "user"):
        answer = yield chat(messages)
        messages = [*messages, answer.message, {"role": role, "content": write.text(10)}]


def content_parts(write: Writer) -> Lane:
    """One text is the same prompt as a string and as one part; two parts are joined by a line."""
    text, more = write.text(60), write.text(30)
    part, other = ({"type": "text", "text": t} for t in (text, more))
    for content in (text, [part], [part, other], f"{text}\n{more}"):
        yield chat([{"role": "user", "content": content}])


def reasoning(write: Writer) -> Lane:
    """Thinking on and off, and what was thought in the history."""
    messages = [write.system(40), write.user()]
    yield chat(messages, chat_template_kwargs={"enable_thinking": True})
    yield chat(messages, chat_template_kwargs={"enable_thinking": False})
    yield chat(messages, reasoning_effort="none")
    thought = {"role": "assistant", "content": "Yes.", "reasoning": write.text(20)}
    yield chat([*messages, thought, write.user(10)])
    yield chat([*messages, thought, write.user(10)], chat_template_kwargs={"unknown": 1})


def completions_by_text(write: Writer) -> Lane:
    text = write.text(40)
    for _ in range(5):
        answer = yield completion(text)
        text += answer.text + write.text(15)


def generated_tokens(write: Writer) -> Lane:
    """What was generated is held too: the next prompt is all tokens so far and a few more."""
    ids = write.ids(70)
    for _ in range(6):
        answer = yield completion(ids, max_tokens=45)
        ids = ids + answer.token_ids + write.ids(7)


def salts(write: Writer) -> Lane:
    """Each salt is a cache of its own."""
    messages = [write.user(60)]
    for salt in ("tenant-a", "tenant-b", None, "tenant-a", "tenant-b", None):
        yield chat(messages, **({"cache_salt": salt} if salt else {}))
    yield completion(write.text(60), cache_salt="tenant-a")


def adapter(write: Writer) -> Lane:
    """An adapter's blocks are its own, and found again; so are the base model's."""
    messages = [write.user(60)]
    for model in ("sql", "tiny", "sql", "tiny"):
        yield chat(messages, model=model)
    answer = yield chat([*messages, write.user(5)], model="sql", cache_salt="tenant-a")
    yield chat([*messages, write.user(5), answer.message], model="sql", cache_salt="tenant-a")


def full_hits(write: Writer) -> Lane:
    """The last token is always computed: of a prompt that fills its blocks one is not read."""
    exact, longer = write.ids(64), write.ids(65)
    for prompt in (exact, exact, exact, longer, longer, exact):
        yield completion(prompt, max_tokens=1)


def short_prompts(write: Writer) -> Lane:
    """Nothing shorter than a block is held."""
    ids = write.ids(17)
    for count in (1, 15, 16, 16, 17, 17):
        yield completion(ids[:count], max_tokens=1)
    yield chat([{"role": "user", "content": "x"}], max_tokens=1)


def prompt_logprobs(write: Writer) -> Lane:
    """They are computed for every token, so that no cache is read; what is computed is stored."""
    ids = write.ids(100)
    yield completion(ids)
    yield completion(ids, prompt_logprobs=1)
    yield completion(ids)
    yield completion(ids, echo=True, logprobs=1)
    yield completion(ids, echo=True)
    yield chat([write.user(50)], prompt_logprobs=0)


def aborts(write: Writer) -> Lane:
    """A client that leaves: what was computed until then stays, and is found."""
    for leave_after in (2, 20, 40):
        ids = write.ids(90)
        left = yield completion(ids, leave_after, stream=True, max_tokens=400)
        yield completion(ids + left.token_ids[:-1] + write.ids(3))


def evictions(write: Writer) -> Lane:
    """Prompts of half a pool push others out; their own beginning comes back."""
    for _ in range(3):
        ids = write.ids(5_000)
        yield completion(ids, max_tokens=2)
        yield completion(ids[:2_500] + write.ids(20), max_tokens=2)


def several_sequences(write: Writer) -> Lane:
    """Several of one prompt share their first blocks as they run, so nothing is predicted."""
    yield chat([write.user(40)], n=2)
    yield completion([write.ids(40), write.ids(50)])


def odd_bodies(write: Writer) -> Lane:
    """What the router changes, what is cut, what is continued, and what the engine refuses."""
    messages = [write.user(40)]
    for _ in range(2):
        yield chat(messages, vllm_xargs={"kv_cache_report_mode": "full"})
    yield completion(write.text(80), truncate_prompt_tokens=50)
    begun = [*messages, {"role": "assistant", "content": write.text(20)}]
    yield chat(begun, continue_final_message=True, add_generation_prompt=False)
    yield completion(write.ids(20_000))
    yield chat(messages, temperature="hot")


def lanes(seed: int, *, together: bool = False) -> dict[str, Lane]:
    """All of the mix: between 120 and 150 requests.

    ``together``: without what kills vLLM 0.32 on a CPU where requests run beside others. An engine
    with adapters cannot compute the log probabilities of a prompt there: its worker fails with an
    einsum of two sizes, and the engine is dead.
    """
    streamed = {"stream": True}
    made: dict[str, Callable[[Writer], Lane]] = {
        "conversation": lambda write: conversation(write, 10),
        "agent": lambda write: conversation(write, 9, tools=TOOLS),
        "streamed": lambda write: conversation(write, 7, **streamed),
        "streamed_tools": lambda write: conversation(write, 4, tools=TOOLS[:2], **streamed),
        "generated_chat": lambda write: conversation(write, 7, max_tokens=60),
        "shared_document": shared_document,
        "tools_in_three_orders": tools_in_three_orders,
        "tool_calls": tool_calls,
        "several_systems": several_systems,
        "content_parts": content_parts,
        "reasoning": reasoning,
        "completions_by_text": completions_by_text,
        "generated_tokens": generated_tokens,
        "salts": salts,
        "adapter": adapter,
        "full_hits": full_hits,
        "short_prompts": short_prompts,
        "prompt_logprobs": prompt_logprobs,
        "aborts": aborts,
        "evictions": evictions,
        "several_sequences": several_sequences,
        "odd_bodies": odd_bodies,
    }
    if together:
        del made["prompt_logprobs"]
    return {name: make(Writer(f"{seed}/{name}")) for name, make in made.items()}


def short_mix(seed: int) -> dict[str, Lane]:
    """One request of most kinds, for engines of other settings."""
    made: dict[str, Callable[[Writer], Lane]] = {
        "conversation": lambda write: conversation(write, 3),
        "generated_tokens": generated_tokens,
        "salts": salts,
        "full_hits": full_hits,
    }
    return {name: make(Writer(f"{seed}/{name}")) for name, make in made.items()}
