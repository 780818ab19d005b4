"""Request bodies: what prompts are in them, and which bytes go on."""

import json
from typing import Any

import pytest

from router.openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    BadRequest,
    ChatPrompt,
    OpaquePrompt,
    ParsedRequest,
    TextPrompt,
    TokenPrompt,
    Truncation,
    error_body,
    parse_request,
)
from router.prompts import HASHED_PROMPTS_MAX

HELLO = [{"role": "user", "content": "Hello"}]


def chat(headers: dict[str, str] | None = None, **fields: Any) -> ParsedRequest:
    body = json.dumps({"messages": HELLO, **fields}).encode()
    return parse_request(CHAT_PATH, body, headers or {})


def completion(**fields: Any) -> ParsedRequest:
    return parse_request(COMPLETIONS_PATH, json.dumps(fields).encode(), {})


def test_a_body_is_forwarded_as_the_very_bytes_received() -> None:
    """Odd spacing, escapes, unknown fields and numbers stay as they were written."""
    body = b' {"messages" : [ {"role":"user","content":"\\u00fc"} ],\n "x":1.50, "seed":1E2}\n'
    request = parse_request(CHAT_PATH, body, {})
    assert request.body is body
    assert request.transformed == ()


@pytest.mark.parametrize("key", ["kv_cache_report_mode", "kv_cache_report_m\\u006fde"])
def test_the_report_mode_is_removed_and_all_other_values_keep_their_bytes(key: str) -> None:
    """The key is found however it is written, and only it is dropped."""
    body = (
        '{"messages":[ {"role":"user", "content":"\\u00fc"} ],"vllm_xargs":{"a":1.50,"'
        + key
        + '":"full", "b":[ 1 ]}, "seed": 1E2, "big":123456789012345678901234567890}'
    ).encode()
    request = parse_request(CHAT_PATH, body, {})
    assert request.transformed == ("kv_cache_report_mode",)
    assert b'[ {"role":"user", "content":"\\u00fc"} ]' in request.body
    assert b'"vllm_xargs":{"a":1.50,"b":[ 1 ]}' in request.body
    assert b'"seed":1E2' in request.body
    expected = json.loads(body)
    del expected["vllm_xargs"]["kv_cache_report_mode"]
    assert json.loads(request.body) == expected


def test_the_report_mode_in_a_text_is_no_reason_to_touch_a_body() -> None:
    """Whether the key is there is decided on the parsed object."""
    request = chat(note='"vllm_xargs": {"kv_cache_report_mode": "full"}', vllm_xargs={"x": 1})
    assert request.transformed == ()


def test_the_report_mode_is_removed_from_a_body_that_only_python_can_parse() -> None:
    """Such a body is written anew, with its NaN and its surrogates."""
    body = (
        b'{"messages":[{"role":"user","content":"\\ud800"}],"temperature":NaN,'
        b'"vllm_xargs":{"kv_cache_report_mode":"full"}}'
    )
    request = parse_request(CHAT_PATH, body, {})
    assert b"kv_cache_report_mode" not in request.body
    assert json.loads(request.body)["messages"][0]["content"] == "\ud800"
    assert request.transformed == ("kv_cache_report_mode",)
    assert isinstance(request.prompts[0], OpaquePrompt)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"\\udc00"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'\xef\xbb\xbf{"messages":[{"role":"user","content":"a"}]}',
        '{"messages":[{"role":"user","content":"a"}]}'.encode("utf-16"),
        b'{"messages":[{"role":"user","content":"a"}],"seed":1e999}',
    ],
)
def test_what_only_python_can_parse_is_passed_on_without_being_read(body: bytes) -> None:
    """The engine parses with Python's parser, so it is for the engine to refuse."""
    request = parse_request(CHAT_PATH, body, {})
    assert request.body is body
    assert all(isinstance(prompt, OpaquePrompt) for prompt in request.prompts)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b"\xff",
        b"[" * 200_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:8]),
)
def test_what_no_parser_takes_is_refused_in_openais_form(body: bytes) -> None:
    """A body that holds no object cannot be routed: 400, with an error its client understands."""
    with pytest.raises(BadRequest) as refused:
        parse_request(CHAT_PATH, body, {})
    assert refused.value.status == 400
    error = refused.value.body()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_an_error_body_is_json() -> None:
    """Text of any kind is escaped."""
    error = json.loads(error_body('say "no"\n', "server_error", code="busy"))
    assert error == {
        "error": {"message": 'say "no"\n', "type": "server_error", "param": None, "code": "busy"}
    }


