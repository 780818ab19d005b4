"""The short way of rendering a template gives what transformers gives, or is not taken."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.data import TOKENIZER_DIRECTORY
from router.template_render import template_render

THINKING = """{% set ns = namespace(last=-1) %}
{%- for m in messages[::-1] %}
  {%- if m.role == 'user' and ns.last < 0 %}
    {%- set ns.last = messages|length - 1 - loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}
  {%- if not loop.first and loop.previtem.role == m.role %}{% continue %}{% endif %}
  {{- bos_token if loop.first and bos_token is defined else '' }}<{{ m.role | upper }}>
  {%- if m.content is string %}{{ m.content.strip() }}{% else %}
    {%- for c in m.content %}{{ c.text or c['text'] }}{% endfor %}
  {%- endif %}
  {%- generation %}{{ m.thinking or m.reasoning_content or m.keys() | list }}{% endgeneration %}
  {%- for call in m.tool_calls or [] %}
    {{- call | tojson }}{{ call.function.arguments.items() | list }}
  {%- endfor %}
  {%- if m.name is defined %}{{ m['name'] }}{% endif %}{{ m.missing }}{{ m.get('role') }}
{% endfor %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=1) }}{% endfor %}{% endif %}
{%- if add_generation_prompt %}{{ enable_thinking }}{{ documents }}{% endif %}"""
STRICT = """{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') %}{{ raise_exception('roles') }}{% endif %}
{{- m.content }}
{%- endfor %}"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(TOKENIZER_DIRECTORY), local_files_only=True)


words = st.sampled_from(["a", " b ", "", "<think>\nx\n</think>\n\ny", "items", "ü"])
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": words,
            "function": st.fixed_dictionaries(
                {"arguments": st.dictionaries(words, st.none() | st.integers()), "name": words}
            ),
        }
    ),
    max_size=2,
)


def with_both_names(message: dict[str, Any]) -> dict[str, Any]:
    """As ``render`` writes reasoning."""
    reasoning = message.get("reasoning")
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool", "system"]),
            "content": words | st.lists(st.builds(lambda w: {"type": "text", "text": w}, words)),
        },
        optional={
            "name": words,
            "tool_calls": calls,
            "reasoning": words,
            "tools": st.none(),
            "tool_call_id": words | st.none(),
        },
    ).map(with_both_names),
    min_size=1,
    max_size=5,
)
arguments = st.fixed_dictionaries(
    {"add_generation_prompt": st.booleans(), "continue_final_message": st.booleans()},
    optional={
        "enable_thinking": st.booleans(),
        "documents": st.just([{"title": "t"}]),
        "unused": words,
        "bos_token": words,
    },
)


def outcome(render: Any, *given: Any) -> Any:
    try:
        return render(*given)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("source", [None, THINKING, STRICT], ids=["demo", "thinking", "strict"])
def test_both_ways_give_the_same(tokenizer: Any, source: str | None) -> None:
    """Texts and refusals, for conversations of any kind."""
    template = source or tokenizer.chat_template
    render = template_render(tokenizer, template)
    assert render.__name__ == "direct"

    def reference(messages: Any, tools: Any, arguments: dict[str, Any]) -> Any:
        return tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False, **arguments
        )

    @settings(max_examples=150, deadline=None)
    @given(
        chat=messages, tools=st.none() | st.just([{"type": "function"}]), given_arguments=arguments
    )
    def same(chat: Any, tools: Any, given_arguments: dict[str, Any]) -> None:
        expected = outcome(reference, chat, tools, given_arguments)
        assert outcome(render, chat, tools, given_arguments) == expected

    same()


def test_a_tokenizer_with_a_way_of_its_own_is_asked_itself(tokenizer: Any) -> None:
    """What does not prove identical is not used."""

    class Shouting:
        special_tokens_map = tokenizer.special_tokens_map

        def apply_chat_template(self, *given: Any, **options: Any) -> str:
            return str(tokenizer.apply_chat_template(*given, **options)).upper()

    render = template_render(Shouting(), tokenizer.chat_template)
    assert "HELLO" in render([{"role": "user", "content": "hello"}], None, {})


def test_a_template_cannot_leave_its_sandbox(tokenizer: Any) -> None:
    """A template is code from elsewhere."""
    source = "{{ messages[0].__class__ }}{{ messages.append(1) }}"
    render = template_render(tokenizer, source)
    with pytest.raises(Exception, match=r"unsafe|not safely callable"):
        render([{"role": "user", "content": "a"}], None, {})
