"""What becomes of a request before it is routed: named changes, and what it is counted under."""

import json
import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from router.openai import CHAT_PATH, COMPLETIONS_PATH, parse_request
from router.preparation import PoolPractices, Preparation, Prepared
from router.prompts import ChatPrompt
from router.salting import Tenancy
from router.tenancy_config import RuleConfig, TenancyConfig

CANONICAL = PoolPractices(canonical_tools=True)


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ORDERED = [
    {"function": {"name": "a", "parameters": {"x": 1, "y": 2}}, "type": "function"},
    {"function": {"name": "b", "parameters": {}}, "type": "function"},
]
UNORDERED = [tool("b"), tool("a", y=2, x=1)]


def prepare(
    body: bytes | dict[str, Any],
    practices: PoolPractices = CANONICAL,
    path: str = CHAT_PATH,
    preparation: Preparation | None = None,
    **headers: str,
) -> Prepared:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    preparation = preparation or Preparation({"p": practices})
    parsed = parse_request(path, raw, headers, preparation.known_tools)
    return preparation.prepare(parsed, "p", CIMultiDict(headers))


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def test_tools_are_put_in_order_where_the_pool_is_configured_so() -> None:
    """The body that goes on and the prompt that is hashed have the same canonical tools."""
    prepared = prepare(chat(tools=UNORDERED))
    sent = json.loads(prepared.request.body)
    (prompt,) = prepared.request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert json.dumps(sent["tools"]) == json.dumps(ORDERED) == json.dumps(prompt.body["tools"])
    assert prepared.request.transformed == ("canonical_tools",)


def test_tools_stay_where_nobody_asked_for_an_order() -> None:
    """It is off by default: the very bytes received go on."""
    body = json.dumps(chat(tools=UNORDERED)).encode()
    prepared = prepare(body, PoolPractices())
    assert prepared.request.body is body and prepared.request.transformed == ()


def test_tools_that_are_in_order_are_not_written_anew() -> None:
    """Spaces are no reason to touch a body."""
    body = json.dumps(chat(tools=ORDERED), indent=1).encode()
    prepared = prepare(body)
    assert prepared.request.body is body and prepared.request.transformed == ()


def test_what_is_not_for_us_to_order_is_not_touched() -> None:
    """Tools that the engine would refuse, a completion's, and those in a body of lenient JSON."""
    for body in (
        json.dumps(chat(tools=[{"type": "custom"}, *UNORDERED])).encode(),
        json.dumps(chat(tools=[])).encode(),
        json.dumps(chat(tools="b a")).encode(),
        json.dumps(chat(tools=UNORDERED, temperature=float("nan"))).encode(),
    ):
        assert prepare(body).request.body is body
    body = json.dumps({"prompt": "x", "tools": UNORDERED}).encode()
    assert prepare(body, path=COMPLETIONS_PATH).request.body is body


_members = st.dictionaries(
    st.sampled_from(["seed", "x", "ü", "metadata", "Tools"]) | st.text(max_size=3),
    st.sampled_from(
        ["1E2", "1.50", "123456789012345678901234567890", '"\\u00fc"', "[ 1,2 ]", '{ "b":1,"a":2 }']
    ),
    max_size=5,
)


@settings(deadline=None)
@given(_members, st.randoms(use_true_random=False))
def test_every_byte_outside_the_tools_stays(members: dict[str, str], rng: random.Random) -> None:
    """Numbers, escapes, spaces and key orders of all other members are those that were sent."""
    members = {"tools": json.dumps(UNORDERED), "messages": '[ {"role":"user"} ]'} | {
        key: value for key, value in members.items() if key not in ("tools", "messages")
    }
    keys = list(members)
    rng.shuffle(keys)
    body = f"{{{' , '.join(f'{json.dumps(key)} : {members[key]}' for key in keys)}}}".encode()
    sent = msgspec.json.decode(prepare(body).request.body, type=dict[str, msgspec.Raw])
    assert list(sent) == keys
    assert {k: bytes(v).decode() for k, v in sent.items() if k != "tools"} == {
        k: v for k, v in members.items() if k != "tools"
    }
    assert json.loads(bytes(sent["tools"])) == ORDERED


def test_a_key_that_is_written_with_escapes_is_the_same_key() -> None:
    """Whether there are tools is decided on the parsed body."""
    body = json.dumps(chat(tools=UNORDERED)).replace('"tools"', '"t\\u006fols"').encode()
    assert json.loads(prepare(body).request.body)["tools"] == ORDERED


def test_several_changes_are_made_together_and_named() -> None:
    """The report mode, the tools and the salt; each name is there once."""
    rules = [RuleConfig("all", "tenant", "refuse")]
    tenancy = Tenancy(TenancyConfig(tenant_header="x-tenant", rules=rules), "s" * 32)
    preparation = Preparation({"p": CANONICAL}, tenancy)
    body = chat(tools=UNORDERED, vllm_xargs={"kv_cache_report_mode": "full", "a": 1.5})
    prepared = prepare(body, preparation=preparation, **{"x-tenant": "acme"})
    sent = json.loads(prepared.request.body)
    assert prepared.request.transformed == (
        "kv_cache_report_mode",
        "canonical_tools",
        "cache_salt",
    )
    assert sent["vllm_xargs"] == {"a": 1.5} and sent["tools"] == ORDERED
    assert sent["cache_salt"] and sent["cache_salt"] == prepared.request.cache_salt


def test_a_step_without_tools_between_steps_with_tools_is_seen() -> None:
    """In both directions, and only within one conversation and one system text."""
    preparation = Preparation({"p": PoolPractices()})

    def alternated(session: str, **fields: Any) -> bool:
        return prepare(chat(user=session, **fields), preparation=preparation).tools_alternated

    system = [{"role": "system", "content": "title"}, {"role": "user", "content": "x"}]
    assert not alternated("s", tools=UNORDERED)
    assert not alternated("s", tools=UNORDERED)
    assert not alternated("other")
    assert not alternated("s", messages=system)
    assert not alternated("s", tools=UNORDERED, tool_choice="none")
    assert alternated("s")
    assert not alternated("s")
    assert alternated("s", tools=UNORDERED)


def test_without_a_session_a_conversation_is_known_by_its_beginning() -> None:
    """An agent that names no session repeats its first message in every step."""
    preparation = Preparation({"p": PoolPractices()})
    steps = [
        [{"role": "user", "content": [{"type": "text", "text": "book"}]}],
        [{"role": "user", "content": "book"}, {"role": "assistant", "content": "ok"}],
        [{"role": "user", "content": "something else"}],
    ]
    with_tools = prepare(chat(messages=steps[0], tools=UNORDERED), preparation=preparation)
    assert not with_tools.tools_alternated
    assert prepare(chat(messages=steps[1]), preparation=preparation).tools_alternated
    assert not prepare(chat(messages=steps[2]), preparation=preparation).tools_alternated


def test_where_engines_leave_unused_tools_out_tool_choice_none_is_a_step_without() -> None:
    """Then the prefix is lost with it, and the fingerprint is that of no tools."""
    excluding = PoolPractices(excludes_unused_tools=True)
    preparation = Preparation({"p": excluding})
    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    body = chat(messages=system, tools=UNORDERED)
    first = prepare(body, preparation=preparation)
    unused = prepare(body | {"tool_choice": "none"}, preparation=preparation)
    assert unused.tools_alternated and unused.unused_tools
    without = prepare(chat(messages=system), preparation=preparation)
    assert first.fingerprint != unused.fingerprint == without.fingerprint