def test_of_duplicate_keys_the_last_counts() -> None:
    """As in the engine's parser."""
    body = b'{"model":"a","messages":1,"model":"b","messages":[{"role":"user","content":"x"}]}'
    request = parse_request(CHAT_PATH, body, {})
    assert request.model == "b"
    assert isinstance(request.prompts[0], ChatPrompt)


@pytest.mark.parametrize(
    ("fields", "headers", "session"),
    [
        ({"prompt_cache_key": "k", "session_id": "s", "user": "u"}, {"X-Session-ID": "h"}, "k"),
        ({"session_id": "s", "user": "u"}, {"X-Session-ID": "h"}, "h"),
        ({"session_id": "s", "user": "u"}, {}, "s"),
        ({"prompt_cache_key": "", "session_id": 5, "user": "u"}, {}, "u"),
        ({}, {}, None),
        ({"user": "u" * 1000}, {}, "u" * 256),
        ({}, {"X-Session-ID": "\udcff"}, None),
    ],
)
def test_a_session_is_the_first_usable_of_four_sources(
    fields: dict[str, Any], headers: dict[str, str], session: str | None
) -> None:
    """prompt_cache_key, X-Session-ID, session_id, user; cut to a bounded length."""
    assert chat(headers, **fields).session == session


def test_everything_that_counts_in_flight_is_counted() -> None:
    """n sequences for each prompt of a list."""
    assert chat(n=3).sequences == 3
    assert completion(prompt=["a", "b"], n=2).sequences == 4
    assert completion(prompt=[[1], [2], [3]]).sequences == 3
    assert completion(prompt=[1, 2, 3]).sequences == 1
    assert completion(prompt=["a"] * (HASHED_PROMPTS_MAX + 1)).sequences == HASHED_PROMPTS_MAX + 1
    assert completion(prompt_embeds=["x", "y"], prompt="a").sequences == 3


@pytest.mark.parametrize("n", [0, -1, True, None, "2", 2.0, 10**30, [1]])
def test_an_n_that_the_engine_refuses_counts_as_one(n: Any) -> None:
    """Nothing runs for such a request."""
    assert chat(n=n).n == 1


def test_completion_prompts_of_every_form() -> None:
    """A text, ids, and lists of both."""
    assert completion(prompt="a").prompts == (TextPrompt("a", True, None),)
    assert completion(prompt=["a", ""], add_special_tokens=False).prompts == (
        TextPrompt("a", False),
        TextPrompt("", False),
    )
    (only,) = completion(prompt=[1, 2**32 - 1]).prompts
    assert isinstance(only, TokenPrompt) and list(only.token_ids) == [1, 2**32 - 1]
    first, second = completion(prompt=[[1, 2], [3]]).prompts
    assert isinstance(first, TokenPrompt) and list(first.token_ids) == [1, 2]
    assert isinstance(second, TokenPrompt) and list(second.token_ids) == [3]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [[1], []]},
        {"prompt": [1, "a"]},
        {"prompt": [1, True]},
        {"prompt": [1, -1]},
        {"prompt": [1, 2**32]},
        {"prompt": [1.0]},
        {"prompt": {"a": 1}},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "prompt_embeds": "b"},
        {"prompt": "a", "add_special_tokens": "yes"},
        {"prompt": "a", "truncate_prompt_tokens": -2},
        {"prompt": "a", "truncate_prompt_tokens": True},
        {"prompt": "a", "truncate_prompt_tokens": 5, "truncation_side": "middle"},
        {"prompt": [1, 2], "truncate_prompt_tokens": -1},
        {"prompt": [1, 2], "truncate_prompt_tokens": 0},
        {"prompt": ["a"] * (HASHED_PROMPTS_MAX + 1)},
    ],
)
def test_what_is_not_certain_is_opaque(fields: dict[str, Any]) -> None:
    """No prompt is guessed from a body that the engine refuses or reads in its own way."""
    prompts = completion(**fields).prompts
    assert prompts
    assert all(isinstance(prompt, OpaquePrompt) for prompt in prompts)


