"""What a chat template is, as far as it decides how messages are handed to it.

vLLM gives a template the content of a message as one string, or as a list of parts where the
template loops over it. Which of the two is read off the template's syntax tree: a loop over
``content`` of a variable that a loop over ``messages`` binds. Where that search meets something it
does not know (a loop over pairs), the answer is "string", as it is in the engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

ContentFormat = Literal["string", "openai"]

# Renders a conversation: messages, tools, keyword arguments of the template -> text.
Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One template and what its text says about it. ``render`` may raise anything."""

    render: Render
    content_format: ContentFormat
    knows_developer: bool

    @classmethod
    def of(
        cls, source: str, render: Render, content_format: ContentFormat | None = None
    ) -> "ChatTemplate":
        """``content_format`` None: as the engine detects it from the template's source."""
        return cls(render, content_format or content_format_of(source), "developer" in source)


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """What a pool's engines render chats with. ``with_tools`` is used when a request has tools.

    ``default_kwargs``: the engines' --default-chat-template-kwargs. ``exclude_unused_tools``:
    their --exclude-tools-when-tool-choice-none.
    """

    plain: ChatTemplate
    with_tools: ChatTemplate
    default_kwargs: dict[str, Any] = field(default_factory=dict)
    exclude_unused_tools: bool = False


def content_format_of(source: str) -> ContentFormat:
    """How the engine would pass message content to this template."""
    try:
        tree = _ENVIRONMENT.parse(source)
        for loop in _loops_over(tree, _message_names(tree), "content"):
            _name_of(loop.target)
            return "openai"
    except (jinja2.TemplateError, _NotAName):
        pass
    return "string"


class _NotAName(Exception):
    """A binding to something other than one variable."""


class _Generation(Extension):
    """Accepts ``{% generation %}``, which templates for training have; only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - the type is jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
)  # It only ever parses; nothing is rendered with it.


def _message_names(tree: nodes.Template) -> set[str]:
    """Variables that hold one message: targets of loops over messages or names given to them."""
    lists = {"messages"}
    found = True
    while found:
        found = False
        for assignment in tree.find_all(nodes.Assign):
            if any(_reads(assignment.node, name, None) for name in lists):
                name = _name_of(assignment.target)
                found = found or name not in lists
                lists.add(name)
    return {_name_of(loop.target) for loop in _loops_over(tree, lists, None)}


def _loops_over(tree: nodes.Template, names: set[str], key: str | None) -> Iterator[nodes.For]:
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name, key) for name in names):
            yield loop


def _name_of(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NotAName
    return target.name


def _reads(node: nodes.Node | None, name: str, key: str | None) -> bool:
    """Whether an expression is this variable (or its ``key``), filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or _is_slice(node):
        node = node.node  # type: ignore[union-attr]
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == key and _reads_name(node.node, name)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == key) and _reads_name(node.node, name)
    return False


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _is_slice(node: nodes.Node | None) -> bool:
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
