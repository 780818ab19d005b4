"""Causes in the tools: missing, others, in another order, or written in another way."""

import json
from collections.abc import Sequence
from typing import Any

from router.canonical_tools import canonical_tools, canonical_tools_text
from router.practices.causes import Cause, Parted, Side, cause

_NAMES_MAX = 4

Tools = list[Any]


def cause_in_tools(parted: Parted) -> Cause | None:
    """None where the tools are the same, or the prompts part elsewhere."""
    if not (_is_at_tools(parted.a) or _is_at_tools(parted.b)):
        return None
    a, b = _tools(parted.a), _tools(parted.b)
    if a is None or b is None:
        return None if a is b else _missing(parted, a, b)
    names_a, names_b = list(map(_name, a)), list(map(_name, b))
    if sorted(names_a) != sorted(names_b):
        return _changed(parted, names_a, names_b)
    canonical = canonical_tools_text(a)
    if canonical is None or canonical != canonical_tools_text(b):
        return _one_changed(parted, a, b)
    return _in_other_order(parted, a, b)


def _is_at_tools(side: Side) -> bool:
    """Also where the template's words before the tools are missing on the other side."""
    place = side.place
    return place is None or place.kind == "tools" or place.tool is not None


def _tools(side: Side) -> Tools | None:
    tools = side.body.get("tools")
    return tools if isinstance(tools, list) and tools else None


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else ""


def _missing(parted: Parted, a: Tools | None, b: Tools | None) -> Cause | None:
    """None where the two would part all the same. Some engines leave unused tools out."""
    tools, who = (a, "B") if b is None else (b, "A")
    for given in ({"tools": tools, "tool_choice": "none"}, {"tools": tools}):
        bodies = [
            side.body if own is not None else {**side.body, **given}
            for side, own in ((parted.a, a), (parted.b, b))
        ]
        gained = parted.gain_of_bodies(bodies[0], bodies[1])
        if gained is not None:
            what = f"{who} has no tools, the other has {_listed(list(map(_name, tools or [])))}"
            return cause("tools_missing", what, gained)
    return None


def _changed(parted: Parted, a: Sequence[str], b: Sequence[str]) -> Cause | None:
    if not set(a) & set(b):
        return cause("other_prompts", f"no tool in common: {_listed(a)} and {_listed(b)}")
    only_a = [name for name in a if name not in b]
    only_b = [name for name in b if name not in a]
    only = [
        f"only {who} has {_listed(names)}" for who, names in (("A", only_a), ("B", only_b)) if names
    ]
    what = "; ".join(only) or "a tool is there more often"
    mended = {**parted.b.body, "tools": parted.a.body["tools"]}
    gained = parted.gain_of_bodies(parted.a.body, mended)
    return None if gained is None else cause("tools_changed", f"other tools: {what}", gained)


def _one_changed(parted: Parted, a: Tools, b: Tools) -> Cause:
    texts = {_name(tool): _text(tool, sort_keys=True) for tool in a}
    changed = [_name(tool) for tool in b if texts.get(_name(tool)) != _text(tool, sort_keys=True)]
    mended = {**parted.b.body, "tools": a}
    gained = parted.gain_of_bodies(parted.a.body, mended)
    what = f"the same tools by name, with another text in {_listed(changed or [_name(a[0])])}"
    return cause("tool_changed", what, gained)


def _in_other_order(parted: Parted, a: Tools, b: Tools) -> Cause | None:
    """The same tools; None where their text is the same too."""
    pairs = list(zip(a, b, strict=True))
    bodies = [
        {**side.body, "tools": canonical_tools(_tools(side) or [])} for side in (parted.a, parted.b)
    ]
    gained = parted.gain_of_bodies(bodies[0], bodies[1])
    for number, (one, other) in enumerate(pairs, 1):
        if _name(one) != _name(other):
            which = f"tool {number} is {_name(one)} in A and {_name(other)} in B"
            return cause("tool_order", f"the same tools in another order: {which}", gained)
    for one, other in pairs:
        if _text(one) != _text(other):
            where = f"the keys of their JSON in another order, first in {_name(one)}"
            return cause("key_order", f"the same tools with {where}", gained)
    return None


def _text(tool: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(tool, sort_keys=sort_keys, ensure_ascii=False)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    shown = ", ".join(names[:_NAMES_MAX])
    return f"{shown} and {more} more" if more > 0 else shown
