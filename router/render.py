"""A chat body as the text that the engine tokenizes.

Follows vLLM's path for Hugging Face tokenizers (reference 5.1, steps 1 to 6): messages are reduced
to what templates are given, tools are written anew in the engine's own order of keys, and the
arguments of the template are merged. Rules it keeps:

* What the engine would refuse, what a template refuses, and what this module does not know are
  ``NotRendered``, never guessed: a wrong text would be hashed into a wrong placement.
* Keys are written in the engine's order, since a template may print a whole object.
"""

import json
from typing import Any

from router.chat_template import ChatTemplate, ChatTemplates, ContentFormat
from router.prompts import TEXT_PART_TYPES, TextPrompt, truncation_of

_REASONING_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
# Arguments of the template that a request may not set through ``chat_template_kwargs``: they are
# parameters of the renderer itself, and the engine refuses them or they change what it returns.
_RESERVED_KWARGS = frozenset(
    "conversation conversations messages tools chat_template tokenize sanitize_control_tokens "
    "padding truncation max_length return_tensors return_dict return_assistant_tokens_mask "
    "tokenizer_kwargs".split()
)
# Fields of any kind of content part that the engine consumes; others reach a template that is
# given parts.
_KNOWN_PART_KEYS = frozenset(
    "type text refusal thinking closed name data uuid file image_url image_pil image_embeds "
    "audio_url audio_embeds input_audio video_url video_embeds".split()
)
_BILLING_HEADER = "x-anthropic-billing-header"

Message = dict[str, Any]


class NotRendered(Exception):
    """The text of this chat is not known here; the message says why in a few words."""


def render_chat(body: dict[str, Any], templates: ChatTemplates) -> TextPrompt:
    """The text of a chat and how it is tokenized. Raises NotRendered."""
    if body.get("chat_template") is not None:
        raise NotRendered("a chat_template of its own")
    try:
        truncation = truncation_of(body)
    except ValueError as error:
        raise NotRendered(str(error)) from None
    tools = _tools(body, templates.exclude_unused_tools)
    template = templates.with_tools if tools else templates.plain
    messages = _conversation(body.get("messages"), template)
    arguments = _template_arguments(body, templates.default_kwargs)
    specials = _flag(body, "add_special_tokens", False)
    return TextPrompt(_apply(template, messages, tools, arguments), specials, truncation)


def _apply(
    template: ChatTemplate,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    arguments: dict[str, Any],
) -> str:
    try:
        return template.render(messages, tools, arguments)
    # A template is a program: it raises what it likes, and the engine makes a 400 of all of it.
    except Exception as error:
        raise NotRendered(f"the chat template refused: {error!r}"[:300]) from error


def _flag(body: dict[str, Any], key: str, default: bool) -> bool:
    value = body.get(key, default)
    if not isinstance(value, bool):
        raise NotRendered(f"{key} is no boolean")
    return value


