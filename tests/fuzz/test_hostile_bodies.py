"""Bodies nobody should send: whatever they hold, they are parsed or refused, never worse."""

import json
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from router.canonical_tools import canonical_tools
from router.chat_template import ChatTemplate, ChatTemplates
from router.known_tools import KnownTools
from router.openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    BadRequest,
    ChatPrompt,
    OpaquePrompt,
    ParsedRequest,
    TokenPrompt,
    parse_request,
)
from router.preparation import PoolPractices, Preparation
from router.render import NotRendered, render_chat
from router.salting import Tenancy
from router.tenancy_config import RuleConfig, TenancyConfig

# How long it takes to draw such bodies says how busy the machine is, and nothing of the code.
SLOW = (HealthCheck.too_slow,)

KEYS = (
    "model messages prompt prompt_embeds suffix n stream echo logprobs prompt_logprobs cache_salt "
    "user session_id prompt_cache_key vllm_xargs kv_transfer_params truncate_prompt_tokens "
    "truncation_side add_special_tokens add_generation_prompt continue_final_message documents "
    "reasoning_effort chat_template chat_template_kwargs tools tool_choice role content type text "
    "tool_calls function name arguments id parameters description strict defer_loading reasoning "
    "reasoning_content tool_call_id task kv_cache_report_mode prompt_token_ids enable_thinking"
).split()
WORDS = [
    "user",
    "assistant",
    "system",
    "developer",
    "tool",
    "function",
    "text",
    "none",
    "left",
    "{}",
]

texts = st.sampled_from(WORDS) | st.text(st.characters(codec=None), max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**18, max_value=10**40)
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | texts, inner, max_size=5)
    ),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(WORDS[:6]) | values,
            "content": st.text(max_size=5) | values,
            "tool_calls": values,
            "reasoning": values,
            "name": values,
        },
    ),
    max_size=4,
)
bodies = st.builds(
    lambda fields, own: fields | own,
    st.dictionaries(st.sampled_from(KEYS), values, max_size=6),
    st.fixed_dictionaries({}, optional={"messages": messages, "vllm_xargs": values}),
)
paths = st.sampled_from([CHAT_PATH, COMPLETIONS_PATH])

TEMPLATE = ChatTemplate(lambda messages, tools, kwargs: repr((messages, tools)), "string", False)
TEMPLATES = ChatTemplates(TEMPLATE, TEMPLATE)


def parsed(path: str, body: bytes, known_tools: KnownTools | None = None) -> ParsedRequest | None:
    try:
        return parse_request(path, body, {"X-Session-ID": "s"}, known_tools)
    except BadRequest as refused:
        assert refused.status == 400
        json.dumps(refused.body()).encode()
        return None


def check(request: ParsedRequest, body: bytes) -> None:
    assert request.prompts and request.n >= 1
    assert (request.body is body) == (not request.transformed)
    for text in (request.model, request.session, request.cache_salt):
        assert text is None or text.encode()
    for prompt in request.prompts:
        if isinstance(prompt, TokenPrompt):
            assert len(prompt.token_ids)


@settings(max_examples=400, suppress_health_check=SLOW)
@given(path=paths, fields=bodies, ascii_only=st.booleans())
def test_any_object_is_parsed(path: str, fields: dict[str, Any], ascii_only: bool) -> None:
    """Wrong types, NaN, surrogates and huge numbers raise nothing; the report mode never stays."""
    body = json.dumps(fields, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    request = parsed(path, body)
    assert request is not None
    check(request, body)
    extra = json.loads(request.body).get("vllm_xargs")
    assert not (isinstance(extra, dict) and "kv_cache_report_mode" in extra)
    for prompt in request.prompts:
        if isinstance(prompt, ChatPrompt):
            try:
                render_chat(prompt.body, TEMPLATES)
            except NotRendered:
                pass


KNOWN = KnownTools()
POLICIES = [
    RuleConfig("m", "tenant", "mix", models=["user"]),
    RuleConfig("s", "none", "keep", private_prompt=False),
    RuleConfig("d", "none", "drop"),
]
PREPARATION = Preparation(
    {"p": PoolPractices(canonical_tools=True)},
    Tenancy(TenancyConfig(shared_fingerprints=["0" * 12], rules=POLICIES), "x" * 32),
)


@settings(max_examples=400, suppress_health_check=SLOW)
@given(path=paths, fields=bodies)
def test_any_object_is_prepared_or_refused(path: str, fields: dict[str, Any]) -> None:
    """What is looked up reads the same as what is parsed, and what is sent has the salt hashed."""
    body = json.dumps(fields).encode()
    request, looked_up = parsed(path, body), parsed(path, body, KNOWN)
    assert request is not None and looked_up is not None
    assert repr(looked_up.prompts) == repr(request.prompts)
    assert (looked_up.body, looked_up.session) == (request.body, request.session)
    try:
        headers = CIMultiDict({"Authorization": "Bearer key"})
        prepared = PREPARATION.prepare(looked_up, "p", headers).request
    except BadRequest as refused:
        assert refused.param == "cache_salt"
        return
    sent = json.loads(prepared.body)
    if "cache_salt" in prepared.transformed:
        assert sent.get("cache_salt") == prepared.cache_salt
    if "canonical_tools" in prepared.transformed:
        assert canonical_tools(sent["tools"]) == sent["tools"]


@settings(max_examples=200, suppress_health_check=SLOW)
@given(path=paths, body=st.binary(max_size=60))
@example(CHAT_PATH, b'{"a":1,"a":{"a":2,"a":3}}')
@example(CHAT_PATH, b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}")
@example(CHAT_PATH, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
@example(CHAT_PATH, b'{"vllm_xargs":{"kv_cache_report_mode":' + b"[" * 990 + b"]" * 990 + b"}}")
@example(
    CHAT_PATH,
    b'{"x":NaN,"vllm_xargs":{"kv_cache_report_mode":1,"y":' + b"[" * 980 + b"]" * 980 + b"}}",
)
@example(COMPLETIONS_PATH, b'{"prompt":' + b"1" * 4400 + b"}")
@example(COMPLETIONS_PATH, b'{"prompt":[' + b"9" * 4000 + b"]}")
def test_any_bytes_are_parsed_or_refused(path: str, body: bytes) -> None:
    """Nothing but BadRequest comes out, whatever comes in."""
    request = parsed(path, body)
    if request is not None:
        check(request, body)


@settings(max_examples=200, suppress_health_check=SLOW)
@given(path=paths, fields=bodies, cut=st.integers(0, 200), junk=st.binary(max_size=4))
def test_any_broken_object_is_parsed_or_refused(
    path: str, fields: dict[str, Any], cut: int, junk: bytes
) -> None:
    """Bodies that were cut or damaged on the way."""
    body = json.dumps(fields).encode()
    broken = body[:cut] + junk + body[cut + 1 :]
    request = parsed(path, broken)
    if request is not None:
        check(request, broken)
        opaque = [isinstance(prompt, OpaquePrompt) for prompt in request.prompts]
        assert len(opaque) == len(request.prompts)
