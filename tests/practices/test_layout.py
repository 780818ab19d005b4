"""Where the parts of a request stand in what a template makes of it, held against plain search."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.data import TOKENIZER_DIRECTORY
from router.chat_template import ChatTemplate, ChatTemplates
from router.pool_tokenizer import PoolTokenizer
from router.practices.layout import Layout, Render, locate
from router.practices.marking import Place
from router.render import NotRendered, render_chat
from tests.practices.templates import TEMPLATES, jinja_render


@pytest.fixture(scope="module")
def our_render() -> Render:
    templates = PoolTokenizer.load(str(TOKENIZER_DIRECTORY)).templates
    assert templates is not None
    return lambda body: render_chat(body, templates).text


@cache
def render_of(name: str) -> Render:
    source = TEMPLATES[name]
    template = ChatTemplate.of(source, jinja_render(source))
    return lambda body: render_chat(body, ChatTemplates(template, template)).text


class Words:
    """Texts of words that no other text has, and the parts that they belong to."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}

    def text(self, place: Place, shape: str) -> str:
        """``shape`` with each letter w for a new word."""
        pieces = []
        for letter in shape:
            word = f"w{len(self.places)}w"
            if letter == "w":
                self.places[word] = place
            pieces.append(word if letter == "w" else letter)
        return "".join(pieces)


SHAPES = st.sampled_from(
    ["w", "w w", " w\n", "\n\nw w w  ", "w\r\nw", "{w} \"w\" 'w'", "w\u00a0w é"]
)
THINKING = st.sampled_from(["<think>\nw\n</think>\n\nw w", "<think>w</think>w", "w"])


@st.composite
def chats(draw: st.DrawFn) -> tuple[dict[str, Any], Words]:
    words, messages = Words(), []
    turns = draw(st.lists(st.sampled_from("uact"), min_size=1, max_size=6))
    roles = ["system"] if draw(st.booleans()) else []
    names = {"u": "user", "a": "assistant", "c": "assistant", "t": "tool"}
    for index, turn in enumerate([*roles, "u", *turns]):
        role = names.get(turn, turn)
        place = Place("system" if turn == "system" else "message", index, role)
        message: dict[str, Any] = {"role": role}
        shape = draw(THINKING if turn == "a" else SHAPES)
        message["content"] = words.text(place, shape)
        if turn != "a" and draw(st.booleans()):
            message["content"] = [{"type": "text", "text": message["content"]}]
        if turn == "c":
            arguments = {"city": words.text(place, draw(SHAPES)), "n": 3}
            function = {"name": words.text(place, "w"), "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": "call00001", "type": "function", "function": function}]
        messages.append(message)
    body: dict[str, Any] = {"messages": messages}
    if draw(st.booleans()):
        body["tools"] = list(tools(draw, words))
    return body, words


def tools(draw: st.DrawFn, words: Words) -> Iterator[dict[str, Any]]:
    for index in range(draw(st.integers(1, 3))):
        name = words.text(Place("tools", index), "w")
        place = Place("tools", index, tool=name)
        words.places[name] = place
        city = {"type": "string", "description": words.text(place, draw(SHAPES))}
        function = {
            "name": name,
            "description": words.text(place, draw(SHAPES)),
            "parameters": {"type": "object", "properties": {words.text(place, "w"): city}},
        }
        yield {"type": "function", "function": function}


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(chats())
def test_each_word_is_found_in_the_part_it_came_from(
    name: str, chat: tuple[dict[str, Any], Words]
) -> None:
    """Whatever a template trims, drops, moves or repeats; words of no text are in no section."""
    body, words = chat
    layout = Layout.of(body, render_of(name))
    covered = [False] * len(layout.text)
    for word, place in words.places.items():
        start = layout.text.find(word)
        while start >= 0:
            assert {layout.place(start), layout.place(start + len(word) - 1)} == {place}
            covered[start : start + len(word)] = [True] * len(word)
            start = layout.text.find(word, start + 1)
    for section in layout.sections:
        assert any(covered[section.start : section.end])
    starts = [edge for section in layout.sections for edge in section[:2]]
    assert starts == sorted(starts)


BODY = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a pointsman?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": {"required": [name]}}}
        for name in ("look_up", "ask")
    ],
}


def test_what_is_no_part_is_named_after_what_follows(our_render: Render) -> None:
    """A turn's head, the words around tools, a tool's end, and what asks for the answer."""
    text = our_render(BODY)

    def place(word: str) -> Place:
        return locate(BODY, text.index(word), our_render)

    assert place("<|im_start|>system") == Place("template", 0, "system")
    assert place("brief") == Place("system", 0, "system")
    assert place("These functions") == Place("template", 0, tool="look_up")
    assert place('"required": ["ask"]') == Place("tools", 1, tool="ask")
    assert place('\n{"type": "function", "function": {"name": "ask"') == Place("tools")
    assert place("user\nWhat") == Place("template", 1, "user")
    assert place("<|im_start|>assistant") == Place("generation")
    assert locate(BODY, len(text), our_render) == Place("generation")
    closed = {**BODY, "add_generation_prompt": False}
    assert locate(closed, len(our_render(closed)), our_render) == Place("template")


def test_a_request_with_characters_for_private_use_is_marked_with_others(
    our_render: Render,
) -> None:
    """Marks are never mistaken for what the request has itself."""
    content = "\U000f0000\U000f0001 a \U0010fffd"
    body = {"messages": [{"role": "user", "content": content}]}
    layout = Layout.of(body, our_render)
    (section,) = layout.sections
    assert layout.text[section.start : section.end] == content


def test_a_template_that_takes_no_marks_leaves_only_its_own_text() -> None:
    """Nothing is guessed: the whole text is the template's."""

    def render(body: dict[str, Any]) -> str:
        content = body["messages"][0]["content"]
        if content != "hello world":
            raise NotRendered("the chat template refused")
        return f"<{content}>"

    layout = Layout.of({"messages": [{"role": "user", "content": "hello world"}]}, render)
    assert layout.sections == () and layout.place(3) == Place("template")


def test_a_text_of_many_messages_that_all_disturb_is_given_up_in_time() -> None:
    """The number of renderings is limited, whatever the request."""
    renders = 0

    def render(body: dict[str, Any]) -> str:
        nonlocal renders
        renders += 1
        return "".join(str(len(message["content"])) for message in body["messages"])

    body = {"messages": [{"role": "user", "content": "hello world"}] * 2000}
    assert Layout.of(body, render).sections == () and renders < 300