def test_token_prompts_are_truncated_at_once_and_texts_later() -> None:
    """From the left unless the body says otherwise."""
    (left,) = completion(prompt=[1, 2, 3], truncate_prompt_tokens=2).prompts
    assert isinstance(left, TokenPrompt) and list(left.token_ids) == [2, 3]
    (right,) = completion(
        prompt=[1, 2, 3], truncate_prompt_tokens=2, truncation_side="right"
    ).prompts
    assert isinstance(right, TokenPrompt) and list(right.token_ids) == [1, 2]
    (text,) = completion(prompt="a b", truncate_prompt_tokens=2).prompts
    assert text == TextPrompt("a b", True, Truncation(2, "left"))


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "x",
        ["x"],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}],
        [{"role": "user", "content": [{"text": "a"}]}],
        [{"role": "user", "content": [{"type": ["text"]}]}],
        [{"role": "user", "content": [5]}],
    ],
)
def test_chats_with_media_or_no_messages_are_opaque(messages: Any) -> None:
    """Images become tokens that only the engine knows."""
    assert isinstance(chat(messages=messages).prompts[0], OpaquePrompt)


def test_ids_in_kv_transfer_params_replace_a_chats_messages() -> None:
    """As in the engine, which ignores them with echo and refuses bad ones."""
    (prompt,) = chat(kv_transfer_params={"prompt_token_ids": [5, 6]}).prompts
    assert isinstance(prompt, TokenPrompt) and list(prompt.token_ids) == [5, 6]
    (echoing,) = chat(kv_transfer_params={"prompt_token_ids": [5]}, echo=True).prompts
    assert isinstance(echoing, ChatPrompt)
    (none,) = chat(kv_transfer_params={"prompt_token_ids": []}).prompts
    assert isinstance(none, ChatPrompt)
    (bad,) = chat(kv_transfer_params={"prompt_token_ids": [-1]}).prompts
    assert isinstance(bad, OpaquePrompt)


@pytest.mark.parametrize(
    ("path", "fields", "reads"),
    [
        (CHAT_PATH, {}, True),
        (CHAT_PATH, {"prompt_logprobs": 0}, False),
        (CHAT_PATH, {"prompt_logprobs": None}, True),
        (CHAT_PATH, {"echo": True}, False),
        (COMPLETIONS_PATH, {"echo": True}, True),
        (COMPLETIONS_PATH, {"echo": True, "logprobs": 1}, False),
        (COMPLETIONS_PATH, {"logprobs": 1}, True),
        (COMPLETIONS_PATH, {"prompt_logprobs": 5}, False),
    ],
)
def test_requests_that_compute_their_whole_prompt_are_known(
    path: str, fields: dict[str, Any], reads: bool
) -> None:
    """With logprobs of the prompt the engine reads nothing from its cache."""
    body = json.dumps({"messages": HELLO, "prompt": "a", **fields}).encode()
    assert parse_request(path, body, {}).reads_cache is reads


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("cache_salt", "s", "s"),
        ("cache_salt", "", None),
        ("cache_salt", 5, None),
        ("model", "m", "m"),
        ("model", None, None),
        ("model", ["m"], None),
    ],
)
def test_texts_are_taken_only_where_they_are_texts(field: str, value: Any, expected: Any) -> None:
    """Anything else is absent, never turned into a text."""
    assert getattr(chat(**{field: value}), field) == expected


def test_twenty_megabytes_are_parsed() -> None:
    """A large body is no special case."""
    text = "ü" * 10_000_000
    request = chat(messages=[{"role": "user", "content": text}])
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.body["messages"][0]["content"] == text