def _template_arguments(body: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What the template sees beside messages and tools (reference 5.1, step 5).

    The request's own four fields override same-named keys of its ``chat_template_kwargs``; None
    and "auto" count as unset wherever they come from.
    """
    given = body.get("chat_template_kwargs")
    if given is None:
        given = {}
    if not isinstance(given, dict) or not _RESERVED_KWARGS.isdisjoint(given):
        raise NotRendered("chat_template_kwargs")
    effort, documents = body.get("reasoning_effort"), body.get("documents")
    if effort is not None and not (isinstance(effort, str) and effort in _REASONING_EFFORTS):
        raise NotRendered("reasoning_effort")
    if documents is not None and not _are_documents(documents):
        raise NotRendered("documents")
    fields = {
        "add_generation_prompt": _flag(body, "add_generation_prompt", True),
        "continue_final_message": _flag(body, "continue_final_message", False),
        "documents": documents,
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = effort != "none"
    merged = {**given, **_set_values(fields)}
    return {**defaults, **_set_values(merged)}


def _set_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != "auto"}


def _are_documents(documents: Any) -> bool:
    return isinstance(documents, list) and all(
        isinstance(document, dict) and all(isinstance(value, str) for value in document.values())
        for document in documents
    )


def _tools(body: dict[str, Any], exclude_unused: bool) -> list[dict[str, Any]] | None:
    """The tools as the engine writes them: its own keys in its own order, the schema as given."""
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise NotRendered("tools is no list of tools")
    written = [_tool(tool) for tool in tools]
    return None if exclude_unused and body.get("tool_choice") == "none" else written


def _tool(tool: Any) -> dict[str, Any]:
    """Any other key is dropped, as engines do since 0.27.

    Before, templates were given it too: with such a tool only the blocks before it are found there.
    """
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise NotRendered("a tool is no function")
    name, description = function.get("name"), function.get("description")
    parameters = function.get("parameters")
    if not isinstance(name, str) or not isinstance(description, str | None):
        raise NotRendered("a tool's name or description")
    if not isinstance(parameters, dict | None):
        raise NotRendered("a tool's parameters")
    written = {"name": name, "description": description, "parameters": parameters}
    deferred = tool.get("defer_loading")
    inner = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading")}
    if inner["defer_loading"] is None:
        inner["defer_loading"] = deferred
    if not all(isinstance(flag, bool | None) for flag in (*inner.values(), deferred)):
        raise NotRendered("a tool's flags")
    written |= {key: flag for key, flag in inner.items() if flag is not None}
    outer = {} if deferred is None else {"defer_loading": deferred}
    return {"type": "function", "function": written, **outer}


def _conversation(given: Any, template: ChatTemplate) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise NotRendered("messages is no list of messages")
    messages = [_message(message, template.content_format) for message in given]
    if template.knows_developer or all(message["role"] != "developer" for message in messages):
        return messages
    return _with_one_system_message(messages)


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    """Developers become systems, and all systems one message at the top.

    The engine does so where the template does not know the role, and only if it occurs.
    """
    systems = [m for m in messages if m["role"] in ("system", "developer")]
    if any(message.get("tools") for message in systems):
        raise NotRendered("a developer message with tools")
    if len(systems) == 1:
        merged = systems[0]["content"]
    elif all(isinstance(message["content"], str) for message in systems):
        merged = "\n\n".join(message["content"] for message in systems)
    else:
        raise NotRendered("several system messages in parts")
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": merged}, *others]


def _message(given: Any, content_format: ContentFormat) -> Message:
    """One message with what templates are given of it; its other keys do not reach them."""
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(role, str):
        raise NotRendered("a message without a role")
    message: Message = {"role": role, "content": _content(given, role, content_format)}
    if role == "assistant":
        _add_assistant_fields(message, given)
    elif role == "tool" and "tool_call_id" in given:
        message["tool_call_id"] = given["tool_call_id"]
    message |= {key: given[key] for key in ("name", "task") if isinstance(given.get(key), str)}
    if role == "developer":
        message["tools"] = given.get("tools")
    return message


def _add_assistant_fields(message: Message, given: Message) -> None:
    calls = given.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise NotRendered("tool_calls is no list")
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = given.get("reasoning")
    if reasoning is None:
        reasoning = given.get("reasoning_content")
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise NotRendered("reasoning is no text")
        message["reasoning"] = message["reasoning_content"] = reasoning


def _tool_call(call: Any) -> dict[str, Any]:
    """The engine's order of keys: id, function (arguments, name), type, then any others."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function":
        raise NotRendered("a tool call is no function")
    if not (isinstance(call.get("id"), str) and isinstance(function.get("name"), str)):
        raise NotRendered("a tool call without an id or a name")
    called = {"arguments": _arguments(function.get("arguments")), "name": function["name"]}
    called |= {key: value for key, value in function.items() if key not in called}
    written = {"id": call["id"], "function": called, "type": "function"}
    return written | {key: value for key, value in call.items() if key not in written}


def _arguments(text: Any) -> dict[str, Any]:
    """What is not the JSON of an object counts as no arguments."""
    if not isinstance(text, str):
        raise NotRendered("a tool call's arguments are no text")
    if not text:
        return {}
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError):
        raise NotRendered("a tool call's arguments") from None
    return arguments if isinstance(arguments, dict) else {}


def _content(given: Message, role: str, content_format: ContentFormat) -> str | list[Message]:
    content = given.get("content")
    if isinstance(content, str):
        parts: list[Any] = [content]
    elif content is None and (role in ("assistant", "function") or "content" not in given):
        parts = []
    elif isinstance(content, list):
        parts = content
    else:
        raise NotRendered("content is neither text nor a list of parts")
    if role == "system":
        parts = without_billing_header(parts)
    if content_format == "openai":
        if role == "tool":
            return "\n".join(map(_part_text, parts))
        return [_text_part(part) for part in parts]
    # In this format, and only in this, an empty text leaves no line behind.
    return "\n".join(text for text in map(_part_text, parts) if text)


def _part_text(part: Any) -> str:
    if isinstance(part, dict):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in TEXT_PART_TYPES:
            raise NotRendered("a content part is no text")
        part = part.get(kind if kind in ("refusal", "thinking") else "text")
    if not isinstance(part, str):
        raise NotRendered("a content part without its text")
    return part


def _text_part(part: Any) -> Message:
    extra = part.items() if isinstance(part, dict) else ()
    others = {key: value for key, value in extra if key not in _KNOWN_PART_KEYS}
    return {"type": "text", "text": _part_text(part), **others}


def without_billing_header(parts: list[Any]) -> list[Any]:
    """Without the line that one client puts before its system prompt and changes each time.

    Engines drop it since 0.32; before, no such prompt was ever found in the cache.
    """
    kept: list[Any] = []
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text else part
        if not isinstance(text, str) or not text.startswith(_BILLING_HEADER):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append({**part, "text": rest} if is_text else rest)
    return kept
