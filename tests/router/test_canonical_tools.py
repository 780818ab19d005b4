"""Tools in canonical order: one form for all who mean the same."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.canonical_tools import canonical_tools, canonical_tools_text

_keys = st.sampled_from(["type", "properties", "required", "b", "a", "é", "A", "_"]) | st.text()
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=10,
)
_tools = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from("abc") | st.text()},
                optional={
                    "description": st.text(),
                    "parameters": st.dictionaries(_keys, _values, max_size=4),
                    "strict": st.booleans(),
                },
            ),
        }
    ),
    min_size=1,
    max_size=4,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(each, rng) for key, each in items}
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(_tools, st.randoms(use_true_random=False))
def test_any_order_of_tools_and_keys_has_one_form(tools: list[Any], rng: random.Random) -> None:
    """Permuted tools with permuted keys become the same bytes, also where names occur twice."""
    other = [shuffled(tool, rng) for tool in tools]
    rng.shuffle(other)
    assert json.dumps(canonical_tools(other)) == json.dumps(canonical_tools(tools))
    assert canonical_tools_text(other) == canonical_tools_text(tools)


@settings(deadline=None)
@given(_tools)
def test_the_form_is_its_own_form_and_loses_nothing(tools: list[Any]) -> None:
    """Doing it again changes nothing, and every tool is still there with every value."""
    canonical = canonical_tools(tools)
    assert json.dumps(canonical_tools(canonical)) == json.dumps(canonical)
    assert len(canonical) == len(tools) and all(tool in canonical for tool in tools)
    assert json.loads(canonical_tools_text(tools) or "") == canonical


def test_names_and_keys_are_sorted_and_arrays_are_not() -> None:
    """What a person sees of it: b after a, properties by name, enum and required as they were."""
    parameters = {
        "type": "object",
        "required": ["y", "x"],
        "properties": {"y": {"type": "string", "enum": ["z", "a"]}, "x": {"type": "number"}},
    }
    tools = [
        {"type": "function", "function": {"name": "b"}},
        {"type": "function", "function": {"name": "a", "parameters": parameters}},
    ]
    assert canonical_tools_text(tools) == (
        '[{"function":{"name":"a","parameters":{"properties":{"x":{"type":"number"},'
        '"y":{"enum":["z","a"],"type":"string"}},"required":["y","x"],"type":"object"}},'
        '"type":"function"},{"function":{"name":"b"},"type":"function"}]'
    )


@pytest.mark.parametrize(
    "tools",
    [
        [],
        ["a"],
        [{"type": "function"}],
        [{"type": "function", "function": {"description": "no name"}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "custom", "function": {"name": "a"}}],
        [{"type": "function", "function": {"name": "a", "parameters": []}}],
        [{"type": "function", "function": {"name": "b"}}, {"function": {"name": None}}],
    ],
    ids=repr,
)
def test_what_the_engine_would_refuse_is_not_touched(tools: list[Any]) -> None:
    """The very list comes back: to refuse it in its own words is the engine's business."""
    assert canonical_tools(tools) is tools
    assert canonical_tools_text(tools) is None


def test_what_is_nested_too_deeply_is_not_touched() -> None:
    """The engine's parser gives up on it, too; here it must not be a traceback."""
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"a": value}
    tools = [{"type": "function", "function": {"name": "a", "parameters": value}}]
    assert canonical_tools(tools) is tools
