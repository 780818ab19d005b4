"""Rendering a chat template as transformers does, without most of what that costs.

``apply_chat_template`` copies every message three times and looks every attribute up twice: half of
a decision for a long conversation. Here its own environment (filters, globals, extensions) renders
the messages at once, and a key of a message is looked up first, where it cannot be confused with a
method. Like any other short cut it is taken only where it proves identical at start.
"""

from typing import Any

from jinja2 import Template
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.chat_template import Render

_NAMES_OF_DICTS = frozenset(dir(dict))
_NAMES_OF_LOOPS = frozenset(
    "index index0 revindex revindex0 first last length previtem nextitem".split()
)


def template_render(tokenizer: Any, source: str) -> Render:
    """The faster of the two ways that render this template as the tokenizer does."""

    def reference(messages: Any, tools: Any, arguments: dict[str, Any]) -> str:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=source, tokenize=False, **arguments
        )
        assert isinstance(text, str)
        return text

    try:
        template = _compiled(source)
    # Something private has moved: that costs time, not correctness.
    except (ImportError, AttributeError, TypeError):
        return reference

    def direct(messages: Any, tools: Any, arguments: dict[str, Any]) -> str:
        if arguments.get("continue_final_message"):
            return reference(messages, tools, arguments)
        given = {"documents": None, "add_generation_prompt": False}
        given |= {**tokenizer.special_tokens_map, **arguments}
        given.pop("continue_final_message", None)
        return template.render(messages=list(map(_as_given, messages)), tools=tools, **given)

    same = all(_outcome(direct, chat) == _outcome(reference, chat) for chat in _PROBES)
    return direct if same else reference


class _Sandbox(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox's own, which learns by an exception that a dict has no such attribute,
        and asks of each attribute of a loop whether it is safe."""
        kind = type(obj)
        if kind is dict and attribute not in _NAMES_OF_DICTS:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _NAMES_OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _compiled(source: str) -> Template:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    theirs = _compile_jinja_template(source).environment
    ours = _Sandbox(
        trim_blocks=theirs.trim_blocks,
        lstrip_blocks=theirs.lstrip_blocks,
        extensions=list(map(type, theirs.extensions.values())),
    )
    ours.filters.update(theirs.filters)
    ours.globals.update(theirs.globals)
    ours.tests.update(theirs.tests)
    return ours.from_string(source)


def _as_given(message: dict[str, Any]) -> dict[str, Any]:
    """What transformers makes of a message: no empty keys, reasoning under each of its names."""
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    reasoning = message.get("reasoning_content")
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _outcome(render: Render, chat: tuple[Any, Any, dict[str, Any]]) -> str | type[Exception]:
    """Refusing is an answer as well."""
    try:
        return render(*chat)
    except Exception as error:
        return type(error)


def _said(role: str, content: str, **others: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **others}


_CALL = {
    "id": "c1",
    "function": {"arguments": {"city": "Zürich", "n": [1, 2.5, None, True]}, "name": "weather"},
    "type": "function",
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of <a> & 'b'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_TURNS = [
    _said("system", "Be brief. {{ x }}"),
    _said("user", "Weather?\n"),
    _said("assistant", "", tool_calls=[_CALL], reasoning="hm", reasoning_content="hm"),
    _said("tool", '{"t": 3}', tool_call_id="c1"),
    _said("tool", "4", tool_call_id="c2", name="weather"),
    _said("assistant", "<think>\nhm\n</think>\n\nThree."),
    _said("developer", "Now in °C.", tools=None),
    _said("user", " And <|im_end|> now? "),
]
_PARTS = [
    {**turn, "content": [{"type": "text", "text": turn["content"]}]}
    for turn in _TURNS
    if turn["role"] in ("user", "system")
]
_PROMPTED = {"add_generation_prompt": True, "continue_final_message": False}
_PROBES: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    (_TURNS[1:2], None, _PROMPTED),
    (_TURNS[:2], None, {"add_generation_prompt": False, "continue_final_message": False}),
    (_TURNS[:6], [_TOOL], _PROMPTED),
    (
        _TURNS[:5],
        [_TOOL, _TOOL],
        {**_PROMPTED, "enable_thinking": False, "reasoning_effort": "low"},
    ),
    (
        _TURNS,
        None,
        {**_PROMPTED, "enable_thinking": True, "documents": [{"title": "t", "text": "x"}]},
    ),
    ([*_TURNS[:2], _said("assistant", "Three."), *_TURNS[-1:]], None, _PROMPTED),
    ([*_TURNS[1:6], *_TURNS[1:6], *_TURNS[-1:]], [_TOOL], _PROMPTED),
    (_PARTS, None, _PROMPTED),
    (_PARTS, [_TOOL], {**_PROMPTED, "bos_token": "<b>"}),
)
