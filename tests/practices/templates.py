"""Chat templates with the habits that are met in the field, in words of our own.

``trimmed``: trims every text, tools in the first user turn and with indentation. ``thoughtful``:
takes thoughts out of contents and drops those of earlier turns, as it finds the last question.
``inverted``: tools before the system text, which is printed at the end. ``escaped``: ASCII only.
``repeated``: prints the system text before each question.
"""

import json
from typing import Any

import jinja2

from router.chat_template import Render

_TRIMMED = """\
{%- set turns = messages -%}
{%- set system = "" -%}
{%- if messages[0].role == "system" -%}
  {%- set system = messages[0].content | trim -%}{%- set turns = messages[1:] -%}
{%- endif -%}
<s>system: {{ system }}</s>
{%- for message in turns -%}
  {%- if message.tool_calls -%}
    <s>call: {"name": "{{ message.tool_calls[0].function.name }}", "parameters": \
{{ message.tool_calls[0].function.arguments | tojson }}}</s>
  {%- else -%}
    <s>{{ message.role }}: {% if loop.first and tools -%}
      Answer with a call of:
      {%- for tool in tools -%}{{ "\n\n" + (tool | tojson(indent=4)) }}{%- endfor -%}
      {{ "\n\n" }}
    {%- endif -%}
    {{ message.content | trim }}</s>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<s>assistant: {% endif -%}
"""

_THOUGHTFUL = """\
{%- set ns = namespace(last=0) -%}
{%- for message in messages -%}
  {%- if message.role == "user" and not message.content.startswith("w1w") -%}
    {%- set ns.last = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}, {% endfor %}[/tools]{% endif -%}
{%- for message in messages -%}
  {%- set content = message.content -%}
  {%- set thought = "" -%}
  {%- if "</think>" in content -%}
    {%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\n") -%}
    {%- set content = content.split("</think>")[-1].lstrip("\n") -%}
  {%- endif -%}
  [{{ message.role }}]
  {%- if thought and loop.index0 > ns.last %}<think>{{ thought }}</think>{% endif -%}
  {{ content }}
  {%- for call in message.tool_calls or [] -%}
    [call]{{ call.function.name }} {{ call.function.arguments | tojson }}
  {%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>{% endif %}{% endif -%}
"""

_INVERTED = """\
{%- for tool in tools or [] -%}
  fn {{ tool.function.name }}: {{ tool.function.description or "none" }}
  {%- if tool.function.parameters.properties -%}
    {%- for key, value in tool.function.parameters.properties.items() -%}
      {{ "\n  " + key + ": " + value.type + " " + value.description }}
    {%- endfor -%}
  {%- endif -%}
  {{ "\n" }}
{%- endfor -%}
{%- for message in messages if message.role != "system" -%}
  | {{ message.role }} {{ message.content }}
{%- endfor -%}
{%- for message in messages if message.role == "system" %} || {{ message.content }}{% endfor -%}
"""

_ESCAPED = """\
{%- for tool in tools or [] -%}{{ tool | tojson(ensure_ascii=True) }}{%- endfor -%}
{%- for message in messages -%}
  {{ {"role": message.role, "content": message.content} | tojson(ensure_ascii=True) }}
{%- endfor -%}
"""

_REPEATED = """\
{%- for message in messages -%}
  {%- if message.role == "user" and messages[0].role == "system" -%}
    <<{{ messages[0].content }}>>
  {%- endif -%}
  {%- if message.role != "system" -%}
    {%- for part in message.content if message.content is not string -%}
      <{{ part.text }}>
    {%- else -%}
      <{{ message.content }}>
    {%- endfor -%}
  {%- endif -%}
{%- endfor -%}
"""

TEMPLATES = {
    "trimmed": _TRIMMED,
    "thoughtful": _THOUGHTFUL,
    "inverted": _INVERTED,
    "escaped": _ESCAPED,
    "repeated": _REPEATED,
}


def jinja_render(source: str) -> Render:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _tojson
    template = environment.from_string(source)

    def render(messages: Any, tools: Any, arguments: dict[str, Any]) -> str:
        return template.render(messages=messages, tools=tools, **arguments)

    return render


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
