"""A chat body is given to its template as the engine gives it, or not at all."""

from typing import Any

import jinja2
import pytest

from router.chat_template import ChatTemplate, ChatTemplates
from router.prompts import TextPrompt, Truncation
from router.render import NotRendered, render_chat

Seen = tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]
HELLO = [{"role": "user", "content": "Hello"}]


class Recorder:
    """A template that keeps what it was given."""

    def __init__(self, source: str = "{{ messages }}", **options: Any) -> None:
        self.seen: list[Seen] = []
        template = ChatTemplate.of(source, self._render)
        self.templates = ChatTemplates(template, template, **options)

    def _render(self, messages: Any, tools: Any, arguments: dict[str, Any]) -> str:
        self.seen.append((messages, tools, arguments))
        return "text"

    def given(self, messages: Any = HELLO, **fields: Any) -> Seen:
        prompt = render_chat({"messages": messages, **fields}, self.templates)
        assert prompt.text == "text"
        return self.seen[-1]


PARTS_TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}{{ part }}{% endfor %}{% endfor %}"
)


def messages_given(messages: list[dict[str, Any]], source: str = "{{ messages }}") -> Any:
    return Recorder(source).given(messages)[0]


def content_given(content: Any, role: str = "user", source: str = "{{ messages }}") -> Any:
    return messages_given([{"role": role, "content": content}], source)[0]["content"]


def text(value: str, **others: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **others}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a", "a"),
        ("", ""),
        ([], ""),
        ([text("a"), text("b")], "a\nb"),
        ([text("a"), text(""), text("b")], "a\nb"),
        (["a", text("b"), {"type": "thinking", "thinking": "c"}], "a\nb\nc"),
        ([{"type": "refusal", "refusal": "no"}, {"type": "input_text", "text": "x"}], "no\nx"),
    ],
)
def test_parts_are_joined_for_a_template_of_texts(content: Any, expected: str) -> None:
    """One line for each part that has a text."""
    assert content_given(content) == expected


def test_a_template_that_loops_over_content_gets_parts() -> None:
    """A text becomes a part; unknown keys of a part stay, known ones are consumed."""
    assert content_given("a", source=PARTS_TEMPLATE) == [text("a")]
    part = {"text": "a", "type": "text", "cache_control": {"type": "ephemeral"}, "uuid": None}
    given = content_given([part, text("")], source=PARTS_TEMPLATE)
    assert given == [text("a", cache_control={"type": "ephemeral"}), text("")]
    assert list(given[0]) == ["type", "text", "cache_control"]


def test_a_tools_answer_is_always_one_text() -> None:
    """Also where other messages keep their parts."""
    parts = [text("a"), text(""), text("b")]
    assert content_given(parts, "tool", PARTS_TEMPLATE) == "a\n\nb"
    assert content_given(parts, "tool") == "a\nb"


