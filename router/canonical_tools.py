"""Tools in an order that does not depend on who wrote them down.

Tools stand in front of everything else in a prompt, so two clients that list the same tools in
another order, or the keys of one in another order, share no block. Rules of the canonical form:

* Tools are sorted by the name of their function; of one name, by their text. The keys of every
  object inside a tool are sorted by code point.
* Arrays keep their order (``enum``, ``required``, ``anyOf``): in a JSON schema it can have a
  meaning, and to a model it always has one. The order of ``properties`` has none for validity, but
  a model reads it, which is why the form is asked for and never a default.
* Values stay what they are: the engine's parser reads the same numbers and texts.
* What the engine would refuse is returned as it came: it is for the engine to say no.
"""

import json
from typing import Any


def canonical_tools(tools: list[Any]) -> list[Any]:
    """Tools as in a request's ``tools``. The very list where it is no list of function tools."""
    text = canonical_tools_text(tools)
    if text is None:
        return tools
    canonical: list[Any] = json.loads(text)
    return canonical


def canonical_tools_text(tools: Any) -> str | None:
    """The canonical form as compact JSON; None where this is no list that the engine takes."""
    if not isinstance(tools, list) or not tools or not all(map(_is_function_tool, tools)):
        return None
    try:
        named = sorted(
            (tool["function"]["name"], compact_json(tool, sort_keys=True)) for tool in tools
        )
    except (RecursionError, ValueError):
        # Deeper than the engine's parser goes, or a number of thousands of digits.
        return None
    return f"[{','.join(text for _, text in named)}]"


def _is_function_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return (
        isinstance(function, dict)
        and tool.get("type", "function") == "function"
        and isinstance(function.get("name"), str)
        and isinstance(function.get("description"), str | None)
        and isinstance(function.get("parameters"), dict | None)
    )


def compact_json(value: Any, *, sort_keys: bool) -> str:
    return json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":"))
