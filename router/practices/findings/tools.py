"""Tools that say the same and do not look the same: another order, other keys, some left out.

Tools stand near the front of a prompt, so all of this costs everything behind it. Order and keys
are touched only of tools that were seen written in two ways.
"""

import json
import re
from typing import Any

from router.canonical_tools import canonical_tools
from router.practices.bodies import Body, tool_name, tools_of
from router.practices.templates import digest
from router.practices.traffic import Traffic
from router.practices.volatile import find_volatile

_EXAMPLE_TOOLS_MAX = 4
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")


class ToolOrder:
    kind = "tool_order"
    remedy = (
        "Send tools sorted by function name (build the list from a sorted registry, not from a set"
        " or a map), or let the router sort them."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._orders: dict[int, tuple[str, ...]] = {}
        self._unordered: set[str] = set()
        self._pair: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        for _, body in traffic.bodies():
            names = tuple(_names(tools_of(body)))
            first = self._orders.setdefault(digest("\0".join(sorted(names))), names)
            if first != names:
                self._unordered.update(names)
                self._pair = self._pair if self._pair[0] else (first, names)

    def fix(self, index: int, body: Body) -> Body | None:
        tools = tools_of(body)
        names = _names(tools)
        if len(names) != len(tools) or self._unordered.isdisjoint(names):
            return None
        return _changed(body, sorted(tools, key=lambda tool: str(tool_name(tool))))

    def example(self) -> str:
        first, second = self._pair
        place = next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), 0)
        return f"{_listed(first, place)} and {_listed(second, place)}"


class KeyOrder:
    kind = "key_order"
    remedy = (
        "Write the keys inside each tool in one order (serialise with sorted keys), or let the"
        " router sort them."
    )

    def __init__(self, traffic: Traffic) -> None:
        self._written: dict[str, dict[int, int]] = {}
        self._varying: set[str] = set()
        for _, body in traffic.bodies():
            for tool in tools_of(body):
                self._learn(tool)

    def _learn(self, tool: Any) -> None:
        name = tool_name(tool)
        if name is None:
            return
        canonical = digest(_text(canonical_tools([tool])))
        written = digest(_text(_as_rendered(tool)))
        if self._written.setdefault(name, {}).setdefault(canonical, written) != written:
            self._varying.add(name)

    def fix(self, index: int, body: Body) -> Body | None:
        tools = tools_of(body)
        if self._varying.isdisjoint(_names(tools)):
            return None
        sorted_keys = [
            canonical_tools([tool])[0] if tool_name(tool) in self._varying else tool
            for tool in tools
        ]
        return _changed(body, sorted_keys)

    def example(self) -> str:
        names = sorted(self._varying)
        return f"the keys inside of {_listed(tuple(names), 0)} come in different orders"


class ToolsMissing:
    kind = "tools_missing"
    remedy = (
        "Send the same tools with every step of a conversation; where none may be called, add"
        ' tool_choice "none" (and run engines without --exclude-tools-when-tool-choice-none).'
    )

    def __init__(self, traffic: Traffic) -> None:
        self._conversation_of = traffic.conversation_of
        self._tools: dict[int, dict[str, Any]] = {}
        self._seen = ""
        for index, body in traffic.bodies():
            known = self._tools.setdefault(self._conversation_of[index], {})
            for tool in tools_of(body):
                known.setdefault(str(tool_name(tool)), tool)

    def fix(self, index: int, body: Body) -> Body | None:
        known = self._tools.get(self._conversation_of[index], {})
        names = set(_names(tools_of(body)))
        if not known or not names < known.keys():
            return None
        self._seen = self._seen or f"a step has {len(names)} of its conversation's {len(known)}"
        choice = {} if names else {"tool_choice": "none"}
        return {**body, "tools": list(known.values()), **choice}

    def example(self) -> str:
        return f"{self._seen} tools"


def _names(tools: list[Any]) -> list[str]:
    return [name for name in map(tool_name, tools) if name is not None]


def _changed(body: Body, tools: list[Any]) -> Body | None:
    before = body["tools"]
    return None if _text(tools) == _text(before) else {**body, "tools": tools}


def _as_rendered(tool: Any) -> Any:
    """The engine writes a function's own keys in its own order; the schema stays as it came."""
    return tool["function"].get("parameters")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _listed(names: tuple[str, ...], begin: int) -> str:
    """Names of functions around the first that differs. A name is for programs to read, and shown;
    what is no such name, or holds what looks like an id, is not."""
    shown = [
        name if _NAME.fullmatch(name) and not find_volatile(name) else "xxx"
        for name in names[begin : begin + _EXAMPLE_TOOLS_MAX]
    ]
    more = ", …" if len(names) > begin + _EXAMPLE_TOOLS_MAX else ""
    return f"{'…, ' if begin else ''}{', '.join(shown)}{more}"