def test_an_assistant_may_have_no_content() -> None:
    """null becomes an empty text, and so does an absent content of anybody."""
    assert content_given(None, "assistant") == ""
    assert content_given(None, "function") == ""
    assert messages_given([{"role": "user"}])[0]["content"] == ""


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "tool", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": [text("a"), {"type": "image_url"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": [5]},
        {"content": "a"},
        {"role": None, "content": "a"},
        "a",
        {"role": "assistant", "tool_calls": {}},
        {"role": "assistant", "tool_calls": ["x"]},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
        {"role": "assistant", "content": "a", "reasoning": 5},
    ],
)
def test_messages_that_the_engine_refuses_are_not_rendered(message: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(NotRendered):
        messages_given([message])


def call(arguments: Any, **others: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
        "id": "c",
    } | others


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1, "a": [null]}', {"b": 1, "a": [None]}),
        ("", {}),
        ("{", {}),
        ("[1]", {}),
        ("null", {}),
        ('"x"', {}),
    ],
)
def test_arguments_of_tool_calls_become_objects(arguments: str, expected: dict[str, Any]) -> None:
    """What is no object becomes an empty one, so that the conversation can go on."""
    (message,) = messages_given([{"role": "assistant", "tool_calls": [call(arguments)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == expected


def test_tool_calls_have_the_engines_order_of_keys() -> None:
    """A template may print the whole call."""
    given = {"index": 0, **call("{}")}
    (message,) = messages_given([{"tool_calls": [given], "role": "assistant", "content": None}])
    (written,) = message["tool_calls"]
    assert list(written) == ["id", "function", "type", "index"]
    assert list(written["function"]) == ["arguments", "name"]
    assert list(message) == ["role", "content", "tool_calls"]


def test_no_tool_calls_are_none() -> None:
    """null and an empty list leave no key behind."""
    for calls in (None, []):
        (message,) = messages_given([{"role": "assistant", "content": "a", "tool_calls": calls}])
        assert "tool_calls" not in message


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_both_names_and_only_on_assistants(key: str) -> None:
    """Templates read either name."""
    assistant, user = messages_given(
        [
            {"role": "assistant", "content": "a", key: "hm"},
            {"role": "user", "content": "b", key: "x"},
        ]
    )
    assert assistant["reasoning"] == assistant["reasoning_content"] == "hm"
    assert set(user) == {"role", "content"}


def test_only_known_keys_of_a_message_reach_the_template() -> None:
    """name, task and tool_call_id do, whatever else a client adds does not."""
    user, tool = messages_given(
        [
            {
                "role": "user",
                "content": "a",
                "name": "n",
                "task": "t",
                "foo": 1,
                "tool_call_id": "x",
            },
            {"role": "tool", "content": "b", "tool_call_id": "c", "name": None},
        ]
    )
    assert user == {"role": "user", "content": "a", "name": "n", "task": "t"}
    assert tool == {"role": "tool", "content": "b", "tool_call_id": "c"}


def test_developers_become_the_one_system_message_at_the_top() -> None:
    """Where the template does not know them; then all system messages are merged."""
    conversation = [
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "B."},
        {"role": "system", "content": "C."},
    ]
    assert messages_given(conversation) == [
        {"role": "system", "content": "B.\n\nC."},
        {"role": "user", "content": "a"},
    ]
    known = messages_given(conversation, "{{ 'developer' }}")
    assert [message["role"] for message in known] == ["user", "developer", "system"]


def test_without_a_developer_system_messages_stay_where_they_are() -> None:
    """Several of them, and late ones."""
    roles = ["system", "user", "system"]
    given = messages_given([{"role": role, "content": "x"} for role in roles])
    assert [message["role"] for message in given] == roles


def test_a_billing_header_is_dropped_from_system_messages() -> None:
    """Its value changes with every request."""
    header = "x-anthropic-billing-header: cch=1;"
    assert content_given(f"{header}\nBe brief.", "system") == "Be brief."
    assert content_given([text(header), text("Be brief.")], "system") == "Be brief."
    assert content_given(f"{header}\nHi", "user") == f"{header}\nHi"


def test_tools_are_written_with_the_engines_keys() -> None:
    """type, then name, description, parameters; strict last; the schema as it was given."""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    given = [
        {"function": {"parameters": schema, "strict": True, "name": "f"}, "type": "function"},
        {"type": "function", "function": {"name": "g", "description": "d"}, "defer_loading": True},
    ]
    first, second = Recorder().given(tools=given)[1] or []
    assert list(first) == ["type", "function"]
    assert list(first["function"].items()) == [
        ("name", "f"),
        ("description", None),
        ("parameters", schema),
        ("strict", True),
    ]
    assert second["defer_loading"] is True and second["function"]["defer_loading"] is True


def test_keys_of_a_tool_that_the_engine_does_not_know_are_dropped() -> None:
    """Some clients mark what is to be cached in the tool or in its function."""
    bare = {"type": "function", "function": {"name": "f"}}
    marked = {**bare, "cache_control": {"type": "ephemeral"}}
    inside = {"type": "function", "function": {"name": "f", "cache_control": {}}}
    tools = [Recorder().given(tools=[tool])[1] for tool in (bare, marked, inside)]
    assert tools[0] == tools[1] == tools[2]


@pytest.mark.parametrize(
    "tools",
    [
        [],
        "x",
        [5],
        [{"type": "function"}],
        [{"type": "other", "function": {"name": "f"}}],
        [{"function": {"name": 5}}],
        [{"function": {"name": "f", "description": 5}}],
        [{"function": {"name": "f", "parameters": []}}],
        [{"function": {"name": "f", "strict": "yes"}}],
    ],
)
def test_tools_that_are_not_certain_are_not_rendered(tools: Any) -> None:
    """The engine refuses them."""
    with pytest.raises(NotRendered):
        Recorder().given(tools=tools)


def test_tools_stay_with_tool_choice_none_unless_the_engines_leave_them_out() -> None:
    """An option of the engine."""
    tools = [{"function": {"name": "f"}}]
    assert Recorder().given(tools=tools, tool_choice="none")[1]
    assert Recorder(exclude_unused_tools=True).given(tools=tools, tool_choice="none")[1] is None
    assert Recorder(exclude_unused_tools=True).given(tools=tools, tool_choice="auto")[1]


def test_a_chat_with_tools_is_rendered_with_the_template_for_tools() -> None:
    """A model may have one of its own for them."""
    plain = ChatTemplate(lambda *_: "plain", "string", True)
    with_tools = ChatTemplate(lambda *_: "tools", "string", True)
    templates = ChatTemplates(plain, with_tools)
    assert render_chat({"messages": HELLO}, templates).text == "plain"
    body = {"messages": HELLO, "tools": [{"function": {"name": "f"}}]}
    assert render_chat(body, templates).text == "tools"


def test_the_templates_arguments_are_merged_as_the_engine_does() -> None:
    """Defaults of the engine, then the request's own, then its four fields; unset ones vanish."""
    recorder = Recorder(default_kwargs={"a": 1, "b": 2, "c": 3})
    arguments = recorder.given(
        chat_template_kwargs={"b": 5, "c": None, "d": "auto", "add_generation_prompt": False},
        documents=[{"title": "t"}],
        reasoning_effort="low",
    )[2]
    assert arguments == {
        "a": 1,
        "b": 5,
        "c": 3,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "documents": [{"title": "t"}],
        "reasoning_effort": "low",
        "enable_thinking": True,
    }


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_effort_turns_thinking_on_or_off(fields: dict[str, Any], thinking: bool | None) -> None:
    """Unless the request says so itself."""
    assert Recorder().given(**fields)[2].get("enable_thinking") is thinking


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "x"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": []},
        {"reasoning_effort": "enormous"},
        {"reasoning_effort": ["low"]},
        {"documents": "x"},
        {"documents": [{"title": 5}]},
        {"add_generation_prompt": None},
        {"continue_final_message": "yes"},
        {"add_special_tokens": 1},
        {"truncate_prompt_tokens": "5"},
        {"truncation_side": "top"},
        {"messages": None},
    ],
)
def test_fields_that_are_not_certain_are_not_rendered(fields: dict[str, Any]) -> None:
    """The engine refuses them, or reads them in its own way."""
    with pytest.raises(NotRendered):
        render_chat({"messages": HELLO, **fields}, Recorder().templates)


def test_what_a_template_raises_is_not_rendered() -> None:
    """Whatever it is."""

    def refuse(*_: Any) -> str:
        raise jinja2.TemplateError("roles must alternate")

    template = ChatTemplate(refuse, "string", True)
    with pytest.raises(NotRendered, match="roles must alternate"):
        render_chat({"messages": HELLO}, ChatTemplates(template, template))


def test_a_chats_text_gets_no_special_tokens_unless_asked() -> None:
    """The template writes them; a request may ask for more, and for truncation."""
    recorder = Recorder()
    assert render_chat({"messages": HELLO}, recorder.templates) == TextPrompt("text", False, None)
    body = {"messages": HELLO, "add_special_tokens": True, "truncate_prompt_tokens": 5}
    assert render_chat(body, recorder.templates) == TextPrompt("text", True, Truncation(5, "left"))
